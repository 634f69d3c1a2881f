r"""Small networks for vectors, signals and images, with codes that have places.

Images and signals are read by convolutions on a grid that halves two or three times. At a quarter
of the resolution every place has the same few *kinds* of factors, so the number of weights does
not grow with the image. Vectors have no places: their networks are MLPs, their codes dense.

:class:`Frame` says how data of one shape lie on the grid; :class:`Reader` reads maps and returns
maps of the same size, or numbers for every place, or both; :class:`PlaceEncoder` and
:class:`PlaceDecoder` lead from residuals to codes and back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vspair.networks.autoencoders import mlp

__all__ = ["Domain", "Frame", "PlaceDecoder", "PlaceEncoder", "Reader"]

Domain = Literal["vector", "signal", "image"]

STRIDE = 4
"""Pixels from one place to the next."""


@dataclass(frozen=True)
class Frame:
    """How unknowns of one shape lie on the grid of places.

    Arguments:
        shape: The shape of one unknown: (n,), (H, W) or (C, H, W).
        domain: Whether a vector (n,) is a ``signal``, whose neighbours belong together, or a mere
            ``vector``; ``image`` otherwise.
    """

    shape: tuple[int, ...]
    domain: Domain

    @property
    def size(self) -> tuple[int, ...]:
        """Height and width of an image, the length of a signal, nothing of a vector."""
        return {"vector": (), "signal": self.shape[-1:], "image": self.shape[-2:]}[self.domain]

    @property
    def channels(self) -> int:
        """The numbers at each pixel; of a vector, all its entries."""
        return math.prod(self.shape) // math.prod(self.size)

    @property
    def places(self) -> tuple[int, ...]:
        """How many places there are along each side."""
        return tuple(math.ceil(side / STRIDE) for side in self.size)

    def maps(self, x: Tensor) -> Tensor:
        """Return data of shape (B, *shape), or stacked (B, P, *shape), as (B, C, *size)."""
        return x.reshape(len(x), -1, *self.size)

    def pad(self, maps: Tensor) -> Tensor:
        """Return maps (B, C, *size) continued by their border to whole places."""
        missing = [STRIDE * p - s for p, s in zip(self.places, self.size, strict=True)]
        if not any(missing):
            return maps
        return F.pad(maps, [n for m in reversed(missing) for n in (0, m)], mode="replicate")

    def crop(self, maps: Tensor) -> Tensor:
        """Return padded maps without what was added, with shape (B, C, *size)."""
        for dim, side in enumerate(self.size, start=2):
            maps = maps.narrow(dim, 0, side)
        return maps


def _conv(dims: int, i: int, o: int, size: int = 3, stride: int = 1) -> nn.Module:
    kind = nn.Conv2d if dims == 2 else nn.Conv1d
    return kind(i, o, size, stride, size // 2)


class _Block(nn.Module):
    """Convolution, norm, SiLU; beside the identity where nothing changes its shape."""

    def __init__(self, dims: int, i: int, o: int, stride: int = 1) -> None:
        super().__init__()
        norm = nn.BatchNorm2d if dims == 2 else nn.BatchNorm1d
        self.conv, self.norm = _conv(dims, i, o, stride=stride), norm(o)
        self.same = i == o and stride == 1

    def forward(self, h: Tensor) -> Tensor:
        new = F.silu(self.norm(self.conv(h)))
        return h + new if self.same else new


def _blocks(dims: int, *widths: int, halve: bool = False) -> nn.Sequential:
    strides = [2 if halve else 1] + [1] * len(widths)
    steps = zip(pairwise(widths), strides, strict=False)
    return nn.Sequential(*(_Block(dims, i, o, stride) for (i, o), stride in steps))


def _to_depth(h: Tensor) -> Tensor:
    """Halve each side, the neighbours becoming channels."""
    if h.ndim == 4:
        return F.pixel_unshuffle(h, 2)
    b, c, n = h.shape
    return h.reshape(b, c, n // 2, 2).transpose(2, 3).reshape(b, 2 * c, n // 2)


def _to_space(h: Tensor) -> Tensor:
    """Double each side, the inverse of :func:`_to_depth`."""
    if h.ndim == 4:
        return F.pixel_shuffle(h, 2)
    b, c, n = h.shape
    return h.reshape(b, c // 2, 2, n).transpose(2, 3).reshape(b, c // 2, 2 * n)


def _double(h: Tensor, size: torch.Size) -> Tensor:
    """Repeat pixels up to a size."""
    return F.interpolate(h, size=size, mode="nearest")


class Reader(nn.Module):
    """Reads feature maps; returns maps of their size, numbers for every place, or both.

    A U-Net of three sizes for images and signals, an MLP for vectors, which have one place. Maps
    are zero before anything is trained.

    Arguments:
        frame: The grid.
        channels: The features at each pixel; of vectors, all of them.
        maps: How many maps to return, in multiples of the unknown's channels.
        numbers: How many numbers to return for every place.
        width: The channels of the first convolutions, or a quarter of an MLP's width.
        dropout: The share of an MLP's hidden numbers that are left out of each training step.
    """

    def __init__(
        self,
        frame: Frame,
        channels: int,
        *,
        maps: int = 0,
        numbers: int = 0,
        width: int = 32,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.frame, dims = frame, len(frame.size)
        self.maps: nn.Module | None = None
        self.numbers: nn.Module | None = None
        if dims == 0:
            wide = 4 * width
            self.trunk = nn.Sequential(
                mlp([channels, wide, wide, wide], nn.SiLU, dropout), nn.SiLU(), nn.Dropout(dropout)
            )
            self.maps = nn.Linear(wide, maps * frame.channels) if maps else None
            self.numbers = nn.Linear(wide, numbers) if numbers else None
        else:
            self.near = _blocks(dims, 2**dims * channels, width, width)
            self.mid = _blocks(dims, width, 2 * width, 2 * width, halve=True)
            self.far = _blocks(dims, 2 * width, 2 * width, 2 * width, halve=True)
            self.join = _blocks(dims, 4 * width, 2 * width)
            if maps:
                out = _conv(dims, width, 2**dims * maps * frame.channels)
                self.up = _blocks(dims, 3 * width, width, width)
                self.maps = out
            self.numbers = _conv(dims, 2 * width, numbers, 1) if numbers else None
        if self.maps is not None:
            for parameter in self.maps.parameters():
                nn.init.zeros_(parameter)

    def forward(self, features: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return maps (B, maps * C, *size) and numbers (B, numbers, *places), where asked for."""
        if not self.frame.size:
            h = self.trunk(features)
            return (
                None if self.maps is None else self.maps(h),
                None if self.numbers is None else self.numbers(h),
            )
        near = self.near(_to_depth(self.frame.pad(features)))
        mid = self.mid(near)
        far = self.far(mid)
        mid = self.join(torch.cat((mid, _double(far, mid.shape[2:])), 1))
        maps = None
        if self.maps is not None:
            h = self.up(torch.cat((near, _double(mid, near.shape[2:])), 1))
            maps = self.frame.crop(_to_space(self.maps(h)))
        return maps, None if self.numbers is None else self.numbers(mid)


