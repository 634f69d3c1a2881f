"""The report of the CT study: rows, tables and words.

All of it is made from the answers that the stages kept, and tables and words also of the rows that
stand beside them. What a stage that was not run would have made is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from vspair.errors import VspairError
from vspair.report.tables import Table
from vspair.runs import Groups
from vspair.studies.answers import Answers
from vspair.studies.ct.anchored import ADDED
from vspair.studies.ct.data import Scale, bin_edges, bin_of
from vspair.studies.ct.figures import numbers
from vspair.studies.ct.methods import WEIGHTS, Bench
from vspair.studies.results import Row, table_of
from vspair.studies.study import Records, Report
from vspair.studies.words import read_words

__all__ = ["NAMES", "PAPER", "TABLES", "by_noise", "collect", "report", "sizes", "sources"]

NAMES = {
    "mean": ("mean image", ""),
    "fbp": ("FBP", ""),
    "fbp_hann": ("FBP with a Hann window", ""),
    "tv": ("TV-ADMM", ""),
    "regression": ("regression", ""),
    "vspair_paper": ("vsPAIR", "paper"),
    "vspair_calibrated": ("vsPAIR", "calibrated"),
    "dps": ("DPS", ""),
    "ridge": ("ridge", ""),
    "ridge_unet": ("ridge + U-Net", ""),
    "fbp_unet": ("FBP + U-Net", ""),
    "vspair_anchored": ("vsPAIR", "anchored"),
    "vspair_fbp": ("vsPAIR with FBP", "anchored"),
}
"""The methods by their answers, with the model and preset of their rows."""

_ADDED = {own for name, own in NAMES.items() if name in ADDED}
_COPIED = {NAMES[name] for name in ("regression", "vspair_calibrated", "dps")}
"""The methods whose training slices are there several times, ``anchored_copies`` or ``copies``."""

WORDS = read_words("ct")
PAPER, TABLES = WORDS.paper["vsPAIR"], WORDS.tables
"""What the paper prints, and the rows of the tables of vsPAIR alone."""

ON_DPS = "slices of DPS"
"""The condition of numbers over those test slices alone that DPS answers too."""

COMPARED = {key.partition(", "): words for key, words in WORDS.labels["compared"].items()}
"""The columns of the comparison, by metric, a comma and condition."""

_BY_NOISE = WORDS.labels["by_noise"]
_ON_DPS = (*_BY_NOISE, "beyond_2_std", "excess_2_std", "beyond_2_std_with_noise")


# -- rows -----------------------------------------------------------------------------------


def _gather(answers: Answers) -> dict[str, Groups]:
    """Return every answer that is there, by method."""
    if not answers.has("test"):
        raise VspairError(
            f"There are no answers in {answers.folder} to report on. Make them first: --only "
            "answers."
        )
    names = ("test", *NAMES, "seconds", "tv-choice")
    return {name: answers.read(name) for name in names if answers.path(name).is_file()}


def _mean(values: Any) -> float:
    return float(np.mean(values, dtype=np.float64))


def _conditions(answers: Mapping[str, Groups], name: str, noise: float) -> dict[str, Any]:
    """Return which of a method's slices each condition is over, as masks (n,) by its words."""
    level, index = answers["test"]["test"]["level"], answers["test"]["shown"]["index"]
    rows = index if name == "dps" else np.arange(len(level))
    bins, ends = bin_of(torch.from_numpy(level[rows]), noise).numpy(), bin_edges(noise)
    inside = {f"noise {a:g}-{b:g} %": bins == i for i, (a, b) in enumerate(pairwise(ends))}
    on_dps = np.isin(rows, index)
    both = {f"{words}, {ON_DPS}": mask & on_dps for words, mask in inside.items()}
    found = {ON_DPS: on_dps} | inside | both
    return {words: mask for words, mask in found.items() if mask.any()}


def _values(
    answers: Mapping[str, Groups], name: str, scale: Scale
) -> dict[tuple[str, str], float]:
    """Return a method's numbers by metric and condition."""
    answer, seconds = answers[name], answers.get("seconds", {})
    scores = answer["scores"]
    found = {(metric, ""): _mean(values) for metric, values in scores.items()}
    found |= {(metric, ""): float(value) for metric, value in answer["row"].items()}
    steps = scale.steps if name == "dps" else 1
    for kind, metric in (("one", "seconds_per_image"), ("many", "seconds_all_samples")):
        if name in seconds.get(kind, {}):
            found[metric, ""] = steps * float(seconds[kind][name])
    for words, mask in _conditions(answers, name, scale.noise).items():
        metrics: Sequence[str] = _ON_DPS if words == ON_DPS else tuple(_BY_NOISE)
        found["slices", words] = float(mask.sum())
        found |= {(m, words): _mean(scores[m][mask]) for m in metrics if m in scores}
    return found


