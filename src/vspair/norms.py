"""Batch norm between training and evaluation.

In evaluation, batch norm uses averages that it kept while training. In a paired model those of
the x decoder are of codes of x, and in a model whose map is fitted through the decoder of two
kinds of codes at once; an answer is decoded from mapped codes of y, whose statistics can differ
so much that evaluation is far worse than training was. :func:`refresh_norms` measures the
averages anew along the path that an answer takes.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from vspair.model import InverseModel

__all__ = ["refresh_norms"]

MOST = 64
"""Batches that the averages are taken over."""


@torch.no_grad()
def refresh_norms(model: InverseModel, y: Tensor, batch: int = 256, seed: int = 0) -> None:
    """Measure batch norm's averages where observations are inverted.

    Arguments:
        model: A trained model; its weights are not changed.
        y: Normalised observations that it was trained on, with shape (N, *y_shape).
        batch: Observations in a batch.
        seed: Fixes which observations, and the samples that are decoded.
    """
    norms = [m for part in model.answers() for m in part.modules() if isinstance(m, _BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    order = torch.randperm(len(y), generator=Generator().manual_seed(seed))
    noise = Generator(y.device).manual_seed(seed)
    model.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average over batches
        norm.train()
    for chosen in order.split(min(batch, len(y)))[:MOST]:
        if len(chosen) > 1:
            model.x_decoder(model.latent(y[chosen.to(y.device)]).rsample(noise))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    model.eval()