class PlaceEncoder(nn.Module):
    """From residuals to the numbers that a code is read from.

    Arguments:
        frame: The grid.
        channels: The channels that are read at each pixel.
        numbers: How many numbers to return for every place.
        width: The channels of the first convolutions, or an eighth of an MLP's width.
    """

    def __init__(self, frame: Frame, channels: int, numbers: int, width: int = 16) -> None:
        super().__init__()
        self.frame, dims = frame, len(frame.size)
        if dims == 0:
            wide = 8 * width
            self.layers: nn.Module = mlp([channels, wide, wide, numbers], nn.SiLU)
        else:
            self.layers = nn.Sequential(
                _blocks(dims, 2**dims * channels, 2 * width, 2 * width),
                _blocks(dims, 2 * width, 4 * width, 4 * width, halve=True),
                _conv(dims, 4 * width, numbers, 1),
            )

    def forward(self, maps: Tensor) -> Tensor:
        """Return numbers, with shape (B, numbers, *places)."""
        if not self.frame.size:
            return self.layers(maps)
        return self.layers(_to_depth(self.frame.pad(maps)))


class PlaceDecoder(nn.Module):
    """From latents to normalised residuals; where no factor is present there is none, d(0) = 0.

    Arguments:
        frame: The grid.
        kinds: The number of kinds of factors at each place.
        width: The channels of the last convolutions, or an eighth of an MLP's width.
    """

    def __init__(self, frame: Frame, kinds: int, width: int = 16) -> None:
        super().__init__()
        self.frame, self.kinds, dims = frame, kinds, len(frame.size)
        if dims == 0:
            wide = 8 * width
            self.straight: nn.Module | None = nn.Linear(kinds, frame.channels, bias=False)
            self.layers = mlp([kinds, wide, wide, frame.channels], nn.SiLU)
        else:
            self.straight = None
            self.coarse = nn.Sequential(
                _conv(dims, kinds, 4 * width),
                nn.SiLU(),
                _conv(dims, 4 * width, 2 * width),
                nn.SiLU(),
            )
            self.layers = nn.Sequential(
                _conv(dims, 2 * width, 2 * width),
                nn.SiLU(),
                _conv(dims, 2 * width, 2**dims * frame.channels),
            )

    @torch.no_grad()
    def scale(self, factor: float) -> None:
        """Multiply all residuals that are decoded by a factor."""
        for layer in (self.straight, self.layers[-1]):
            for parameter in () if layer is None else layer.parameters():
                parameter.mul_(factor)

    def _plain(self, z: Tensor) -> Tensor:
        if self.straight is not None:
            return self.straight(z) + self.layers(z)
        h = self.coarse(z.unflatten(1, (self.kinds, *self.frame.places)))
        fine = torch.Size(2 * p for p in self.frame.places)
        return self.frame.crop(_to_space(self.layers(_double(h, fine))))

    def forward(self, z: Tensor) -> Tensor:
        """Return residuals of shape (B, *shape) for latents of shape (B, kinds * places)."""
        maps = self._plain(torch.cat((z, torch.zeros_like(z[:1]))))
        return (maps[:-1] - maps[-1:]).reshape(len(z), *self.frame.shape)
