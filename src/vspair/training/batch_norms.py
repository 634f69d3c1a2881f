"""Batch norm between training and evaluation.

In evaluation, batch norm uses averages that it kept while training. In a paired model those of
the x decoder are of codes of x, and in a model whose map is fitted through the decoder of two
kinds of codes at once; an answer is decoded from mapped codes of y, whose statistics can differ
so much that evaluation is far worse than training was. :func:`refresh_norms` measures the
averages anew along the path that an answer takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Generator, Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from vspair.model import InverseModel

__all__ = ["answering_norms", "refresh_norms"]

MOST, FEW = 64, 4
"""Batches that the averages are taken over: for good, and to look at a training meanwhile."""


def _norms(model: InverseModel) -> list[_BatchNorm]:
    """Return the batch norms that an answer passes through."""
    return [m for part in model.answers() for m in part.modules() if isinstance(m, _BatchNorm)]


@contextmanager
def answering_norms(model: InverseModel, y: Tensor, name: str = "answer") -> Iterator[None]:
    """Measure the averages anew, roughly, for a while; then put back those that were there.

    Arguments:
        model: A model in training.
        y: Normalised observations that it is trained on, with shape (N, *y_shape).
        name: The setting ``norms``: nothing is done unless it is ``answer``.
    """
    if name != "answer":
        yield
        return
    # In place, before and after: a captured step reads and writes these very tensors.
    kept = [(b, b.detach().clone()) for norm in _norms(model) for b in norm.buffers()]
    refresh_norms(model, y, most=FEW)
    try:
        yield
    finally:
        for buffer, old in kept:
            buffer.copy_(old)


@torch.no_grad()
def refresh_norms(
    model: InverseModel, y: Tensor, batch: int = 256, seed: int = 0, most: int = MOST
) -> None:
    """Measure batch norm's averages where observations are inverted.

    Arguments:
        model: A trained model; its weights are not changed.
        y: Normalised observations that it was trained on, with shape (N, *y_shape).
        batch: Observations in a batch.
        seed: Fixes which observations, and the samples that are decoded.
        most: How many batches at most.
    """
    norms = _norms(model)
    momenta = [norm.momentum for norm in norms]
    order = torch.randperm(len(y), generator=Generator().manual_seed(seed))
    noise = Generator(y.device).manual_seed(seed)
    model.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average over batches
        norm.train()
    for chosen in order.split(min(batch, len(y)))[:most]:
        if len(chosen) > 1:
            model.x_decoder(model.latent(y[chosen.to(y.device)]).rsample(noise))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    model.eval()
