"""The demonstration's page: figures, tables and words, from numbers that were measured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from vspair.data import Pairs
from vspair.report.curves import lines
from vspair.report.figures import ColourScale, write_figures
from vspair.report.images import ImageRow, image_grid, in_deviations, perturbation
from vspair.report.page import Picture, write_page
from vspair.report.tables import Table
from vspair.runs.files import Groups
from vspair.studies.words import read_words

__all__ = ["CAPTIONS", "Answers", "Factors", "brief", "draw_all", "write_report"]

Part = Mapping[str, Any]
Rows = list[dict[str, Any]]

SERIES = {"with decoder noise": "_with_noise", "without decoder noise": ""}
"""Samples with and without the decoder's noise, and how their metrics end."""
WORDS = read_words("demo")
METHODS = WORDS.names


@dataclass(frozen=True)
class Answers:
    """What the model says about a few test pairs.

    Mean and standard deviation of its posterior have shape (B, H, W), samples (2, B, H, W).
    """

    pairs: Pairs
    mean: Tensor
    std: Tensor
    samples: Tensor


@dataclass(frozen=True)
class Factors:
    """The factors that carry most variance for one observation, and the share of each, (k,).

    What a shift by two sigma, down and up, changes in the answer has shape (k, H, W).
    """

    index: Tensor
    share: Tensor
    down: Tensor
    up: Tensor


def _value(rows: Rows, metric: str, model: str = "vsPAIR") -> float:
    return next(float(r["value"]) for r in rows if (r["metric"], r["model"]) == (metric, model))


def brief(summary: dict[str, Any]) -> str:
    """Return the numbers that matter, of ``metrics.json``, as a few lines for a terminal."""
    rows = summary["rows"]
    errors = {text: f"{_value(rows, 'mse_mean', name):.4f}" for name, text in METHODS.items()}
    covered = 100 * _value(rows, "coverage_90_with_noise")
    facts = {
        "Pixels inside the 90 % interval, with noise": f"{covered:.1f} %",
        "Factors present, on average": f"{_value(rows, 'active'):.1f}",
        "Time to train": f"{_value(rows, 'training_seconds'):.0f} s",
    }
    return "\n".join([
        WORDS.text["brief"].format(**summary["scale"]),
        *(f"  {text:<43}{value:>9}" for text, value in errors.items()),
        *(f"{text:<45}{value:>9}" for text, value in facts.items()),
    ])  # fmt: skip


# -- figures --------------------------------------------------------------------------------


def _pairs(part: Part) -> Any:
    scale = ColourScale.values("temperature", part["x"], part["y"])
    titles = [f"example {i + 1}" for i in range(len(part["x"]))]
    rows = [
        ImageRow("x: before", part["x"], scale, titles),
        ImageRow("y: after", part["y"], scale),
    ]
    return image_grid(rows).figure


def _answers(part: Part) -> Any:
    values = ColourScale.values("temperature", *(part[k] for k in ("x", "y", "mean", "samples")))
    error = abs(part["mean"] - part["x"])
    titles = [f"test {i + 1}" for i in range(len(error))]
    rows = [
        ImageRow("given:\nobservation y", part["y"], values, titles),
        ImageRow("hidden:\ntruth x", part["x"], values),
        ImageRow("our estimate\n(mean)", part["mean"], values),
        ImageRow("one possible\nanswer", part["samples"][0], values),
        ImageRow("another\npossible\nanswer", part["samples"][1], values),
        ImageRow("our doubt\n(deviation)", part["std"], ColourScale.spread("doubt", part["std"])),
        ImageRow("actual error", error, ColourScale.spread("|estimate $-$ truth|", error)),
    ]
    return image_grid(rows).figure


def _coverage(part: Part) -> Any:
    series = {words: part[words] for words in SERIES if words in part}
    return lines(series, "promised: interval level (%)", "kept: pixels inside (%)")


def _factors(part: Part) -> Any:
    shares = zip(part["index"], part["share"], strict=True)
    labels = [f"no. {int(i)}:\n{100 * float(share):.0f} % of\nthe doubt" for i, share in shares]
    change = [list(zip(part["down"], part["up"], strict=True))]
    scale = ColourScale.change("change", part["down"], part["up"], share=1.0)
    steps = [in_deviations(step) for step in (-2, 2)]
    return perturbation({"": labels}, change, steps, (scale, scale), 1.2)


def draw_all(numbers: Groups, folder: Path) -> list[Path]:
    """Draw every figure whose numbers are at hand into a folder; return their paths."""
    draws = {"pairs": _pairs, "answers": _answers, "coverage": _coverage, "factors": _factors}
    return write_figures({k: partial(draws[k], numbers[k]) for k in draws if k in numbers}, folder)


CAPTIONS = WORDS.captions
"""What each figure shows, by its file name."""


# -- the page -------------------------------------------------------------------------------


def _error_table(rows: Rows) -> Table:
    mse = {name: _value(rows, "mse_mean", name) for name in METHODS}
    share = {name: f"{100 * value / mse['trivial-mean']:.1f} %" for name, value in mse.items()}
    return Table(
        ("Answer", "Mean squared error", "Share of the variance"),
        [(text, f"{mse[name]:.4f}", share[name]) for name, text in METHODS.items()],
        WORDS.text["errors"],
        strong=(0,),
    )


def write_report(
    out: Path, summary: dict[str, Any], examples: Pairs, answers: Answers, factors: Factors
) -> None:
    """Draw the figures into ``figures/`` and write the page ``index.html``.

    Arguments:
        out: The demonstration's folder.
        summary: What ``metrics.json`` holds.
        examples: A few pairs that the model learned from.
        answers: What it says about a few test pairs.
        factors: The strongest factors of the first of those.
    """
    rows = summary["rows"]
    numbers: Groups = {"pairs": vars(examples), "factors": vars(factors), "coverage": {}}
    numbers["answers"] = vars(answers) | vars(answers.pairs)
    for words, end in SERIES.items():
        names = [r["metric"] for r in rows if re.fullmatch(rf"coverage_[\d.]+{end}", r["metric"])]
        shares = [100 * _value(rows, name) for name in names]
        numbers["coverage"][words] = [float(name.split("_")[1]) for name in names], shares
    paths = draw_all(numbers, out / "figures")
    value = partial(_value, rows)
    facts = {
        "Pixels inside the 90 % interval": f"{100 * value('coverage_90_with_noise'):.0f} %",
        "The same without decoder noise": f"{100 * value('coverage_90'):.0f} %",
        "Factors present, on average": f"{value('active'):.0f}",
        "Time for one sample": f"{1e3 * value('seconds_per_sample'):.2g} ms",
        "Time to train": f"{value('training_seconds'):.0f} s",
    }
    write_page(
        out / "index.html",
        "studies/demo/page.html",
        summary=summary,
        scale={k: f"{v:,}" for k, v in summary["scale"].items()},
        pictures={p.stem: Picture(p.read_bytes(), CAPTIONS[p.stem]) for p in paths},
        errors=_error_table(rows),
        facts=Table(("Also measured", ""), list(facts.items())),
        value=value,
        carried=float(factors.share.sum()),
    )
