r"""What moving one latent does to a decoded image, for many images and latents at once.

Where latent :math:`j` alone moves by :math:`\delta`, the *change* of the activations is carried
through the decoder, instead of the activations:

- up to the first non-linear step the decoder is affine, so the change is :math:`\delta` times
  one column that all images share, :math:`A e_j`; for the convolutional decoder this reaches
  through lift, first convolution and batch norm;
- a non-linear step takes a change :math:`\Delta` of the activation :math:`h`, which all latents
  of an image share, to :math:`f(h + \Delta) - f(h)`;
- an affine step takes it through its linear part.

This is exact, and decodes less than each moved latent in full would. Two nearly equal images are
never subtracted: where convolutions run in bfloat16 or TF32, their rounding errors are a share of
the change, however small it is, and not of the image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from vspair.errors import VspairError
from vspair.networks.autoencoders import ConvDecoder, MLPDecoder, Upsample, evaluating

__all__ = ["LatentMoves", "squared_changes"]

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class _Step:
    """One step of a decoder: what it does, and its linear part where it is affine."""

    run: Map
    linear: Map | None


def _same(f: Map) -> _Step:
    """Return a step that is linear."""
    return _Step(f, f)


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _upsample(x: Tensor) -> Tensor:
    """Double height and width as the decoder does, but keep the memory format."""
    return F.interpolate(x, scale_factor=2.0, mode="nearest")


def _step(module: nn.Module) -> _Step:
    """Return the step of any module that treats each row alone; unknown ones as non-linear."""
    if isinstance(module, nn.Linear):
        return _Step(module, partial(F.linear, weight=module.weight))
    if isinstance(module, nn.Conv2d):
        return _Step(module, partial(F.conv2d, weight=module.weight, padding=module.padding))
    if isinstance(module, nn.SiLU):
        return _Step(partial(F.silu, inplace=True), None)
    return _same(_upsample) if isinstance(module, Upsample) else _Step(module, None)


def _fused(modules: list[nn.Module]) -> list[nn.Module]:
    """Return layers with each batch norm, in evaluation mode, inside the convolution before it."""
    kept: list[nn.Module] = []
    for module in modules:
        if isinstance(module, nn.BatchNorm2d) and isinstance(kept[-1], nn.Conv2d):
            kept[-1] = fuse_conv_bn_eval(kept[-1], module)
        else:
            kept.append(module)
    return kept


def _steps(decoder: nn.Module) -> list[_Step]:
    """Return the steps of a decoder; one of unknown kind is a single step."""
    network = getattr(decoder, "network", None)
    if isinstance(network, MLPDecoder):
        return [_step(m) for m in network.layers]
    if not isinstance(network, ConvDecoder):
        return [_step(decoder)]
    unflatten = _same(partial(torch.unflatten, dim=1, sizes=network.coarse))
    leaves = [m for m in network.layers.modules() if not isinstance(m, nn.Sequential)]
    start = [_step(network.lift), unflatten, _same(_channels_last)]
    return [*start, *map(_step, _fused(leaves)), _same(network.grid.crop)]


class LatentMoves:
    """Carries moves of single latents through a decoder in evaluation mode.

    Arguments:
        decoder: Decodes latents of shape (B, l), in evaluation mode.
        chunk: How many moved images are decoded at once, which bounds the memory; where not
            given, 16 on a CPU and 1024 on a GPU.
        dtype: A lower precision for convolutions and linear layers, such as
            ``torch.bfloat16``; all else keeps the precision of the latents.
    """

    def __init__(
        self, decoder: nn.Module, chunk: int | None = None, dtype: torch.dtype | None = None
    ) -> None:
        if chunk is not None and chunk < 1:
            raise VspairError(f"chunk = {chunk}: expected at least one image.")
        self.steps, self.chunk, self.dtype = _steps(decoder), chunk, dtype
        bends = (i for i, step in enumerate(self.steps) if step.linear is None)
        self.cut = next(bends, len(self.steps))

    @property
    def affine(self) -> bool:
        """Whether the decoder has no non-linear step, so that its columns are all of it."""
        return self.cut == len(self.steps)

    def anchors(self, z: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return input and output of each non-linear step for latents of shape (B, l)."""
        anchors, h = [], z
        for step in self.steps:
            before, h = h, step.run(h if step.linear else h.clone())
            if step.linear is None:
                anchors.append((before, h))
        return anchors

    def columns(self, dims: Tensor, z: Tensor) -> Tensor:
        """Return changes by one unit of each latent before the first non-linear step."""
        columns = F.one_hot(dims, z.shape[1]).to(z)
        for step in self.steps[: self.cut]:
            columns = step.linear(columns) if step.linear else columns
        return columns

    def carry(self, change: Tensor, rows: Tensor, anchors: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Return what changes of images ``rows`` before the first non-linear step end as."""
        left = iter(anchors)
        for step in self.steps[self.cut :]:
            if step.linear is not None:
                change = step.linear(change)
            else:
                before, after = (t[rows] for t in next(left))
                change = torch.sub(step.run(before.add_(change)), after, out=after)
        return change.flatten(1)

    def __call__(self, z: Tensor, shifts: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield images (n,), latents (n,) and what moving them changes, (n, S, pixels).

        Arguments:
            z: Latent vectors, with shape (B, l).
            shifts: S moves of each latent while the others stay, with shape (B, l, S). Latents
                that never move are left out.
        """
        chunk = self.chunk or _images_at_once(z.device)
        for start in range(0, len(z), chunk):
            block = slice(start, start + chunk)
            anchors, part = self.anchors(z[block]), shifts[block]
            moved = (part != 0).any(-1)
            for dims in moved.any(0).nonzero().squeeze(1).split(chunk):
                columns = self.columns(dims, z)
                for pairs in moved[:, dims].nonzero().split(chunk):
                    rows, which = pairs.unbind(1)
                    by = part[rows, dims[which]].unbind(1)
                    found = [self._moved(columns[which], s, rows, anchors) for s in by]
                    yield start + rows, dims[which], torch.stack(found, dim=1).to(z)

    def _moved(
        self, change: Tensor, by: Tensor, rows: Tensor, anchors: list[tuple[Tensor, Tensor]]
    ) -> Tensor:
        """Return what columns (n, ...) times shifts (n,) end as, with shape (n, pixels)."""
        change = change * by.reshape(-1, *[1] * (change.ndim - 1))
        low = self.dtype is not None
        with torch.autocast(by.device.type, dtype=self.dtype) if low else nullcontext():
            return self.carry(change, rows, anchors)


def _images_at_once(device: torch.device) -> int:
    """Return how many images to decode at once: few stay in a CPU's cache, many fill a GPU."""
    return 16 if device.type == "cpu" else 1024


@torch.no_grad()
def squared_changes(
    decoder: nn.Module,
    std: Tensor,
    z: Tensor,
    shift: Tensor,
    weights: Tensor,
    *,
    chunk: int | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return weighted sums over pixels of the squared change that each latent makes alone.

    Arguments:
        decoder: Decodes latents as normalised data.
        std: What normalised data is multiplied by, with shape x_shape.
        z: Latent vectors, with shape (B, l).
        shift: How far each latent moves while the others stay, with shape (B, l). Latents that
            do not move are not decoded.
        weights: R weightings of the pixels of each image, with shape (B, R, pixels).
        chunk: As :class:`LatentMoves` takes it.
        dtype: As :class:`LatentMoves` takes it.

    Returns:
        Sums in the squared units of the data, with shape (B, l, R).
    """
    sums = z.new_zeros(*z.shape, weights.shape[1])
    with evaluating(decoder):
        moves = LatentMoves(decoder, chunk, dtype)
        for rows, dims, change in moves(z, shift.unsqueeze(-1)):
            square = (change.squeeze(1) * std.flatten()).square_()
            sums[rows, dims] = (weights[rows].to(z) @ square.unsqueeze(-1)).squeeze(-1)
    return sums
