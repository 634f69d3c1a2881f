"""The tables of the CT study, from the answers that its stages kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vspair.errors import VspairError
from vspair.studies.ct.answers import WEIGHTS, Groups, read
from vspair.studies.ct.data import bin_of, edges
from vspair.studies.ct.measures import excess, judge, with_noise
from vspair.studies.results import Row, markdown

__all__ = [
    "NAMES",
    "PAPER",
    "TABLES",
    "by_noise",
    "collect",
    "describe",
    "error_by_noise",
    "gather",
    "grid",
    "sources",
    "text",
]

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
"""The methods by their files, with the model and preset of their rows."""

PAPER = {
    "mse_sample": 0.0025, "nnz": 1383.3, "nnz_std": 32.2, "parameters": 549_708_789.0,
    "std_omega_over_y": 0.0080, "std_sigma_over_y": 0.0092, "std_mu_over_y": 0.1782,
}  # fmt: skip
"""What section 4.3 and appendix D.3 print, for the preset ``paper``."""

COMPARED = {
    "mse": "MSE", "psnr": "PSNR", "ssim": "SSIM", "mse_sample": "MSE of a sample",
    "crps": "CRPS", "coverage_90": "90 % covers", "shown_mse": "MSE on DPS's slices",
    "shown_beyond": "beyond 2 deviations", "parameters": "parameters",
    "seconds_one": "s, one estimate", "seconds_many": "s, all samples",
}  # fmt: skip
"""The columns of the comparison."""

TABLES = {
    "vsPAIR: reconstruction and sparsity": {
        "mse_sample": "MSE of a sample",
        "mse": "MSE of the mean of samples",
        "mse_code": "MSE of the decoded mean code",
        "nnz": "average nnz",
        "nnz_std": "its deviation over observations",
        "active_share": "share of all indices",
        "ever_active": "indices more open than not for some observation",
        "std_omega_over_y": "deviation of omega over y",
        "std_sigma_over_y": "deviation of sigma over y",
        "std_mu_over_y": "deviation of mu over y",
        "parameters": "parameters",
        "epochs": "epochs trained",
        "epochs_planned": "epochs planned",
        "best_epoch": "epoch of the weights",
    },
    "vsPAIR: overfitting": {
        f"{what}_{part}": f"{words} MSE, {name}"
        for what, words in (("autoencoder", "autoencoder"), ("inversion", "inversion"))
        for part, name in (("train", "training"), ("validation", "validation"), ("test", "test"))
    },
    "vsPAIR: uncertainty": {
        "crps": "CRPS",
        "crps_with_noise": "the same with the decoder's noise",
        "coverage_90": "share inside the 90 % interval",
        "coverage_90_with_noise": "the same with the decoder's noise",
        "deviation": "mean reported deviation",
        "beyond": "share of pixels beyond 2 deviations",
        "beyond_with_noise": "the same with the decoder's noise",
        "excess": "mean error beyond 2 deviations",
    },
}
"""The rows of the tables of vsPAIR alone."""

_BY_NOISE = {"mse": "MSE", "psnr": "PSNR in dB", "ssim": "SSIM"}


def gather(folder: Path) -> tuple[dict[str, Groups], dict[str, str]]:
    """Return every answer to the test slices, by method, and why each of the others is left out.

    Arguments:
        folder: The folder of the answers.
    """
    path = folder / "test.npz"
    if not path.is_file():
        raise VspairError(
            f"There are no answers in {folder} to report on. Make them first: --only answers."
        )
    test = read(path)
    found, left = {"test": test}, {}
    for name in (*NAMES, "seconds", "tv-choice"):
        if (folder / f"{name}.npz").is_file():
            answer = read(folder / f"{name}.npz")
            if why := _foreign(answer, test):
                left[name] = why
            else:
                found[name] = answer
    return found, left


def _foreign(answer: Groups, test: Groups) -> str:
    """Say why an answer cannot stand beside the others; nothing where it can."""
    there, here = (str(part["key"]["test"]) for part in (answer, test))
    if there != here:
        return f"it is to other noisy sinograms (key {there}, not {here})"
    shown = answer.get("image", {}).get("index")
    if shown is not None and not np.array_equal(shown, test["shown"]["index"]):
        return "it is to other test slices than those that are shown"
    return ""


def _bin_name(ends: list[float], i: int) -> str:
    return f"noise {ends[i]:g}-{ends[i + 1]:g} %"


def _on_shown(answers: Mapping[str, Groups], name: str) -> dict[str, float]:
    """Return a method's measures on the slices that DPS answers too."""
    part, truth = answers[name]["shown"], torch.from_numpy(answers["test"]["shown"]["truth"])
    estimate = torch.from_numpy(part["estimate"])
    row = {f"shown_{k}": float(v.mean()) for k, v in judge(estimate, truth).items()}
    if "std" in part:
        beyond = excess(estimate, torch.from_numpy(part["std"]), truth).double()
        row["shown_beyond"] = float((beyond > 0).double().mean())
        row["shown_excess"] = float(beyond.mean())
    if name == "vspair_calibrated":
        beyond = excess(estimate, with_noise(answers[name]), truth)
        row["shown_beyond_with_noise"] = float((beyond > 0).double().mean())
    return row


