"""Appendix B: what alpha0, beta0 and gamma_x do to the CT study, with smaller codes.

Two sweeps on the pairs of section 4.3: ``prior`` varies the parameters of the Beta prior,
``gamma`` the weight of x's KL. Each training ends in a small answer; its gigabytes are removed.

Codes get sparse late. In the study of section 4.3 all gates were more open than not for 350
epochs, about 15,000 steps, until those that nobody needs fell below 1/2 with rho, which Adam moves
by 1e-4 a step. So a sweep of few epochs tells little, whatever rule sets rho: after 16, with rho
in closed form (commit be61123), nine gates of ten were open everywhere. Where time is short,
``half`` makes a step cheaper.
"""

from __future__ import annotations

import gc
import math
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Generator

from vspair import runs
from vspair.codes import SpikeSlab
from vspair.errors import VspairError
from vspair.metrics import spearman
from vspair.model import InverseModel
from vspair.report.tables import Table
from vspair.runs import Groups
from vspair.studies.answers import Question
from vspair.studies.ct.data import GEOMETRY, CtData, Scale, load, spread_out
from vspair.studies.ct.methods import Bench, config_of, simple_methods, start_preset
from vspair.studies.ct.study import ALWAYS
from vspair.studies.ct.tables import NAMES, sizes, sources
from vspair.studies.ct_sweeps import drawing
from vspair.studies.results import Row
from vspair.studies.study import Records, Report, Stage, Study
from vspair.studies.words import read_words
from vspair.sweeps import Trial, Trials
from vspair.training.side_by_side import train_side_by_side
from vspair.uncertainty import posterior_in_parts, summarise_codes

__all__ = ["STUDY", "SWEEPS", "VALUES", "condition_of"]

VALUES = (1.0, 2.0, 16.0, 64.0)
"""What alpha0 and beta0 are varied over."""

SHOWN = 3
"""Test slices whose images are kept, spread evenly over the noise."""

PAPER_EPOCHS = 500

Point = dict[str, Any]
"""Where a training differs from ``ct-small``; the depth is of all four convolutional networks."""

SWEEPS: dict[str, list[Point]] = {
    "prior": [{"alpha0": a, "beta0": b} for a in VALUES for b in VALUES],
    "gamma": [{"gamma_x": g, "depth": 2} for g in (0.001, 0.01, 0.1, 1.0)],
}
"""The trainings of each sweep."""

Sweeps = dict[str, dict[str, Groups]]
"""The answers of each sweep by condition, empty where a training is missing."""

WORDS = read_words("ct_sweeps")
GRIDS, COLUMNS = WORDS.labels["prior"], WORDS.labels["gamma"]
"""What is shown over alpha0 and beta0, and what over gamma_x."""


def condition_of(point: Point) -> str:
    """Return what the rows of a training are told apart by, and its answer is called."""
    return ",".join(f"{key}={value:g}" for key, value in point.items() if key != "depth")


# -- trainings ------------------------------------------------------------------------------


def _question(bench: Bench) -> Question:
    """Return what every training is asked: all test slices."""
    test, shown = bench.data.test, spread_out(bench.data.test.level, SHOWN)
    return Question(test.to(bench.device), shown, bench.scale.samples, image_quality=True)


def _answer_simply(bench: Bench) -> bool:
    """Keep the answers of the methods that nothing is learned for."""
    return all(
        bench.answers.ask(name, method_for, _question(bench), settings)
        for name, (settings, method_for) in simple_methods(bench.data).items()
    )


def _sweep(bench: Bench, name: str) -> bool:
    """Train and score the points of a sweep; return whether all are answered."""
    shared = {"epochs": config_of("small", bench.scale).training.epochs}
    trials = Trials(bench.folder / name, shared, "mse_sample", SWEEPS[name])
    rows = trials.run(partial(_train_and_score, bench), deadline=bench.deadline or math.inf)
    for row in rows:
        condition = condition_of(row["settings"])
        if "error" in row and not bench.answers.has(condition):  # to diverge is a result too
            bench.answers.write(condition, "", {"error": {"text": np.array(row["error"])}})
    left = [point for point in SWEEPS[name] if not bench.answers.has(condition_of(point))]
    scored = [row["settings"] for row in rows]
    if lost := [condition_of(point) for point in left if point in scored]:
        raise VspairError(
            f"{bench.folder / name} has trained and scored {lost[0]}, but its answer is lost, and "
            f"its weights were removed. Remove {bench.folder / name} to train this sweep again."
        )
    return not left


def _train_and_score(bench: Bench, trial: Trial) -> dict[str, float] | None:
    """Train a point and keep its answer; nothing where time runs out."""
    condition = condition_of(trial.settings)
    if not bench.answers.has(condition) and not _train(bench, condition, trial):
        return None
    for left in ("weights", "checkpoint"):  # gigabytes
        (trial.folder / f"{left}.safetensors").unlink(missing_ok=True)
    return _values(bench.answers.read(condition))


