r"""The paper's networks (appendix D), for any input size and depth.

An encoder is a *trunk* that turns data into features and one linear *head* that predicts the
numbers a code is read from; a decoder turns a latent vector back into data; a latent map reads
one code and returns another. Data has shape (B, \*shape), where ``shape`` is (n,) for vectors,
(H, W) for images and (C, H, W) for images with channels.

Convolutional trunks halve the image ``depth`` times. A side that 2^depth does not divide is
padded to the next multiple by repeating the border, half of it on each side, and the decoder
crops what it made of the padding: no pixel is dropped and every side length works.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vspair.codes import Factorised, Family

__all__ = [
    "ConvDecoder",
    "Decoder",
    "Encoder",
    "Grid",
    "LatentMap",
    "MLPDecoder",
    "NetworkConfig",
    "NetworkName",
    "Upsample",
    "evaluating",
    "exactly",
    "mlp",
]

NetworkName = Literal["auto", "mlp", "conv"]


@dataclass(frozen=True)
class NetworkConfig:
    """The size of an encoder and its decoder.

    Arguments:
        kind: ``mlp``, ``conv``, or ``auto``: convolutions for images, an MLP for vectors.
        width: The hidden width of an MLP, or the channels of the first convolution, which
            double at every halving.
        depth: The hidden layers of an MLP, or how often a convolutional trunk halves the image.
    """

    kind: NetworkName = "auto"
    width: int = 16
    depth: int = 1

    def resolve(self, shape: tuple[int, ...]) -> Literal["mlp", "conv"]:
        """Return the kind of network for data of one shape."""
        if self.kind == "auto":
            return "mlp" if len(shape) == 1 else "conv"
        return self.kind


def mlp(sizes: list[int], activation: type[nn.Module], dropout: float = 0.0) -> nn.Sequential:
    """Create linear layers with layer norm and an activation between them, and dropout if any."""
    layers: list[nn.Module] = []
    for i, o in pairwise(sizes[:-1]):
        layers += [nn.Linear(i, o), nn.LayerNorm(o), activation()]
        layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


def exactly(layer: nn.Module, h: Tensor) -> Tensor:
    """Apply a last layer in the precision of its weights, also under autocast."""
    if not torch.is_autocast_enabled(h.device.type):
        return layer(h)
    with torch.autocast(h.device.type, enabled=False):
        return layer(h.float())


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode, and every part of it back into the mode it was in."""
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _conv(i: int, o: int, bias: bool = False) -> nn.Conv2d:
    return nn.Conv2d(i, o, kernel_size=3, padding=1, bias=bias)


class Upsample(nn.Module):
    """Doubles height and width by repeating pixels.

    Compiled for a CPU, written as expand and reshape: torch 2.13 silently zeroes the gradient of
    the plain way there, with bfloat16 autocast.
    """

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        if x.is_cuda or not torch.compiler.is_compiling():
            return F.interpolate(x, scale_factor=2, mode="nearest")
        b, c, h, w = x.shape
        return x[:, :, :, None, :, None].expand(b, c, h, 2, w, 2).reshape(b, c, 2 * h, 2 * w)


def _encoder_block(i: int, o: int) -> nn.Sequential:
    return nn.Sequential(
        _conv(i, o),
        nn.BatchNorm2d(o),
        nn.SiLU(),
        _conv(o, o),
        nn.BatchNorm2d(o),
        nn.AvgPool2d(2),
    )


def _decoder_block(i: int, o: int) -> nn.Sequential:
    return nn.Sequential(Upsample(), _conv(i, i), nn.BatchNorm2d(i), nn.SiLU(), _conv(i, o))


@dataclass(frozen=True)
class Grid:
    """How an image of one shape sits on a grid that halves ``depth`` times."""

    shape: tuple[int, ...]
    depth: int

    @property
    def channels(self) -> int:
        """Channels of the image; 1 where its shape names none."""
        return self.shape[0] if len(self.shape) == 3 else 1

    @property
    def coarse(self) -> tuple[int, int]:
        """Height and width after the last halving."""
        h, w = self.shape[-2:]
        return math.ceil(h / 2**self.depth), math.ceil(w / 2**self.depth)

    @property
    def padding(self) -> tuple[int, int, int, int]:
        """Border pixels to add: left, right, top, bottom."""
        h, w = (2**self.depth * c - s for c, s in zip(self.coarse, self.shape[-2:], strict=True))
        return w // 2, w - w // 2, h // 2, h - h // 2

    def pad(self, x: Tensor) -> Tensor:
        """Return images of shape (B, *shape) as (B, C, H', W')."""
        x = x.reshape(-1, self.channels, *self.shape[-2:])
        return F.pad(x, self.padding, mode="replicate") if any(self.padding) else x

    def crop(self, x: Tensor) -> Tensor:
        """Return images of shape (B, C, H', W') as (B, *shape)."""
        left, _, top, _ = self.padding
        h, w = self.shape[-2:]
        return x[:, :, top : top + h, left : left + w].reshape(-1, *self.shape)


