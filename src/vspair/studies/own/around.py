"""What other accounts of doubt make of the same anchor, and what its residuals are made of.

A sparse code is to be judged by what it adds to the same answer: Gaussian residuals and a dense
code about it, and other directions for what it leaves. They learn from what the model's own code
learned from, residuals out of fold; Gaussian residuals are those of pairs that ``fit`` held out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Generator, Tensor

from vspair.anchored import AnchoredModel
from vspair.anchored_fit import doubt_of_fit
from vspair.data import Pairs
from vspair.datasets.own import Split
from vspair.methods import AnchorAnswer, Cvae, GaussianResiduals
from vspair.methods.cvae import train_cvae_network
from vspair.methods.nppc import train_components
from vspair.posterior import Method
from vspair.training.doubt import Doubt
from vspair.uncertainty import FEW, spans

__all__ = ["AROUND", "Around"]

ASKED = 200
"""The most test pairs whose residuals are taken apart."""

FOR_DIRECTIONS, FOR_CODE = 4000, 20_000
"""The most residuals that directions, and a dense code, are learned from."""


class Around:
    """The anchor of a model that was fitted by its defaults, and what it has left.

    Arguments:
        model: The model.
        split: The pairs of the study.
        seed: What it was fitted with.
        seconds: How long others are trained.
        device: Where.
    """

    def __init__(
        self, model: AnchoredModel, split: Split, seed: int, seconds: float, device: str
    ) -> None:
        self.model, self.split, self.seed = model, split, seed
        self.how: dict[str, Any] = {"seconds": seconds, "seed": seed, "device": device}

    @cached_property
    def known(self) -> tuple[Doubt, Pairs]:
        """Residuals out of fold, in units of the residual, and pairs that were held out."""
        return doubt_of_fit(self.model, self.split.train, self.split.groups, self.seed)

    def some(self, most: int) -> Doubt:
        """Return some residuals out of fold, by chance."""
        doubt, _ = self.known
        order = torch.randperm(len(doubt.seen), generator=Generator().manual_seed(self.seed))
        rows = order[:most].sort().values.to(doubt.seen.device)
        return Doubt(doubt.seen[rows], doubt.residual[rows])

    def gaussian(self) -> Method:
        """Return the answer with Gaussian residuals, entry by entry, of held-out pairs."""
        held = self.known[1]
        return GaussianResiduals(AnchorAnswer(self.model), held.x, held.y)

    def cvae(self) -> Method:
        """Return the answer with a dense code of what it leaves."""
        doubt = self.some(FOR_CODE)
        parts = doubt.seen.cpu(), doubt.residual.cpu()
        return Cvae(self.model, train_cvae_network(self.model.frame, *parts, **self.how))

    def taken_apart(self) -> dict[str, float]:
        """Return what factors and others explain and span of the residuals of test pairs."""
        model, doubt, test = self.model, self.some(FOR_DIRECTIONS), self.split.test
        residuals = (doubt.residual * model.x_normaliser.std).cpu()
        if residuals[0].numel() <= FEW:
            return {}  # five directions are all there are
        x, y = test.x[:ASKED], test.y[:ASKED]
        found = spans(model, x, y, residuals)
        network = train_components(_read(doubt.seen), residuals, k=FEW, **self.how)
        answer, seen = model.ask(y)
        shares = network.spanned(x.to(answer) - answer, _read(seen))
        return found | {"spanned_nppc_5": float(shares.mean())}


def _read(seen: Tensor) -> Tensor:
    """Return features as a network of vectors or images reads them."""
    return seen.cpu() if seen.ndim in (2, 4) else seen.cpu().flatten(1)


AROUND: dict[str, Callable[[Around], Method]] = {
    "anchor + Gaussian": Around.gaussian,
    "anchor + CVAE": Around.cvae,
}
"""Other accounts of the doubt about the same answer, by what rows call them."""