def collect(answers: Mapping[str, Groups], scale: Scale) -> list[Row]:
    """Return every number of the study, the paper's values beside ours.

    Arguments:
        answers: What the stages kept, by method.
        scale: What they were made with.
    """
    return [
        Row(
            *NAMES[name], metric, value, condition=condition,
            paper=PAPER.get(metric) if name == "vspair_paper" and not condition else None,
        )
        for name in NAMES
        if name in answers
        for (metric, condition), value in _values(answers, name, scale).items()
    ]  # fmt: skip


# -- tables ---------------------------------------------------------------------------------


def _label(row: Row) -> str:
    return f"{row.model} ({row.preset})" if row.preset else row.model


def _cell(metric: str, value: float | None) -> str:
    if value is None:
        return "-"
    if metric == "parameters":
        return f"{value:,.0f}" if value else "none"
    return f"{value:.3g}"


def _comparison(rows: Sequence[Row]) -> Table:
    """Return one line a method, one column a measure."""
    found = {(_label(r), r.metric, r.condition): r.value for r in rows}
    lines = []
    for label in dict.fromkeys(map(_label, rows)):
        lines += [[label, *(_cell(m, found.get((label, m, c))) for m, _, c in COMPARED)]]
        if label == "vsPAIR (calibrated)":  # whose noise is learned; the paper's has none
            noisy = [found.get((label, f"{m}_with_noise", c)) for m, _, c in COMPARED]
            lines += [["the same with its noise", *(_cell("", value) for value in noisy)]]
    return Table(["", *COMPARED.values()], lines)


def by_noise(rows: Sequence[Row], metric: str, on_dps: bool = False) -> Table:
    """Return one line a method, one column a bin of the noise, the best in bold.

    A method with fewer slices in a bin than others is not compared there, and says how many.

    Arguments:
        rows: What :func:`collect` returned.
        metric: ``mse_mean``, ``psnr`` or ``ssim``.
        on_dps: Whether to compare on those slices alone that DPS answers too.
    """
    rows = [r for r in rows if r.condition.startswith("noise")]
    rows = [r for r in rows if r.condition.endswith(ON_DPS) == on_dps]
    found = {(_label(r), r.condition): r.value for r in rows if r.metric == metric}
    counts = {(_label(r), r.condition): r.value for r in rows if r.metric == "slices"}
    bins = sorted({r.condition for r in rows}, key=lambda words: float(words[6:].split("-")[0]))
    most = {b: max(n for (_, c), n in counts.items() if c == b) for b in bins}
    whole = {own: value for own, value in found.items() if counts[own] == most[own[1]]}
    pick = min if metric.startswith("mse") else max
    best = {b: pick(v for (_, c), v in whole.items() if c == b) for b in bins}

    def cell(label: str, b: str) -> str:
        own = label, b
        if own not in found:
            return "-"
        bold = "**" if whole.get(own) == best[b] else ""
        few = "" if own in whole else f" ({counts[own]:g} of {most[b]:g})"
        return f"{bold}{found[own]:.3g}{bold}{few}"

    heads = [f"{b.removeprefix('noise ').split(',')[0]}, {most[b]:g} slices" for b in bins]
    labels = dict.fromkeys(label for label, _ in found)
    return Table(["", *heads], [[label, *(cell(label, b) for b in bins)] for label in labels])


def _errors_by_noise(rows: Sequence[Row], noise: float) -> dict[str, Any]:
    """Return the middle of each bin in per cent, and the MSE of each method, (bins,) each."""
    ends = list(pairwise(bin_edges(noise)))
    value = {(_label(r), r.condition): r.value for r in rows if r.metric == "mse_mean"}
    found = {"levels": np.array([(a + b) / 2 for a, b in ends], np.float32)}
    for label in dict.fromkeys(map(_label, rows)):
        errors = [value.get((label, f"noise {a:g}-{b:g} %"), np.nan) for a, b in ends]
        found[label] = np.array(errors, np.float32)
    return found


# -- words ----------------------------------------------------------------------------------


