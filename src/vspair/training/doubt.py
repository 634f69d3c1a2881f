r"""What is left in doubt: the stages that learn its code and its grain.

The *code* is learned by the conditional bound on the out-of-fold residual e = x - r(y),

.. math:: \log p(e \mid y) \ge \mathrm{E}_{q(z \mid e, y)}
          \log \mathcal{N}(e \mid g \odot (d(z) - d(\bar z)), s^2)
          - \mathrm{KL}(q(z \mid e, y) \,\|\, p(z \mid y)),

with one constant width s and a budget of open gates that is solved for in every batch. The *grain*
is a width for each entry, of what the residual's own code leaves, by the fair CRPS, or by the
likelihood where that is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Generator, Tensor, nn

from vspair.anchored import MOST_ODDS, AnchoredModel
from vspair.codes import SpikeSlab
from vspair.data import rows_from_everywhere
from vspair.metrics import central_interval
from vspair.mixtures import Mixture
from vspair.training.mirrors import mirror

__all__ = ["CodeStage", "Doubt", "GrainStage", "find_knee", "in_parts", "solve_budget"]

MOST_FACTORS = 200.0
"""How many gates are open at first where no number was asked for."""

MANY_GROUPS = 10
"""Of so many held-out groups, half is believed of what they say about the width of the doubt."""

FEW_GROUPS, MOST_KNOWN = 2, 500
"""Of so many held-out groups, half is believed of what they say about the number of factors; the
most residuals that are learned from and asked too."""

FEW_FACTORS = 16
"""Of vectors with no more factors than this, all are open; elsewhere, as many as may be."""

KNEE_AT, FALL_UNTIL = 0.3, 0.6
"""The shares of the code's training between which the number of open gates falls."""

DRIFT = 0.01
"""The weight of the mean square of gates, which keeps them and their shift where they are."""

MOST_DRAWN = 2**25
"""The most numbers that are drawn at once."""

BETA = 0.5
"""The weight of the KL on the side of q where factors are chosen: they keep more then."""

SLAB = 0.05
"""The weight of the KL of strengths to a standard normal, which fixes their scale."""


def count_open(gates: Tensor, log_weights: Tensor, shift: Tensor) -> Tensor:
    """Return how many gates (B, m, l) are above a shift, on average over modes and the batch."""
    return ((gates > shift).float().sum(-1) * log_weights.exp()).sum(1).mean()


@torch.no_grad()
def solve_budget(gates: Tensor, log_weights: Tensor, active: float) -> Tensor:
    """Return the shift above which so many gates are, on average: by bisection, a scalar.

    It is in the middle between open and closed gates. At the edge of either, these would stay
    undecided, however far they go to decide, and the shift would go with them.

    Arguments:
        gates: Log-odds, with shape (B, m, l).
        log_weights: Logarithms of the modes' probabilities, with shape (B, m).
        active: The number K of open gates.
    """
    least, most = gates.min(), gates.max()
    active = active * (1 + 1e-6)  # weights add up to 1 but for round-off
    low, high = least - 1, most + 1
    for _ in range(24):
        middle = (low + high) / 2
        many = count_open(gates, log_weights, middle) > active
        low, high = torch.where(many, middle, low), torch.where(many, high, middle)
    closed = gates.where(gates <= high, least - 2 * MOST_ODDS).max()
    opened = gates.where(gates > high, most + 2 * MOST_ODDS).min()
    return (closed + opened) / 2


@torch.no_grad()
def in_parts(f: Callable[[Tensor], Any], inputs: Tensor, size: int = 256) -> Tensor:
    """Return what a function makes of inputs (N, ...), some at a time."""
    return torch.cat([f(part) for part in inputs.split(size)])


@dataclass(frozen=True)
class Doubt:
    """What is left in doubt: residuals of answers, and what their codes are read from.

    Arguments:
        seen: Features and corrections, normalised, with shape (N, channels, *size).
        residual: In units of the residual, with shape (N, *x_shape).
        mirrored: Whether code and grain learn from mirrored images too.
    """

    seen: Tensor
    residual: Tensor
    mirrored: bool = False

    def take(self, rows: Tensor, generator: Generator | None = None) -> Doubt:
        """Return some of it; mirrored by chance, where that is wanted and a generator is given."""
        seen, residual = self.seen[rows], self.residual[rows]
        if self.mirrored and generator is not None:
            seen, residual = mirror((seen, residual), generator)
        return Doubt(seen, residual)


