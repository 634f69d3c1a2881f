r"""The training of the anchored model, in stages, each on what the one before has not seen.

1. *Ridge*, in closed form; penalty and answers out of fold.
2. *Networks*, one without each fold, by squared error of what ridge leaves.
3. *Code*: the conditional bound on the out-of-fold residual e = x - r(y),

   .. math:: \log p(e \mid y) \ge \mathrm{E}_{q(z \mid e, y)}
             \log \mathcal{N}(e \mid d(z) - d(\bar z), s^2)
             - \mathrm{KL}(q(z \mid e, y) \,\|\, p(z \mid y)),

   with one constant width s.
4. *Grain*: a width for each entry, of what the residual's own code leaves, by the fair CRPS.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from vspair.anchored import AnchoredModel, BaseName, Made
from vspair.anchors.folds import assign_folds
from vspair.anchors.ridge import LARGEST, RidgePath, ridge_steps
from vspair.codes import Mixture, SpikeSlab
from vspair.config import Config, TrainingConfig
from vspair.data import Normaliser, Pairs
from vspair.errors import VspairError
from vspair.metrics import crps
from vspair.networks.spatial import Domain
from vspair.runs.files import make_folder, write_text
from vspair.training.loop import Row
from vspair.training.stage import Stage

__all__ = ["AnchoredTraining", "Doubt", "solve_budget"]

Say = Callable[[str], None]


def count_open(gates: Tensor, log_weights: Tensor, shift: Tensor) -> Tensor:
    """Return how many gates (B, m, l) are above a shift, on average over modes and the batch."""
    return ((gates > shift).float().sum(-1) * log_weights.exp()).sum(1).mean()


@torch.no_grad()
def solve_budget(gates: Tensor, log_weights: Tensor, active: float) -> Tensor:
    """Return the shift above which so many gates are, on average: by bisection, a scalar.

    Arguments:
        gates: Log-odds, with shape (B, m, l).
        log_weights: Logarithms of the modes' probabilities, with shape (B, m).
        active: The number K of open gates.
    """
    low, high = gates.min() - 1, gates.max() + 1
    for _ in range(24):
        middle = (low + high) / 2
        many = count_open(gates, log_weights, middle) > active
        low, high = torch.where(many, middle, low), torch.where(many, high, middle)
    return high


def tell_domain(x: Tensor, wanted: str) -> Domain:
    """Return what unknowns (N, *x_shape) are: by their shape, and by how neighbours agree."""
    if wanted != "auto":
        if (wanted == "image") != (x.ndim > 2):
            raise VspairError(
                f"anchored.domain = {wanted!r}, but x has shape {tuple(x.shape)}: expected "
                "'image' for (N, H, W) or (N, C, H, W), 'vector' or 'signal' for (N, n)."
            )
        return wanted  # type: ignore[return-value]
    if x.ndim > 2:
        return "image"
    if x.shape[1] < LEAST_SIGNAL:
        return "vector"
    data = (x[:2000] - x[:2000].mean(0)) / x[:2000].std(0).clamp(min=1e-12)
    near = (data[:, 1:] * data[:, :-1]).mean()
    far = (data * data.roll(x.shape[1] // 2, dims=1)).mean().abs()
    return "signal" if near > 0.5 and near > far + 0.3 else "vector"


LEAST_SIGNAL = 48
"""The entries that a vector must have to be taken for a signal."""

MOST_FACTORS = 200.0
"""How many gates are open at first where no number was asked for."""

WIDTHS = tuple(1.1**k for k in range(-10, 16))
"""What the grain as a whole may be multiplied by."""

FEW_FACTORS = 16.0
"""Where no more factors than this may be open, all of them are."""

KNEE_AT, FALL_UNTIL = 0.3, 0.6
"""The shares of the code's training between which the number of open gates falls."""

DRIFT = 0.01
"""The weight of the mean square of gates, which keeps them and their shift where they are."""

SLAB = 0.01
"""The weight of the KL of strengths to a standard normal, which fixes their scale."""


@dataclass(frozen=True)
class Prepared:
    """What networks are trained on: pairs, answered by what was fitted to other pairs.

    Arguments:
        features: Normalised features, out of fold, with shape (N, n_features, *size).
        residual: What the base leaves, in units of its deviation, with shape (N, *x_shape).
        fold: The fold of each pair, with shape (N,).
    """

    features: Tensor
    residual: Tensor
    fold: Tensor

    def to(self, device: torch.device | str) -> Prepared:
        """Return the same on a device."""
        return Prepared(self.features.to(device), self.residual.to(device), self.fold.to(device))