def _weights(rows: Sequence[Row], about: Mapping[str, Any]) -> str:
    """Say which weights TV-ADMM was given, and how often it came to its end."""
    met = next((r.value for r in rows if (r.model, r.metric) == ("TV-ADMM", "converged")), None)
    if met is None or "tv_weights" not in about:
        return ""
    ends = pairwise(bin_edges(about["noise"]))
    found = [
        WORDS.text["tv_weight"].format(weight=weight, low=low, high=high)
        for weight, (low, high) in zip(about["tv_weights"], ends, strict=True)
    ]
    words = WORDS.text["tv_all" if met == 1 else "tv_some"].format(share=100 * met)
    return WORDS.text["tv"].format(weights=WEIGHTS, chosen=", ".join(found), met=words)


def _inside(samples: int) -> float:
    """Return the share that so many samples' 90 % interval covers if they are of the truth's law.

    Of few it is that from the least to the greatest, which has less than 90 % inside.
    """
    return min(0.9, (samples - 1) / (samples + 1))


def _compared(about: Mapping[str, Any], few: int, dps: bool) -> str:
    """Say what the comparison shows; DPS, if it is there, answers a few slices."""
    counts = ("samples", "trajectories") if dps else ("samples",)
    inside = [100 * _inside(about[kind]) for kind in counts]
    return WORDS.text["compared" if dps else "compared_without_dps"].format(
        **about, inside=inside[0], dps_inside=inside[-1], few=few,
        range=WORDS.text["range"] if min(inside) < 90 else "",
    )  # fmt: skip


def sources(phantoms: bool, halved: bool = False) -> str:
    """Say where the slices are from, under which licence, and how they were changed."""
    changed = WORDS.text["halved"] if halved else ""
    return WORDS.text["phantoms" if phantoms else "sources"].format(halved=changed)


def sizes(about: Mapping[str, Any]) -> str:
    """Say how many slices of how many patients there are."""
    kind = WORDS.text["phantom_slices" if about["phantoms"] else "real_slices"]
    parts = [
        WORDS.text["part"].format(slices=n, patients=about["patients"][name], name=name)
        for name, n in about["slices"].items()
    ]
    return WORDS.text["sizes"].format(kind=kind, parts=", ".join(parts))


def _text(few: int, rows: Sequence[Row], about: Mapping[str, Any]) -> str:
    """Return all tables with their captions, as Markdown.

    Arguments:
        few: How many test slices are shown, and answered by DPS.
        rows: Every number.
        about: How much was computed, as ``summary.json`` has it.
    """
    data, there = about["data"], {(row.model, row.preset) for row in rows}
    head = WORDS.text["head"].format(sizes=sizes(data), noise=100 * about["noise"])
    copied = about["copies"] > 1 and there & _COPIED
    copies = WORDS.text["copies"].format(**about) if copied else ""
    added = WORDS.text["added"].format(**about) if there & _ADDED else ""
    dps = NAMES["dps"] in there
    parts = [
        f"{head} {copies}".strip(),
        sources(data["phantoms"], about.get("half", False)),
        added,
        "## All methods",
        _comparison(rows).markdown(),
        f"{_compared(about, few, dps)} {_weights(rows, about)}".strip(),
        WORDS.text["bold"],
    ]
    for metric, words in _BY_NOISE.items():
        parts += [f"### {words} by noise level", by_noise(rows, metric).markdown()]
    if dps:
        on_dps = by_noise(rows, "mse_mean", on_dps=True)
        parts += ["### MSE by noise level, on DPS's slices", on_dps.markdown()]
    ours = [row for row in rows if row.preset and not row.condition]
    for title, metrics in TABLES.items() if ours else ():
        parts += [f"## {title}", table_of(ours, metrics).markdown()]
    return "\n\n".join(filter(None, [*parts, WORDS.text["remarks"]]))


def report(bench: Bench, records: Records) -> Report:
    """Return what is published, from the answers that are there."""
    answers, scale = _gather(bench.answers), bench.scale
    rows = collect(answers, scale)
    whole = scale == Scale() and not records.data["phantoms"]
    about = asdict(scale) | {"paper_scale": whole}
    if "tv-choice" in answers:
        weights = answers["tv-choice"]["choice"]["weight"]
        about["tv_weights"] = [float(f"{weight:g}") for weight in weights]
    few = len(answers["test"]["shown"]["index"])
    found = numbers(answers, _errors_by_noise(rows, scale.noise))
    return Report(rows, partial(_text, few), found, about)