def _values(answers: Mapping[str, Groups], name: str) -> dict[str, float]:
    """Return a method's numbers over all the slices that it answered."""
    answer, seconds = answers[name], answers.get("seconds", {})
    image = {k: v for k, v in answer["image"].items() if k != "index"}
    row = {k: float(np.mean(v, dtype=np.float64)) for k, v in image.items()}
    row |= {k: float(v) for k, v in answer["row"].items()} | _on_shown(answers, name)
    for kind in ("one", "many"):
        if name in seconds.get(kind, {}):
            row[f"seconds_{kind}"] = float(seconds[kind][name])
    return row


def _binned(answers: Mapping[str, Groups], name: str, noise: float) -> dict[str, list[float]]:
    """Return the means of a method's measures in each bin of the noise, and how many slices.

    Those that begin with ``shown_`` are over the slices that DPS answers too. An empty bin has
    NaN.
    """
    image, test = answers[name]["image"], answers["test"]
    level, seen = test["test"]["level"], test["shown"]
    index = image.get("index", np.arange(len(level)))
    shown = answers[name]["shown"]["estimate"], seen["truth"]
    own = judge(*(torch.from_numpy(images) for images in shown))
    found: dict[str, list[float]] = {}
    for head, which, values in (
        ("", index, {metric: image[metric] for metric in _BY_NOISE}),
        ("shown_", seen["index"], {"mse": own["mse"].numpy()}),
    ):
        bins = bin_of(torch.from_numpy(level[which]), noise).numpy()
        places = [bins == b for b in range(len(edges(noise)) - 1)]
        found[f"{head}slices"] = [float(inside.sum()) or np.nan for inside in places]
        for metric, each in values.items():
            found[f"{head}{metric}"] = [
                float(each[inside].mean(dtype=np.float64)) if inside.any() else np.nan
                for inside in places
            ]
    return found


def collect(answers: Mapping[str, Groups], noise: float) -> list[Row]:
    """Return every number of the study, the paper's values beside ours.

    Arguments:
        answers: What the stages kept.
        noise: The largest noise, as a share of the range.
    """
    rows, ends = [], edges(noise)
    for name, (model, preset) in NAMES.items():
        if name not in answers:
            continue
        paper = PAPER if name == "vspair_paper" else {}
        rows += [
            Row(model, preset, metric, value, paper=paper.get(metric))
            for metric, value in _values(answers, name).items()
        ]
        rows += [
            Row(model, preset, metric, value, condition=_bin_name(ends, b))
            for metric, values in _binned(answers, name, noise).items()
            for b, value in enumerate(values)
            if np.isfinite(value)
        ]
    return rows


def error_by_noise(answers: Mapping[str, Groups], noise: float) -> dict[str, Any]:
    """Return the middle of each bin in per cent, and the MSE of each method, (bins,) each."""
    ends = edges(noise)
    found = {"levels": np.array([(a + b) / 2 for a, b in pairwise(ends)])}
    for name in NAMES:
        if name in answers:
            found[_label(name)] = np.array(_binned(answers, name, noise)["mse"])
    return {k: v.astype(np.float32) for k, v in found.items()}


