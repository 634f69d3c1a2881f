"""The demonstration: learn to undo the spreading of heat, and say how sure the answer is.

Pairs are generated, a small vsPAIR is trained on them, and everything is measured on pairs that
it never saw. It takes about two minutes on two CPU cores and ends in one HTML page.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from vspair import config as configs
from vspair.baselines.ridge import Ridge
from vspair.config import Config
from vspair.errors import VspairError
from vspair.fitting import fit
from vspair.model import InverseModel
from vspair.posterior import Posterior
from vspair.problems.heat import HeatProblem
from vspair.report import plots
from vspair.report.page import Picture, Section, Table, write_page
from vspair.report.plots import ImageRow
from vspair.runs import commit, machine, write_text

__all__ = ["demo"]

PROBLEM = HeatProblem(
    time=8.0, noise=0.05, modes=2, decay=1.0, series=0.5, source_width=(0.4, 0.6)
)
SAMPLES = 100
TEST = 200
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
SHOWN = 3
NOISY, PLAIN = "with decoder noise", "without decoder noise"


@dataclass(frozen=True)
class _Pairs:
    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class _Factors:
    """The factors that carry most variance for one observation.

    Arguments:
        index: Which factors, with shape (k,).
        share: The share of the factors' pixel variance that each carries, with shape (k,).
        down: What a shift by -2 sigma changes, with shape (k, H, W).
        up: What a shift by +2 sigma changes, with shape (k, H, W).
    """

    index: Tensor
    share: Tensor
    down: Tensor
    up: Tensor


def demo(
    out: Path, *, epochs: int | None = None, pairs: int = 10000, progress: bool = True
) -> dict[str, Any]:
    """Train, measure and write a page; return what ``metrics.json`` holds.

    Arguments:
        out: The folder to fill: ``run/``, ``metrics.json``, ``figures/`` and ``index.html``.
        epochs: Passes over the pairs; from the configuration ``demo`` where not given.
        pairs: How many pairs to learn from.
        progress: Whether to show a progress bar.
    """
    out = Path(out)
    _make(out)
    config = configs.shipped("demo")
    if epochs is not None:
        config = configs.override(config, {"training": {"epochs": epochs}})
    train, test = _Pairs(*PROBLEM.pairs(pairs, seed=0)), _Pairs(*PROBLEM.pairs(TEST, seed=1))
    start = time.perf_counter()
    model = fit(train.x, train.y, config=config, out=out / "run", device="cpu", progress=progress)
    seconds = time.perf_counter() - start
    summary = _summary(config, train, test, _rows(model, train, test, seconds))
    write_text(out / "metrics.json", json.dumps(summary, indent=2) + "\n")
    _write_report(out, model, train, test, summary)
    return summary


def _make(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise VspairError(f"{out} exists and is not empty. Name another folder or remove it.")
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise VspairError(f"Could not make the folder {out}: {error}.") from None


# -- numbers --------------------------------------------------------------------------------


def _row(model: str, metric: str, value: float, unit: str, **more: Any) -> dict[str, Any]:
    calibrated = "calibrated" if model == "vsPAIR" else ""
    row = {"model": model, "preset": calibrated, "metric": metric, "unit": unit}
    return row | more | {"value": value, "seeds": 1}


def _rows(model: InverseModel, train: _Pairs, test: _Pairs, seconds: float) -> list[Any]:
    drawn = {noise: _draw(model.posterior(test.y, noise=noise)) for noise in (False, True)}
    active = model.posterior(test.y).active().double().sum(1).mean()
    answers = {"vsPAIR": drawn[False].mean(0)} | _rivals(train, test)
    rows = [_row(name, "mse", _mse(x, test.x), "field^2") for name, x in answers.items()]
    for noise, samples in drawn.items():
        condition = NOISY if noise else PLAIN
        rows += [
            _row("vsPAIR", f"coverage_{round(100 * level)}", share, "share", condition=condition)
            for level, share in _coverage(samples, test.x).items()
        ]
    far = _far(drawn[True], test.x)
    return [
        *rows,
        _row("vsPAIR", "beyond_4_std", far, "share", condition=NOISY),
        _row("vsPAIR", "active", float(active), "factors"),
        _row("vsPAIR", "parameters", model.n_parameters, "numbers"),
        _row("vsPAIR", "seconds_per_sample", _seconds_per_sample(model, test.y[0]), "s"),
        _row("vsPAIR", "training_seconds", seconds, "s"),
    ]


def _summary(config: Config, train: _Pairs, test: _Pairs, rows: list[Any]) -> dict[str, Any]:
    scale = {"epochs": config.training.epochs, "train": len(train.x), "test": len(test.x)}
    return {
        "study": "demo",
        "command": "vspair demo",
        "commit": commit(),
        "machine": machine(),
        "scale": scale | {"paper_scale": False},
        "rows": rows,
    }


def _mse(answer: Tensor, x: Tensor) -> float:
    return float((answer - x).square().mean())


def _draw(posterior: Posterior) -> Tensor:
    return posterior.sample(SAMPLES, Generator().manual_seed(0))


def _rivals(train: _Pairs, test: _Pairs) -> dict[str, Tensor]:
    """Return the other methods' answers for the test pairs, each with shape (B, H, W)."""
    return {
        "ridge": Ridge(train.x, train.y)(test.y),
        "trivial-y": test.y,
        "trivial-mean": train.x.mean(0).expand_as(test.x),
        "wiener": PROBLEM.wiener(test.y, train.x),
    }


