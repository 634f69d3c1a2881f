r"""What moving one latent does to a decoded image, for many images and latents at once.

Write the decoder as steps :math:`f_n \circ \dots \circ f_1`. Where latent :math:`j` alone moves by
:math:`\delta`, the *change* of an activation is carried from step to step, instead of the
activation:

- up to the first non-linear step the decoder is affine, so the change is :math:`\delta` times
  one column that all images share, :math:`L e_j` (for the convolutional decoder: through
  lift, first convolution and batch norm);
- an affine step maps a change by its linear part;
- a non-linear step maps the change :math:`\Delta` at the unmoved activation :math:`h`, which
  all latents of an image share, to :math:`f(h + \Delta) - f(h)`.

This is exact, costs less than decoding each moved latent in full, and never subtracts two nearly
equal images: where convolutions and linear layers run in bfloat16 or TF32, their rounding errors
are a share of the change, however small it is, and not of the image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vspair.errors import VspairError
from vspair.model import InverseModel
from vspair.networks import _ConvDecoder, _MLPDecoder, _Upsample
from vspair.posterior import evaluating

__all__ = ["squared_changes"]

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class _Step:
    """One step of a decoder, and its linear part where it is affine."""

    run: Map
    linear: Map | None = None


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _upsample(x: Tensor) -> Tensor:
    """Double height and width as the decoder does, but keep the memory format."""
    return F.interpolate(x, scale_factor=2.0, mode="nearest")


def _scale(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """Return the linear part of batch norm in evaluation mode."""
    assert norm.running_var is not None
    return x * (norm.weight * (norm.running_var + norm.eps).rsqrt())[:, None, None]


def _step(module: nn.Module) -> _Step:
    """Return a step for any module that treats each row alone; unknown ones as non-linear."""
    if isinstance(module, nn.Linear):
        return _Step(module, partial(F.linear, weight=module.weight))
    if isinstance(module, nn.Conv2d):
        return _Step(module, partial(module._conv_forward, weight=module.weight, bias=None))
    if isinstance(module, nn.BatchNorm2d):
        return _Step(module, partial(_scale, module))
    if isinstance(module, _Upsample):
        return _Step(_upsample, _upsample)
    return _Step(module)


def _same(f: Map) -> _Step:
    """Return a step that is its own linear part."""
    return _Step(f, f)


def _steps(decoder: nn.Module) -> list[_Step]:
    """Return the steps of a decoder; an unknown decoder is one non-linear step."""
    network = getattr(decoder, "network", None)
    if isinstance(network, _MLPDecoder):
        return [_step(m) for m in network.layers]
    if not isinstance(network, _ConvDecoder):
        return [_Step(decoder)]
    leaves = [m for m in network.layers.modules() if not isinstance(m, nn.Sequential)]
    shape = partial(torch.unflatten, dim=1, sizes=network.coarse)
    start = [_step(network.lift), _same(shape), _same(_channels_last)]
    return [*start, *map(_step, leaves), _same(network.grid.crop)]


def _precision(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


class _Changes:
    """Carries changes of single latents to the end of a decoder."""

    def __init__(self, decoder: nn.Module, dtype: torch.dtype | None) -> None:
        steps, self.dtype = _steps(decoder), dtype
        cut = next((i for i, s in enumerate(steps) if s.linear is None), len(steps))
        self.head, self.tail = steps[:cut], steps[cut:]

    def anchor(self, z: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return input and output of each non-linear step for latents of shape (B, l)."""
        anchors = []
        for step in (*self.head, *self.tail):
            before, z = z, step.run(z)
            if step.linear is None:
                anchors.append((before, z))
        return anchors

    def columns(self, dims: Tensor, size: int, like: Tensor) -> Tensor:
        """Return the head's response to one unit of each latent, with shape (len(dims), ...)."""
        column = F.one_hot(dims, size).to(like)
        for step in self.head:
            assert step.linear is not None
            column = step.linear(column)
        return column

    def follow(self, change: Tensor, anchors: list[tuple[Tensor, Tensor]], rows: Tensor) -> Tensor:
        """Return what changes behind the head become, with shape (n, pixels).

        Arguments:
            change: Changes behind the head, with shape (n, ...).
            anchors: The unmoved activations of all images.
            rows: The image of each change, with shape (n,).
        """
        left = iter(anchors)
        with _precision(change.device, self.dtype):
            for step in self.tail:
                if step.linear is None:
                    before, after = next(left)
                    change = step.run(before[rows] + change) - after[rows]
                else:
                    change = step.linear(change)
        return change.flatten(1)

    def __call__(
        self, z: Tensor, shift: Tensor, chunk: int
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield rows (n,), latents (n,) and changes (n, pixels), at most ``chunk`` at once."""
        anchors = self.anchor(z)
        # Latent by latent, so that the images of a chunk share few columns.
        for pairs in (shift.T != 0).nonzero().split(chunk):
            dims, rows = pairs.unbind(1)
            unique, where = dims.unique_consecutive(return_inverse=True)
            columns = self.columns(unique, z.shape[1], z)
            size = shift[rows, dims].reshape(-1, *[1] * (columns.ndim - 1))
            yield rows, dims, self.follow(columns[where] * size, anchors, rows)


@torch.no_grad()
def squared_changes(
    model: InverseModel,
    z: Tensor,
    shift: Tensor,
    weights: Tensor,
    *,
    chunk: int = 512,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return weighted sums over pixels of the squared change that each latent makes alone.

    Arguments:
        model: The model that decodes.
        z: Latent vectors, with shape (B, l).
        shift: How far each latent moves while the others stay, with shape (B, l). Latents that
            do not move are not decoded.
        weights: R weightings of the pixels of each image, with shape (B, R, pixels).
        chunk: How many changed images are decoded at once; memory grows with it alone.
        dtype: A lower precision for the decoder, such as ``torch.bfloat16``. Sums keep the
            precision of z.

    Returns:
        Sums in the squared units of the data, with shape (B, l, R).
    """
    if chunk < 1:
        raise VspairError(f"chunk = {chunk}: expected at least one image.")
    changes, std = _Changes(model.x_decoder, dtype), model.x_normaliser.std.flatten()
    sums = z.new_zeros(*z.shape, weights.shape[1])
    with evaluating(model):
        for start in range(0, len(z), chunk):
            block = slice(start, start + chunk)
            part, weight = sums[block], weights[block].to(z)
            for rows, dims, change in changes(z[block], shift[block], chunk):
                square = (change.to(z) * std).square()
                part[rows, dims] = (weight[rows] @ square.unsqueeze(-1)).squeeze(-1)
    return sums
