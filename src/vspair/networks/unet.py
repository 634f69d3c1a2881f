r"""The U-Net that the learned baselines share.

Ronneberger, Fischer and Brox, "U-Net: Convolutional Networks for Biomedical Image Segmentation",
MICCAI 2015; residual blocks with a time as in Ho, Jain and Abbeel, "Denoising Diffusion
Probabilistic Models", NeurIPS 2020, and the time's scale and shift as in Dhariwal and Nichol,
"Diffusion Models Beat GANs on Image Synthesis", NeurIPS 2021.

The paper gives the widths (64, 128, 256, 512) and "about 32.3 million" parameters and leaves the
rest open. Here each width has two residual blocks on the way down and two on the way up, each of
the latter joined with what its counterpart made; two more lie at the bottom. Images are halved by
strided convolutions and doubled by repeated pixels and a convolution. There is no attention. With
the time this comes to 32,268,097 parameters, without it to 27,934,017.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vspair.errors import VspairError
from vspair.networks.autoencoders import Grid, Upsample, exactly

__all__ = ["WIDTHS", "UNet", "channels_of"]

WIDTHS = (64, 128, 256, 512)
"""The paper's channels at each size of the image."""

_TIME_FEATURES, _TIME_WIDTH = 256, 512


def _conv(i: int, o: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(i, o, kernel_size=3, stride=stride, padding=1)


def _zero(conv: nn.Conv2d) -> nn.Conv2d:
    """Return a convolution that adds nothing before it is trained."""
    for parameter in conv.parameters():
        nn.init.zeros_(parameter)
    return conv


class _Norm(nn.GroupNorm):
    """Keeps the precision of what it reads, where autocast would return float32."""

    def __init__(self, channels: int) -> None:
        super().__init__(math.gcd(32, channels), channels)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        with torch.autocast(x.device.type, enabled=False):
            return F.group_norm(x, self.num_groups, weight, bias, self.eps)


class _Residual(nn.Module):
    """Two convolutions beside the identity; the time scales and shifts between them."""

    def __init__(self, i: int, o: int, time: bool) -> None:
        super().__init__()
        self.first, self.second = _conv(i, o), _zero(_conv(o, o))
        self.first_norm, self.second_norm = _Norm(i), _Norm(o)
        self.past = nn.Conv2d(i, o, kernel_size=1) if i != o else nn.Identity()
        self.time = nn.Linear(_TIME_WIDTH, 2 * o) if time else None

    def forward(self, x: Tensor, time: Tensor | None) -> Tensor:
        h = self.second_norm(self.first(F.silu(self.first_norm(x))))
        if self.time is not None:
            scale, shift = self.time(time)[:, :, None, None].chunk(2, 1)
            h = h * (1 + scale) + shift
        return self.past(x) + self.second(F.silu(h))


class _Time(nn.Module):
    """Sines and cosines of a time in [0, 1], and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(_TIME_FEATURES, _TIME_WIDTH),
            nn.SiLU(),
            nn.Linear(_TIME_WIDTH, _TIME_WIDTH),
            nn.SiLU(),
        )

    def forward(self, t: Tensor) -> Tensor:
        half = _TIME_FEATURES // 2
        number = torch.arange(half, dtype=t.dtype, device=t.device)  # no copy, no waiting
        frequency = torch.exp(number * (-math.log(1e4) / half))
        angle = 1000 * t[:, None] * frequency
        return self.layers(torch.cat((angle.sin(), angle.cos()), 1))


class UNet(nn.Module):
    """Maps images to images of the same size, at each of several times if asked for.

    A side that the halvings do not divide is padded to the next multiple by repeating the border,
    half of it on each side, and the answer is cropped: every size works.

    Arguments:
        channels_in: The channels of the images that are read.
        channels_out: The channels of those that are returned.
        widths: The channels inside, the image halved between one and the next.
        time: Whether the answer depends on a time.

    Example:
        >>> UNet(1, 1, widths=(8, 16), time=True)(torch.zeros(3, 7, 9), torch.ones(3)).shape
        torch.Size([3, 7, 9])
    """

    def __init__(
        self,
        channels_in: int = 1,
        channels_out: int = 1,
        widths: Sequence[int] = WIDTHS,
        *,
        time: bool = False,
    ) -> None:
        super().__init__()
        if min((channels_in, channels_out, *widths), default=0) < 1 or not widths:
            raise VspairError(
                f"channels_in = {channels_in}, channels_out = {channels_out}, widths = "
                f"{tuple(widths)}: expected at least one width, and numbers above 0."
            )
        self.channels_in, self.channels_out, self.depth = (
            channels_in,
            channels_out,
            len(widths) - 1,
        )
        steps = list(pairwise(widths))

        def pair(i: int, join: int, o: int) -> nn.ModuleList:
            return nn.ModuleList((_Residual(i + join, o, time), _Residual(o + join, o, time)))

        self.time = _Time() if time else None
        self.stem = _conv(channels_in, widths[0])
        first = [pair(widths[0], 0, widths[0])]
        self.down_blocks = nn.ModuleList(first + [pair(i, 0, o) for i, o in steps])
        self.down = nn.ModuleList(_conv(i, i, stride=2) for i, _ in steps)
        self.middle = pair(widths[-1], 0, widths[-1])
        self.up = nn.ModuleList(nn.Sequential(Upsample(), _conv(o, i)) for i, o in reversed(steps))
        self.up_blocks = nn.ModuleList(pair(i, i, i) for i, _ in reversed(steps))
        self.last_norm = _Norm(widths[0])
        self.last = _zero(_conv(widths[0], channels_out))

    def forward(self, x: Tensor, t: Tensor | None = None) -> Tensor:
        """Return images, with shape (B, channels_out, H, W).

        Arguments:
            x: Images, with shape (B, channels_in, H, W); with one channel in and out (B, H, W)
                will do, and is returned.
            t: Times in [0, 1], with shape (B,), where the network was made for them.
        """
        grid, answer = self._grids(x, t)
        time = None if self.time is None else self.time(t)
        h = self.stem(grid.pad(x))
        made: list[Tensor] = []
        for level, blocks in enumerate(self.down_blocks):
            h = self.down[level - 1](h) if level else h
            for block in blocks:  # type: ignore[attr-defined]
                h = block(h, time)
                made.append(h)
        del made[-2:]
        for block in self.middle:
            h = block(h, time)
        for up, blocks in zip(self.up, self.up_blocks, strict=True):
            h = up(h)
            for block in blocks:  # type: ignore[attr-defined]
                h = block(torch.cat((h, made.pop()), 1), time)
        return answer.crop(exactly(self.last, F.silu(self.last_norm(h))))

    def _grids(self, x: Tensor, t: Tensor | None) -> tuple[Grid, Grid]:
        """Return how what is read and what is returned sit on the grid that halves."""
        plain = x.ndim == 3 and self.channels_in == self.channels_out == 1
        if not plain and (x.ndim != 4 or x.shape[1] != self.channels_in):
            raise VspairError(
                f"x has shape {tuple(x.shape)}: expected images of shape (B, "
                f"{self.channels_in}, H, W)."
            )
        given = None if t is None else tuple(t.shape)
        wanted = None if self.time is None else (len(x),)
        if given != wanted:
            raise VspairError(f"t has shape {given}: this network expects {wanted}.")
        size = tuple(x.shape[-2:])
        channels = ((), ()) if plain else ((self.channels_in,), (self.channels_out,))
        return Grid((*channels[0], *size), self.depth), Grid((*channels[1], *size), self.depth)


def channels_of(shape: tuple[int, ...]) -> int:
    """Return the channels of images of shape (H, W) or (C, H, W)."""
    if len(shape) not in (2, 3) or min(shape) < 1:
        raise VspairError(f"shape = {shape}: expected that of one image, (H, W) or (C, H, W).")
    return shape[0] if len(shape) == 3 else 1