def _train(bench: Bench, condition: str, trial: Trial) -> bool:
    """Train a point and let it answer; return whether there was the time."""
    gc.collect()  # trainers end up in cycles, and each holds gigabytes of the device
    if not (trial.folder / "config.toml").is_file():  # killed before it began
        shutil.rmtree(trial.folder, ignore_errors=True)
    weights = dict(trial.settings)
    network = {"depth": weights.pop("depth")} if "depth" in weights else {}
    changes = {"objective": weights, "model": {"x_network": network, "y_network": network}}
    trainer = start_preset(bench, "small", trial.folder, changes)
    bench.note_work()
    bench.say(f"{condition}:")
    if not (trainer.finished or train_side_by_side([trainer], trial.deadline, bench.show)):
        return False
    state = trainer.state
    row = {"epochs": state.epoch, "best_epoch": state.best_epoch, "seconds": state.seconds}
    more = partial(_more, bench, trainer.model, row, trial.folder)
    return bench.answers.ask(
        condition, lambda _: trainer.model, _question(bench), state.epoch, more
    )


def _more(bench: Bench, model: InverseModel, row: dict[str, Any], folder: Path) -> Groups:
    """Return what is known of a training's codes, of the slices that are shown, and its course."""
    test, shown = bench.data.test, spread_out(bench.data.test.level, SHOWN)
    post = posterior_in_parts(model, test.y)
    assert isinstance(post.code, SpikeSlab)
    assert model.rho is not None
    omega, rho = post.code.omega, float(model.rho)
    values = summarise_codes(post, Generator(bench.device).manual_seed(0)) | {
        "omega_mean": float(omega.double().mean()),
        "undecided": float(((omega > 0.1) & (omega < 0.9)).double().mean()),
        "near_one": float((omega > (1 + rho) / 2).double().sum(1).mean()),
        "rho": rho,
        "parameters": float(model.n_parameters),
    }
    seen = {"noise": test.level[shown], "truth": test.x[shown]}
    seen["omega"] = omega[shown.to(omega.device)]
    lines = runs.Run(folder).metrics()
    names = {"epoch": "epoch", "rho": "rho", "kl": "x_prior"}
    course = {k: np.array([line.get(v, np.nan) for line in lines]) for k, v in names.items()}
    return {"row": {**values, **row}, "seen": seen, "course": course}


# -- the report -----------------------------------------------------------------------------


def _values(answer: Groups) -> dict[str, float]:
    """Return the numbers of an answer by metric; none of a training that failed."""
    scores = {k: float(np.mean(v, dtype=np.float64)) for k, v in answer.get("scores", {}).items()}
    return scores | {k: float(v) for k, v in answer.get("row", {}).items()}


def _value(answer: Groups, metric: str) -> float:
    return _values(answer).get(metric, math.nan)


