"""The verdict: what an answer is worth on held-out pairs, in words that a user can act on."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from vspair.anchored import AnchoredModel
from vspair.codes import SpikeSlab
from vspair.data import Pairs, rows_from_everywhere
from vspair.evaluation import score_method
from vspair.mixtures import Mixture

__all__ = ["Verdict", "judge", "standard_error"]

FEW = 20
"""Fewer pairs are said to be too few."""

FEW_GROUPS = 3
"""Fewer groups are said to be too few, however many pairs they have."""

FLOORS = ("ridge", "mean", "y", "first")
"""Simple methods, whose errors were once called ``mse_...``."""

MOST_JUDGED = 1000
"""How many held-out pairs are looked at."""


@dataclass(frozen=True)
class Verdict:
    """Numbers on held-out pairs.

    No weight was fitted to them. Where there are enough, others chose how far corrections are
    trusted, epochs, the width of the doubt and the threshold of gates; where groups are few, these
    are of the same groups. Where there are few pairs, the same choose and judge, so that numbers
    are flattered a little.

    Arguments:
        pairs: How many pairs were looked at.
        mse: The mean squared error of the answer.
        floor_ridge: That of ridge regression.
        floor_mean: That of answering with the mean.
        floor_y: That of answering with y, where it has the shape of x.
        floor_first: That of the first guesses, where there are any.
        crps: The continuous ranked probability score.
        coverage: The share of entries inside the 90 % interval.
        share: The share of the variance that factors carry; grain carries the rest.
        active: The number of factors present in answers, on average.
        asked: The number that was asked for; 0 where it was chosen.
        dead: How many factors are present in no answer.
        factors: How many factors there are.
        groups: How many groups the pairs are of; as many as pairs where each is alone.
        mse_error: The standard error of the mean squared error, over groups; None of one group.
    """

    pairs: int
    mse: float
    floor_ridge: float
    floor_mean: float
    floor_y: float | None
    floor_first: float | None
    crps: float
    coverage: float
    share: float
    active: float
    asked: int
    dead: int
    factors: int
    groups: int | None = None
    mse_error: float | None = None

    @classmethod
    def of(cls, kept: dict[str, Any]) -> Verdict:
        """Return the verdict of numbers that were kept, those of another version too."""
        known = {each.name for each in fields(cls)}
        usual = {"floor_y": None, "floor_first": None}
        named = {f"floor_{name}": kept[f"mse_{name}"] for name in FLOORS if f"mse_{name}" in kept}
        return cls(**usual | named | {k: kept[k] for k in kept if k in known})

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers that there are, and the lines."""
        numbers = {k: v for k, v in asdict(self).items() if v is not None}
        return numbers | {"lines": list(self.lines)}

    @property
    def floors(self) -> dict[str, float]:
        """The errors of simple methods, by name."""
        named = {
            "ridge": self.floor_ridge,
            "the first guesses": self.floor_first,
            "y itself": self.floor_y,
            "the mean": self.floor_mean,
        }
        return {k: v for k, v in named.items() if v is not None}

    @property
    def lines(self) -> tuple[str, str, str]:
        """The verdict in three lines: error, intervals, factors."""
        return self._error_line(), self._interval_line(), self._factor_line()

    def _error_line(self) -> str:
        beside = ", ".join(f"{name} {value:.4g}" for name, value in self.floors.items())
        groups = self.pairs if self.groups is None else self.groups
        of = f" of {groups} group{'s' * (groups > 1)}" if groups < self.pairs else ""
        few = ", too few to be sure" if self.pairs < FEW or groups < FEW_GROUPS else ""
        about = "" if self.mse_error is None else f" ± {self.mse_error:.2g}"
        pairs = f"{self.pairs} held-out pair{'s' * (self.pairs > 1)}"
        line = (
            f"Held-out error: {self.mse:.4g}{about} mean squared on {pairs}{of}{few} ({beside})."
        )
        name, best = min(self.floors.items(), key=lambda item: item[1])
        if self.mse <= 1.005 * best:
            return line
        return (
            f"{line} That is WORSE than {name}: more pairs may help; look for outliers, and for "
            "pairs that do not belong together."
        )

    def _interval_line(self) -> str:
        line = (
            f"Intervals: 90 % intervals hold {100 * self.coverage:.1f} % of the held-out values."
        )
        if self.coverage < 0.85:
            return f"{line} They are OVER-CONFIDENT: use more pairs, and groups if related."
        if self.coverage > 0.96:
            return f"{line} They are wider than they need be: more pairs or minutes may help."
        return line

    def _factor_line(self) -> str:
        line = (
            f"Factors: {self.active:.3g} of {self.factors} are present in an answer and carry "
            f"{100 * self.share:.0f} % of the doubt; grain carries the rest."
        )
        if not self.asked and round(self.active) < self.factors:
            line += " How many there are was chosen on held-out pairs."
        if self.asked and abs(self.active - self.asked) > 0.05 * self.asked:
            return f"{line} That MISSES the {self.asked} asked for: use more pairs or minutes."
        if self.share < 0.1:
            return f"{line} So little has structure that factors say little: look at the grain."
        return line


