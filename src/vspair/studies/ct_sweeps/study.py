"""The hyper-parameter studies of appendix B: computed tomography with smaller codes.

Study ``prior`` varies the parameters of the Beta prior, study ``gamma`` the weight of x's KL. A
training is known by all that is varied, so studies that ask for the same one share it. Each ends
in a small answer; its gigabytes are then removed.

Codes get sparse late. In the study of section 4.3 all gates were more open than not for 350
epochs, about 15,000 steps, until those that nobody needs fell below 1/2 with rho, which Adam moves
by 1e-4 a step. So a study of few epochs tells little, whatever rule sets rho: after 16, with rho
in closed form (commit be61123), nine gates of ten were open everywhere. Where time is short,
``half`` makes a step cheaper.

:mod:`vspair.sweeps` holds pairs out at random, knows no test set and no time limit and keeps every
checkpoint, so what is shared with it is claims, by which processes divide the work, and settings.
"""

from __future__ import annotations

import gc
import json
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vspair import runs
from vspair.claims import Claim, alone
from vspair.errors import VspairError
from vspair.fitting import EXECUTION_KEYS
from vspair.problems.ct import CtPairs, Geometry
from vspair.records import Settings, agree, flat
from vspair.studies.ct.data import GEOMETRY, HALF, SMOKE, Scale, draw
from vspair.studies.ct.tables import NAMES
from vspair.studies.ct.training import Bench, vspair_config, vspair_trainer
from vspair.studies.ct_sweeps.measures import measure, simple_errors
from vspair.studies.ct_sweeps.tables import GAMMAS, VALUES, Answers, write
from vspair.training.side_by_side import MOST_LANES, deadline_in, train_side_by_side
from vspair.training.trainer import Trainer

__all__ = [
    "SMOKE",
    "STAGES",
    "STUDIES",
    "Point",
    "Scale",
    "known",
    "report",
    "reproduce",
]

PRESET = "small"
SIMPLE = "simple.json"
"""The file of the errors of methods that nothing is learned for."""


class Point(NamedTuple):
    """What the studies vary; the depth is of all four convolutional networks."""

    alpha0: float = 1.0
    beta0: float = 3.0
    gamma_x: float = 0.1
    depth: int = 3

    @property
    def label(self) -> str:
        """The name of its run folder and of its answer."""
        return ",".join(f"{key}={value:g}" for key, value in self._asdict().items())

    @property
    def changes(self) -> dict[str, Any]:
        """Where its configuration differs from the shipped one, by section."""
        *weights, depth = self._asdict().items()
        network = dict([depth])
        return {"model": {"x_network": network, "y_network": network}, "objective": dict(weights)}


STUDIES: dict[str, dict[str, Point]] = {
    "prior": {f"alpha0={a:g},beta0={b:g}": Point(a, b) for a in VALUES for b in VALUES},
    "gamma": {f"gamma_x={g:g}": Point(gamma_x=g, depth=2) for g in GAMMAS},
}
"""The trainings of each study, by the condition that its rows are told apart by."""

STAGES = (*STUDIES, "report")
"""The stages in their order: the trainings of both studies, tables and figures."""

_ELSEWHERE = "Name another folder by --runs, or give the same settings and slices."

_UNSHARED = {
    "objective.alpha0", "objective.beta0", "objective.gamma_x", "model.x_network.depth",
    "model.y_network.depth", "training.validation",
    *(f"training.{name}" for name in EXECUTION_KEYS),
}  # fmt: skip


