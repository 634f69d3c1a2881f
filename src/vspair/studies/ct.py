"""Computed tomography, section 4.3 and appendix D.3, with every baseline on the same sinograms.

The study has stages, which can be run one at a time: each stops in time and goes on where it
stopped. Trainings leave run folders, answers leave small files, and the report is made from these
files alone. The paper trains on 3,000 slices; here some patients of these are held out, and the
weights that are best on them are kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from vspair import runs
from vspair.errors import VspairError
from vspair.studies.ct_answers import answer_all, answer_dps, measure_seconds
from vspair.studies.ct_data import SMOKE, Scale, draw
from vspair.studies.ct_figures import illustrate, numbers
from vspair.studies.ct_tables import collect, describe, error_by_noise, gather, text
from vspair.studies.ct_training import (
    Bench,
    train_preset,
    train_prior_in_parts,
    train_regression_in_parts,
)
from vspair.studies.results import write_summary
from vspair.together import in_time

__all__ = ["SMOKE", "STAGES", "Scale", "report", "reproduce"]

_WORK: dict[str, Callable[[Bench], bool]] = {
    "paper": partial(train_preset, preset="paper"),
    "calibrated": partial(train_preset, preset="calibrated"),
    "regression": train_regression_in_parts,
    "prior": train_prior_in_parts,
    "answers": answer_all,
    "dps": answer_dps,
    "seconds": measure_seconds,
}

STAGES = (*_WORK, "report")
"""The stages in their order: four trainings, answers, those of DPS, times, tables and figures."""


def reproduce(
    out: Path,
    *,
    folder: Path,
    data_dir: Path | None = None,
    scale: Scale | None = None,
    only: str = "",
    device: str = "auto",
    minutes: float = 0.0,
    compile: bool = False,
) -> str | None:
    """Run the study, or one stage of it.

    Arguments:
        out: The folder of the results; files of an earlier study in it are replaced.
        folder: The folder of trainings and answers; what is there is not made again.
        data_dir: Where real slices are; phantoms where neither it nor VSPAIR_DATA is given.
        scale: How much to do; the paper's where not given.
        only: One of :data:`STAGES`; all where not given.
        device: Where to compute.
        minutes: Save and stop after so many minutes; 0 goes on to the end.
        compile: Whether to compile vsPAIR's networks on a GPU.

    Returns:
        The tables as Markdown, or what was done; nothing where time ran out: call again to
        continue.
    """
    if only and only not in STAGES:
        raise VspairError(f"only = {only!r}: expected one of {', '.join(STAGES)}.")
    deadline, scale = in_time(minutes), scale or Scale()
    if only != "report":
        where = runs.pick_device(device)
        bench = Bench(scale, draw(scale, data_dir), folder, where, deadline, compile)
        _note(bench)
        for stage in [only] if only else _WORK:
            if not _WORK[stage](bench):
                return None
        if only:
            return f"The stage {only} is done."
    return report(out, folder / "answers")


def _command(scale: dict[str, Any]) -> str:
    """Return the command that makes results at a scale."""
    if scale == asdict(SMOKE):
        return "vspair reproduce ct --smoke"
    changed = {k: v for k, v in scale.items() if v != asdict(Scale())[k]}
    return "vspair reproduce ct" + "".join(
        f" --{name.replace('_', '-')} {value:g}" for name, value in changed.items()
    )


def _note(bench: Bench) -> None:
    """Write down beside the answers what they are made with."""
    runs.make_folder(bench.answers)
    about = bench.data.shown | {
        "scale": asdict(bench.scale),
        "paper_scale": bench.scale == Scale() and not bench.data.phantoms,
        "machine": runs.machine(bench.device),
    }
    runs.write_text(bench.answers / "about.json", json.dumps(about, indent=1) + "\n")


def report(out: Path, answers: Path) -> str:
    """Write tables and figures from the answers that are there, and return the tables.

    Arguments:
        out: The folder of the results.
        answers: The folder of the answers.
    """
    found = gather(answers)
    about: dict[str, Any] = json.loads((answers / "about.json").read_text(encoding="utf-8"))
    noise, command = about["scale"]["noise"], _command(about["scale"])
    rows = collect(found, noise)
    runs.make_folder(out)
    write_summary(out / "summary.json", "ct", command, about, rows)
    figures = illustrate(numbers(found, error_by_noise(found, noise)), out)
    tables = text(found, rows, about, describe(about["machine"], command))
    tables += f"\n## Figures\n\n{figures}\n"
    runs.write_text(out / "README.md", tables)
    return tables
