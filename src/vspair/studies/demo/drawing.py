"""The demonstration's page: figures, tables and words, from numbers that were measured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from vspair.data import Pairs
from vspair.factors import Factors, Split
from vspair.report.curves import lines
from vspair.report.figures import ColourScale, write_figures
from vspair.report.images import ImageRow, image_grid
from vspair.report.page import Picture, write_page
from vspair.report.tables import Table
from vspair.runs.files import Groups
from vspair.studies.words import read_words

__all__ = ["CAPTIONS", "Answers", "NamedFactors", "brief", "draw_all", "write_report"]

Part = Mapping[str, Any]
Rows = list[dict[str, Any]]

PARTS = ("structural", "parametric", "grain")
"""Where doubt comes from, as attributes of :class:`vspair.factors.Split`."""
WORDS = read_words("demo")
METHODS = WORDS.names


@dataclass(frozen=True)
class Answers:
    """What the model says about a few test pairs.

    Its answer has shape (B, H, W), samples (2, B, H, W); the variance is divided pixel by pixel.
    """

    pairs: Pairs
    mean: Tensor
    samples: Tensor
    split: Split


@dataclass(frozen=True)
class NamedFactors:
    """The k factors that carry most variance for each of B observations, and their names."""

    names: list[list[str]]
    found: Factors


def _value(rows: Rows, metric: str, model: str = "vsPAIR") -> float:
    return next(float(r["value"]) for r in rows if (r["metric"], r["model"]) == (metric, model))


def brief(summary: dict[str, Any]) -> str:
    """Return the numbers that matter, of ``metrics.json``, as a few lines for a terminal."""
    rows = summary["rows"]
    errors = {text: f"{_value(rows, 'mse_mean', name):.4f}" for name, text in METHODS.items()}
    facts = {
        "Pixels inside the 90 % interval": f"{100 * _value(rows, 'coverage_90'):.1f} %",
        "Factors present, on average": f"{_value(rows, 'active'):.1f}",
        "Doubt that they carry": f"{100 * _value(rows, 'share_in_factors'):.0f} %",
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
    error, std = abs(part["mean"] - part["x"]), part["total"] ** 0.5
    titles = [f"test {i + 1}" for i in range(len(error))]
    rows = [
        ImageRow("given:\nobservation y", part["y"], values, titles),
        ImageRow("hidden:\ntruth x", part["x"], values),
        ImageRow("our answer\n(anchor)", part["mean"], values),
        ImageRow("one possible\nanswer", part["samples"][0], values),
        ImageRow("another\npossible\nanswer", part["samples"][1], values),
        ImageRow("our doubt\n(deviation)", std, ColourScale.spread("doubt", std)),
        ImageRow("actual error", error, ColourScale.spread("|answer $-$ truth|", error)),
    ]
    return image_grid(rows).figure


def _doubt(part: Part) -> Any:
    scale = ColourScale.spread("variance", *(part[name] for name in PARTS))
    whole = part["total"].mean((1, 2))
    titles = [f"test {i + 1}" for i in range(len(whole))]
    rows: list[ImageRow] = []
    for name in PARTS:
        # An estimate without bias may be a little below zero.
        mean = part[name].mean((1, 2)).clamp(min=0)
        shares = [f"{100 * float(share):.0f} %" for share in mean / whole]
        above = [] if rows else titles
        rows.append(ImageRow(name, part[name], replace(scale, law="root"), above, shares))
    return image_grid(rows).figure


def _coverage(part: Part) -> Any:
    return lines(
        {"vsPAIR": part["kept"]}, "promised: interval level (%)", "kept: pixels inside (%)"
    )


def _factors(part: Part) -> Any:
    scale = ColourScale.change("change", part["effect"], share=1.0)
    rows = []
    for i, (names, shares) in enumerate(zip(part["names"], part["share"], strict=True)):
        above = [name.replace(" at ", "\nat ") for name in names]
        carried = [f"{100 * float(share):.0f} %" for share in shares]
        rows.append(ImageRow(f"test {i + 1}", part["effect"][i], scale, above, carried))
    return image_grid(rows).figure


def draw_all(numbers: Groups, folder: Path) -> list[Path]:
    """Draw every figure whose numbers are at hand into a folder; return their paths."""
    draws = {"pairs": _pairs, "answers": _answers, "coverage": _coverage}
    draws |= {"doubt": _doubt, "factors": _factors}
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
    out: Path, summary: dict[str, Any], examples: Pairs, answers: Answers, factors: NamedFactors
) -> None:
    """Draw the figures into ``figures/`` and write the page ``index.html``.

    Arguments:
        out: The demonstration's folder.
        summary: What ``metrics.json`` holds.
        examples: A few pairs that the model learned from.
        answers: What it says about a few test pairs.
        factors: The strongest factors of those.
    """
    rows = summary["rows"]
    value = partial(_value, rows)
    split, found = vars(answers.split), vars(factors.found)
    numbers: Groups = {
        "pairs": vars(examples),
        "answers": vars(answers) | vars(answers.pairs) | split,
        "coverage": {"kept": _coverage_curve(rows)},
        "doubt": split,
        "factors": found | {"names": factors.names},
    }
    paths = draw_all(numbers, out / "figures")
    facts = {
        "Pixels inside the 90 % interval": f"{100 * value('coverage_90'):.0f} %",
        "Factors present, on average": f"{value('active'):.0f}",
        "Time for one sample": f"{1e3 * value('seconds_per_sample'):.2g} ms",
        "Time to train": f"{value('training_seconds'):.0f} s",
    }
    write_page(
        out / "index.html",
        "studies/demo/page.html",
        summary=summary,
        scale={k: f"{v:,}" for k, v in summary["scale"].items()},
        verdict=[line.split(": ", 1) for line in summary["verdict"]["lines"]],
        pictures={p.stem: Picture(p.read_bytes(), CAPTIONS[p.stem]) for p in paths},
        errors=_error_table(rows),
        facts=Table(("Also measured", ""), list(facts.items())),
        value=value,
        carried=float(factors.found.share.sum(1).mean()),
        structural=float(
            answers.split.structural.mean().clamp(min=0) / answers.split.total.mean()
        ),
    )


def _coverage_curve(rows: Rows) -> tuple[list[float], list[float]]:
    """Return the levels of intervals, and what they hold, both in per cent."""
    names = [r["metric"] for r in rows if re.fullmatch(r"coverage_[\d.]+", r["metric"])]
    return [float(name.split("_")[1]) for name in names], [100 * _value(rows, n) for n in names]
