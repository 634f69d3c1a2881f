"""Tables and figures of appendix B's studies, from the answers to their trainings.

The figures are drawn from ``figures.npz``, arrays by group and name: ``beta`` has ``alpha0`` and
``beta0`` (4,), ``nnz`` and ``mse`` (4, 4), NaN where nothing was measured; ``gamma`` has, of the
values that were measured, ``gamma_x`` (g,), ``mean`` and ``variance`` (g, R, C) and ``omega``
(g, l) for one test slice, its ``truth`` (R, C) and its ``noise`` in per cent; ``curves`` has what
:func:`vspair.studies.ct_sweeps.drawing.draw_curves` draws, of trainings whose metrics are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vspair import runs
from vspair.errors import VspairError
from vspair.records import Settings
from vspair.runs.files import read_groups
from vspair.studies.ct.data import GEOMETRY, HALF
from vspair.studies.ct.tables import NAMES, describe, grid, sources
from vspair.studies.ct_sweeps import drawing as figures
from vspair.studies.ct_sweeps.measures import SHOWN
from vspair.studies.results import Row, write_summary

__all__ = ["GAMMAS", "VALUES", "Answers", "numbers", "redraw", "with_gates", "write"]

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
    "near_one": "Gates near 1",
    "mse_sample": "MSE of a sample",
    "mse": "MSE of the mean of samples",
    "rho": "rho",
}
"""What is shown over alpha0 and beta0."""

COLUMNS = {
    "nnz": "average nnz",
    "near_one": "gates near 1",
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


_IMAGES = {"noise", "truth", "mean", "variance", "omega"}


def _value(answer: Settings | None, metric: str) -> float:
    return float((answer or {}).get("row", {}).get(metric, np.nan))


def _cell(value: float) -> str:
    if not np.isfinite(value):
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _shown(path: Path) -> dict[str, Any]:
    """Return what is kept of the slices that are shown, by name."""
    found = (
        dict(read_groups(path, "Run the study first, without --draw.").get("shown", {}))
        if path.is_file()
        else {}
    )
    if missing := sorted(_IMAGES - set(found)):
        raise VspairError(
            f"{path} is missing or damaged: it has no {', '.join(missing)}. Remove it and "
            f"{path.stem}.json, and the training is made again."
        )
    return found


def with_gates(answer: Settings | None, images: Path) -> Settings | None:
    """Return an answer with the number of its gates that are nearer to 1 than to rho.

    Gates that the KL alone moves stand at rho. The others are counted on the slices whose images
    are kept, a few of all.

    Arguments:
        answer: An answer, nothing where a training is missing.
        images: The file of its images; where it is not there, neither is the number.
    """
    if answer is None or "row" not in answer or not images.is_file():
        return answer
    near = _shown(images)["omega"] > (1 + answer["row"]["rho"]) / 2
    return answer | {"row": answer["row"] | {"near_one": float(near.sum(1).mean())}}


# -- figures --------------------------------------------------------------------------------


def numbers(studies: Mapping[str, Answers], files: Mapping[str, Path]) -> dict[str, Any]:
    """Return what the figures show, as arrays by group and name.

    Arguments:
        studies: The answers of both studies.
        files: The files of the answers by condition; images and metrics stand beside them.
    """
    found: dict[str, Any] = {}
    prior, shape = studies["prior"].values(), (len(VALUES), len(VALUES))
    if any("row" in (answer or {}) for answer in prior):
        found["beta"] = {"alpha0": np.array(VALUES), "beta0": np.array(VALUES)}
        for name, metric in (("nnz", "nnz"), ("mse", "mse_sample")):
            found["beta"][name] = np.reshape([_value(a, metric) for a in prior], shape)
    there = {c: answer for c, answer in studies["gamma"].items() if answer and "row" in answer}
    if there:
        parts = [_shown(files[condition].with_suffix(".npz")) for condition in there]
        one = len(parts[0]["truth"]) // 2
        found["gamma"] = {name: parts[0][name][one] for name in ("truth", "noise")}
        found["gamma"]["gamma_x"] = np.array([answer["gamma_x"] for answer in there.values()])
        for name in ("mean", "variance", "omega"):
            found["gamma"][name] = np.stack([part[name][one] for part in parts])
    curves: dict[str, Any] = {}
    for name, answers in studies.items():
        curves |= _curves(name, answers, files)
    return found | ({"curves": curves} if curves else {})


def _curves(name: str, answers: Answers, files: Mapping[str, Path]) -> dict[str, Any]:
    """Return how rho and the KL of x moved in the trainings of a study whose metrics are there."""
    there = [condition for condition, answer in answers.items() if answer]
    rows = {c: runs.read_metrics(files[c].with_suffix(".jsonl")) for c in there}
    rows = {condition: history for condition, history in rows.items() if history}
    if not rows:
        return {}
    longest = max(rows.values(), key=len)
    found: dict[str, Any] = {"epoch": np.array([line["epoch"] for line in longest])}
    for key, metric in (("rho", "rho"), ("kl", "x_prior")):
        found[key] = np.full((len(rows), len(longest)), np.nan)
        for values, history in zip(found[key], rows.values(), strict=True):
            values[: len(history)] = [line.get(metric, np.nan) for line in history]
    varied = ("alpha0", "beta0") if name == "prior" else ("gamma_x",)
    found |= {key: np.array([(answers[c] or {})[key] for c in rows]) for key in varied}
    return {f"{name}_{key}": values for key, values in found.items()}


def redraw(folder: Path) -> list[Path]:
    """Draw every figure again from the saved numbers of a results folder; return their paths."""
    return figures.draw_sweeps(
        read_groups(folder / FILE, "Run the study first, without --draw."), folder
    )


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


def _trend(answers: Answers) -> str:
    """Say how nnz follows the prior mean of rho, as the paper expects: Spearman's correlation."""
    there = [a for a in answers.values() if a and "row" in a]
    mean = _ranks([a["alpha0"] / (a["alpha0"] + a["beta0"]) for a in there])
    ranks = [mean, *(_ranks([a["row"][m] for a in there]) for m in ("nnz", "mse_sample"))]
    if len(there) < 3 or not all(rank.any() for rank in ranks):  # equal values have no order
        return ""
    _, nnz, error = np.corrcoef(ranks)[0]
    return (
        "Rank correlation with the prior mean of rho, alpha0 / (alpha0 + beta0), over "
        f"{len(there)} trainings: {nnz:.2f} for nnz and {error:.2f} for the MSE of a sample."
    )