def _coverage(samples: Tensor, x: Tensor) -> dict[float, float]:
    """Return the share of pixels inside the central interval of each level.

    With n samples the truth's rank among them is one of 0 .. n, each as likely as the others
    where the samples are drawn from the right distribution.
    """
    rank = (samples < x).double().mean(0)
    return {v: float(((2 * rank - 1).abs() <= v).double().mean()) for v in LEVELS}


def _far(samples: Tensor, x: Tensor) -> float:
    """Return the share of pixels whose error exceeds four standard deviations."""
    std, mean = torch.std_mean(samples, dim=0)
    return float(((x - mean).abs() > 4 * std).double().mean())


def _seconds_per_sample(model: InverseModel, y: Tensor, n: int = 256) -> float:
    """Return the time of one posterior sample, encoding of y included, among n of them."""
    model.posterior(y).sample(10)
    start = time.perf_counter()
    model.posterior(y).sample(n)
    return (time.perf_counter() - start) / n


def _factors(posterior: Posterior, count: int) -> _Factors:
    """Return the factors that carry most pixel variance for one observation.

    The variance of a factor is that of the decoded image along it: a quarter of the squared
    difference between one deviation up and one down, all other factors at their means.
    """
    mean, sigma = posterior.code.mean[0], posterior.code.variance[0].sqrt()
    steps = torch.diag(sigma)
    slope = posterior.decode(mean + steps) - posterior.decode(mean - steps)
    carried = 0.25 * slope.square().mean((1, 2))
    index = carried.argsort(descending=True)[:count]
    centre = posterior.decode(mean)
    return _Factors(
        index,
        carried[index] / carried.sum(),
        posterior.decode(mean - 2 * steps[index]) - centre,
        posterior.decode(mean + 2 * steps[index]) - centre,
    )


# -- figures --------------------------------------------------------------------------------


def _range(*images: Tensor) -> tuple[float, float]:
    return min(float(i.min()) for i in images), max(float(i.max()) for i in images)


def _pairs_figure(train: _Pairs) -> Any:
    x, y = train.x[:SHOWN], train.y[:SHOWN]
    rows = [
        ImageRow("x: the sharp map, before", x, limits=_range(x, y)),
        ImageRow("y: blurred and noisy, after", y, limits=_range(x, y)),
    ]
    return plots.image_grid(rows, [f"example {i + 1}" for i in range(SHOWN)])


def _answers_figure(model: InverseModel, test: _Pairs) -> Any:
    x, y = test.x[:SHOWN], test.y[:SHOWN]
    posterior = model.posterior(y)
    mean, std = posterior.moments(SAMPLES, Generator().manual_seed(0))
    samples = posterior.sample(2, Generator().manual_seed(2))
    limits = _range(x, y, mean, samples)
    rows = [
        ImageRow("given: the observation y", y, limits=limits),
        ImageRow("hidden: the truth x", x, limits=limits),
        ImageRow("our estimate (mean)", mean, limits=limits),
        ImageRow("our doubt (standard deviation)", std, "spread"),
        ImageRow("actual error |estimate - truth|", (mean - x).abs(), "spread"),
        ImageRow("one possible answer", samples[0], limits=limits),
        ImageRow("another possible answer", samples[1], limits=limits),
    ]
    return plots.image_grid(rows, [f"test {i + 1}" for i in range(SHOWN)])


