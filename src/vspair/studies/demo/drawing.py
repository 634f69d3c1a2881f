"""The demonstration's page: figures, tables and words, from numbers that were measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from vspair.report import figures as plots
from vspair.report.figures import ImageRow
from vspair.report.page import Picture, Section, Table, write_page
from vspair.runs import atomically

__all__ = ["NOISY", "PLAIN", "Answers", "Factors", "Pairs", "brief", "write_report"]

NOISY, PLAIN = "with decoder noise", "without decoder noise"
METHODS = {
    "vsPAIR": "vsPAIR, mean of samples",
    "ridge": "Ridge regression, from the same pairs",
    "wiener": "Wiener filter (knows the operator)",
    "trivial-y": "Returning y as it is",
    "trivial-mean": "Always the mean field",
}

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Pairs:
    """Unknowns and their observations, both with shape (B, H, W)."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Answers:
    """What the model says about a few test pairs.

    Arguments:
        pairs: The pairs.
        mean: The mean of the posterior, with shape (B, H, W).
        std: Its standard deviation, with shape (B, H, W).
        samples: Two samples of it, with shape (2, B, H, W).
    """

    pairs: Pairs
    mean: Tensor
    std: Tensor
    samples: Tensor


@dataclass(frozen=True)
class Factors:
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


def _value(rows: Rows, metric: str, model: str = "vsPAIR", condition: str = "") -> float:
    for row in rows:
        if (row["metric"], row["model"], row.get("condition", "")) == (metric, model, condition):
            return float(row["value"])
    raise KeyError((metric, model, condition))


def brief(summary: dict[str, Any]) -> str:
    """Return the numbers that matter as a few lines for a terminal.

    Arguments:
        summary: What ``metrics.json`` holds.
    """
    rows = summary["rows"]
    lines = [f"{text:<43}{_value(rows, 'mse', name):>9.4f}" for name, text in METHODS.items()]
    covered = 100 * _value(rows, "coverage_90", condition=NOISY)
    facts = {
        "Pixels inside the 90 % interval, with noise": f"{covered:.1f} %",
        "Factors present, on average": f"{_value(rows, 'active'):.1f}",
        "Time to train": f"{_value(rows, 'training_seconds'):.0f} s",
    }
    head = f"Mean squared error on {summary['scale']['test']} unseen pairs"
    facts_text = [f"{name:<45}{value:>9}" for name, value in facts.items()]
    return "\n".join([head, *(f"  {line}" for line in lines), *facts_text])


# -- figures --------------------------------------------------------------------------------


def _range(*images: Tensor) -> tuple[float, float]:
    return min(float(i.min()) for i in images), max(float(i.max()) for i in images)


def _titles(word: str, images: Tensor) -> list[str]:
    return [f"{word} {i + 1}" for i in range(len(images))]


def _pairs_figure(pairs: Pairs) -> Any:
    limits = _range(pairs.x, pairs.y)
    rows = [
        ImageRow("x: the sharp map, before", pairs.x, limits=limits),
        ImageRow("y: blurred and noisy, after", pairs.y, limits=limits),
    ]
    return plots.image_grid(rows, _titles("example", pairs.x))


def _answers_figure(answers: Answers) -> Any:
    x, y = answers.pairs.x, answers.pairs.y
    error = (answers.mean - x).abs()
    limits = _range(x, y, answers.mean, answers.samples)
    rows = [
        ImageRow("given: the observation y", y, limits=limits),
        ImageRow("hidden: the truth x", x, limits=limits),
        ImageRow("our estimate (mean)", answers.mean, limits=limits),
        ImageRow("our doubt (standard deviation)", answers.std, "spread"),
        ImageRow("actual error |estimate - truth|", error, "spread"),
        ImageRow("one possible answer", answers.samples[0], limits=limits),
        ImageRow("another possible answer", answers.samples[1], limits=limits),
    ]
    return plots.image_grid(rows, _titles("test", x))


def _coverage_figure(rows: Rows) -> Any:
    series = {}
    for condition in (NOISY, PLAIN):
        found = {
            float(row["metric"].removeprefix("coverage_")): 100 * row["value"]
            for row in rows
            if row["metric"].startswith("coverage_") and row["condition"] == condition
        }
        series[condition] = (list(found), list(found.values()))
    return plots.lines(
        series, "promised: interval level (%)", "kept: pixels inside (%)", diagonal=True
    )


def _factors_figure(factors: Factors) -> Any:
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


# -- tables ---------------------------------------------------------------------------------


def _error_table(rows: Rows) -> Table:
    field = _value(rows, "mse", "trivial-mean")
    cells = [
        (text, f"{(mse := _value(rows, 'mse', name)):.4f}", f"{100 * mse / field:.1f} %")
        for name, text in METHODS.items()
    ]
    return Table(
        ("Answer", "Mean squared error", "Share of the variance"),
        cells,
        "Pairs that no method has seen; smaller is better. The Wiener filter is given the heat "
        "equation and the noise level, which the others never see, so it is a yardstick and not a "
        "fair rival. It is the best answer that is linear in y; only a nonlinear one can be "
        "better.",
        strong=(0,),
    )


def _facts_table(rows: Rows) -> Table:
    noisy = _value(rows, "coverage_90", condition=NOISY)
    plain = _value(rows, "coverage_90", condition=PLAIN)
    return Table(
        ("Also measured", ""),
        (
            ("Pixels inside the 90 % interval", f"{100 * noisy:.0f} %"),
            ("The same without decoder noise", f"{100 * plain:.0f} %"),
            ("Factors present, on average", f"{_value(rows, 'active'):.0f}"),
            ("Time for one sample", f"{1e3 * _value(rows, 'seconds_per_sample'):.2g} ms"),
            ("Time to train", f"{_value(rows, 'training_seconds'):.0f} s"),
        ),
    )