@torch.no_grad()
def judge(
    model: AnchoredModel, train: Pairs, held: Pairs, first: Tensor | None, groups: Tensor
) -> Verdict:
    """Return the verdict of held-out pairs.

    Arguments:
        model: The trained model.
        train: The pairs that it was trained on, of which the mean is taken.
        held: Pairs that no weight was fitted to.
        first: First guesses of the held-out unknowns, where the model needs them.
        groups: Which held-out pairs belong together, with shape (N,).
    """
    rows = rows_from_everywhere(len(held), MOST_JUDGED)
    x, y = held.x[rows], held.y[rows]
    guesses = None if first is None else first[rows]
    found = score_method(model, x, y, first=guesses)
    ridge = torch.cat([model.ridge_answer(part) for part in y.split(256)])
    mean = {name: float(values.mean()) for name, values in found.items()}

    def error(answer: Tensor | None) -> float | None:
        return None if answer is None else float((answer.to(x) - x).double().square().mean())

    return Verdict(
        pairs=len(x),
        mse=mean["mse_mean"],
        floor_ridge=error(ridge) or 0.0,
        floor_mean=error(train.x.mean(0).expand_as(x)) or 0.0,
        floor_y=error(y) if y.shape == x.shape else None,
        floor_first=error(guesses),
        crps=mean["crps"],
        coverage=mean["coverage_90"],
        share=max(mean["variance_factors"] / max(mean["variance"], 1e-30), 0.0),
        active=mean["active"],
        asked=model.anchored.active,
        dead=int((found_omega(model, y, guesses) <= 0.5).all(0).sum()),
        factors=model.n_factors,
        groups=len(groups[rows].unique()),
        mse_error=standard_error(found["mse_mean"], groups[rows]),
    )


def standard_error(values: Tensor, groups: Tensor) -> float | None:
    """Return the standard error of the mean of values (N,), which are alike inside groups (N,).

    None where there is one group, which says nothing of others.
    """
    kind = torch.unique(groups, return_inverse=True)[1]
    count = int(kind.max()) + 1
    if count < 2:
        return None
    apart = (values - values.mean()).double().cpu()
    sums = torch.zeros(count, dtype=torch.float64).index_add_(0, kind.cpu(), apart)
    return float((sums.square().sum() * count / (count - 1)).sqrt() / len(values))


def found_omega(model: AnchoredModel, y: Tensor, first: Tensor | None) -> Tensor:
    """Return the probability that each factor is present, in the mode that has it most, (B, l)."""
    parts = []
    for rows in torch.arange(len(y)).split(256):
        code = model.posterior(y[rows], first=None if first is None else first[rows]).code
        assert isinstance(code, SpikeSlab | Mixture)
        parts.append(code.modes.omega.amax(1) if isinstance(code, Mixture) else code.omega)
    return torch.cat(parts)
