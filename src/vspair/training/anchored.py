r"""The training of the anchored model, in stages, each on what the one before has not seen.

1. *Ridge*, in closed form; penalty and answers out of fold.
2. *Networks*, one without each fold, by squared error of what ridge leaves.
3. *Code*: the conditional bound on the out-of-fold residual e = x - r(y),

   .. math:: \log p(e \mid y) \ge \mathrm{E}_{q(z \mid e)} \log \mathcal{N}(e \mid d(z) - d(\bar z),
             s^2) - \mathrm{KL}(q(z \mid e) \,\|\, p(z \mid y)),

   with one constant width s.
4. *Grain*: a width for each entry, by the fair CRPS of answers, the code as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from vspair.anchored import AnchoredModel, AnchorName, Made
from vspair.anchors.folds import assign_folds
from vspair.anchors.ridge import RidgePath, ridge_steps
from vspair.codes import Mixture, SpikeSlab
from vspair.config import Config, TrainingConfig
from vspair.data import Normaliser, Pairs
from vspair.errors import VspairError
from vspair.metrics import crps
from vspair.networks.spatial import Domain, Frame
from vspair.training.stage import Stage

__all__ = ["solve_budget", "train_anchored"]

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
    path = RidgePath.fit(x, y)
    penalties = path.penalties.tolist()
    parts, errors = [], torch.zeros(len(penalties), dtype=torch.float64)
    for k in range(int(fold.max()) + 1):
        parts.append(RidgePath.fit(x[fold != k], y[fold != k], penalties))
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
    fold = assign_folds(groups, a.folds, seed)
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
    best = int(errors.argmin())
    base, error = best, float(errors[best])
    say(f"ridge: error {_units(error, x_scale):.4g} out of fold")
    anchor: AnchorName = "ridge"
    if guess is not None:
        wrong = float((guess - x).double().square().mean())
        say(f"first guesses: error {_units(wrong, x_scale):.4g}")
        if wrong < error:
            anchor, base, error = "first", answers.shape[1], wrong
    if a.anchor == "none":
        anchor, base, error = "none", -1, float(x.double().square().mean())
    networks = a.folds if a.anchor in ("auto", "network") else 0
    made = Made(
        anchor, domain, base, len(path.values), answers.shape[1], networks, modes, first is not None
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AnchoredModel(config.model, a, made, *shapes)
    model.x_scale, model.y_normaliser, model.ridge = x_scale, y_scale, path
    model.x_normaliser.std.copy_(model.x_scale.std * math.sqrt(max(error, 1e-20)))
    stacked = model.stack(answers, guess, y)
    dims = (0, *range(2, stacked.ndim))
    std, mean = torch.std_mean(stacked, dim=dims, keepdim=True)
    model.feature_mean.copy_(mean[0])
    model.feature_std.copy_(std[0].clamp(min=1e-6))
    scale = model.x_scale.std / model.x_normaliser.std
    residual = (x - model.base(stacked)) * scale
    stacked -= mean
    stacked /= std.clamp(min=1e-6)
    return model, Prepared(stacked, residual, fold)


def _units(error: float, scale: Normaliser) -> float:
    """Return a mean squared error in the squared units of the data."""
    return error * float(scale.std.square().mean())


def _scaling(x: Tensor) -> Any:
    """Return how unknowns are scaled: entry by entry where their units seem to differ."""
    if x.ndim > 2:
        return "scalar"
    std = x.double().std(0)
    return "feature" if float(std.max()) > 10 * float(std.median()) else "scalar"


# -- networks ---------------------------------------------------------------------------------


class _Networks:
    """Trains the networks of the anchor, one without each fold."""

    def __init__(self, model: AnchoredModel, data: Prepared, settings: TrainingConfig) -> None:
        self.model, self.data, self.settings = model, data, settings
        self.target = model.frame.maps(data.residual)

    def stage(self, k: int, folder: Path | None) -> Stage:
        """Return the training of network k."""
        net = self.model.networks[k]
        rows = (self.data.fold != k).nonzero().squeeze(1)
        order = torch.randperm(len(rows), generator=Generator().manual_seed(k))
        held, rows = rows[order[: len(rows) // 10]], rows[order[len(rows) // 10 :]]

        def loss(batch: Tensor, _: Generator, __: float) -> tuple[Tensor, dict[str, Tensor]]:
            error = net(self.data.features[batch])[0] - self.target[batch]
            return error.square().mean(), {}

        def score(_: float) -> dict[str, float]:
            wrong = self.answer(net, held) - self.target[held]
            return {"score": float(wrong.square().mean())}

        return Stage(net, loss, score, rows, self.settings, folder=folder)

    @torch.no_grad()
    def answer(self, net: nn.Module, rows: Tensor) -> Tensor:
        """Return what a network adds for some pairs, in units of the residual."""
        return torch.cat([net(self.data.features[part])[0] for part in rows.split(500)])

    def corrections(self, out_of_fold: bool) -> Tensor:
        """Return what is added for each pair by the network that has not seen it."""
        every, fold = torch.arange(len(self.target)), self.data.fold
        if not out_of_fold:
            return torch.stack([self.answer(n, every) for n in self.model.networks]).mean(0)
        added = torch.empty_like(self.target)
        for k, net in enumerate(self.model.networks):
            rows = every[fold == k]
            added[rows] = self.answer(net, rows)
        return added


# -- code -------------------------------------------------------------------------------------


def _ramp(progress: float, start: float, end: float) -> float:
    return min(1.0, max(0.0, (progress - start) / (end - start)))


class _Code:
    """Trains code, decoder and one constant width on residuals that are out of fold."""

    def __init__(
        self, model: AnchoredModel, seen: Tensor, residual: Tensor, active: float, held: Tensor
    ) -> None:
        self.model, self.seen, self.residual, self.active = model, seen, residual, active
        self.held = held
        self.parts = nn.ModuleList((model.x_encoder, model.x_decoder, model.code_reader))
        self.beta = model.anchored.beta

    def _budget(self, progress: float) -> float:
        """Return how many gates are open: many at first, so that factors learn what they are."""
        most = 0.5 * self.model.n_factors
        start = min(4 * self.active, max(most, self.active))
        return self.active * (start / self.active) ** (1 - _ramp(progress, 0.0, 0.5))

    def _codes(
        self, rows: Tensor, progress: float
    ) -> tuple[SpikeSlab, SpikeSlab | Mixture, Tensor]:
        model = self.model
        budget = self._budget(progress)
        numbers = model.code_reader(self.seen[rows])[1]
        gates, weights = model.gate_numbers(numbers)
        shift = solve_budget(gates.detach(), weights.detach(), budget)
        residual = self.residual[rows]
        own = model.x_encoder(model.frame.maps(residual)).flatten(1)
        own_gates = own.detach().chunk(3, -1)[2].unsqueeze(1)
        own_shift = solve_budget(own_gates, torch.zeros_like(own_gates[:, :, 0]), budget)
        if model.training:
            with torch.no_grad():
                rate = max(0.01, 0.5 * (1 - progress) ** 2)
                model.shift.lerp_(shift, rate)
                model.encoder_shift.lerp_(own_shift, rate)
        return model._with_gates(own, own_shift), model.read_code(numbers, shift), residual

    def loss(
        self, rows: Tensor, generator: Generator, progress: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        model, residual = self.model, self.residual[rows]
        q, p, residual = self._codes(rows, progress)
        centre = model.x_decoder(p.mean)
        decoded = model.x_decoder(q.rsample(generator)) - centre
        mse = (residual - decoded).square().mean()
        # The best width for an error: the fit is then the logarithm of the error.
        size = residual[0].numel()
        fit = 0.5 * size * mse.log()
        model.log_width.data.lerp_(0.5 * mse.detach().log(), 0.02)
        beta = _ramp(progress, 0.05, 0.45)
        kl = _divergence(q, p).mean()
        on_q = _divergence(q, p.detach()).mean() if self.beta != 1 else kl
        on_p = _divergence(q.detach(), p).mean() if self.beta != 1 else kl
        pull = kl if self.beta == 1 else self.beta * on_q + on_p
        slab = q.kl_slab().sum(-1).mean()
        loss = fit + beta * pull + 0.01 * slab
        return loss / size, {"mse": mse.detach(), "kl": kl.detach()}


def _divergence(q: SpikeSlab, p: SpikeSlab | Mixture) -> Tensor:
    """Return KL(q || p), or its bound for several modes, with shape (B,)."""
    return p.kl_from(q) if isinstance(p, Mixture) else q.kl(p).sum(-1)