# -- words ----------------------------------------------------------------------------------


def _problem(picture: bytes, scale: dict[str, Any]) -> Section:
    return Section(
        "The problem",
        (
            "Somebody heats a plate in one spot, and it was unevenly warm before. We look some "
            "time later, with an imperfect camera: by then the heat has spread, the sharp map x "
            "has become a blurred and noisy map y. What did the plate look like before? Fine "
            "detail has sunk below the noise, so more than one x fits what we see. An honest "
            "answer is a range of possible maps, not one.",
            f"The model was told nothing of heat, cameras or blur. It was shown "
            f"{scale['train']:,} examples of before and after, like these, each moved around at "
            "random: all that it knows beside them is that every place is alike.",
            Picture(
                picture,
                "Three of the examples that the model learned from. Each map has 16 by 16 pixels "
                "and wraps around at its edges. One colour scale for all.",
                "Three sharp heat maps and the blurred maps that they turn into",
            ),
        ),
    )


def _answer(picture: bytes) -> Section:
    return Section(
        "What it answers",
        (
            "For a new y the model gives as many possible x as one asks for. Their mean is its "
            "best estimate; where they differ is where it is in doubt.",
            Picture(
                picture,
                "Three pairs that the model never saw. It is given the first row and knows "
                "nothing of the second. Doubt should be large where the error is large; each of "
                "the two has a colour scale of its own.",
                "Observation, truth, estimate, doubt, error and two samples for three test cases",
            ),
        ),
    )


def _trust(picture: bytes) -> Section:
    return Section(
        "Whether its doubt can be trusted",
        (
            "A 90 % interval should hold the truth in 90 % of the pixels. The model's doubt has "
            "two parts: which map it is (the samples shown above), and a grain that its decoder "
            "leaves unexplained (the decoder noise).",
            Picture(
                picture,
                "On the dashed line a promise is kept exactly; below it the model is too sure, "
                "above it too careful.",
                "Share of pixels inside intervals against the level of the interval",
            ),
        ),
    )


def _origin(picture: bytes, rows: Rows, scale: dict[str, Any]) -> Section:
    return Section(
        "Where the doubt comes from",
        (
            f"The model has {scale['factors']} factors to describe a map with. Each is either "
            f"absent, exactly zero, or present with some strength; {_value(rows, 'active'):.0f} "
            "are present on average. These three carry more of the doubt about the first test "
            "map than any other. Moving one of them by two of its standard deviations (sigma) "
            "changes the answer as shown.",
            Picture(
                picture,
                "What is added to the answer for test 1 (red) or taken from it (blue). The number "
                "is the factor's share of the doubt.",
                "Changes of the estimate along three factors",
            ),
        ),
    )


def _weaknesses(rows: Rows, scale: dict[str, Any], factors: Factors) -> Iterator[str]:
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
        f"It was asked to use {scale['asked']} factors and uses {_value(rows, 'active'):.0f}. "
        "The three that carry most of the doubt carry only "
        f"{100 * float(factors.share.sum()):.0f} % of it together: doubt is spread thinly, and "
        "one factor alone explains little."
    )
    ratio = _value(rows, "mse", "ridge") / _value(rows, "mse")
    yield (
        f"Ridge regression, which is fitted in a second, has {ratio:.1f} times our squared error, "
        "but neither samples nor factors. The maps are small and made up, and the training is "
        "short: this is a demonstration, not a result."
    )


# -- the page -------------------------------------------------------------------------------


def write_report(
    out: Path, summary: dict[str, Any], examples: Pairs, answers: Answers, factors: Factors
) -> None:
    """Draw the figures into ``figures/`` and write the page ``index.html``.

    Arguments:
        out: The demonstration's folder, in which ``figures`` exists.
        summary: What ``metrics.json`` holds.
        examples: A few pairs that the model learned from.
        answers: What it says about a few test pairs.
        factors: The strongest factors of the first of those.
    """
    rows, scale = summary["rows"], summary["scale"]
    figures = {
        "pairs": _pairs_figure(examples),
        "answers": _answers_figure(answers),
        "coverage": _coverage_figure(rows),
        "factors": _factors_figure(factors),
    }
    pictures = {name: plots.png(figure) for name, figure in figures.items()}
    for name, picture in pictures.items():
        _write_bytes(out / "figures" / f"{name}.png", picture)
    sections = [
        _problem(pictures["pairs"], scale),
        _answer(pictures["answers"]),
        Section("How good it is", (_error_table(rows), _facts_table(rows))),
        _trust(pictures["coverage"]),
        _origin(pictures["factors"], rows, scale),
        Section("What is not good", tuple(_weaknesses(rows, scale, factors))),
    ]
    write_page(
        out / "index.html",
        "What was it before?",
        "A camera sees a heat map after the heat has spread. A small vsPAIR, trained for "
        f"{_value(rows, 'training_seconds'):.0f} seconds on examples, says what the map was "
        "before, how sure it is, and which factors its doubt comes from.",
        sections,
        f"Made by “{summary['command']}” ({summary['commit']}) on {summary['machine']}: "
        f"{scale['train']:,} pairs, {scale['epochs']} epochs, measured on {scale['test']:,} other "
        "pairs, one seed. All numbers are in metrics.json, the model is in run/.",
    )


def _write_bytes(path: Path, content: bytes) -> None:
    atomically(path, lambda part: part.write_bytes(content))