# -- words ----------------------------------------------------------------------------------


def _label(name: str) -> str:
    model, preset = NAMES[name]
    return f"{model} ({preset})" if preset else model


def grid(head: list[str], lines: list[list[str]]) -> str:
    """Return a table as Markdown, from the words of its head and of its lines."""
    rows = [f"| {' | '.join(line)} |" for line in [head, *lines]]
    return "\n".join([rows[0], "|---" * len(head) + "|", *rows[1:]])


def _cell(metric: str, value: float | None) -> str:
    if value is None:
        return "-"
    if metric == "parameters":
        return f"{value:,.0f}" if value else "none"
    return f"{value:.3g}"


def _comparison(rows: list[Row]) -> str:
    """Return one line a method, one column a measure."""
    found = {(r.model, r.preset, r.metric): r.value for r in rows if not r.condition}
    lines = []
    for name, own in NAMES.items():
        if (*own, "mse") not in found:
            continue
        lines += [[_label(name), *(_cell(m, found.get((*own, m))) for m in COMPARED)]]
        if own[1] == "calibrated":  # whose noise is learned; the paper's preset draws none
            noisy = {m: found.get((*own, f"{m}_with_noise")) for m in COMPARED}
            lines += [["the same with its noise", *(_cell(m, noisy.get(m)) for m in COMPARED)]]
    return grid(["", *COMPARED.values()], lines)


def by_noise(rows: list[Row], metric: str) -> str:
    """Return one line a method, one column a bin of the noise, the best in bold, as Markdown.

    A method with fewer slices in a bin than others is not compared there, and says how many.

    Arguments:
        rows: What :func:`collect` returned.
        metric: ``mse``, ``psnr``, ``ssim``, or ``shown_mse`` over DPS's slices.
    """
    how_many = "shown_slices" if metric.startswith("shown_") else "slices"
    rows = [r for r in rows if r.condition and r.metric in (metric, how_many)]
    bins = list(dict.fromkeys(r.condition for r in rows))
    bins.sort(key=lambda words: float(words.split()[1].split("-")[0]))
    found = {(r.model, r.preset, r.condition): r.value for r in rows if r.metric == metric}
    names = [n for n, own in NAMES.items() if any((*own, b) in found for b in bins)]
    pick = min if metric.endswith("mse") else max
    lines = []
    counts = {(r.model, r.preset, r.condition): r.value for r in rows if r.metric == how_many}
    most = {b: max(v for (_, _, c), v in counts.items() if c == b) for b in bins}
    whole = {own: v for own, v in found.items() if counts[own] == most[own[2]]}
    best = {b: pick(v for (_, _, c), v in whole.items() if c == b) for b in bins}
    for n in names:
        cells = []
        for b in bins:
            own = (*NAMES[n], b)
            bold = "**" if whole.get(own) == best[b] else ""
            few = "" if own in whole or own not in found else f" ({counts[own]:g} of {most[b]:g})"
            cells.append(f"{bold}{found[own]:.3g}{bold}{few}" if own in found else "-")
        lines.append([_label(n), *cells])
    return grid(["", *(f"{b.removeprefix('noise ')}, {most[b]:g} slices" for b in bins)], lines)


def _weights(answers: Mapping[str, Groups], noise: float) -> str:
    """Say which weights TV-ADMM was given."""
    if "tv-choice" not in answers:
        return ""
    chosen, ends = answers["tv-choice"]["choice"]["weight"], edges(noise)
    words = [f"{w:g} for {_bin_name(ends, i)}" for i, w in enumerate(chosen)]
    met = answers.get("tv", {}).get("image", {}).get("converged")
    share = ""
    if met is not None:
        part = float(np.mean(met))
        most = f"{100 * part:.3g} % of the test slices; the others ended at the most iterations"
        where = "all test slices" if part == 1 else most
        share = f" With them its residuals met the tolerance on {where}."
    return (
        f" TV-ADMM's weights, from the paper's list {WEIGHTS}, are the best on validation slices: "
        f"{', '.join(words)}.{share}"
    )