def _ranks(values: Sequence[float]) -> NDArray[Any]:
    """Return the ranks of values, from the middle on; equal values share the mean of theirs."""
    array = np.asarray(values, float)
    below, above = (array < array[:, None]).sum(1), (array > array[:, None]).sum(1)
    return np.asarray((below - above) / 2)


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


def _epochs(studies: Mapping[str, Answers]) -> dict[str, int]:
    """Return how long the trainings of each study were that has any."""
    return {
        name: answer["settings"]["training.epochs"]
        for name, answers in studies.items()
        for answer in answers.values()
        if answer
    }


def _scale(settings: Settings, epochs: Mapping[str, int]) -> str:
    """Say what is smaller than in the paper."""
    seen, lengths = settings["geometry"], list(dict.fromkeys(epochs.values()))
    if len(lengths) == 1:
        words = f"Each training has {lengths[0]:,} epochs"
    else:
        parts = [f"{number:,} epochs (study {name})" for name, number in epochs.items()]
        words = f"Trainings have {' and '.join(parts)}"
    same = lengths == [PAPER_EPOCHS]
    words += ", as in the paper." if same else f"; the paper's have {PAPER_EPOCHS}."
    if seen != GEOMETRY.describe():
        words += f" Slices are averaged once more: {seen}; the paper's: {GEOMETRY.describe()}."
    return words


def _head(first: Settings, about: Settings, command: str) -> str:
    """Say how the numbers were made, and of what."""
    settings, slices, patients = first["settings"], first["slices"], first["patients"]
    scale = _scale(settings, about["epochs"])
    machines = " and ".join(about["machines"])
    kind = "Phantoms, of which each is a patient" if first["phantoms"] else "Real slices"
    sizes = ", ".join(f"{slices[p]:,} slices ({patients[p]:,}) for {p}" for p in slices)
    return (
        f"{describe(machines, command, about['commits'])} {kind}: {sizes}; in brackets patients, "
        "of whom no two parts share one. Codes of "
        f"{settings['model.x_size']:,} and {settings['model.y_size']:,} factors, lambda_1 = "
        f"{settings['objective.lambda_x']:g}, lambda_2 = {settings['objective.lambda_y']:g}, "
        f"lambda_b = {settings['objective.lambda_binary']:g}, squared errors without the printed "
        f"1/2, as in the study of section 4.3. **{scale}** One "
        f"seed, the weights of the {settings['training.keep']} epoch; `best epoch` has the best "
        "score on validation patients. Errors, CRPS and coverage are means over the test slices, "
        f"with {settings['samples']} samples each; nnz counts the open gates of one sample a "
        "slice, gates that stand at rho as often as they are open by chance. Gates nearer to 1 "
        f"than to rho are counted on {min(SHOWN, slices['test'])} of the test slices."
    )