def _ridge_answers(path: RidgePath, y: Tensor, chunk: int = 2000) -> Tensor:
    return torch.cat([path(part) for part in y.split(chunk)])


def fit_ridge(
    x: Tensor, y: Tensor, fold: Tensor, out_of_fold: bool = True
) -> tuple[RidgePath, Tensor, Tensor]:
    """Return the path of a few penalties, and its answers to the pairs that it is fitted to.

    Arguments:
        x: Normalised unknowns, with shape (N, n).
        y: Normalised observations, with shape (N, m).
        fold: The fold of each pair, with shape (N,).
        out_of_fold: Whether each pair is answered by a path that was fitted without its fold.

    Returns:
        The path with P penalties, answers (N, P, n), and the mean squared error of each, (P,).
    """
    exact = min(y.shape) <= LARGEST
    path = RidgePath.fit(x, y, exact=exact)
    penalties = path.penalties.tolist()
    parts, errors = [], torch.zeros(len(penalties), dtype=torch.float64)
    for k in range(int(fold.max()) + 1):
        parts.append(RidgePath.fit(x[fold != k], y[fold != k], penalties, exact=exact))
        for rows in (fold == k).nonzero().squeeze(1).split(500):
            wrong = parts[-1](y[rows]) - x[rows].unsqueeze(1)
            errors += wrong.double().square().sum((0, 2))
    steps = ridge_steps(penalties, errors)
    path.keep(steps)
    answers = x.new_empty(len(x), len(steps), x.shape[1])
    for k, part in enumerate(parts):
        part.keep(steps)
        answers[fold == k] = _ridge_answers(part, y[fold == k])
    if not out_of_fold:
        answers = _ridge_answers(path, y)
    return path, answers, errors[steps] / x.numel()


def prepare(
    train: Pairs, first: Tensor | None, groups: Tensor, config: Config, say: Say
) -> tuple[AnchoredModel, Prepared]:
    """Return a model with its ridge path, not yet trained networks, and what to train them on."""
    a, seed = config.anchored, config.training.seed
    folds = min(a.folds, max(2, int(groups.max()) + 1))
    if folds < a.folds:
        say(f"{folds} groups make {folds} folds, not {a.folds}")
    fold = assign_folds(groups, folds, seed)
    domain = tell_domain(train.x, a.domain)
    if not a.spatial and domain != "vector":
        domain = "vector"
    shapes = train.shapes
    modes = a.modes or (8 if domain == "vector" else 1)
    x_scale, y_scale = Normaliser(shapes[0]), Normaliser(shapes[1])
    x_scale.fit(train.x, _scaling(train.x))
    y_scale.fit(train.y, "auto")
    x, y = x_scale(train.x), y_scale(train.y)
    guess = None if first is None else x_scale(first)
    path, answers, errors = fit_ridge(x.flatten(1), y.flatten(1), fold, a.out_of_fold)
    toward_y = False
    if shapes[0] == shapes[1]:
        near = x_scale(train.y).flatten(1)
        other = fit_ridge(x.flatten(1) - near, y.flatten(1), fold, a.out_of_fold)
        if toward_y := bool(other[2].min() < errors.min()):
            path, answers, errors = other
            answers += near.unsqueeze(1)
    best = int(errors.argmin())
    error = float(errors[best])
    variance = float(x.double().square().mean())
    say(f"ridge: leaves {100 * error / variance:.3g} % of the variance, out of fold")
    base: BaseName = "ridge"
    if guess is not None:
        wrong = float((guess - x).double().square().mean())
        say(f"first guesses: leave {100 * wrong / variance:.3g} % of the variance")
        if wrong < error:
            base, error = "first", wrong
    if a.anchor == "none":
        base, error = "none", float(x.double().square().mean())
    networks = int(fold.max()) + 1 if a.anchor in ("auto", "network") else 0
    sizes = len(path.values), answers.shape[1], best, networks, modes
    made = Made(base, domain, *sizes, first is not None, toward_y)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AnchoredModel(config.model, a, made, *shapes)
    model.x_scale, model.y_normaliser, model.ridge = x_scale, y_scale, path
    model.x_normaliser.std.copy_(model.x_scale.std * math.sqrt(max(error, 1e-20)))
    if not model.centred:
        model.x_normaliser.mean.copy_(model.x_scale.mean)
    stacked = model.stack(answers, guess, y)
    dims = (0, *range(2, stacked.ndim))
    std, mean = torch.std_mean(stacked, dim=dims, keepdim=True)
    model.feature_mean.copy_(mean[0])
    std = std.where(std > 1e-6, 1.0)  # what never changes carries nothing
    model.feature_std.copy_(std[0])
    scale = model.x_scale.std / model.x_normaliser.std
    residual = (x - model.base(stacked)) * scale
    stacked -= mean
    stacked /= std
    return model, Prepared(_fast(stacked), _fast(residual), fold)


