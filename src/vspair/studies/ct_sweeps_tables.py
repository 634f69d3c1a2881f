"""Tables and figures of appendix B's studies, from the answers to their trainings.

The figures are drawn from ``figures.npz``, arrays by group and name: ``beta`` has ``alpha0`` and
``beta0`` (4,), ``nnz`` and ``mse`` (4, 4), NaN where nothing was measured; ``gamma`` has, of the
values that were measured, ``gamma_x`` (g,), ``mean`` and ``variance`` (g, R, C) and ``omega``
(g, l) for one test slice, its ``truth`` (R, C) and its ``noise`` in per cent.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vspair import runs
from vspair.report import ct_sweeps as figures
from vspair.report.plots import load_numbers
from vspair.report.sweeps import Settings
from vspair.studies.ct_data import GEOMETRY, HALF
from vspair.studies.ct_tables import describe, grid, sources
from vspair.studies.results import Row, write_summary

__all__ = ["GAMMAS", "VALUES", "Answers", "numbers", "redraw", "write"]

VALUES = (1.0, 2.0, 16.0, 64.0)
"""What alpha0 and beta0 are varied over."""

GAMMAS = (0.001, 0.01, 0.1, 1.0)
"""What gamma_x is varied over."""

PAPER_EPOCHS = 500
FILE = "figures.npz"

Answers = dict[str, Settings | None]
"""The answers of a study by condition, nothing for a training that is missing."""

GRIDS = {
    "nnz": "Average nnz",
    "mse_sample": "MSE of a sample",
    "mse": "MSE of the mean of samples",
    "rho": "rho",
}
"""What is shown over alpha0 and beta0."""

COLUMNS = {
    "nnz": "average nnz",
    "omega": "mean omega",
    "undecided": "omega between 0.1 and 0.9",
    "rho": "rho",
    "mse_sample": "MSE of a sample",
    "mse": "MSE of the mean of samples",
    "crps": "CRPS",
    "coverage_90": "90 % covers",
    "best_epoch": "best epoch",
}
"""What is shown over gamma_x."""


def _value(answer: Settings | None, metric: str) -> float:
    return float((answer or {}).get("row", {}).get(metric, np.nan))


def _cell(value: float) -> str:
    if not np.isfinite(value):
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


# -- figures --------------------------------------------------------------------------------


def numbers(studies: Mapping[str, Answers], images: Mapping[str, Path]) -> dict[str, Any]:
    """Return what the figures show, as arrays by group and name.

    Arguments:
        studies: The answers of both studies.
        images: Where the images of gamma's trainings are, by condition.
    """
    found: dict[str, Any] = {}
    prior, shape = studies["prior"].values(), (len(VALUES), len(VALUES))
    if any("row" in (answer or {}) for answer in prior):
        found["beta"] = {"alpha0": np.array(VALUES), "beta0": np.array(VALUES)}
        for name, metric in (("nnz", "nnz"), ("mse", "mse_sample")):
            found["beta"][name] = np.reshape([_value(a, metric) for a in prior], shape)
    there = {c: answer for c, answer in studies["gamma"].items() if answer and "row" in answer}
    if there:
        parts = [load_numbers(images[condition], ".")["shown"] for condition in there]
        one = len(parts[0]["truth"]) // 2
        found["gamma"] = {name: parts[0][name][one] for name in ("truth", "noise")}
        found["gamma"]["gamma_x"] = np.array([answer["gamma_x"] for answer in there.values()])
        for name in ("mean", "variance", "omega"):
            found["gamma"][name] = np.stack([part[name][one] for part in parts])
    return found


def redraw(folder: Path) -> list[Path]:
    """Draw every figure again from the saved numbers of a results folder; return their paths."""
    return figures.draw_sweeps(load_numbers(folder / FILE, "."), folder)


# -- tables ---------------------------------------------------------------------------------


def _prior(answers: Answers) -> str:
    """Return a table for each measure, one line an alpha0, one column a beta0."""
    head = ["alpha0 \\ beta0", *(f"{b:g}" for b in VALUES)]
    tables = []
    for metric, title in GRIDS.items():
        cells = iter([_cell(_value(answer, metric)) for answer in answers.values()])
        lines = [[f"{a:g}", *(next(cells) for _ in VALUES)] for a in VALUES]
        tables.append(f"### {title}\n\n{grid(head, lines)}")
    return "\n\n".join(tables)


def _gamma(answers: Answers) -> str:
    """Return one line a gamma_x, one column a measure."""
    lines = [
        [condition.removeprefix("gamma_x="), *(_cell(_value(answer, m)) for m in COLUMNS)]
        for condition, answer in answers.items()
    ]
    return grid(["gamma_x", *COLUMNS.values()], lines)


def _gaps(answers: Answers) -> str:
    """Say which trainings of a study are missing, or have failed."""
    missing = [condition for condition, answer in answers.items() if answer is None]
    words = []
    if missing:
        names = "; ".join(missing)
        words.append(f"Not yet trained: {len(missing)} of {len(answers)} ({names}).")
    for condition, answer in answers.items():
        if answer and "error" in answer:
            words.append(f"{condition} has failed: {answer['error']}")
    return " ".join(words) or f"All {len(answers)} trainings are there."


def _rows(studies: Mapping[str, Answers]) -> list[Row]:
    return [
        Row("vsPAIR", "paper", metric, value, condition=condition)
        for answers in studies.values()
        for condition, answer in answers.items()
        for metric, value in (answer or {}).get("row", {}).items()
    ]


def _scale(settings: Settings) -> str:
    """Say what is smaller than in the paper."""
    epochs, seen = settings["training.epochs"], settings["geometry"]
    more = ", as in the paper" if epochs == PAPER_EPOCHS else f"; the paper's have {PAPER_EPOCHS}"
    words = f"Each training has {epochs:,} epochs{more}."
    if seen != GEOMETRY.describe():
        words += f" Slices are averaged once more: {seen}; the paper's: {GEOMETRY.describe()}."
    return words


def _head(first: Settings, about: Settings, command: str) -> str:
    """Say how the numbers were made, and of what."""
    settings, slices, patients = first["settings"], first["slices"], first["patients"]
    machines = " and ".join(about["machines"])
    kind = "Phantoms, of which each is a patient" if first["phantoms"] else "Real slices"
    sizes = ", ".join(f"{slices[p]:,} slices ({patients[p]:,}) for {p}" for p in slices)
    return (
        f"{describe(machines, command, about['commits'])} {kind}: {sizes}; in brackets patients, "
        "of whom no two parts share one. Codes of "
        f"{settings['model.x_size']:,} and {settings['model.y_size']:,} factors, lambda_1 = "
        f"{settings['objective.lambda_x']:g}, lambda_2 = {settings['objective.lambda_y']:g}, "
        f"lambda_b = {settings['objective.lambda_binary']:g}. **{_scale(settings)}** One "
        f"seed, the weights of the {settings['training.keep']} epoch; `best epoch` has the best "
        "score on validation patients. All numbers are means over the test slices, with "
        f"{settings['samples']} samples each."
    )


def _command(settings: Settings, phantoms: bool) -> str:
    epochs = settings["training.epochs"]
    words = [] if phantoms else ["--data-dir D"]
    words += ["--half"] if settings["geometry"] != GEOMETRY.describe() else []
    if settings["small"]:
        words.append("--smoke")
    elif epochs != PAPER_EPOCHS:
        words.append(f"--epochs {epochs}")
    return " ".join(["vspair reproduce ct-sweeps", *words])


def write(out: Path, studies: Mapping[str, Answers], images: Mapping[str, Path]) -> str:
    """Write summary, figures and tables into a folder, and return the tables.

    Arguments:
        out: The folder of the results.
        studies: The answers of both studies, at least one of them.
        images: Where the images of gamma's trainings are, by condition.
    """
    there = [answer for part in studies.values() for answer in part.values() if answer]
    first, machines = there[0], sorted({answer["machine"] for answer in there})
    command, drawn = _command(first["settings"], first["phantoms"]), numbers(studies, images)
    about = {key: first[key] for key in ("slices", "patients", "phantoms", "settings")}
    commits = sorted({str(answer.get("commit", "unknown")) for answer in there})
    about |= {"machines": machines, "commits": commits, "trainings": len(there)}
    runs.make_folder(out)
    made = {"commit": ", ".join(commits), "machine": " and ".join(machines)}
    write_summary(out / "summary.json", "ct-sweeps", command, about, _rows(studies), made=made)
    arrays = {f"{group}.{name}": v for group, part in drawn.items() for name, v in part.items()}
    runs.write_arrays(out / FILE, {k: np.asarray(v, np.float32) for k, v in arrays.items()})
    noise = ""
    if "gamma" in drawn:
        noise = f" The slice of `gamma_x.png` has noise of {drawn['gamma']['noise']:.1f} %."
    parts = [
        "# Hyper-parameters of computed tomography (appendix B)",
        _head(first, about, command),
        sources(first["phantoms"], first["settings"]["geometry"] == HALF.describe()),
        "## The Beta prior",
        f"alpha0 and beta0, with gamma_x = 0.1 as in section 4.3. {_gaps(studies['prior'])}",
        _prior(studies["prior"]),
        "## The weight of x's KL",
        f"gamma_x, with alpha0 = 1, beta0 = 3 and networks of 2 blocks. {_gaps(studies['gamma'])}",
        _gamma(studies["gamma"]),
        "## Figures",
        f"The MSE is that of a sample.{noise} {_scale(first['settings'])}",
        figures.gallery(redraw(out)),
    ]
    text = "\n\n".join(parts) + "\n"
    runs.write_text(out / "README.md", text)
    return text