def _command(settings: Settings, phantoms: bool, epochs: Mapping[str, int]) -> str:
    """Return what makes the answers, a command a study where they differ in their epochs."""
    words = ["vspair reproduce ct-sweeps"] + ([] if phantoms else ["--data-dir D"])
    words += ["--half"] if settings["geometry"] != GEOMETRY.describe() else []

    def with_epochs(number: int, *more: str) -> str:
        own = [] if number == PAPER_EPOCHS else [f"--epochs {number}"]
        return " ".join([*words, *more, *(["--smoke"] if settings["small"] else own)])

    if len(set(epochs.values())) == 1:
        return with_epochs(next(iter(epochs.values())))
    parts = [with_epochs(n, "--runs R", f"--only {name}") for name, n in epochs.items()]
    return "; ".join([*parts, with_epochs(PAPER_EPOCHS, "--runs R", "--only report")])


def _captions(
    drawn: Mapping[str, Any], settings: Settings, epochs: Mapping[str, int]
) -> dict[str, str]:
    """Return what the captions say of the scale, by figure."""
    words = {name: _scale(settings, {name: number}) for name, number in epochs.items()}
    if "beta" in drawn and np.isnan(drawn["beta"]["nnz"]).any():
        words["prior"] = f"Hatched: not measured. {words['prior']}"
    if "gamma" in drawn:
        words["gamma"] = f"Noise of {drawn['gamma']['noise']:.1f} %. {words['gamma']}"
    figure = {"prior": "beta_prior", "gamma": "gamma_x"}
    return {figure[name]: text for name, text in words.items()} | {
        "curves": _scale(settings, epochs)
    }


def _beside(simple: Settings) -> str:
    """Say what error is had without learning."""
    words = [f"{NAMES[name][0]} {_cell(error)}" for name, error in simple["row"].items()]
    return (
        f"MSE on the same test slices without learning: {', '.join(words)} (commit "
        f"{simple['commit']}, {simple['machine']})."
    )


def write(
    out: Path,
    studies: Mapping[str, Answers],
    files: Mapping[str, Path],
    simple: Settings | None = None,
) -> str:
    """Write summary, figures and tables into a folder, and return the tables.

    Arguments:
        out: The folder of the results.
        studies: The answers of both studies, at least one of them.
        files: The files of the answers by condition; images and metrics stand beside them.
        simple: The answer of methods that nothing is learned for.
    """
    studies = {
        name: {c: with_gates(answer, files[c].with_suffix(".npz")) for c, answer in part.items()}
        for name, part in studies.items()
    }
    there = [answer for part in studies.values() for answer in part.values() if answer]
    first, machines = there[0], sorted({answer["machine"] for answer in there})
    epochs, drawn = _epochs(studies), numbers(studies, files)
    command = _command(first["settings"], first["phantoms"], epochs)
    about = {key: first[key] for key in ("slices", "patients", "phantoms")} | {"epochs": epochs}
    about["settings"] = {k: v for k, v in first["settings"].items() if k != "training.epochs"}
    commits = sorted({str(answer.get("commit", "unknown")) for answer in there})
    about |= {"machines": machines, "commits": commits, "trainings": len(there)}
    runs.make_folder(out)
    made = {"commit": ", ".join(commits), "machine": " and ".join(machines)}
    errors = simple["row"] if simple else {}
    rows = [Row(NAMES[name][0], "", "mse", error) for name, error in errors.items()]
    rows += _rows(studies)
    write_summary(out / "summary.json", "ct-sweeps", command, about, rows, made=made)
    arrays = {f"{group}.{name}": v for group, part in drawn.items() for name, v in part.items()}
    runs.write_arrays(out / FILE, {k: np.asarray(v, np.float32) for k, v in arrays.items()})
    parts = [
        "# Hyper-parameters of computed tomography (appendix B)",
        _head(first, about, command),
        _beside(simple) if simple else "",
        sources(first["phantoms"], first["settings"]["geometry"] == HALF.describe()),
        "## The Beta prior",
        f"alpha0 and beta0, with gamma_x = 0.1 as in section 4.3. {_gaps(studies['prior'])}",
        _prior(studies["prior"]),
        _trend(studies["prior"]),
        "## The weight of x's KL",
        f"gamma_x, with alpha0 = 1, beta0 = 3 and networks of 2 blocks. {_gaps(studies['gamma'])}",
        _gamma(studies["gamma"]),
        "## Figures",
        figures.gallery(redraw(out), _captions(drawn, first["settings"], epochs)),
    ]
    text = "\n\n".join(part for part in parts if part) + "\n"
    runs.write_text(out / "README.md", text)
    return text