def _inside(samples: int) -> float:
    """Return the share that so many samples' 90 % interval covers if they are of the truth's law.

    Of few it is that from the least to the greatest, which has less than 90 % inside.
    """
    return min(0.9, (samples - 1) / (samples + 1))


def _counts(scale: Mapping[str, Any]) -> str:
    """Say what the numbers of samples mean for coverage and time."""
    ours, theirs = scale["samples"], scale["trajectories"]
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


def _copies(scale: Mapping[str, Any]) -> str:
    """Say which networks saw moved copies of the slices."""
    if scale["copies"] == 1:
        return ""
    return (
        f" All networks but those of the preset `paper` are trained on {scale['copies']} of each "
        "training slice, one as it is and the others turned, scaled and shifted a little, with "
        "sinograms and noise of their own; their epochs are divided by that."
    )


def _omitted(left: Mapping[str, str]) -> str:
    """Say which answers are left out, and why."""
    words = "; ".join(f"{name}: {why}" for name, why in left.items())
    return f" **Left out: {words}. Make them anew.**" if left else ""


def text(
    answers: Mapping[str, Groups],
    rows: list[Row],
    about: Mapping[str, Any],
    head: str,
    left: Mapping[str, str],
) -> str:
    """Return all tables with their captions, as Markdown.

    Arguments:
        answers: What the stages kept.
        rows: What :func:`collect` returned.
        about: Scale and data.
        head: How the results were made.
        left: Which answers are left out, and why.
    """
    slices, patients, scale = about["slices"], about["patients"], about["scale"]
    kind = "Phantoms, of which each is a patient" if about["phantoms"] else "Real slices"
    sizes = ", ".join(f"{slices[p]:,} slices ({patients[p]:,}) for {p}" for p in slices)
    dps = f"DPS answers {len(answers['test']['shown']['index'])} of the test slices"
    parts_of = [
        "# Computed tomography (section 4.3)",
        f"{head} {kind}: {sizes}; in brackets patients, of whom no two parts share one. The "
        f"noise's deviation is uniform in 0-{100 * scale['noise']:g} % of each sinogram's range. "
        f"All methods are given the same noisy sinograms.{_copies(scale)}{_omitted(left)}",
        sources(about["phantoms"]),
        "## All methods",
        _comparison(rows),
        f"{_CAPTION}{_counts(scale)} {dps}, spread evenly over the noise, "
        f"with {scale['trajectories']} trajectories of {scale['steps']:,} steps and zeta = "
        f"{scale['zeta']:g} for lengths in pixels; its numbers are over those."
        f"{_weights(answers, scale['noise'])}",
    ]
    parts_of += [_BOLD]
    for metric, words in _BY_NOISE.items():
        parts_of += [f"### {words} by noise level", by_noise(rows, metric)]
    if "dps" in answers:
        parts_of += ["### MSE by noise level, on DPS's slices", by_noise(rows, "shown_mse")]
    ours = [r for r in rows if r.model == "vsPAIR" and not r.condition]
    for title, metrics in TABLES.items() if ours else ():
        parts_of += [f"## {title}", markdown(ours, metrics)]
    parts_of += [_REMARKS]
    return "\n\n".join(parts_of) + "\n"


def describe(machine: str, command: str, commits: Sequence[str]) -> str:
    """Return how the results were made; the commits are those of the stages that made them."""
    at = f"commit{'s' * (len(commits) > 1)} {', '.join(commits) or 'unknown'}"
    return f"Made by `{command}` at {at}, answers on {machine}."


_CAPTION = (
    "Of methods that sample, MSE, PSNR and SSIM are of the mean of samples. PSNR and SSIM take "
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
    "`paper` is the unit width of its likelihood, which it never draws from. Its squared errors "
    "are without the 1/2 that eqs. (5) and (10) print, as for MNIST, so that they count twice "
    "beside all other terms. The paper does not give its unit of length: TV-ADMM's weights and "
    "vsPAIR's sinograms are for lengths in half sides of the image, DPS's step size for lengths "
    "in pixels (`vspair.studies.ct.data` says why)."
)