def reproduce(
    out: Path,
    *,
    folder: Path,
    data_dir: Path | None = None,
    scale: Scale | None = None,
    half: bool = False,
    only: str = "",
    device: str = "auto",
    minutes: float = 0.0,
    lanes: int = 1,
    keep: bool = False,
    compile: bool = False,
    show: bool = False,
) -> str | None:
    """Run both studies, or one stage.

    Several processes may work on one folder; what one of them trains is left to it.

    Arguments:
        out: The folder of the results; files of an earlier study in it are replaced.
        folder: The folder of trainings and answers; what is answered is not made again.
        data_dir: Where real slices are; phantoms where neither it nor VSPAIR_DATA is given.
        scale: How much to do; the paper's where not given.
        half: Whether slices have half the resolution (:data:`vspair.studies.ct.data.HALF`).
        only: One of :data:`STAGES`; all where not given.
        device: Where to compute.
        minutes: Save and stop after so many minutes; 0 goes on to the end.
        lanes: Trainings side by side.
        keep: Whether to keep the weights of trainings that are answered.
        compile: Whether to compile the networks on a GPU.
        show: Whether to say what is done, with bars.

    Returns:
        The tables as Markdown, or what was done; nothing where time ran out: call again to
        continue.
    """
    if only and only not in STAGES:
        raise VspairError(f"only = {only!r}: expected one of {', '.join(STAGES)}.")
    if not 1 <= lanes <= MOST_LANES:
        raise VspairError(f"lanes = {lanes}: expected 1 to {MOST_LANES}.")
    deadline, scale = deadline_in(minutes), scale or Scale(copies=1)
    geometry = HALF if half else GEOMETRY
    if only == "report":
        return report(out, folder / "answers", geometry)
    where = runs.pick_device(device)
    data = draw(scale, data_dir, geometry)
    bench = Bench(scale, data, folder, where, deadline, compile, show)
    bench.say(f"{'Phantoms' if bench.data.phantoms else 'Real slices'}, on {where}.")
    names = [only] if only else list(STUDIES)
    points = list(dict.fromkeys(p for name in names for p in STUDIES[name].values()))
    settings = _settings(bench)
    _simple(bench.answers, settings)  # refused now rather than after hours
    if not _work(bench, points, settings, lanes, keep):
        return None
    _answer_simply(bench, settings)
    if only:
        found = known(bench.answers, settings, points)
        done = sum(point in found for point in points)
        return f"{done} of {len(points)} trainings of the study {only} are answered."
    with alone(folder):
        return report(out, bench.answers, geometry)


def report(out: Path, answers: Path, geometry: Geometry = GEOMETRY) -> str:
    """Write tables and figures from the answers that are there, and return the tables.

    Arguments:
        out: The folder of the results.
        answers: The folder of the answers.
        geometry: What they are answers of; others are refused.
    """
    found = known(answers)
    if not found:
        raise VspairError(
            f"There are no answers in {answers} to report on. Make them first, without --only "
            "report."
        )
    seen, wanted = next(iter(found.values()))["settings"]["geometry"], geometry.describe()
    if seen != wanted:
        raise VspairError(
            f"The answers in {answers} are of another geometry: {seen}, expected {wanted}. Give "
            f"{'--half' if seen == HALF.describe() else 'no --half'}, or other --runs."
        )
    studies: dict[str, Answers] = {
        name: {condition: found.get(point) for condition, point in points.items()}
        for name, points in STUDIES.items()
    }
    files = {
        condition: answers / f"{point.label}.json"
        for points in STUDIES.values()
        for condition, point in points.items()
    }
    return write(out, studies, files, _simple(answers, next(iter(found.values()))["settings"]))


# -- answers --------------------------------------------------------------------------------


def _settings(bench: Bench) -> Settings:
    """Return what all answers of a folder have in common."""
    scale, config = bench.scale, vspair_config(PRESET, bench.scale)
    shared = {key: value for key, value in flat(config).items() if key not in _UNSHARED}
    shared |= {"geometry": bench.data.problem.geometry.describe(), "small": scale.small}
    shared |= {"samples": scale.samples, "noise": scale.noise}
    return shared | {"train": _sketch(bench.data.train), "test": _sketch(bench.data.test)}


def _sketch(pairs: CtPairs) -> str:
    """Return what pairs are known again by, also on a CPU that rounds sinograms otherwise."""

    def moments(values: Tensor) -> str:
        exact = values.double()
        return f"{float(exact.mean()):.6g} ± {float(exact.std()):.6g}"

    return f"{len(pairs.x)} pairs, x {moments(pairs.x)}, y {moments(pairs.y)}"