def _ramp(progress: float, start: float, end: float) -> float:
    return min(1.0, max(0.0, (progress - start) / (end - start)))


def present(p: SpikeSlab | Mixture) -> Tensor:
    """Return which factors an answer has, in any of its modes, bool (B, l)."""
    return (p.modes.omega.amax(1) if isinstance(p, Mixture) else p.omega) > 0.5


def undecided_share(omega: Tensor) -> float:
    """Return the share of the expected factors that is of gates between 0.05 and 0.5."""
    between = omega[(omega > 0.05) & (omega < 0.5)].sum()
    return float(between / omega.sum().clamp(min=1e-30))


def misfit(q: SpikeSlab, p: SpikeSlab | Mixture) -> Tensor:
    """Return what is least where p has the moments of a constant q, with shape (B,)."""
    return p.fit_to(q) if isinstance(p, Mixture) else p.fit_to(q).sum(-1)


def divergence(q: SpikeSlab, p: SpikeSlab | Mixture) -> Tensor:
    """Return KL(q || p), or its bound for several modes, with shape (B,)."""
    return p.kl_from(q) if isinstance(p, Mixture) else q.kl(p).sum(-1)


class CodeStage:
    """Trains code, decoder and one constant width on residuals that are out of fold.

    The number of open gates falls from many, so that factors learn what they are before they
    compete, to those asked for. Where none were asked for, the knee is chosen on the way.

    Arguments:
        model: The model.
        doubt: What is left of training pairs.
        held: What is left of held-out pairs.
        groups: How many groups these are of.
    """

    def __init__(self, model: AnchoredModel, doubt: Doubt, held: Doubt, groups: int) -> None:
        self.model, self.doubt, self.held, self.groups = model, doubt, held, groups
        self.state = model.thresholds
        self.parts = nn.ModuleList(
            (model.x_encoder, model.x_decoder, model.code_reader, model.thresholds)
        )
        self.state.active.fill_(model.anchored.active)
        every = self.most >= model.n_factors
        self.beta = model.anchored.beta or (1.0 if every else BETA)
        self.drift: Tensor | float = 0.0

    @property
    def most(self) -> float:
        """How many gates are open at first."""
        asked, half = float(self.state.active), 0.5 * self.model.n_factors
        if asked:
            return max(asked, min(4 * asked, half))
        if not self.model.frame.size and self.model.n_factors <= FEW_FACTORS:
            return float(self.model.n_factors)
        return min(half, MOST_FACTORS, float(self.doubt.residual[0].numel()))

    def budget(self, progress: float) -> float:
        """Return how many gates are open after a share of the stage."""
        if not float(self.state.active):
            return self.most
        fall = _ramp(progress, KNEE_AT, FALL_UNTIL)
        return self.most * (float(self.state.active) / self.most) ** fall

    def _solve(self, gates: Tensor, log_weights: Tensor, budget: float) -> Tensor:
        """Return the shift of a budget; none where gates are left to themselves."""
        if not self.model.anchored.budget:
            return torch.zeros_like(self.state.answer)
        return solve_budget(gates, log_weights, budget)

    def codes(
        self, doubt: Doubt, budget: float
    ) -> tuple[SpikeSlab, SpikeSlab | Mixture, Tensor, tuple[Tensor, Tensor]]:
        """Return the codes q of residuals and p of their y for a budget, reach, and shifts."""
        model = self.model
        numbers, reach = model.read_seen(doubt.seen)
        parts, weights = model.modes_of(numbers)
        shift = self._solve(parts.detach().chunk(3, -1)[2], weights.detach(), budget)
        own = model.own_numbers(doubt.residual, doubt.seen)
        # Only what lies between gates and their shift matters: without this both may run away.
        self.drift = sum(t.chunk(3, -1)[2].square().mean() for t in (parts, own))
        gates = own.detach().chunk(3, -1)[2].unsqueeze(1)
        own_shift = self._solve(gates, torch.zeros_like(gates[:, :, 0]), budget)
        p = model.read_code(numbers, shift)
        return model.with_gates(own, own_shift), p, reach, (own_shift, shift)

    def loss(
        self, rows: Tensor, generator: Generator, progress: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return minus the bound, by entry, and its parts."""
        model, state = self.model, self.state
        doubt = self.doubt.take(rows, generator)
        q, p, reach, (own_shift, shift) = self.codes(doubt, self.budget(progress))
        decoded = model.spread(q.rsample(generator), p, reach)
        mse = (doubt.residual - decoded).square().mean()
        with torch.no_grad():
            rate = max(0.02, 0.5 * (1 - progress) ** 2)
            state.answer.lerp_(shift, rate)
            state.own.lerp_(own_shift, rate)
            state.log_width.lerp_(0.5 * mse.log(), rate)
        # Gradients of the KL at the side of q are weighed by beta: p follows q in any case.
        pull = self.beta * divergence(q, p.detach()) + misfit(q.detach(), p)
        # With the best width for an error, the fit is the logarithm of the error.
        size = doubt.residual[0].numel()
        fit = 0.5 * size * mse.log()
        weight = _ramp(progress, 0.05, 0.45)
        loss = fit + weight * pull.mean() + SLAB * q.kl_slab().sum(-1).mean()
        loss = loss + DRIFT * self.drift
        kl = divergence(q.detach(), p.detach()).mean()
        return loss / size, {"mse": mse.detach(), "kl": kl}

    @torch.no_grad()
    def score(self, progress: float) -> dict[str, float]:
        """Return minus the bound on held-out pairs, by entry, at the budget of the time.

        Marginal scores, such as the CRPS, hardly tell a sharp code from a vague one.
        """
        if not float(self.state.active) and progress >= KNEE_AT:
            self.state.active.fill_(self.knee())
        return {"score": -self.held_bound(self.budget(progress))}

    @torch.no_grad()
    def held_bound(self, budget: float) -> float:
        """Return the bound on held-out pairs, by entry, up to a constant, for a budget."""
        held, squares, nats = self.held, 0.0, 0.0
        generator = Generator(held.seen.device).manual_seed(0)
        for rows in torch.arange(len(held.residual)).split(256):
            q, p, reach, _ = self.codes(held.take(rows), budget)
            decoded = self.model.spread(q.rsample(generator), p, reach)
            squares += float((held.residual[rows] - decoded).double().square().sum())
            nats += float(divergence(q, p).double().sum())
        count = held.residual.numel()
        return -0.5 * math.log(max(squares / count, 1e-30)) - nats / count

    @torch.no_grad()
    def knee(self) -> float:
        """Return the number of factors after which more of them explain little more.

        Of held-out residuals, and of some that are learned from: one held-out group may be of
        another kind. Where x has so few entries that a curve has no room to bend, as many as there
        may be.
        """
        if self.most <= FEW_FACTORS:
            return self.most
        counts = [1.0]
        while counts[-1] * 1.3 < self.most:
            counts.append(math.ceil(counts[-1] * 1.3))
        believed = self.groups / (self.groups + FEW_GROUPS)
        known = self.doubt.take(rows_from_everywhere(len(self.doubt.residual), MOST_KNOWN))
        shares = [
            believed * self.explained(self.held, k) + (1 - believed) * self.explained(known, k)
            for k in counts
        ]
        return find_knee(counts, shares)

    @torch.no_grad()
    def explained(self, doubt: Doubt, budget: float) -> float:
        """Return the share of squared residuals that a budget of factors explains."""
        residual, left = doubt.residual, 0.0
        for rows in torch.arange(len(residual)).split(256):
            q, p, reach, _ = self.codes(doubt.take(rows), budget)
            decoded = self.model.spread(q.mean, p, reach)
            left += float((residual[rows] - decoded).double().square().sum())
        return 1 - left / max(float(residual.double().square().sum()), 1e-30)

    @torch.no_grad()
    def health(self) -> str:
        """Return in words how the code fares on held-out pairs, before undecided gates close."""
        budget, nats, gates = float(self.state.active), 0.0, []
        for rows in torch.arange(len(self.held.residual)).split(256):
            q, p, _, _ = self.codes(self.held.take(rows), budget)
            nats += float(divergence(q, p).double().sum())
            gates.append(p.modes.omega.amax(1) if isinstance(p, Mixture) else p.omega)
        omega = torch.cat(gates)
        undecided = undecided_share(omega)
        used = int((omega > 0.5).any(0).sum())
        share, every = 100 * self.explained(self.held, budget), omega.shape[1]
        return (
            f"code: KL {nats / len(omega):.3g} nats; explains {share:.3g} % of squared residuals; "
            f"{used} of {every} factors are in use, {every - used} dead; undecided gates are "
            f"{100 * undecided:.2g} % of those expected"
        )

    @torch.no_grad()
    def settle(self) -> None:
        """Set where gates open so that held-out answers have the number of factors promised."""
        model, held = self.model, self.held
        numbers = in_parts(lambda s: model.read_seen(s)[0], held.seen)
        parts, weights = model.modes_of(numbers)
        active = float(self.state.active)
        self.state.answer.copy_(self._solve(parts.chunk(3, -1)[2], weights, active))
        every = torch.arange(len(held.seen)).split(256)
        own = torch.cat([model.own_numbers(held.residual[r], held.seen[r]) for r in every])
        gates = own.chunk(3, -1)[2].unsqueeze(1)
        self.state.own.copy_(self._solve(gates, torch.zeros_like(gates[:, :, 0]), active))


def find_knee(counts: Sequence[float], scores: Sequence[float]) -> float:
    """Return the count at which a rising curve of scores bends most.

    Satopaa et al., "Finding a 'Kneedle' in a Haystack", ICDCS workshops 2011: the point that lies
    highest above the line from the first to the last.
    """
    best = list(accumulate(scores, max))  # more factors can be left out: they never do worse
    width, height = counts[-1] - counts[0] or 1.0, best[-1] - best[0] or 1.0
    above = [
        (s - best[0]) / height - (c - counts[0]) / width for c, s in zip(counts, best, strict=True)
    ]
    return counts[above.index(max(above))]


class GrainStage:
    """Trains the width of the grain for each entry: what the residual's own code does not explain.

    By the fair CRPS, which outliers do not rule, or by the likelihood, to show what that changes
    (``anchored.grain_loss``). Trained on answers instead, where factors are
    drawn from the code of y, the grain would take over what factors say.
    """

    def __init__(self, model: AnchoredModel, doubt: Doubt, held: Doubt) -> None:
        self.model, self.doubt, self.held = model, doubt, held

    def loss(
        self, rows: Tensor, generator: Generator, _: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the CRPS of residuals, or minus their likelihood, given their own codes."""
        return self._misfit(self.doubt.take(rows, generator), generator), {}

    @torch.no_grad()
    def settle(self, groups: int) -> None:
        """Make the doubt as large as held-out residuals are: factors, grain, then both alike.

        Code and grain know the residuals that they were learned from better than others, and a y
        that was not trained on may be less sure than it seems. One held-out group may be harder
        than others: few of them change little.

        Arguments:
            groups: How many groups held-out pairs are of.
        """
        if not self.model.centred:
            return  # factors draw the answer itself
        believed = groups / (groups + MANY_GROUPS)
        factors, grain = find_sizes(self.model, self.held)
        self.model.widen(factors**believed, grain**believed)
        width = find_width(self.model, self.held) ** believed
        self.model.widen(width, width)

    @torch.no_grad()
    def start(self) -> None:
        """Let the grain start at what own codes leave of some residuals."""
        model, rows = self.model, rows_from_everywhere(len(self.doubt.seen), 512)
        seen, residual = self.doubt.seen[rows], self.doubt.residual[rows]
        numbers, reach = model.read_seen(seen)
        q, p = model.encode(residual, seen), model.read_code(numbers)
        model.start_grain(residual - model.spread(q.mean * present(p), p, reach))

    def _misfit(self, doubt: Doubt, generator: Generator) -> Tensor:
        """Return how badly the grain fits what a sample of residuals' own codes leaves, a scalar.

        By the CRPS of two samples, or minus the logarithm of the likelihood, up to a constant.
        """
        model, seen, residual = self.model, doubt.seen, doubt.residual
        with torch.no_grad():
            numbers, reach = model.read_seen(seen)
            q, p = model.encode(residual, seen), model.read_code(numbers)
            drawn = model.spread(q.rsample(generator) * present(p), p, reach)
        if model.anchored.grain_loss == "likelihood":
            return gaussian_misfit(residual - drawn, model.grain(seen))
        # One sample of the code, twice the grain: what two would differ by is not grain.
        return fair_crps((drawn, drawn), model.grain(seen), residual, generator)

    @torch.no_grad()
    def score(self, _: float) -> dict[str, float]:
        """Return the same of held-out residuals."""
        held, total = self.held, 0.0
        generator = Generator(held.seen.device).manual_seed(0)
        for rows in torch.arange(len(held.seen)).split(256):
            total += float(self._misfit(held.take(rows), generator)) * len(rows)
        return {"score": total / len(held.seen)}


def fair_crps(
    drawn: Sequence[Tensor], width: Tensor, truth: Tensor, generator: Generator
) -> Tensor:
    """Return the fair CRPS of two samples with grain, a scalar."""
    a, b = (s + width * _noise(width, generator) for s in drawn)
    return 0.5 * ((a - truth).abs() + (b - truth).abs() - (a - b).abs()).mean()


def gaussian_misfit(left: Tensor, width: Tensor) -> Tensor:
    """Return minus the mean log density of N(0, width²), up to a constant, a scalar.

    Arguments:
        left: What factors leave of residuals, with shape (B, *x_shape).
        width: The deviation of the grain, with shape (B, *x_shape).
    """
    return (0.5 * (left / width).square() + width.log()).mean()


def _noise(like: Tensor, generator: Generator) -> Tensor:
    return torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)


