"""What the anchored model is trained on: features and residuals, each pair's out of fold.

A pair is answered by a ridge regression that was fitted to other folds; what that leaves is the
residual, and its answers for several penalties are the features that networks read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vspair.anchored import AnchoredModel
from vspair.anchors.curves import WIDTHS, CurvePath
from vspair.anchors.folds import assign_folds
from vspair.anchors.made import BaseName, Made, RidgeKind
from vspair.anchors.ridge import LARGEST, RidgePath, ridge_steps
from vspair.anchors.shifts import ShiftPath
from vspair.config import AnchoredConfig, Config
from vspair.data import Normaliser, Pairs, rows_from_everywhere
from vspair.errors import VspairError
from vspair.networks.spatial import Domain, Frame

__all__ = [
    "FOLDS",
    "Prepared",
    "Say",
    "domain_of",
    "fit_ridge",
    "help_of",
    "plain_modes",
    "prepare",
    "tell_domain",
    "whole_networks",
]

Say = Callable[[str], None]

AnyPath = RidgePath | ShiftPath | CurvePath

FOLDS = 5
"""How many folds there are where nothing else was chosen."""

MOST_CURVED = 256
"""The most entries of an observation for which a smooth relation is tried: distances say little
about more."""

MANY_PAIRS = 20_000
"""With more pairs than this, networks alone learn what is not linear, and no mirrored ones are
tried."""

OFTEN = 0.1
"""An entry changes often if more than this share of its values is not the usual one."""

FEW_ENTRIES = 16
"""Vectors of so many entries or fewer have many modes: their joint distribution can be learned."""

FEW_SOURCES, WHOLE = 12, 2
"""Of so many groups or fewer, networks miss those that they do not learn from: so many more learn
from all of them, and answer."""

LEAST_SIGNAL = 48
"""The entries that a vector must have to be taken for a signal."""


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
    data = x[rows_from_everywhere(len(x), 2000)].double()
    std, mean = torch.std_mean(data, dim=0)
    data = ((data - mean) / std)[:, std > 1e-6 * mean.abs() + torch.finfo(torch.float32).tiny]
    if data.shape[1] < LEAST_SIGNAL:
        return "vector"  # entries that never change are like their neighbours in any case
    near = (data[:, 1:] * data[:, :-1]).mean()
    far = (data * data.roll(data.shape[1] // 2, dims=1)).mean().abs()
    return "signal" if near > 0.5 and near > far + 0.3 else "vector"


def domain_of(config: AnchoredConfig, x: Tensor) -> Domain:
    """Return what unknowns are treated as: images without places are vectors."""
    domain = tell_domain(x, config.domain)
    return domain if config.spatial else "vector"


def plain_modes(domain: Domain, entries: int) -> int:
    """Return how many modes codes have where nothing is said.

    Arguments:
        domain: What unknowns are.
        entries: How many entries one of them has.
    """
    if domain != "vector":
        return 1
    return 24 if entries <= FEW_ENTRIES else 8


def help_of(domain: Domain, config: Config, pairs: int) -> str:
    """Return which help against overfitting networks may be trained with, if any.

    Arguments:
        domain: What unknowns are.
        config: The settings.
        pairs: How many pairs there are.
    """
    if domain == "vector":
        return "dropout"
    wanted = domain == "image" and config.anchored.mirrors and pairs <= MANY_PAIRS
    return "mirrors" if wanted else ""


def whole_networks(networks: int, groups: int) -> int:
    """Return how many networks learn from all folds, beside those without one each."""
    return WHOLE if networks and groups <= FEW_SOURCES else 0


@dataclass(frozen=True)
class Prepared:
    """What networks are trained on: pairs, answered by what was fitted to other pairs.

    Arguments:
        features: Normalised features, out of fold, with shape (N, n_features, *size).
        residual: What the base leaves, in units of its deviation, with shape (N, *x_shape).
        fold: The fold of each pair, with shape (N,).
        groups: The group of each pair, with shape (N,).
    """

    features: Tensor
    residual: Tensor
    fold: Tensor
    groups: Tensor

    def to(self, device: torch.device | str) -> Prepared:
        """Return the same on a device."""
        return Prepared(*(getattr(self, field.name).to(device) for field in fields(self)))


def _parts(rows: Tensor, width: int, penalties: int) -> tuple[Tensor, ...]:
    """Return rows in parts whose answers for some penalties are of 64 MB or little more."""
    return rows.split(max(16, min(2000, 16_000_000 // (penalties * width))))


def _ridge_answers(path: AnyPath, y: Tensor, width: int, steps: int) -> Tensor:
    return torch.cat([path(part) for part in _parts(y, width, steps)])


def fit_ridge(
    x: Tensor,
    y: Tensor,
    fold: Tensor,
    out_of_fold: bool = True,
    frame: Frame | None = None,
    width: float = 0.0,
    device: torch.device | str = "cpu",
) -> tuple[AnyPath, Tensor, Tensor]:
    """Return the path of a few penalties, and its answers to the pairs that it is fitted to.

    Arguments:
        x: Normalised unknowns, with shape (N, n).
        y: Normalised observations, with shape (N, m).
        fold: The fold of each pair, with shape (N,).
        out_of_fold: Whether each pair is answered by a path that was fitted without its fold.
        frame: How x and y lie on one grid, where all places are to be treated alike.
        width: The width of a kernel, where the relation may be curved.
        device: Where to compute; what is returned is on the CPU.

    Returns:
        The path with P penalties, answers (N, P, n), and the mean squared error of each, (P,).
    """
    fit: Callable[..., AnyPath]
    if frame is not None:
        fit = partial(ShiftPath.fit, frame=frame)
    elif width:
        fit = partial(CurvePath.fit, width=width)
    else:
        fit = partial(RidgePath.fit, exact=min(y.shape) <= LARGEST)
    x, y, fold = (t.to(device) for t in (x, y, fold))
    path = fit(x, y)
    penalties = path.penalties.tolist()
    parts, errors = [], torch.zeros(len(penalties), dtype=torch.float64, device=device)
    for k in range(int(fold.max()) + 1):
        parts.append(fit(x[fold != k], y[fold != k], penalties))
        for rows in _parts((fold == k).nonzero().squeeze(1), x.shape[1], len(penalties)):
            wrong = parts[-1](y[rows]) - x[rows].unsqueeze(1)
            errors += wrong.double().square().sum((0, 2))
    steps = ridge_steps(penalties, errors)
    path.keep(steps)
    answers = x.new_empty(len(x), len(steps), x.shape[1])
    for k, part in enumerate(parts):
        part.keep(steps)
        answers[fold == k] = _ridge_answers(part, y[fold == k], x.shape[1], len(steps))
    if not out_of_fold:
        answers = _ridge_answers(path, y, x.shape[1], len(steps))
    return path.cpu(), answers.cpu(), errors[steps].cpu() / x.numel()


def _best_ridge(
    x: Tensor,
    y: Tensor,
    near: Tensor | None,
    frame: Frame,
    fold: Tensor,
    out_of_fold: bool,
    device: torch.device | str,
) -> tuple[RidgeKind, AnyPath, Tensor, Tensor]:
    """Return the kind of ridge regression with the least error, and what :func:`fit_ridge` does.

    Arguments:
        x: Normalised unknowns, with shape (N, *x_shape).
        y: Normalised observations, with shape (N, *y_shape).
        near: Observations normalised as unknowns are, where they have the same shape; y is in
            float64 then, as filters may multiply round-off.
        frame: How unknowns lie on a grid.
        fold: The fold of each pair, with shape (N,).
        out_of_fold: Whether each pair is answered by a path that was fitted without its fold.
        device: Where to compute.
    """
    x, y = x.flatten(1), y.flatten(1)
    how: dict[str, Any] = {"out_of_fold": out_of_fold, "device": device}
    best: tuple[RidgeKind, AnyPath, Tensor, Tensor]
    best = ("entries", *fit_ridge(x, y.float(), fold, **how))
    if near is None:
        return best
    near = near.flatten(1)
    path, answers, errors = fit_ridge(x - near, y.float(), fold, **how)
    if float(errors.min()) < float(best[3].min()):
        best = ("toward-y", path, answers.add_(near.unsqueeze(1)), errors)
    if frame.size:
        path, answers, errors = fit_ridge(x, y, fold, out_of_fold, frame)
        if float(errors.min()) < float(best[3].min()):
            best = ("shifts", path, answers, errors)
    return best


def _choose_base(
    x: Tensor, guess: Tensor | None, error: float, anchor: str, say: Say
) -> tuple[BaseName, float]:
    """Return what networks are to correct, and its error: ridge, guesses if better, or nothing."""
    variance = _variance(x)
    found: tuple[BaseName, float] = ("ridge", error)
    if guess is not None:
        wrong = float((guess - x).double().square().mean())
        say(f"first guesses: leave {100 * wrong / variance:.3g} % of the variance")
        found = ("first", wrong) if wrong < error else found
    return ("none", float(x.double().square().mean())) if anchor == "none" else found


def _variance(x: Tensor) -> float:
    """Return the mean variance of the entries of x (N, *x_shape), each about its own mean."""
    return max(float(x.double().var(0, correction=0).mean()), 1e-30)


def _find_curve(
    x: Tensor, y: Tensor, fold: Tensor, out_of_fold: bool, error: float, say: Say
) -> tuple[CurvePath | None, Tensor | None]:
    """Return the best smooth regression and its answers (N, n), if its error is below another."""
    flat_x, flat_y = x.flatten(1), y.flatten(1)
    tried = [fit_ridge(flat_x, flat_y, fold, out_of_fold, width=width) for width in WIDTHS]
    path, answers, errors = min(tried, key=lambda each: float(each[2].min()))
    best = int(errors.argmin())
    wrong = float(errors[best])
    share = 100 * wrong / _variance(x)
    say(f"smooth regression: leaves {share:.3g} % of the variance, out of fold")
    if wrong >= error:
        return None, None
    path.keep([best])
    assert isinstance(path, CurvePath)
    return path, answers[:, best]


def prepare(
    train: Pairs,
    first: Tensor | None,
    groups: Tensor,
    config: Config,
    say: Say,
    device: torch.device | str = "cpu",
) -> tuple[AnchoredModel, Prepared]:
    """Return a model with its ridge path, not yet trained networks, and what to train them on.

    All of it is on the CPU; ridge regression is fitted on the device.
    """
    a, seed = config.anchored, config.training.seed
    wanted = a.folds or FOLDS
    folds = min(wanted, max(2, int(groups.max()) + 1))
    if folds < wanted:
        say(f"{folds} groups make {folds} folds, not {wanted}")
    fold = assign_folds(groups, folds, seed)
    domain, shapes = domain_of(a, train.x), train.shapes
    modes = a.modes or plain_modes(domain, train.x[0].numel())
    x_scale, y_scale = Normaliser(shapes[0]), Normaliser(shapes[1])
    x_scale.fit(train.x, _scaling(train.x))
    same = shapes[0] == shapes[1]
    y_scale.fit(train.y, "scalar" if same and domain == "signal" else _scaling_of_read(train.y))
    x, y = x_scale(train.x), y_scale(train.y.double() if same else train.y)
    guess = None if first is None else x_scale(first)
    near = x_scale(train.y) if same else None
    frame = Frame(shapes[0], domain)
    kind, path, answers, errors = _best_ridge(x, y, near, frame, fold, a.out_of_fold, device)
    best = int(errors.argmin())
    error = float(errors[best])
    words = {"entries": "", "toward-y": ", of x - y", "shifts": ", with all shifts"}[kind]
    say(f"ridge{words}: leaves {100 * error / _variance(x):.3g} % of the variance, out of fold")
    base, error = _choose_base(x, guess, error, a.anchor, say)
    few = len(y) <= MANY_PAIRS and y[0].numel() <= MOST_CURVED
    curve = smooth = None
    if domain == "vector" and a.anchor == "auto" and few:
        curve, smooth = _find_curve(x, y.float(), fold, a.out_of_fold, error, say)
    networks = int(fold.max()) + 1 if a.anchor in ("auto", "network") else 0
    whole = whole_networks(networks, int(groups.max()) + 1)
    rank = len(path.values) if isinstance(path, RidgePath) else 0
    sizes = rank, answers.shape[1], best, networks, modes
    directions = 0 if curve is None else len(curve.values)
    made = Made(
        base, domain, *sizes, first is not None, kind, directions, reach=a.reach, whole=whole
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AnchoredModel(config.model, a, made, *shapes)
    model.x_scale, model.y_normaliser, model.ridge = x_scale, y_scale, path
    model.curve = curve
    model.x_normaliser.std.copy_(model.x_scale.std * math.sqrt(max(error, 1e-20)))
    if not model.centred:
        model.x_normaliser.mean.copy_(model.x_scale.mean)
    stacked = model.stack(answers, guess, smooth, y.float())
    dims = (0, *range(2, stacked.ndim))
    std, mean = torch.std_mean(stacked, dim=dims, keepdim=True)
    model.feature_mean.copy_(mean[0])
    std = std.where(std > 1e-6, 1.0)  # what never changes carries nothing
    model.feature_std.copy_(std[0])
    scale = model.x_scale.std / model.x_normaliser.std
    residual = (x - model.base(stacked)) * scale
    stacked -= mean
    stacked /= std
    return model, Prepared(_fast(stacked), _fast(residual), fold, groups)


def _fast(maps: Tensor) -> Tensor:
    """Return images with the channels of each pixel side by side."""
    return maps.contiguous(memory_format=torch.channels_last) if maps.ndim == 4 else maps


def _scaling(x: Tensor) -> Any:
    """Return how unknowns are scaled: each entry or channel alone where their units differ.

    They differ if some have ten times the deviation of others. An entry of a vector that hardly
    ever changes is no sign of a small unit: it may be an empty pixel.
    """
    if x.ndim == 3:
        return "scalar"
    std = x.double().std([d for d in range(x.ndim) if d != 1])
    small = std > 0
    if x.ndim == 2:
        small &= (x != x.median(0).values).double().mean(0) > OFTEN
    differ = bool(small.any()) and float(std.max()) > 10 * float(std[small].min())
    return ("feature" if x.ndim == 2 else "channel") if differ else "scalar"


def _scaling_of_read(y: Tensor) -> Any:
    """Return how observations are scaled: entries of vectors always have their own scale."""
    return "feature" if y.ndim == 2 else _scaling(y)