def _coverage_figure(rows: list[Any]) -> Any:
    series = {}
    for condition in (NOISY, PLAIN):
        share = [_value(rows, f"coverage_{round(100 * v)}", condition=condition) for v in LEVELS]
        series[condition] = ([100 * v for v in LEVELS], [100 * s for s in share])
    return plots.lines(
        series, "promised: interval level (%)", "kept: pixels inside (%)", diagonal=True
    )


def _factors_figure(factors: _Factors) -> Any:
    limits = _range(factors.down, factors.up)
    rows = [
        ImageRow("factor moved by -2 sigma", factors.down, "change", limits),
        ImageRow("factor moved by +2 sigma", factors.up, "change", limits),
    ]
    titles = [
        f"no. {int(i)}: {100 * float(s):.0f} %"
        for i, s in zip(factors.index, factors.share, strict=True)
    ]
    return plots.image_grid(rows, titles)


# -- the page -------------------------------------------------------------------------------


def _value(rows: list[Any], metric: str, model: str = "vsPAIR", condition: str = "") -> float:
    for row in rows:
        if (row["metric"], row["model"], row.get("condition", "")) == (metric, model, condition):
            return float(row["value"])
    raise KeyError((metric, model, condition))


def _error_table(rows: list[Any]) -> Table:
    names = {
        "vsPAIR": "vsPAIR, mean of samples",
        "ridge": "Ridge regression, from the same pairs",
        "trivial-y": "Returning y as it is",
        "trivial-mean": "Always the average map",
        "wiener": "Wiener filter (knows the physics)",
    }
    field = _value(rows, "mse", "trivial-mean")
    cells = [
        (text, f"{(mse := _value(rows, 'mse', name)):.4f}", f"{100 * mse / field:.1f} %")
        for name, text in names.items()
    ]
    return Table(
        ("Answer", "Mean squared error", "share of the variance"),
        cells,
        "Pairs that no method has seen; smaller is better. The Wiener filter is given the heat "
        "equation and the noise level, which the others never see, so it is a yardstick and not a "
        "fair rival. It is the best answer that is linear in y; only a nonlinear one can be "
        "better.",
        strong=(0,),
    )


def _facts_table(rows: list[Any]) -> Table:
    noisy = _value(rows, "coverage_90", condition=NOISY)
    plain = _value(rows, "coverage_90", condition=PLAIN)
    return Table(
        ("Measured on held-out pairs", ""),
        (
            ("Pixels inside the 90 % interval", f"{100 * noisy:.0f} %"),
            ("The same without decoder noise", f"{100 * plain:.0f} %"),
            ("Factors present, on average", f"{_value(rows, 'active'):.0f}"),
            ("Time for one sample", f"{1e3 * _value(rows, 'seconds_per_sample'):.2g} ms"),
            ("Time to train", f"{_value(rows, 'training_seconds'):.0f} s"),
        ),
    )


def _weaknesses(rows: list[Any], config: Config, factors: _Factors) -> Iterator[str]:
    noisy, plain = (100 * _value(rows, "coverage_90", condition=c) for c in (NOISY, PLAIN))
    far = 100 * _value(rows, "beyond_4_std", condition=NOISY)
    yield (
        f"The 90 % intervals hold {noisy:.0f} % of the pixels with decoder noise and "
        f"{plain:.0f} % without. That is an average, and it hides misses: in {far:.2f} % of the "
        "pixels the error is more than four times the stated deviation, which a normal law "
        "allows in 0.006 %. There the model is wrong without a warning, for example where it "
        "overlooks a weak source: look for dark spots in the row of errors that have no "
        "counterpart in the row of doubts."
    )
    yield (
        f"It was asked to use {config.objective.active} factors and uses "
        f"{_value(rows, 'active'):.0f}. The three that carry most of the doubt carry only "
        f"{100 * float(factors.share.sum()):.0f} % of it together: doubt is spread thinly, and "
        "one factor alone explains little."
    )
    ratio = _value(rows, "mse", "ridge") / _value(rows, "mse")
    yield (
        f"Ridge regression, which is fitted in a second, has {ratio:.1f} times our squared error, "
        "but neither samples nor factors. The maps are small and made up, and the training is "
        "short: this is a demonstration, not a result."
    )