def _read(path: Path) -> Settings:
    advice = "Remove it, and its training is made again."
    answer = runs.read_json(path, advice)
    whole = {"settings", "slices", "machine", *Point._fields} <= set(answer)
    whole = whole and isinstance(answer["settings"], dict) and "geometry" in answer["settings"]
    if not (whole and {"row", "error"} & set(answer)):
        raise VspairError(f"{path} is damaged: it is not an answer of this study. {advice}")
    return answer


def known(
    folder: Path, settings: Settings | None = None, asked: Sequence[Point] | None = None
) -> dict[Point, Settings]:
    """Return the answers in a folder, by training; refuse those of other settings.

    All trainings of a study have as many epochs, those of the other study may have others.

    Arguments:
        folder: The folder of the answers.
        settings: What they should have in common; those of the first where not given.
        asked: The trainings that have the epochs of the settings, with all of their study; all
            where not given.
    """
    found: dict[Point, Settings] = {}
    shared = settings or {}
    for points in STUDIES.values():
        meant = asked is None or any(point in asked for point in points.values())
        own = shared if meant else _without_epochs(shared)
        for point in points.values():
            path = folder / f"{point.label}.json"
            if path.is_file():
                found[point] = _read(path)
                agree(path, found[point]["settings"], own, _ELSEWHERE)
                own = found[point]["settings"] | own
        shared = shared or _without_epochs(own)
    return found


def _without_epochs(settings: Settings) -> Settings:
    return {key: value for key, value in settings.items() if key != "training.epochs"}


def _keep(bench: Bench, point: Point, answer: Settings, images: dict[str, Any] | None) -> None:
    """Write an answer; it is there once its JSON file is, which is therefore the last."""
    path = bench.answers / f"{point.label}.json"
    history = bench.folder / point.label / "metrics.jsonl"
    runs.make_folder(bench.answers)
    if images is not None:
        runs.write_arrays(path.with_suffix(".npz"), {f"shown.{k}": v for k, v in images.items()})
    if history.is_file():
        runs.write_text(path.with_suffix(".jsonl"), history.read_text())
    made = {"machine": runs.machine(bench.device), "commit": runs.commit()}
    whole = point._asdict() | answer | made | bench.data.shown
    runs.write_text(path, json.dumps(whole, indent=1) + "\n")


def _answer_simply(bench: Bench, settings: Settings) -> None:
    """Keep the errors of the methods that nothing is learned for, unless they are there."""
    if not (path := bench.answers / SIMPLE).is_file():
        runs.make_folder(bench.answers)
        made = {"machine": runs.machine(bench.device), "commit": runs.commit()}
        whole = {"settings": _without_epochs(settings), "row": simple_errors(bench)} | made
        runs.write_text(path, json.dumps(whole, indent=1) + "\n")


def _simple(answers: Path, settings: Settings) -> Settings | None:
    """Return the answer of the methods that nothing is learned for, if it is there."""
    path, advice = answers / SIMPLE, "Remove it; a study of the same slices makes it again."
    if not path.is_file():
        return None
    answer = runs.read_json(path, advice)
    whole = {"settings", "row", "machine", "commit"} <= set(answer)
    whole = whole and all(isinstance(answer[key], dict) for key in ("settings", "row"))
    if not (whole and set(answer["row"]) <= set(NAMES)):
        raise VspairError(f"{path} is damaged: it is not an answer of this study. {advice}")
    agree(path, answer["settings"], settings, _ELSEWHERE)
    return answer


# -- trainings ------------------------------------------------------------------------------


