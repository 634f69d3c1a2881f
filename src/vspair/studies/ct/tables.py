"""The report of the CT study: rows, tables and words.

All of it is made from the answers that the stages kept. What a stage that was not run would have
made is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from vspair.errors import VspairError
from vspair.report.tables import Table
from vspair.runs import Groups
from vspair.studies.answers import Answers
from vspair.studies.ct.data import Scale, bin_edges, bin_of
from vspair.studies.ct.figures import numbers
from vspair.studies.ct.methods import WEIGHTS, Bench
from vspair.studies.results import Row, table_of
from vspair.studies.study import Records, Report

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
}
"""The methods by their answers, with the model and preset of their rows."""

PAPER = {
    "mse_sample": 0.0025, "nnz": 1383.3, "nnz_std": 32.2, "parameters": 549_708_789.0,
    "std_omega_over_y": 0.0080, "std_sigma_over_y": 0.0092, "std_mu_over_y": 0.1782,
}  # fmt: skip
"""What section 4.3 and appendix D.3 print, for the preset ``paper``."""

ON_DPS = "slices of DPS"
"""The condition of numbers over those test slices alone that DPS answers too."""

COMPARED = {
    ("mse_mean", ""): "MSE", ("psnr", ""): "PSNR", ("ssim", ""): "SSIM",
    ("mse_sample", ""): "MSE of a sample", ("crps", ""): "CRPS",
    ("coverage_90", ""): "90 % covers", ("mse_mean", ON_DPS): "MSE on DPS's slices",
    ("beyond_2_std", ON_DPS): "beyond 2 deviations", ("parameters", ""): "parameters",
    ("seconds_per_image", ""): "s, one estimate", ("seconds_all_samples", ""): "s, all samples",
}  # fmt: skip
"""The columns of the comparison, by metric and condition."""

TABLES = {
    "vsPAIR: reconstruction and sparsity": {
        "mse_sample": "MSE of a sample", "mse_mean": "MSE of the mean of samples",
        "mse_code": "MSE of the decoded mean code", "nnz": "average nnz",
        "nnz_std": "its deviation over observations", "active_share": "share of all indices",
        "ever_active": "indices more open than not for some observation",
        "std_omega_over_y": "deviation of omega over y",
        "std_sigma_over_y": "deviation of sigma over y", "std_mu_over_y": "deviation of mu over y",
        "parameters": "parameters", "epochs": "epochs trained", "epochs_planned": "epochs planned",
        "best_epoch": "epoch of the weights",
    },
    "vsPAIR: overfitting": {
        f"mse_{what}_{part}": f"{words} MSE, {name}"
        for what, words in (("autoencoder", "autoencoder"), ("mean", "inversion"))
        for part, name in (("train", "training"), ("validation", "validation"), ("test", "test"))
    },
    "vsPAIR: uncertainty": {
        "crps": "CRPS", "crps_with_noise": "the same with the decoder's noise",
        "coverage_90": "share inside the 90 % interval",
        "coverage_90_with_noise": "the same with the decoder's noise",
        "deviation": "mean reported deviation",
        "beyond_2_std": "share of pixels beyond 2 deviations",
        "beyond_2_std_with_noise": "the same with the decoder's noise",
        "excess_2_std": "mean error beyond 2 deviations",
    },
}  # fmt: skip
"""The rows of the tables of vsPAIR alone."""

_BY_NOISE = {"mse_mean": "MSE", "psnr": "PSNR in dB", "ssim": "SSIM"}
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
        lines += [[label, *(_cell(m, found.get((label, m, c))) for m, c in COMPARED)]]
        if label == "vsPAIR (calibrated)":  # whose noise is learned; the paper's has none
            noisy = [found.get((label, f"{m}_with_noise", c)) for m, c in COMPARED]
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


def _weights(answers: Mapping[str, Groups], noise: float) -> str:
    """Say which weights TV-ADMM was given, and how often it came to its end."""
    if "tv" not in answers:
        return ""
    chosen, ends = answers["tv-choice"]["choice"]["weight"], pairwise(bin_edges(noise))
    words = [f"{w:g} for noise {a:g}-{b:g} %" for w, (a, b) in zip(chosen, ends, strict=True)]
    part = _mean(answers["tv"]["scores"]["converged"])
    most = f"{100 * part:.3g} % of the test slices; the others ended at the most iterations"
    return (
        f" TV-ADMM's weights, from the paper's list {WEIGHTS}, are the best on validation slices: "
        f"{', '.join(words)}. With them its residuals met the tolerance on "
        f"{'all test slices' if part == 1 else most}."
    )


def _inside(samples: int) -> float:
    """Return the share that so many samples' 90 % interval covers if they are of the truth's law.

    Of few it is that from the least to the greatest, which has less than 90 % inside.
    """
    return min(0.9, (samples - 1) / (samples + 1))


def _counts(scale: Scale) -> str:
    """Say what the numbers of samples mean for coverage and time."""
    ours, theirs = scale.samples, scale.trajectories
    words = (
        f" vsPAIR is judged by {ours} samples, DPS by {theirs}: of exact posteriors `90 % covers` "
        f"would be {100 * _inside(ours):.1f} % and {100 * _inside(theirs):.1f} %"
    )
    if _inside(min(ours, theirs)) < 0.9:
        words += ", as the interval of fewer than 19 samples is from the least to the greatest"
    return (
        f"{words}. `s, one estimate` is of the decoded mean code for vsPAIR and of one trajectory "
        "for DPS, while MSE, PSNR and SSIM in their rows are of the mean of samples; "
        f"`s, all samples` is for {ours} samples of either."
    )


def sources(phantoms: bool, halved: bool = False) -> str:
    """Say where the slices are from, under which licence, and how they were changed."""
    if phantoms:
        return (
            "The slices are phantoms made by vspair (`vspair.datasets.phantoms`); they are of no "
            "person."
        )
    return (
        "The slices are of LIDC-IDRI (Armato et al. 2011, Medical Physics 38:915-931; doi "
        "10.7937/k9/tcia.2015.lo9ql9sx; CC BY 3.0), prepared as LoDoPaB-CT does (Leuschner et al. "
        "2021, Scientific Data 8:109; its files, doi 10.5281/zenodo.3384092, are CC BY 4.0), and "
        "changed: averaged over 4x4 pixels and cropped to 88x88"
        f"{', averaged over 2x2 pixels once more' * halved}. The figures show them."
    )


def sizes(about: Mapping[str, Any]) -> str:
    """Say how many slices of how many patients there are."""
    slices, patients = about["slices"], about["patients"]
    kind = "Phantoms, of which each is a patient" if about["phantoms"] else "Real slices"
    parts = ", ".join(f"{slices[p]:,} slices ({patients[p]:,}) for {p}" for p in slices)
    return f"{kind}: {parts}; in brackets patients, of whom no two parts share one."


def _copies(scale: Scale) -> str:
    """Say which networks saw moved copies of the slices."""
    if scale.copies == 1:
        return ""
    return (
        f" All networks but those of the preset `paper` are trained on {scale.copies} of each "
        "training slice, one as it is and the others turned, scaled and shifted a little, with "
        "sinograms and noise of their own; their epochs are divided by that."
    )


def _text(
    answers: Mapping[str, Groups], rows: list[Row], about: Mapping[str, Any], scale: Scale
) -> str:
    """Return all tables with their captions, as Markdown."""
    few = f"DPS answers {len(answers['test']['shown']['index'])} of the test slices"
    parts = [
        f"{sizes(about)} The noise's deviation is uniform in 0-{100 * scale.noise:g} % of each "
        f"sinogram's range. All methods are given the same noisy sinograms.{_copies(scale)}",
        sources(about["phantoms"], scale.half),
        "## All methods",
        _comparison(rows).markdown(),
        f"{_CAPTION}{_counts(scale)} {few}, spread evenly over the noise, with "
        f"{scale.trajectories} trajectories of {scale.steps:,} steps and zeta = {scale.zeta:g} "
        f"for lengths in pixels; its numbers are over those.{_weights(answers, scale.noise)}",
        _BOLD,
    ]
    for metric, words in _BY_NOISE.items():
        parts += [f"### {words} by noise level", by_noise(rows, metric).markdown()]
    if "dps" in answers:
        on_dps = by_noise(rows, "mse_mean", on_dps=True)
        parts += ["### MSE by noise level, on DPS's slices", on_dps.markdown()]
    ours = [row for row in rows if row.model == "vsPAIR" and not row.condition]
    for title, metrics in TABLES.items() if ours else ():
        parts += [f"## {title}", table_of(ours, metrics).markdown()]
    return "\n\n".join([*parts, _REMARKS])


_CAPTION = (
    "Of methods that sample, MSE, PSNR and SSIM are of the mean of samples; one that answers with "
    "a single estimate is scored as if that were its only sample, so that its CRPS is its mean "
    "absolute error. PSNR and SSIM take "
    "each truth's range, as LoDoPaB-CT's benchmark does. `beyond 2 deviations` is the share of "
    "pixels at which the estimate misses the truth by more than twice the reported deviation, on "
    "DPS's slices: about 5 % for a right one, 9 % if the deviation is of 10 samples. Seconds are "
    "for one slice, alone on the same device, in one run; a trajectory's are those of one of 30 "
    "steps times the number of steps over 30, and networks take as long before they are trained "
    "as after. `mean image` is that of the training slices. The calibrated preset knows how far "
    "truths scatter around what it decodes: `its noise` of that deviation is added to its "
    "samples there."
)
_BOLD = (
    "In the tables by noise the best is bold among the methods that answered all slices of a bin; "
    "of the others brackets say how many slices they have."
)
_REMARKS = (
    "The paper does not say whether its MSE is of samples, of their mean or of the decoded mean "
    "code; it stands beside that of samples, as in its MNIST table. `nnz` counts the open gates "
    "of a sample, also those in nobody's use that are open by chance. The printed number of "
    "parameters counts 2,706 buffers of batch norm. `autoencoder` decodes a sample of the code "
    "of x itself, `inversion` is the mean of samples given y. The decoder's noise of the preset "
    "`paper` is the unit width of its likelihood, which it never samples from. Its squared errors "
    "are without the 1/2 that eqs. (5) and (10) print, as for MNIST, so that they count twice "
    "beside all other terms. The paper does not give its unit of length: TV-ADMM's weights and "
    "vsPAIR's sinograms are for lengths in half sides of the image, DPS's step size for lengths "
    "in pixels (`vspair.studies.ct.data` says why)."
)


def report(bench: Bench, records: Records) -> Report:
    """Return what is published, from the answers that are there."""
    answers, scale = _gather(bench.answers), bench.scale
    rows = collect(answers, scale)
    made = {
        name: {k: record[k] for k in ("commits", "machines")}
        for name, record in records.stages.items()
    }
    whole = scale == Scale() and not records.data["phantoms"]
    about = asdict(scale) | {"paper_scale": whole, "made": made}
    text = _text(answers, rows, records.data, scale)
    return Report(rows, text, numbers(answers, _errors_by_noise(rows, scale.noise)), about)
