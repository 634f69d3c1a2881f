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

from vspair import config as configs
from vspair.anchored import AnchoredModel
from vspair.anchored_fit import AnchoredFit, doubt_of_fit
from vspair.data import Pairs, rows_from_everywhere
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

MOST = 20_000
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

    @cached_property
    def groups(self) -> Tensor | None:
        """The sources of the residuals out of fold; none where each has its own."""
        if self.split.groups is None:
            return None
        changes = {"training": {"seed": self.seed}}
        config = configs.override(configs.preset("anchored"), changes)
        known = self.split.train, None, self.split.groups
        return AnchoredFit(config, *known, "auto", None, ()).groups

    @cached_property
    def some(self) -> tuple[Doubt, Tensor | None]:
        """Some residuals out of fold, by chance, and their sources."""
        doubt, _ = self.known
        order = torch.randperm(len(doubt.seen), generator=Generator().manual_seed(self.seed))
        rows = order[:MOST].sort().values
        there = rows.to(doubt.seen.device)
        groups = None if self.groups is None else self.groups[rows]
        return Doubt(doubt.seen[there], doubt.residual[there], doubt.mirrored), groups

    def _known(self, doubt: Doubt, groups: Tensor | None) -> dict[str, Any]:
        """Return how others are trained: told what the model's own code was."""
        return self.how | {"groups": groups, "mirrored": doubt.mirrored}

    def gaussian(self) -> Method:
        """Return the answer with Gaussian residuals, entry by entry, of held-out pairs."""
        held = self.known[1]
        return GaussianResiduals(AnchorAnswer(self.model), held.x, held.y)

    def cvae(self) -> Method:
        """Return the answer with a dense code of what it leaves."""
        doubt, groups = self.some
        parts = self.model.frame, doubt.seen.cpu(), doubt.residual.cpu()
        return Cvae(self.model, train_cvae_network(*parts, **self._known(doubt, groups)))

    def taken_apart(self) -> dict[str, float]:
        """Return what factors and others explain and span of the residuals of test pairs."""
        model, (doubt, groups) = self.model, self.some
        residuals = (doubt.residual * model.x_normaliser.std).cpu()
        if residuals[0].numel() <= FEW:
            return {}  # five directions are all there are
        x, y = _spread(self.split.test)
        found = spans(model, x, y, residuals)
        seen_by = _read(doubt.seen), residuals
        network = train_components(*seen_by, k=FEW, **self._known(doubt, groups))
        answer, seen = model.ask(y)
        shares = network.spanned(x.to(answer) - answer, _read(seen))
        return found | {"spanned_nppc_5": float(shares.mean())}


def _spread(test: Pairs) -> tuple[Tensor, Tensor]:
    """Return x and y of test pairs from everywhere: those of one source lie side by side."""
    rows = rows_from_everywhere(len(test), ASKED)
    return test.x[rows], test.y[rows]


def _read(seen: Tensor) -> Tensor:
    """Return features as a network of vectors or images reads them."""
    return seen.cpu() if seen.ndim in (2, 4) else seen.cpu().flatten(1)


AROUND: dict[str, Callable[[Around], Method]] = {
    "anchor + Gaussian": Around.gaussian,
    "anchor + CVAE": Around.cvae,
}
"""Other accounts of the doubt about the same answer, by what rows call them."""
