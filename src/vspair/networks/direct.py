"""A small network straight from one kind of data to another, chosen by their shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vspair.networks.autoencoders import Grid, mlp

__all__ = ["DirectMap"]

_LEAST_SIDE = 8
"""Images of smaller sides are treated as vectors."""


def _conv(i: int, o: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(i, o, kernel_size=3, stride=stride, padding=1)


class _Residual(nn.Module):
    """Two convolutions beside the identity, which add nothing before they are trained."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = _conv(channels, channels), _conv(channels, channels)
        for parameter in self.second.parameters():
            nn.init.zeros_(parameter)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.second(F.silu(self.first(F.silu(h))))


class _ConvMap(nn.Module):
    """A U-Net of two sizes, a half and a quarter of the image's, beside one convolution.

    Each size has two residual blocks. There is no norm: one over the few channels of a small
    network would take the image's contrast away.
    """

    def __init__(self, shape_in: tuple[int, ...], shape_out: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.read, self.answer = Grid(shape_in, 2), Grid(shape_out, 2)
        i, o, fine, coarse = self.read.channels, self.answer.channels, width, 2 * width
        self.beside = _conv(i, o)
        self.down = nn.Sequential(_conv(4 * i, fine), _Residual(fine), _Residual(fine))
        self.middle = nn.Sequential(
            _conv(fine, coarse, stride=2),
            _Residual(coarse),
            _Residual(coarse),
            nn.Conv2d(coarse, 4 * fine, kernel_size=1),
            nn.PixelShuffle(2),
        )
        self.up = nn.Sequential(
            _conv(2 * fine, fine), _Residual(fine), nn.SiLU(), _conv(fine, 4 * o)
        )

    def forward(self, images: Tensor) -> Tensor:
        x = self.read.pad(images)
        h = self.down(F.pixel_unshuffle(x, 2))
        h = self.up(torch.cat((h, self.middle(h)), 1))
        return self.answer.crop(self.beside(x) + F.pixel_shuffle(h, 2))


class DirectMap(nn.Module):
    """Maps data of one shape to data of another.

    Images to images of the same height and width go through a small U-Net; all else through an
    MLP with two hidden layers, layer norm and SiLU.

    Arguments:
        shape_in: The shape of what is read, such as (n,), (H, W) or (C, H, W).
        shape_out: The shape of what is returned.
        width: The width of the MLP's hidden layers.
        channels: The channels of the U-Net at half of the image's size; twice that at a quarter.

    Example:
        >>> DirectMap((12,), (2, 3))(torch.zeros(5, 12)).shape
        torch.Size([5, 2, 3])
        >>> DirectMap((8, 9), (3, 8, 9))(torch.zeros(5, 8, 9)).shape
        torch.Size([5, 3, 8, 9])
    """

    def __init__(
        self,
        shape_in: Sequence[int],
        shape_out: Sequence[int],
        *,
        width: int = 192,
        channels: int = 32,
    ) -> None:
        super().__init__()
        a, b = tuple(shape_in), tuple(shape_out)
        self.shape_out = b
        self.layers: nn.Module
        if _same_grid(a, b):
            self.layers = _ConvMap(a, b, channels)
        else:
            sizes = [math.prod(a), width, width, math.prod(b)]
            self.layers = nn.Sequential(nn.Flatten(), mlp(sizes, nn.SiLU))

    def forward(self, data: Tensor) -> Tensor:
        """Return data of shape (B, *shape_out) for data of shape (B, *shape_in)."""
        return self.layers(data).reshape(-1, *self.shape_out)


def _same_grid(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Return whether both are shapes of images of the same, not too small, height and width."""
    images = len(a) in (2, 3) and len(b) in (2, 3)
    return images and a[-2:] == b[-2:] and min(a[-2:]) >= _LEAST_SIDE