class _ConvTrunk(nn.Module):
    """Stem convolution, then blocks that double the channels and halve the image."""

    def __init__(self, shape: tuple[int, ...], config: NetworkConfig) -> None:
        super().__init__()
        self.grid = Grid(shape, config.depth)
        widths = [config.width * 2**i for i in range(config.depth + 1)]
        blocks = (_encoder_block(i, o) for i, o in pairwise(widths))
        self.layers = nn.Sequential(_conv(self.grid.channels, widths[0], bias=True), *blocks)
        self.out_features = widths[-1] * math.prod(self.grid.coarse)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.grid.pad(x)).flatten(1)


class _MLPTrunk(nn.Module):
    def __init__(self, shape: tuple[int, ...], config: NetworkConfig) -> None:
        super().__init__()
        self.layers = mlp([math.prod(shape)] + [config.width] * (config.depth + 1), nn.SiLU)
        self.out_features = config.width

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.flatten(1))


class Encoder(nn.Module):
    """Encodes data as a code: a trunk, then one linear head for all parameters.

    One head of width heads * l computes the same as the paper's parallel heads of width l.

    Arguments:
        shape: The shape of one datum.
        family: Reads the code.
        config: The trunk's size.
    """

    def __init__(self, shape: tuple[int, ...], family: Family, config: NetworkConfig) -> None:
        super().__init__()
        self.family = family
        trunk = _ConvTrunk if config.resolve(shape) == "conv" else _MLPTrunk
        self.trunk: _ConvTrunk | _MLPTrunk = trunk(shape, config)
        self.head = nn.Linear(self.trunk.out_features, family.width)

    def forward(self, x: Tensor) -> Factorised:
        """Return the code of data of shape (B, *shape)."""
        return self.family.read(exactly(self.head, self.trunk(x)))


class ConvDecoder(nn.Module):
    """Lifts a latent vector to a coarse image, then doubles it and halves the channels."""

    def __init__(self, size: int, shape: tuple[int, ...], config: NetworkConfig) -> None:
        super().__init__()
        self.grid = Grid(shape, config.depth)
        widths = [config.width * 2**i for i in range(config.depth, -1, -1)]
        self.coarse = (widths[0], *self.grid.coarse)
        self.lift = nn.Linear(size, math.prod(self.coarse))
        blocks = (_decoder_block(i, o) for i, o in pairwise(widths))
        self.layers = nn.Sequential(*blocks, _conv(widths[-1], self.grid.channels, bias=True))

    def forward(self, z: Tensor) -> Tensor:  # noqa: D102
        return self.grid.crop(self.layers(self.lift(z).unflatten(1, self.coarse)))


class MLPDecoder(nn.Module):
    """Linear layers with layer norm, from a latent vector to data of any shape."""

    def __init__(self, size: int, shape: tuple[int, ...], config: NetworkConfig) -> None:
        super().__init__()
        self.shape = shape
        sizes = [size] + [config.width] * (config.depth + 1) + [math.prod(shape)]
        self.layers = mlp(sizes, nn.SiLU)

    def forward(self, z: Tensor) -> Tensor:  # noqa: D102
        return self.layers(z).unflatten(1, self.shape)


class Decoder(nn.Module):
    """Decodes latent vectors of shape (B, l) as data of shape (B, *shape).

    Arguments:
        size: The number of latent dimensions l.
        shape: The shape of one datum.
        config: The network's size, the same as its encoder's.
    """

    def __init__(self, size: int, shape: tuple[int, ...], config: NetworkConfig) -> None:
        super().__init__()
        network = ConvDecoder if config.resolve(shape) == "conv" else MLPDecoder
        self.network = network(size, shape, config)

    def forward(self, z: Tensor) -> Tensor:
        """Return the decoded data."""
        return self.network(z)


class LatentMap(nn.Module):
    """Maps the parameters of one code to another code.

    Arguments:
        source: The family that is read.
        target: The family that is returned.
        hidden: The hidden width; l_source + l_target where not given, as in the paper.
        depth: The number of hidden layers; 0 is a linear map.
    """

    def __init__(
        self, source: Family, target: Family, hidden: int | None = None, depth: int = 2
    ) -> None:
        super().__init__()
        self.family = target
        width = hidden or source.size + target.size
        self.layers = mlp([source.width, *[width] * depth, target.width], nn.ReLU)

    def forward(self, code: Factorised) -> Factorised:
        """Return the target code that belongs to a source code."""
        *hidden, last = self.layers
        h = code.features
        for layer in hidden:
            h = layer(h)
        return self.family.read(exactly(last, h))
