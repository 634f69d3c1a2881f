"""What the paper leaves open about its MNIST models, settled by what reproduces its table.

Each reading sets conventions of a model and is trained beside the others. The rows are
kept in ``readings.json``, one for each reading and number of epochs, so that short trainings of
many readings and long ones of a few can stand in one table.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from vspair import config as configs
from vspair import runs
from vspair.errors import VspairError
from vspair.problems.inpainting import InpaintingData
from vspair.studies.mnist import study
from vspair.training.side_by_side import MOST_LANES, deadline_in

__all__ = ["READINGS", "compare", "table"]

Changes = dict[str, dict[str, Any]]


def _vspair(
    sigma: str, rho: str = "gradient", lambda_binary: float = 0.05, **more: Any
) -> tuple[str, Changes]:
    """Return a reading of vsPAIR, by default with the printed penalty on undecided gates."""
    named = {"sigma": sigma, "rho": rho, "lambda_binary": lambda_binary}
    return "vsPAIR", {"objective": named | more}


READINGS: dict[str, tuple[str, Changes]] = {
    "vsPAIR: sigma": _vspair("sigma"),
    "vsPAIR: variance": _vspair("variance"),
    "vsPAIR: log variance": _vspair("logvar"),
    "vsPAIR: sigma, no binary penalty": _vspair("sigma", lambda_binary=0.0),
    "vsPAIR: variance, no binary penalty": _vspair("variance", lambda_binary=0.0),
    "vsPAIR: log variance, no binary penalty": _vspair("logvar", lambda_binary=0.0),
    "vsPAIR: sigma, rho closed": _vspair("sigma", "closed"),
    "vsPAIR: variance, rho closed": _vspair("variance", "closed"),
    "vsPAIR: log variance, rho closed": _vspair("logvar", "closed"),
    "vsPAIR: log variance, rho closed, mean": _vspair("logvar", "closed", reduction="mean"),
    "vsPAIR: sigma, rho closed, with 1/2": _vspair("sigma", "closed", half=True),
    "vsPAIR: sigma, rho closed, targets detached": _vspair("sigma", "closed", target="detached"),
    "vPAIR: sigma": ("vPAIR", {"objective": {"sigma": "sigma"}}),
    "vPAIR: variance": ("vPAIR", {"objective": {"sigma": "variance"}}),
    "vPAIR: log variance": ("vPAIR", {"objective": {"sigma": "logvar"}}),
    "sVAE": ("sVAE", {"objective": {"rho": "gradient"}}),
    "sVAE: rho closed": ("sVAE", {"objective": {"rho": "closed"}}),
    "PAIR: map fitted by decoded x": ("PAIR", {"objective": {"map": "decoded"}}),
    "PAIR: map fitted by codes": ("PAIR", {"objective": {"map": "samples"}}),
    "calibrated": ("calibrated", {"model": {"map_depth": 2}}),
    "calibrated: linear map": ("calibrated", {"model": {"map_depth": 0}}),
}
"""Each reading by name: the model, and what its configuration is set to.