def _work(
    bench: Bench, points: Sequence[Point], settings: Settings, lanes: int, keep: bool
) -> bool:
    """Answer what nobody else works on; return whether that is done, or time has run out."""
    for point in known(bench.answers, settings, points):
        killed = (bench.folder / point.label / "checkpoint.safetensors").exists()
        if killed and (claim := Claim.take(bench.folder, point.label)):
            with claim:
                _remove(bench, point, keep)
    while True:
        found = known(bench.answers, settings, points)
        left = [point for point in points if point not in found]
        if left and bench.late():
            return False
        with ExitStack() as claims:
            group = _take(bench, left, lanes, claims)
            if not group:
                return True
            needed = max((answer.get("answered_in", 0.0) for answer in found.values()), default=0)
            if not _finish(bench, group, settings, keep, needed):
                return False
        gc.collect()  # trainers end up in cycles, and each holds gigabytes of the device


def _take(bench: Bench, points: Sequence[Point], most: int, claims: ExitStack) -> list[Point]:
    """Claim up to so many trainings that nobody works on, and return them."""
    taken: list[Point] = []
    for point in points:
        if len(taken) < most and (claim := Claim.take(bench.folder, point.label)):
            claims.enter_context(claim)
            if not (bench.answers / f"{point.label}.json").is_file():  # as before it was claimed
                taken.append(point)
    return taken


def _finish(
    bench: Bench, group: Sequence[Point], settings: Settings, keep: bool, needed: float
) -> bool:
    """Train some points side by side and answer them; return whether there was the time."""
    trainers = [_trainer(bench, point) for point in group]
    bench.say(f"{' and '.join(point.label for point in group)}:")
    work = list(zip(group, trainers, strict=True))
    for trainer in trainers:
        trainer.write_end = keep
    if all(trainer.finished for trainer in trainers):
        needed = 0.0  # or a time too short to answer in would never answer
    try:
        if not train_side_by_side(trainers, bench.deadline, bench.show):
            for trainer in trainers:
                if trainer.finished and not trainer.write_end:
                    trainer.save()  # the others are saved
            return False
    except VspairError as error:
        if bench.device.type == "cuda":
            torch.cuda.synchronize()  # with the lanes, before their weights are read
        healthy = [_healthy(trainer) for trainer in trainers]
        if all(healthy):
            raise
        for (point, trainer), well in zip(work, healthy, strict=True):
            if well:
                trainer.save()
                continue
            # A training that diverges is a result too.
            _keep(bench, point, {"settings": settings, "error": str(error)}, None)
            _remove(bench, point, keep)
        return True
    return _answer(bench, work, settings, keep, needed)


def _answer(
    bench: Bench,
    left: list[tuple[Point, Trainer]],
    settings: Settings,
    keep: bool,
    needed: float,
) -> bool:
    """Answer finished trainings as long as there is the time; what is left is saved."""
    try:
        while left and not bench.late(needed):
            point, trainer = left[0]
            start, state = time.monotonic(), trainer.state
            row, images = measure(bench, trainer.model)
            names = ("epoch", "best_epoch", "seconds")
            row |= {"epochs" if n == "epoch" else n: getattr(state, n) for n in names}
            needed = time.monotonic() - start
            answer = {"settings": settings, "row": row, "answered_in": round(needed, 3)}
            _keep(bench, point, answer, images)
            _remove(bench, point, keep)
            left.pop(0)
    finally:
        for _, trainer in left:
            if not trainer.write_end:
                trainer.save()
    return not left


def _trainer(bench: Bench, point: Point) -> Trainer:
    """Return a point's training, new or where it was stopped."""
    out = bench.folder / point.label
    if out.is_dir() and not (out / "config.toml").is_file():  # killed before it began
        shutil.rmtree(out)
    return vspair_trainer(bench, PRESET, out, point.changes)


def _healthy(trainer: Trainer) -> bool:
    return all(bool(t.detach().isfinite().all()) for t in (trainer.sums, *trainer.parameters))


def _remove(bench: Bench, point: Point, keep: bool) -> None:
    """Remove what an answered training leaves: its checkpoint and, unless kept, its weights."""
    run = bench.folder / point.label
    if not keep:
        (run / "weights.safetensors").unlink(missing_ok=True)
    # The last to go: where it is still there, a killed process had not removed everything.
    (run / "checkpoint.safetensors").unlink(missing_ok=True)