def _fast(maps: Tensor) -> Tensor:
    """Return images with the channels of each pixel side by side."""
    return maps.contiguous(memory_format=torch.channels_last) if maps.ndim == 4 else maps


def _scaling(x: Tensor) -> Any:
    """Return how unknowns are scaled: entry by entry where their units seem to differ."""
    if x.ndim > 2:
        return "scalar"
    std = x.double().std(0)
    return "feature" if float(std.max()) > 10 * float(std.median()) else "scalar"


# -- networks ---------------------------------------------------------------------------------


class _Networks:
    """Trains the networks of the anchor, one without each fold, by the error that is left."""

    def __init__(self, model: AnchoredModel, data: Prepared, settings: TrainingConfig) -> None:
        self.model, self.data, self.settings = model, data, settings
        self.target = model.frame.maps(data.residual)

    def stage(self, k: int, folder: Path | None) -> Stage:
        """Return the training of network k."""
        net = self.model.networks[k]
        rows = (self.data.fold != k).nonzero().squeeze(1)
        order = torch.randperm(len(rows), generator=Generator().manual_seed(k))
        tenth = max(1, len(rows) // 10)
        judged, rows = rows[order[:tenth]], rows[order[tenth:]]

        def loss(batch: Tensor, _: Generator, __: float) -> tuple[Tensor, dict[str, Tensor]]:
            error = net(self.data.features[batch])[0] - self.target[batch]
            return error.square().mean(), {}

        def score(_: float) -> dict[str, float]:
            wrong = _in_parts(partial(_maps_of, net), self.data.features[judged])
            return {"score": float((wrong - self.target[judged]).square().mean())}

        return Stage(net, loss, score, rows, self.settings, folder=folder)

    @torch.no_grad()
    def corrections(self, out_of_fold: bool) -> Tensor:
        """Return what is added for each pair by the network that has not seen it."""
        if not out_of_fold:
            return _in_parts(self.model.correction, self.data.features)
        added = torch.empty_like(self.target)
        for k, net in enumerate(self.model.networks):
            rows = self.data.fold == k
            added[rows] = _in_parts(partial(_maps_of, net), self.data.features[rows])
        return added


def _maps_of(net: nn.Module, features: Tensor) -> Tensor:
    maps: Tensor = net(features)[0]
    return maps


@torch.no_grad()
def _in_parts(f: Callable[[Tensor], Any], inputs: Tensor, size: int = 256) -> Tensor:
    """Return what a function makes of inputs (N, ...), some at a time."""
    return torch.cat([f(part) for part in inputs.split(size)])


# -- code and grain ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Doubt:
    """What is left in doubt: residuals of answers, and what their codes are read from.

    Arguments:
        seen: Features and corrections, normalised, with shape (N, channels, *size).
        residual: In units of the residual, with shape (N, *x_shape).
    """

    seen: Tensor
    residual: Tensor


def _ramp(progress: float, start: float, end: float) -> float:
    return min(1.0, max(0.0, (progress - start) / (end - start)))


def divergence(q: SpikeSlab, p: SpikeSlab | Mixture) -> Tensor:
    """Return KL(q || p), or its bound for several modes, with shape (B,)."""
    return p.kl_from(q) if isinstance(p, Mixture) else q.kl(p).sum(-1)


class _CodeStage:
    """Trains code, decoder and one constant width on residuals that are out of fold.

    The number of open gates falls from many, so that factors learn what they are before they
    compete, to those asked for. Where none were asked for, the knee is chosen on the way.
    """

    def __init__(self, model: AnchoredModel, doubt: Doubt, held: Doubt) -> None:
        self.model, self.doubt, self.held = model, doubt, held
        self.state, self.beta = model.thresholds, model.anchored.beta
        self.parts = nn.ModuleList(
            (model.x_encoder, model.x_decoder, model.code_reader, model.thresholds)
        )
        self.state.active.fill_(model.anchored.active)
        self.drift: Tensor | float = 0.0

    @property
    def most(self) -> float:
        """How many gates are open at first."""
        asked, half = float(self.state.active), 0.5 * self.model.n_factors
        if asked:
            return max(asked, min(4 * asked, half))
        return min(half, MOST_FACTORS, 2.0 * self.doubt.residual[0].numel())

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
        self, doubt: Doubt, rows: Tensor, budget: float
    ) -> tuple[SpikeSlab, SpikeSlab | Mixture, Tensor, Tensor]:
        """Return the codes q of residuals and p of their y for a budget, and their shifts."""
        model = self.model
        numbers = model.code_reader(doubt.seen[rows])[1]
        parts, weights = model.modes_of(numbers)
        shift = self._solve(parts.detach().chunk(3, -1)[2], weights.detach(), budget)
        own = model.own_numbers(doubt.residual[rows], doubt.seen[rows])
        # Only what lies between gates and their shift matters: without this both may run away.
        self.drift = sum(t.chunk(3, -1)[2].square().mean() for t in (parts, own))
        gates = own.detach().chunk(3, -1)[2].unsqueeze(1)
        own_shift = self._solve(gates, torch.zeros_like(gates[:, :, 0]), budget)
        p = model.read_code(numbers, shift)
        return model.with_gates(own, own_shift), p, own_shift, shift

    def loss(
        self, rows: Tensor, generator: Generator, progress: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return minus the bound, by entry, and its parts."""
        model, state = self.model, self.state
        q, p, own_shift, shift = self.codes(self.doubt, rows, self.budget(progress))
        decoded = model.x_decoder(q.rsample(generator)) - model.centre(p)
        mse = (self.doubt.residual[rows] - decoded).square().mean()
        with torch.no_grad():
            rate = max(0.02, 0.5 * (1 - progress) ** 2)
            state.answer.lerp_(shift, rate)
            state.own.lerp_(own_shift, rate)
            state.log_width.lerp_(0.5 * mse.log(), rate)
        # Gradients of the KL at the side of q are weighed by beta: p follows q in any case.
        pull = self.beta * divergence(q, p.detach()) + divergence(q.detach(), p)
        # With the best width for an error, the fit is the logarithm of the error.
        size = self.doubt.residual[0].numel()
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
            q, p, _, _ = self.codes(held, rows, budget)
            decoded = self.model.x_decoder(q.rsample(generator)) - self.model.centre(p)
            squares += float((held.residual[rows] - decoded).double().square().sum())
            nats += float(divergence(q, p).double().sum())
        count = held.residual.numel()
        return -0.5 * math.log(max(squares / count, 1e-30)) - nats / count

    @torch.no_grad()
    def knee(self) -> float:
        """Return the number of factors after which more of them explain little more.

        Where x has so few entries that a curve has no room to bend, as many as there may be.
        """
        if self.most <= FEW_FACTORS:
            return self.most
        counts = [1.0]
        while counts[-1] * 1.3 < self.most:
            counts.append(math.ceil(counts[-1] * 1.3))
        return find_knee(counts, [self.explained(k) for k in counts])

    @torch.no_grad()
    def explained(self, budget: float) -> float:
        """Return the share of the held-out squared residual that a budget of factors explains."""
        residual, left = self.held.residual, 0.0
        for rows in torch.arange(len(residual)).split(256):
            q, p, _, _ = self.codes(self.held, rows, budget)
            decoded = self.model.x_decoder(q.mean) - self.model.centre(p)
            left += float((residual[rows] - decoded).double().square().sum())
        return 1 - left / max(float(residual.double().square().sum()), 1e-30)

    @torch.no_grad()
    def settle(self) -> None:
        """Set where gates open so that held-out answers have the number of factors promised."""
        model, held = self.model, self.held
        numbers = _in_parts(lambda s: model.code_reader(s)[1], held.seen)
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


class _GrainStage:
    """Trains the width of the grain for each entry: what the residual's own code does not explain.

    By the fair CRPS, which outliers do not rule. Trained on answers instead, where factors are
    drawn from the code of y, the grain would take over what factors say.
    """

    def __init__(self, model: AnchoredModel, doubt: Doubt, held: Doubt) -> None:
        self.model, self.doubt, self.held = model, doubt, held

    def loss(
        self, rows: Tensor, generator: Generator, _: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the CRPS of residuals, given their own codes."""
        return self._crps(self.doubt, rows, generator), {}

    @torch.no_grad()
    def settle(self) -> None:
        """Widen or narrow the grain as a whole until held-out answers score best.

        The code of a y that was not trained on may be less sure of itself than it was in training,
        and out-of-fold residuals may be larger than those of the answer, a mean of networks.
        """
        width = _in_parts(self.model.grain, self.held.seen)
        scores = [held_crps(self.model, self.held, wider * width) for wider in WIDTHS]
        self.model.thresholds.log_width += math.log(WIDTHS[scores.index(min(scores))])

    @torch.no_grad()
    def start(self) -> None:
        """Let the grain start at what own codes leave of some residuals."""
        model, rows = self.model, torch.arange(min(len(self.doubt.seen), 512))
        seen, residual = self.doubt.seen[rows], self.doubt.residual[rows]
        q, p = model.encode(residual, seen), model.read_code(model.code_reader(seen)[1])
        model.start_grain(residual - (model.x_decoder(q.mean) - model.centre(p)))

    def _crps(self, doubt: Doubt, rows: Tensor, generator: Generator) -> Tensor:
        """Return the CRPS of two samples of the residuals' own codes with grain, a scalar."""
        model, seen = self.model, doubt.seen[rows]
        with torch.no_grad():
            p = model.read_code(model.code_reader(seen)[1])
            q = model.encode(doubt.residual[rows], seen)
            centre = model.centre(p)
            drawn = model.x_decoder(q.rsample(generator)) - centre
        # One sample of the code, twice the grain: what two would differ by is not grain.
        return fair_crps((drawn, drawn), model.grain(seen), doubt.residual[rows], generator)

    @torch.no_grad()
    def score(self, _: float) -> dict[str, float]:
        """Return the CRPS of what their own codes say of held-out residuals."""
        held, total = self.held, 0.0
        generator = Generator(held.seen.device).manual_seed(0)
        for rows in torch.arange(len(held.seen)).split(256):
            total += float(self._crps(held, rows, generator)) * len(rows)
        return {"score": total / len(held.seen)}


def fair_crps(
    drawn: Sequence[Tensor], width: Tensor, truth: Tensor, generator: Generator
) -> Tensor:
    """Return the fair CRPS of two samples with grain, a scalar."""
    a, b = (s + width * _noise(width, generator) for s in drawn)
    return 0.5 * ((a - truth).abs() + (b - truth).abs() - (a - b).abs()).mean()


def _noise(like: Tensor, generator: Generator) -> Tensor:
    return torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)