Sigma, variance or log variance is what eq. (16) compares; rho is learned by gradient unless it
is set by its closed form.
"""

COLUMNS = {
    "nnz": "nnz",
    "mse": "MSE",
    "mse30": "MSE30",
    "mse_training_mode": "MSE, batch norm as in training",
    "always_active": "always active",
    "nnz_encoder": "nnz of the encoder",
    "variance_ratio": "variance ratio",
    "uncertainty_error_r": "r",
}
IMAGES = 500
"""Test images that a reading is judged by."""


def jobs(names: list[str]) -> list[study.Job]:
    """Return the trainings of named readings."""
    made = []
    for name in names:
        model, changes = READINGS[name]
        label = "".join(c if c.isalnum() else "-" for c in name)
        made.append(study.Job(label, configs.override(study.shipped(model), changes)))
    return made


def compare(
    data: InpaintingData,
    out: Path,
    *,
    folder: Path,
    names: list[str] | None = None,
    device: str = "auto",
    epochs: int = 14,
    minutes: float = 0.0,
) -> str | None:
    """Train readings side by side and add their rows to ``readings.json``.

    Arguments:
        data: The pairs; 500 test images are used.
        out: The folder of the results.
        folder: The folder of the runs.
        names: Which readings; the first ones, as many as a GPU trains at a time, if not given.
        device: Where to train.
        epochs: Passes over the pairs.
        minutes: Save and stop after so many minutes; 0 trains to the end.

    Returns:
        The table as Markdown, or nothing where time ran out: call again to continue.
    """
    names, here = names or list(READINGS)[:MOST_LANES], study.units(data)[0]
    if unknown := [name for name in names if name not in READINGS]:
        raise VspairError(f"There is no reading {unknown[0]!r}. There are: {'; '.join(READINGS)}.")
    runs.make_folder(out)
    if there := {row.get("unit", "[-1, 1]") for row in read(out / "readings.json")} - {here}:
        raise VspairError(
            f"{out / 'readings.json'} has errors on {there.pop()}, here pixels are on {here}. "
            "Name another folder by --out."
        )
    work = jobs(names)
    deadline = deadline_in(minutes)
    where: dict[str, Any] = {"device": device, "fast": True, "epochs": epochs}
    if not study.train(work, data, folder, deadline=deadline, **where):
        return None
    few = some_tests(data, IMAGES)
    rows = []
    for name, job in zip(names, work, strict=True):
        values, _ = study.measure(study.load(job, folder, device), few)
        rows.append(describe(name, epochs, device) | {"unit": here} | values)
    text = _text(merge(out / "readings.json", rows), few)
    runs.write_text(out / "readings.md", text)
    return text


def some_tests(data: InpaintingData, most: int) -> InpaintingData:
    """Return the data with its first test pairs only."""
    names = ("x_test", "y_test", "mask_test", "index_test")
    return dataclasses.replace(data, **{name: getattr(data, name)[:most] for name in names})


def describe(name: str, epochs: int, device: str) -> dict[str, Any]:
    """Return what a row is about and what made it."""
    machine = runs.machine(device)
    return {"reading": name, "epochs": epochs, "commit": runs.commit(), "machine": machine}


def merge(path: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add rows to a file, in place of older ones of the same reading and epochs."""
    known = {(r["reading"], r["epochs"]): r for r in read(path)}
    known |= {(r["reading"], r["epochs"]): r for r in rows}
    order = list(READINGS)
    merged = sorted(known.values(), key=lambda r: (r["epochs"], order.index(r["reading"])))
    runs.write_text(path, json.dumps(merged, indent=1) + "\n")
    return merged


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file; none where there is no file."""
    return json.loads(path.read_text()) if path.exists() else []


def _text(rows: list[dict[str, Any]], data: InpaintingData) -> str:
    made = sorted({f"{r['epochs']} epochs at {r['commit']} on {r['machine']}" for r in rows})
    return (
        "# What the paper leaves open, and what reproduces its table\n\n"
        "Made by `vspair reproduce mnist --readings --epochs E`, one seed: "
        f"{'; '.join(made)}. The name says what eq. (16) compares (sigma, variance or its "
        "logarithm) and how rho is set, by gradient where nothing is said. The paper's variance "
        f"ratios are 5.2 to 5.5, its correlations r 0.55 to 0.67. {study.in_both_units(data)}\n\n"
        f"{table(rows)}\n"
    )


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as Markdown, with the paper's values of each model at the end."""
    lines = [f"| reading | epochs | {' | '.join(COLUMNS.values())} |"]
    lines.append("|---" * (len(COLUMNS) + 2) + "|")
    lines += [_line(r["reading"], str(r["epochs"]), r) for r in rows]
    lines += [_line(f"paper: {name}", "100", values) for name, values in study.PAPER.items()]
    return "\n".join(lines)


def _line(name: str, epochs: str, values: dict[str, Any]) -> str:
    cells = (values.get(column) for column in COLUMNS)
    shown = ("-" if value is None else f"{value:.3g}" for value in cells)
    return f"| {name} | {epochs} | {' | '.join(shown)} |"