def _cell(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _tables(sweeps: Sweeps) -> tuple[str, str]:
    """Return a grid over alpha0 and beta0 for each measure, and a line for each gamma_x."""
    head, grids = ["alpha0 \\ beta0", *(f"{b:g}" for b in VALUES)], []
    for metric, title in GRIDS.items():
        cells = iter([_cell(_value(answer, metric)) for answer in sweeps["prior"].values()])
        table = Table(head, [[f"{a:g}", *(next(cells) for _ in VALUES)] for a in VALUES])
        grids.append(f"### {title}\n\n{table.markdown()}")
    lines = [
        [condition.removeprefix("gamma_x="), *(_cell(_value(answer, m)) for m in COLUMNS)]
        for condition, answer in sweeps["gamma"].items()
    ]
    return "\n\n".join(grids), Table(["gamma_x", *COLUMNS.values()], lines).markdown()


def _trend(found: dict[str, Groups]) -> str:
    """Say how nnz follows the prior mean of rho, as the paper expects: Spearman's correlation."""
    each = [(p, _values(found[condition_of(p)])) for p in SWEEPS["prior"]]
    each = [(point, values) for point, values in each if values]
    mean = [p["alpha0"] / (p["alpha0"] + p["beta0"]) for p, _ in each]
    nnz, error = (spearman(mean, [v[m] for _, v in each]) for m in ("nnz", "mse_sample"))
    if len(each) < 3 or math.isnan(nnz + error):  # equal values have no order
        return ""
    return WORDS.text["trend"].format(count=len(each), nnz=nnz, error=error)


def _gaps(found: dict[str, Groups]) -> str:
    """Say which trainings of a sweep are missing, or have failed."""
    missing = [condition for condition, answer in found.items() if not answer]
    failed = {c: answer["error"]["text"] for c, answer in found.items() if "error" in answer}
    words = [WORDS.text["failed"].format(condition=c, error=text) for c, text in failed.items()]
    if missing:
        named = {"count": len(missing), "conditions": "; ".join(missing)}
        words.insert(0, WORDS.text["missing"].format(every=len(found), **named))
    return " ".join(words) or WORDS.text["complete"].format(every=len(found))


def _head(scale: Scale, about: dict[str, Any], epochs: dict[str, int]) -> str:
    """Say of what the numbers are, and what is smaller than in the paper."""
    config = config_of("small", scale)
    length = " and ".join(f"{number:,} epochs ({name})" for name, number in epochs.items())
    smaller = WORDS.text["length"].format(epochs=length, paper=PAPER_EPOCHS)
    if scale.half:
        seen, whole = scale.geometry.describe(), GEOMETRY.describe()
        smaller += " " + WORDS.text["halved"].format(seen=seen, whole=whole)
    return WORDS.text["head"].format(
        sizes=sizes(about), model=config.model, weights=config.objective, smaller=smaller,
        keep=config.training.keep, samples=scale.samples,
    )  # fmt: skip


def _numbers(sweeps: Sweeps) -> Groups:
    """Return what the figures show, as arrays by group and name; NaN where nothing is known."""
    numbers: Groups = {"beta": {}, "gamma": {}, "curves": {}}
    for name, points in SWEEPS.items():
        each = [(point, sweeps[name][condition_of(point)]) for point in points]
        there = [(point, answer) for point, answer in each if "row" in answer]
        if not there:
            continue
        courses = [answer["course"] for _, answer in there]
        curves = {k: np.stack([course[k] for course in courses]) for k in ("rho", "kl")}
        curves |= {
            k: np.array([point[k] for point, _ in there]) for k in points[0] if k != "depth"
        }
        curves["epoch"] = courses[0]["epoch"]
        numbers["curves"] |= {f"{name}_{k}": v for k, v in curves.items()}
        if name == "prior":
            numbers["beta"] = {"alpha0": np.array(VALUES), "beta0": np.array(VALUES)}
            for key, metric in (("nnz", "nnz"), ("mse", "mse_sample")):
                values = [_value(answer, metric) for _, answer in each]
                numbers["beta"][key] = np.reshape(values, (len(VALUES), len(VALUES)))
        else:
            numbers["gamma"] = _one_slice([answer for _, answer in there])
            numbers["gamma"]["gamma_x"] = curves["gamma_x"]
    return {
        group: {name: np.asarray(values, np.float32) for name, values in part.items()}
        for group, part in numbers.items()
        if part
    }


def _one_slice(answers: Sequence[Groups]) -> dict[str, Any]:
    """Return the slice of middle noise as each training sees it."""
    one = SHOWN // 2
    return {
        "truth": answers[0]["seen"]["truth"][one],
        "noise": answers[0]["seen"]["noise"][one],
        "mean": np.stack([answer["shown"]["estimate"][one] for answer in answers]),
        "variance": np.stack([answer["shown"]["std"][one] ** 2 for answer in answers]),
        "omega": np.stack([answer["seen"]["omega"][one] for answer in answers]),
    }


def _report(bench: Bench, records: Records) -> Report:
    """Return what is published, from the answers that are there."""
    answers, scale, sweeps = bench.answers, bench.scale, Sweeps()
    for name, points in SWEEPS.items():
        kept = {c: answers.path(c).is_file() for c in map(condition_of, points)}
        sweeps[name] = {c: answers.read(c) if there else {} for c, there in kept.items()}
    every = {c: _values(answer) for found in sweeps.values() for c, answer in found.items()}
    epochs = {
        name: int(max(_values(answer).get("epochs", 0) for answer in found.values()))
        for name, found in sweeps.items()
    }
    epochs = {name: number for name, number in epochs.items() if number}
    if not epochs:
        raise VspairError(
            f"There are no answers in {answers.folder} to report on. Make them first: --only "
            "prior,gamma."
        )
    simple = {n: _value(answers.read(n), "mse_mean") for n in NAMES if answers.has(n)}
    rows = [Row(NAMES[name][0], "", "mse_mean", error) for name, error in simple.items()]
    rows += [
        Row("vsPAIR", "paper", metric, value, condition=condition)
        for condition, values in every.items()
        for metric, value in values.items()
    ]
    without = ", ".join(f"{NAMES[name][0]} {_cell(error)}" for name, error in simple.items())
    numbers, (grids, lines) = _numbers(sweeps), _tables(sweeps)
    noise = numbers.get("gamma", {}).get("noise")
    parts = [
        _head(scale, records.data, epochs),
        WORDS.text["without"].format(errors=without) if without else "",
        sources(records.data["phantoms"], scale.half),
        WORDS.text["prior"].format(gaps=_gaps(sweeps["prior"])),
        grids,
        _trend(sweeps["prior"]),
        WORDS.text["gamma"].format(gaps=_gaps(sweeps["gamma"])),
        lines,
        "" if noise is None else WORDS.text["noise"].format(noise=float(noise)),
    ]
    about = asdict(scale) | {"epochs": epochs}
    return Report(rows, "\n\n".join(filter(None, parts)), numbers, about)


_USES = (*ALWAYS, "samples")

STUDY: Study[Scale, CtData] = Study(
    name="ct-sweeps",
    title=WORDS.text["title"],
    load=load,
    describe=lambda data: data.about,
    stages={
        "simple": Stage(_answer_simply, _USES),
        "prior": Stage(partial(_sweep, name="prior"), _USES),
        "gamma": Stage(partial(_sweep, name="gamma"), _USES),
    },
    report=_report,
    draw=drawing.draw_all,
    captions=drawing.CAPTIONS,
)
"""Appendix B as a study; ``--only`` names its stages."""