@torch.no_grad()
def held_crps(model: AnchoredModel, held: Doubt, width: Tensor, samples: int = 8) -> float:
    """Return the CRPS of answers to held-out pairs, in units of the residual."""
    generator, total = Generator(width.device).manual_seed(0), 0.0
    for rows in torch.arange(len(width)).split(256):
        p = model.read_code(model.code_reader(held.seen[rows])[1])
        centre = model.centre(p)
        drawn = torch.stack(
            [model.x_decoder(p.rsample(generator)) - centre for _ in range(samples)]
        )
        drawn += width[rows] * _noise(drawn, generator)
        total += float(crps(drawn, held.residual[rows]).double().mean()) * len(rows)
    return total / len(width)


# -- the whole --------------------------------------------------------------------------------


class AnchoredTraining:
    """Trains an anchored model on pairs, stage by stage, in memory or into a folder.

    Arguments:
        train: Pairs to train on.
        held: Pairs that no weight is fitted to: they choose epochs, the number of factors, the
            threshold of gates and the overall width of the grain.
        config: The settings.
        groups: The group of each training pair, numbered from 0 on, with shape (N,).
        first: First guesses of the training and of the held-out unknowns.
        folder: Where stages are saved and resumed from; nothing is saved without it.
        device: Where to train.
        say: Called with a line on each step of the way.
    """

    def __init__(
        self,
        train: Pairs,
        held: Pairs,
        config: Config,
        *,
        groups: Tensor,
        first: tuple[Tensor, Tensor] | None = None,
        folder: Path | None = None,
        device: torch.device | str = "cpu",
        say: Say = lambda _: None,
    ) -> None:
        self.config, self.folder, self.device, self.say = config, folder, device, say
        self.train_pairs, self.held_pairs, self.groups, self.first = train, held, groups, first
        self.epochs = config.training.epochs
        self.rows: list[Row] = []

    def run(self, show: bool = True) -> AnchoredModel:
        """Train to the end and return the model."""
        first = None if self.first is None else self.first[0]
        model, data = prepare(self.train_pairs, first, self.groups, self.config, self.say)
        # Convolutions are faster so; in the end weights lie as those of a reloaded model do.
        model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        data = data.to(self.device)
        doubt = self._anchor(model, data, show)
        held = self._held(model)
        code = _CodeStage(model, doubt, held)
        every = torch.arange(len(doubt.residual), device=self.device)
        how = {"learning_rate": 2e-3, "clip": 1.0}
        stage = Stage(
            code.parts, code.loss, code.score, every, self._settings(self.epochs, **how),
            settled=FALL_UNTIL, folder=self._folder("code"),
        )  # fmt: skip
        self._run(stage, "code", show)
        code.settle()
        if model.anchored.grain == "predicted":
            grain = _GrainStage(model, doubt, held)
            grain.start()
            settings = self._settings(max(2, self.epochs // 3), learning_rate=1e-3)
            stage = Stage(
                model.grain_reader, grain.loss, grain.score, every, settings,
                folder=self._folder("grain"),
            )  # fmt: skip
            self._run(stage, "grain", show)
            grain.settle()
        return model.eval().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]

    def _anchor(self, model: AnchoredModel, data: Prepared, show: bool) -> Doubt:
        """Train the networks, keep them where they help, and return what is left in doubt."""
        if not len(model.networks):
            return Doubt(data.features, data.residual)
        networks = _Networks(model, data, self._settings(self.epochs, learning_rate=3e-3))
        for k in range(len(model.networks)):
            self._run(networks.stage(k, self._folder(f"network-{k}")), f"network {k}", show)
        self._trust(model)
        if float(model.trust) > 0:
            added = model.trust * networks.corrections(model.anchored.out_of_fold)
            return Doubt(
                model.seen(data.features, added),
                data.residual - added.reshape(data.residual.shape),
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.training.seed)
            model.leave_out_networks()
        model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        return Doubt(data.features, data.residual)

    @torch.no_grad()
    def _trust(self, model: AnchoredModel) -> None:
        """Set how far networks are trusted: by what share of theirs held-out errors are least.

        At most 1, and 0 where they do not lessen the error of the base by a hundredth.
        """
        doubt = self._held(model)
        added = doubt.seen[:, -model.frame.channels :].reshape(doubt.residual.shape).double()
        left = doubt.residual.double() + added
        trust = float((left * added).sum() / added.square().sum().clamp(min=1e-30))
        trust = 1.0 if model.anchored.anchor == "network" else min(max(trust, 0.0), 1.0)
        before, after = (float((left - t * added).square().mean()) for t in (0.0, trust))
        share = after / max(before, 1e-30)
        self.say(f"networks: {share:.3g} times the error before, on held-out pairs")
        if model.anchored.anchor != "network" and after > 0.99 * before:
            self.say("networks: no better than what they correct; left out")
            trust = 0.0
        model.trust.fill_(trust)

    @torch.no_grad()
    def _held(self, model: AnchoredModel) -> Doubt:
        """Return what answers to held-out pairs leave in doubt."""
        guesses = None if self.first is None else self.first[1]
        seen, residual = [], []
        for rows in torch.arange(len(self.held_pairs)).split(256):
            x, y = (t[rows].to(self.device) for t in (self.held_pairs.x, self.held_pairs.y))
            y = model.y_normaliser(y)
            guess = None if guesses is None else model.x_scale(guesses[rows].to(self.device))
            answer, part = model.answer(y, guess)
            seen.append(part)
            left = model.x_scale(x) - answer
            residual.append(left * model.x_scale.std / model.x_normaliser.std)
        return Doubt(torch.cat(seen), torch.cat(residual))

    def _settings(self, epochs: int, **how: Any) -> TrainingConfig:
        fixed: dict[str, Any] = {"epochs": epochs, "keep": "best"}
        return replace(self.config.training, weight_decay=0.01, **fixed, **how)

    def _folder(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / "stages" / name

    def _run(self, stage: Stage, name: str, show: bool) -> None:
        """Train a stage to its end, from where it was stopped, and log it."""
        stage.identity = {"stage": name, "epochs": stage.settings.epochs}
        if stage.folder is not None:
            make_folder(stage.folder)
            if (stage.folder / "checkpoint.safetensors").exists():
                stage.resume()
        for row in stage.train(show):
            self.rows.append({"epoch": len(self.rows) + 1, "stage": name, **_but_epoch(row)})
        if self.folder is not None:
            lines = "".join(json.dumps(row) + "\n" for row in self.rows)
            write_text(self.folder / "metrics.jsonl", lines)


def _but_epoch(row: Row) -> Row:
    return {k: v for k, v in row.items() if k != "epoch"}
