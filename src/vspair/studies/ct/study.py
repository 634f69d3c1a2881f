"""Computed tomography, section 4.3 and appendix D.3, with every baseline on the same sinograms.

The study has stages, which can be run one at a time: each stops in time and goes on where it
stopped. Trainings leave run folders, answers leave small files, and the report is made from these
files alone. The paper trains on 3,000 slices; here some patients of these are held out, and the
weights that are best on them are kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from vspair import runs
from vspair.claims import alone
from vspair.errors import VspairError
from vspair.studies.ct.answers import answer_all, answer_dps
from vspair.studies.ct.data import SMOKE, Scale, draw
from vspair.studies.ct.figures import illustrate, numbers
from vspair.studies.ct.seconds import measure_seconds
from vspair.studies.ct.tables import collect, describe, error_by_noise, gather, text
from vspair.studies.ct.training import (
    Bench,
    train_preset,
    train_prior_in_time,
    train_regression_in_time,
)
from vspair.studies.results import write_summary
from vspair.training.side_by_side import deadline_in

__all__ = ["SMOKE", "STAGES", "Scale", "report", "reproduce"]

_WORK: dict[str, Callable[[Bench], bool]] = {
    "paper": partial(train_preset, preset="paper"),
    "calibrated": partial(train_preset, preset="calibrated"),
    "regression": train_regression_in_time,
    "prior": train_prior_in_time,
    "answers": answer_all,
    "dps": answer_dps,
    "seconds": measure_seconds,
}

STAGES = (*_WORK, "report")
"""The stages in their order: four trainings, answers, those of DPS, times, tables and figures."""

Made = dict[str, list[str]]
"""The ``commits`` and ``machines`` that a stage was run by."""

FLAGS = ("epochs", "regression_epochs", "prior_epochs", "copies", "dps_images", "zeta")
"""What of a scale the command line sets."""

_USERS = {
    "epochs": {"paper", "calibrated"},
    "regression_epochs": {"regression"},
    "prior_epochs": {"prior"},
    "trajectories": {"dps"},
    "steps": {"dps"},
    "zeta": {"dps"},
}
"""The stages that are made with some of a scale; all others use the rest."""

_REMADE = (
    "Restore it, or remove the folder that it is in and give the same command: the trainings "
    "stay, the answers are made again."
)


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
    show: bool = False,
) -> str | None:
    """Run the study, or one stage of it.

    Arguments:
        out: The folder of the results; files of an earlier study in it are replaced.
        folder: The folder of trainings and answers; what is there is not made again.
        data_dir: Where real slices are; phantoms where neither it nor VSPAIR_DATA is given.
        scale: How much to do; the paper's where not given.
        only: Some of :data:`STAGES`, with commas between them; all where not given.
        device: Where to compute.
        minutes: Save and stop after so many minutes; 0 goes on to the end.
        compile: Whether to compile networks on a GPU.
        show: Whether to say what is done, with bars.

    Returns:
        The tables as Markdown, or what was done; nothing where time ran out: call again to
        continue.
    """
    stages = only.split(",") if only else list(STAGES)
    if unknown := [stage for stage in stages if stage not in STAGES]:
        raise VspairError(f"only = {unknown[0]!r}: expected some of {', '.join(STAGES)}.")
    deadline, scale = deadline_in(minutes), scale or Scale()
    work = [stage for stage in stages if stage in _WORK]
    if work:
        where = runs.pick_device(device)
        bench = Bench(scale, draw(scale, data_dir), folder, where, deadline, compile, show)
        bench.say(f"{'Phantoms' if bench.data.phantoms else 'Real slices'}, on {where}.")
        if "report" in stages:
            runs.make_folder(out)  # refused now rather than after hours
    if not all(_work(bench, stage) for stage in work):
        return None
    if "report" not in stages:
        return f"Done: {', '.join(stages)}."
    return report(out, folder / "answers")


# -- what results are made with --------------------------------------------------------------


def _flags(values: Mapping[str, Any]) -> str:
    """Return values of a scale as a command has them, a space before each."""
    return "".join(f" --{name.replace('_', '-')} {value}" for name, value in values.items())


def _command(scale: Mapping[str, Any], phantoms: bool) -> str:
    """Return the command that makes results at a scale, or the call where there is none."""
    where = "" if phantoms else " --data-dir D"
    if scale == asdict(SMOKE):
        return f"vspair reproduce ct --smoke{where}"
    changed = {k: v for k, v in scale.items() if v != asdict(Scale()).get(k)}
    if set(changed) <= set(FLAGS):
        return f"vspair reproduce ct{where}{_flags(changed)}"
    words = ", ".join(f"{name}={value!r}" for name, value in changed.items())
    data = "" if phantoms else "data_dir=D, "
    return f"vspair.studies.ct.study.reproduce(out, folder=runs, {data}scale=Scale({words}))"


def _free(name: str, there: Any, here: Any, done: set[str], stage: str) -> bool:
    """Return whether a stage may change what is noted of the scale.

    It may where nothing was made with it; a U-Net may be trained on, and DPS is answered anew.
    """
    users = _USERS.get(name, set(_WORK))
    if not users & done:
        return True
    return users == {stage} and (stage == "dps" or here > there)


def _agree(path: Path, noted: Mapping[str, Any], bench: Bench, stage: str) -> None:
    """Refuse a stage whose scale or slices are not those of what the folder holds."""
    done, here = set(noted.get("made", {})), asdict(bench.scale)
    if done and noted["phantoms"] != bench.data.phantoms:
        there, now, advice = "phantoms", "real slices", "no --data-dir and no VSPAIR_DATA"
        if not noted["phantoms"]:
            there, now, advice = now, there, "--data-dir"
        raise VspairError(f"{path} notes {there}, here are {now}. Give {advice}, or other --runs.")
    wrong = {
        k: v
        for k, v in noted["scale"].items()
        if k in here and v != here[k] and not _free(k, v, here[k], done, stage)
    }
    if wrong:
        words = "; ".join(f"{k} is {v} there and {here[k]} here" for k, v in wrong.items())
        given = _flags({k: v for k, v in wrong.items() if k in FLAGS}).strip()
        if noted["scale"] == asdict(SMOKE):
            given = "--smoke"
        advice = f"Give {given}" if given else "Give the same scale"
        raise VspairError(f"{path} notes another scale: {words}. {advice}, or other --runs.")


def _traces(bench: Bench) -> dict[Path, int]:
    """Return when each file was written that only a stage with something to do writes."""
    names = ("*/metrics.jsonl", "*/weights.safetensors", "answers/blocks/*.npz")
    paths = [p for name in (*names, "answers/seconds.npz") for p in bench.folder.glob(name)]
    return {path: path.stat().st_mtime_ns for path in paths}


def _work(bench: Bench, stage: str) -> bool:
    """Run a stage and note it, unless it wrote nothing; return whether it ended."""
    before, earlier = _traces(bench), _note(bench, stage)
    bench.say(f"{stage}:")
    try:
        return _WORK[stage](bench)
    finally:
        if _traces(bench) == before:
            _note(bench, stage, back_to=earlier)


def _note(bench: Bench, stage: str, back_to: Made | None = None) -> Made:
    """Write down beside the answers what they are made with, and by which commits of each stage.

    Arguments:
        bench: Scale and slices.
        stage: What is run.
        back_to: What was noted of the stage before; this commit and machine are added to what
            is noted where not given.

    Returns:
        What was noted of the stage: ``commits`` and ``machines``, empty where it never wrote.
    """
    runs.make_folder(bench.answers)
    path, here = bench.answers / "about.json", asdict(bench.scale)
    with alone(bench.answers):
        made: dict[str, Made] = {}
        if path.is_file():
            noted = runs.read_json(path, _REMADE)
            _agree(path, noted, bench, stage)
            made = noted.get("made", {})
        earlier = made.pop(stage, {})
        new = {"commits": runs.commit(), "machines": runs.machine(bench.device)}
        added = {kind: sorted({*earlier.get(kind, []), name}) for kind, name in new.items()}
        if entry := added if back_to is None else back_to:
            made[stage] = entry
        about = bench.data.shown | {
            "scale": here,
            "paper_scale": bench.scale == Scale() and not bench.data.phantoms,
            "made": made,
        }
        runs.write_text(path, json.dumps(about, indent=1) + "\n")
    return earlier


# -- the report ------------------------------------------------------------------------------


def report(out: Path, answers: Path) -> str:
    """Write tables and figures from the answers that are there, and return the tables.

    Arguments:
        out: The folder of the results.
        answers: The folder of the answers.
    """
    found, left = gather(answers)
    about = runs.read_json(answers / "about.json", _REMADE)
    noise, command = about["scale"]["noise"], _command(about["scale"], about["phantoms"])
    commits, machines = (
        ", ".join(sorted({name for part in about["made"].values() for name in part[kind]}))
        for kind in ("commits", "machines")
    )
    rows = collect(found, noise)
    runs.make_folder(out)
    made = {"commit": commits, "machine": machines}
    scale = about | {"left_out": left}
    write_summary(out / "summary.json", "ct", command, scale, rows, made=made)
    figures = illustrate(numbers(found, error_by_noise(found, noise)), out)
    head = describe(machines, command, commits.split(", "))
    tables = text(found, rows, about, head, left)
    tables += f"\n## Figures\n\n{figures}\n"
    runs.write_text(out / "README.md", tables)
    return tables