def _sections(
    pictures: dict[str, bytes], summary: dict[str, Any], factors: _Factors
) -> Iterator[Section]:
    config = configs.shipped("demo")
    rows, scale = summary["rows"], summary["scale"]
    yield Section(
        "The problem",
        (
            "Somebody heats a plate in one spot, and it was unevenly warm before. We look some "
            "time later, with an imperfect camera: by then the heat has spread, the sharp map x "
            "has become a blurred and noisy map y. What did the plate look like before? Fine "
            "detail has sunk below the noise, so more than one x fits what we see. An honest "
            "answer is a range of possible maps, not one.",
            f"The model was told nothing of heat, cameras or blur. It was shown "
            f"{scale['train']:,} examples of before and after, like these, and nothing else.",
            Picture(
                pictures["pairs"],
                "Three of the examples that the model learned from. Each map has 16 by 16 pixels "
                "and wraps around at its edges. One colour scale for all.",
                "Three sharp heat maps and the blurred maps that they turn into",
            ),
        ),
    )
    yield Section(
        "What it answers",
        (
            "For a new y the model gives as many possible x as one asks for. Their mean is its "
            "best estimate; where they differ is where it is in doubt.",
            Picture(
                pictures["answers"],
                "Three pairs that the model never saw. It is given the first row and knows "
                "nothing of the second. Doubt should be large where the error is large.",
                "Observation, truth, estimate, doubt, error and two samples for three test cases",
            ),
        ),
    )
    yield Section("How good it is", (_error_table(rows), _facts_table(rows)))
    yield Section(
        "Whether its doubt can be trusted",
        (
            "A 90 % interval should hold the truth in 90 % of the pixels. The model's doubt has "
            "two parts: which map it is (the samples shown above), and a grain that its decoder "
            "leaves unexplained (the decoder noise).",
            Picture(
                pictures["coverage"],
                "On the dashed line a promise is kept exactly; below it the model is too sure, "
                "above it too careful.",
                "Share of pixels inside intervals against the level of the interval",
            ),
        ),
    )
    yield Section(
        "Where the doubt comes from",
        (
            f"The model has {config.model.x_size} factors to describe a map with. Each is either "
            f"absent, exactly zero, or present with some strength; {_value(rows, 'active'):.0f} "
            "are present on average. These three carry more of the doubt about the first test "
            "map than any other. Moving one of them by two of its standard deviations (sigma) "
            "changes the answer as shown.",
            Picture(
                pictures["factors"],
                "What is added to the answer for test 1 (red) or taken from it (blue). The number "
                "is the factor's share of the doubt.",
                "Changes of the estimate along three factors",
            ),
        ),
    )
    yield Section("What is not good", tuple(_weaknesses(rows, config, factors)))


def _write_report(
    out: Path, model: InverseModel, train: _Pairs, test: _Pairs, summary: dict[str, Any]
) -> None:
    factors = _factors(model.posterior(test.y[:1]), SHOWN)
    figures = {
        "pairs": _pairs_figure(train),
        "answers": _answers_figure(model, test),
        "coverage": _coverage_figure(summary["rows"]),
        "factors": _factors_figure(factors),
    }
    pictures = {name: plots.png(figure) for name, figure in figures.items()}
    for name, picture in pictures.items():
        (out / "figures" / f"{name}.png").write_bytes(picture)
    scale = summary["scale"]
    write_page(
        out / "index.html",
        "What was it before?",
        "A camera sees a heat map after the heat has spread. A small vsPAIR, trained in about two "
        "minutes on examples alone, says what the map was before, how sure it is, and which "
        "factors its doubt comes from.",
        list(_sections(pictures, summary, factors)),
        f"Made by “{summary['command']}” ({summary['commit']}) on {summary['machine']}: "
        f"{scale['train']:,} pairs, {scale['epochs']} epochs, measured on {scale['test']:,} other "
        "pairs, one seed. All numbers are in metrics.json, the model is in run/.",
    )