@dataclass(frozen=True)
class _Drawn:
    """What answers to some held-out pairs draw, in units of the residual.

    Arguments:
        residual: What answers leave, with shape (B, *x_shape).
        own: A sample of what the residual's own code says of it, with shape (B, *x_shape).
        factors: Samples of what factors move, with shape (S, B, *x_shape).
        grain: The deviation of the grain, with shape (B, *x_shape).
    """

    residual: Tensor
    own: Tensor
    factors: Tensor
    grain: Tensor


@torch.no_grad()
def _draw(
    model: AnchoredModel, held: Doubt, samples: int, generator: Generator
) -> Iterator[_Drawn]:
    """Yield what answers draw, as many pairs at a time as memory allows."""
    size = MOST_DRAWN // (samples * held.residual[0].numel())
    for rows in torch.arange(len(held.seen)).split(min(128, max(1, size))):
        seen, residual = held.seen[rows], held.residual[rows]
        numbers, reach = model.read_seen(seen)
        p, q = model.read_code(numbers), model.encode(residual, seen)
        centre = model.centre(p)
        own = reach * (model.x_decoder(q.rsample(generator) * present(p)) - centre)
        drawn = torch.stack([model.x_decoder(p.rsample(generator)) for _ in range(samples)])
        yield _Drawn(residual, own, reach * (drawn - centre), model.grain(seen))


@torch.no_grad()
def find_sizes(model: AnchoredModel, held: Doubt, samples: int = 20) -> tuple[float, float]:
    """Return by what to multiply factors and grain, so that their variances are what they are for.

    By the law of total variance, that of factors is what the residual's own code explains, and
    that of the grain what it leaves, on average over held-out pairs. Each is at least 0.5 and at
    most 2.
    """
    generator, sums = Generator(held.seen.device).manual_seed(0), torch.zeros(4).double()
    for part in _draw(model, held, samples, generator):
        parts = part.residual, part.residual - part.own, part.factors.std(0), part.grain
        sums += torch.stack([t.double().square().sum().cpu() for t in parts])
    size, left, factors, grain = sums.tolist()
    wanted = (size - left) / max(factors, 1e-30), left / max(grain, 1e-30)
    of_factors, of_grain = (min(2.0, max(0.5, max(w, 0.0) ** 0.5)) for w in wanted)
    return of_factors, of_grain


@torch.no_grad()
def find_width(model: AnchoredModel, held: Doubt, samples: int = 40) -> float:
    """Return the factor by which answers are to be widened to hold 90 % of what is held out.

    An entry is inside the interval of samples that are widened by its own least factor or more:
    the factor is the 90 % quantile of these. Entries have the weight of their interval's width, as
    those that are certain, which are inside in any case, would narrow all others. It is at least
    0.5 and at most 2.
    """
    generator, found = Generator(held.seen.device).manual_seed(0), []
    for part in _draw(model, held, samples, generator):
        noise = _noise(part.factors, generator)
        low, high = central_interval(part.factors + part.grain * noise, 0.9)
        truth = part.residual
        least = (truth / torch.where(truth < 0, low, high)).where(truth != 0, 0.0)
        least = least.where(least >= 0, math.inf)  # on the wrong side, however wide
        found.append(torch.stack((least.flatten(), (high - low).flatten())))
    needed, weight = torch.cat(found, 1).double()
    order = needed.argsort()
    inside = weight[order].cumsum(0)
    last = int((inside < 0.9 * inside[-1]).sum())
    return float(needed[order][last].clamp(0.5, 2.0))
