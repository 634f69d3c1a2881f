"""Section 4.2 and appendix D.2: blind inpainting of MNIST by the four models of the paper.

Beside them stand the calibrated preset, the library's default (the preset ``anchored``, as
:func:`vspair.fit` trains it where nothing is said) and methods that need no network. Errors are in
the units of the data, [-1, 1] by default.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vspair import config as configs
from vspair.anchored_fit import MINUTES
from vspair.config import Config
from vspair.data import Pairs, fingerprint
from vspair.datasets.mnist import load_mnist
from vspair.methods.point import AnswerMean, AnswerY
from vspair.methods.ridge import Ridge
from vspair.posterior import Method
from vspair.problems.inpainting import InpaintingData, mnist_pairs, toy_digits
from vspair.report.tables import Table
from vspair.studies.answers import digest, made_once
from vspair.studies.mnist import measures
from vspair.studies.mnist.drawing import CAPTIONS, draw_all
from vspair.studies.mnist.measures import InpaintingQuestion
from vspair.studies.results import Row, epochs_in_words, over_seeds, table_of
from vspair.studies.study import Records, Report, Stage, Study, Workspace
from vspair.studies.trainings import load_trained, train_all, train_anchored, weights_digest
from vspair.studies.words import read_words

__all__ = ["MODELS", "PAPER", "SMOKE", "STUDY", "Scale"]

MODELS = {
    "PAIR": ("PAIR", ""),
    "vPAIR": ("vPAIR", ""),
    "sVAE": ("sVAE", ""),
    "vsPAIR": ("vsPAIR", "paper"),
    "calibrated": ("vsPAIR", "calibrated"),
}
"""The trained models by the name of their configuration, with model and preset of their rows."""

ANCHORED = "anchored"
"""The preset that a stage of its own trains and asks, by the defaults of ``fit``."""

FLOORS: dict[str, Callable[[Pairs], Method]] = {
    "trivial-y": lambda _: AnswerY(),
    "trivial-mean": lambda train: AnswerMean(train.x),
    "ridge": lambda train: Ridge(train.x, train.y),
}
"""The methods that need no network, made from the training pairs."""

RANGES = ("[-1, 1]", "[0, 1]")
JUDGES = ("vPAIR", "sVAE", "vsPAIR")
"""The models whose mean error decides which images all are shown on, as in the paper."""

WORDS = read_words("mnist")
PAPER = WORDS.paper


@dataclass(frozen=True)
class Scale:
    """How much is trained and tested.

    Arguments:
        epochs: Passes over the pairs; 0 for the paper's 100.
        seeds: Trainings of vsPAIR (paper) and (anchored); of every other model there is one.
        test: Test images, at most the paper's 6,000.
        unit: Whether pixels are on [0, 1], not on [-1, 1].
        small: Whether digits are made, few, and networks tiny, to see that everything runs.
        anchored_minutes: How long ``fit`` is told that its training may take.
        anchored_active: How many factors it is asked for: as many as the paper's vsPAIR has.
    """

    epochs: int = 0
    seeds: int = 1
    test: int = 6000
    unit: bool = False
    small: bool = False
    anchored_minutes: float = MINUTES
    anchored_active: int = 39

    def config(self, name: str, seed: int = 0) -> Config:
        """Return the configuration of one of :data:`MODELS` at this scale."""
        changes: dict[str, Any] = {"training": {"seed": seed}}
        if self.epochs:
            changes["training"]["epochs"] = self.epochs
        if self.small:
            network = {"kind": "conv", "width": 4, "depth": 2}
            sizes = {"x_size": 24, "y_size": 8, "x_network": network, "y_network": network}
            changes |= {"model": sizes, "objective": {"active": 6 * (name == "calibrated")}}
        return configs.override(configs.shipped(f"mnist-{name.lower()}"), changes)

    def runs(self, name: str) -> list[str]:
        """Return the run folders of one of :data:`MODELS`, one a seed."""
        seeds = self.seeds if name in ("vsPAIR", ANCHORED) else 1
        return [f"{name}-{seed}" for seed in range(seeds)]

    def trainings(self) -> dict[str, Config]:
        """Return the configuration of every training by the name of its run folder."""
        every = {name: self.runs(name) for name in MODELS}
        return {run: self.config(k, seed) for k in every for seed, run in enumerate(every[k])}


SMOKE = Scale(epochs=2, test=16, small=True, anchored_minutes=0.01)

Work = Workspace[Scale, InpaintingData]


def load(scale: Scale, data_dir: Path | None) -> InpaintingData:
    """Return the pairs: of MNIST, or of digits that are made here."""
    images = toy_digits(96, seed=0) if scale.small else load_mnist(data_dir).train_images
    low, train = 0.0 if scale.unit else -1.0, 80 if scale.small else 54000
    data = mnist_pairs(images, seed=0, low=low, train=train)
    return replace(data, test=data.test[: scale.test])


def describe(data: InpaintingData) -> dict[str, Any]:
    """Return how many training pairs there are, and what they are known again by."""
    return {"train": len(data.train), "pairs": fingerprint(data.train.x, data.train.y)}


# -- stages ----------------------------------------------------------------------------------


def train(work: Work) -> bool:
    """Train every model and seed, side by side."""
    return train_all(work, work.scale.trainings(), work.data.train)


def note_test(work: Work) -> None:
    """Keep how much of each test image was lost, which every table speaks of."""
    test, key = work.data.test, digest(work.data.test.x, work.data.test.y)
    if not work.answers.has("test", key):
        lost = (test.x != test.y).flatten(1).double().mean(1)
        work.answers.write("test", key, {"test": {"lost": lost}})


def ask_floors(work: Work) -> bool:
    """Ask the methods that need no network about the test images."""
    note_test(work)
    asked, made_from = InpaintingQuestion(work.data.test), describe(work.data)
    methods = {name: made_once(partial(make, work.data.train)) for name, make in FLOORS.items()}
    return all(work.answers.ask(name, m, asked, made_from) for name, m in methods.items())


def ask_model(work: Work, run: str, asked: InpaintingQuestion, name: str = "") -> bool:
    """Ask the model of a run folder; its answer has the same name where none is given."""
    model_for, weights = made_once(partial(load_trained, work, run)), weights_digest(work, run)
    more = partial(measures.describe_model, model_for, asked.pairs)
    return work.answers.ask(name or run, model_for, asked, weights, more)


def ask_all(work: Work) -> bool:
    """Ask every method; then keep what figures show of the models of seed 0."""
    asked, runs = InpaintingQuestion(work.data.test), work.scale.trainings()
    if not ask_floors(work) or not all(ask_model(work, run, asked) for run in runs):
        return False
    return keep_figures(work, MODELS, shared_images(work, JUDGES))


def answer_anchored(work: Work) -> bool:
    """Train the preset ``anchored`` as ``fit`` does, ask it, and keep its figures."""
    note_test(work)
    asked, scale = InpaintingQuestion(work.data.test), work.scale
    how: dict[str, Any] = {"minutes": scale.anchored_minutes, "active": scale.anchored_active}
    for seed, run in enumerate(scale.runs(ANCHORED)):
        trained = train_anchored(work, run, work.data.train, seed=seed, **how)
        if not trained or not ask_model(work, run, asked):
            return False
    return keep_figures(work, [ANCHORED], shared_images(work, JUDGES))


def shared_images(work: Work, judges: Sequence[str]) -> Tensor:
    """Return the test images that all models are shown on, with shape (3,).

    They are chosen by the mean error of the judges, or, where these were not asked here, are those
    of the figures that stand; without any, the anchored preset judges alone.
    """
    if all(work.answers.has(f"{name}-0") for name in judges):
        answers = (work.answers.read(f"{name}-0")["scores"]["mse_mean"] for name in judges)
        errors = [torch.as_tensor(values) for values in answers]
        return measures.at_percentiles(torch.stack(errors).mean(0))
    found = (part["shared_index"] for part in work.standing.numbers.values())
    standing = next(found, None)
    return shared_images(work, [ANCHORED]) if standing is None else torch.as_tensor(standing)


def keep_figures(work: Work, names: Iterable[str], shared: Tensor) -> bool:
    """Keep what figures show of the models of seed 0; return whether that is done."""
    asked = InpaintingQuestion(work.data.test)
    for name in names:
        answer = work.answers.read(f"{name}-0")
        key = digest(str(answer["key"]["own"]), shared)
        if not work.answers.has(f"figures/{name}", key):
            if work.late():
                return False
            model = load_trained(work, f"{name}-0")
            numbers = measures.figure_numbers(model, asked, answer["scores"], shared)
            numbers["range"] = torch.tensor((work.data.low, work.data.high))
            work.answers.write(f"figures/{name}", key, {"numbers": numbers})
    return True


# -- report ----------------------------------------------------------------------------------


def rows_of(work: Work, answers: Sequence[str], **named: Any) -> list[Row]:
    """Return every number of a method, as means over the answers of its seeds."""
    found = [measures.table_column(work.answers.read(name)) for name in answers]
    return [row for row in over_seeds(found, **named) if math.isfinite(row.value)]


def floor_rows(work: Work) -> list[Row]:
    """Return every number of the methods that need no network."""
    return [row for name in FLOORS for row in rows_of(work, [name], model=name, preset="")]


def tables(rows: Sequence[Row], transposed: bool = False) -> str:
    """Return the tables of section 4.2; transposed, with a line for each method."""
    parts = []
    for title, metrics in WORDS.tables.items():
        table = table_of([row for row in rows if row.metric in metrics], metrics)
        if transposed:
            head, *lines = zip(table.columns, *table.rows, strict=True)
            table = Table(head, lines)
        parts += [f"## {title}", table.markdown()]
    return "\n\n".join(parts)


def report(work: Work, records: Records) -> Report:
    """Return the tables of section 4.2, the arrays behind its figures, and words."""
    asked = "answers" in records.stages
    models = MODELS if asked else {}
    if "anchored" in records.stages:
        models = {**models, ANCHORED: ("vsPAIR", ANCHORED)}
    rows, numbers = floor_rows(work) if asked else [], {}
    for name, (model, preset) in models.items():
        named: dict[str, Any] = {"model": model, "preset": preset, "paper": PAPER.get(name)}
        rows += rows_of(work, work.scale.runs(name), **named)
        shown = work.answers.read(f"figures/{name}")["numbers"]
        numbers[rows[-1].label] = {
            k: v.astype(np.float16) if v.ndim > 2 and v.dtype == np.float32 else v
            for k, v in shown.items()  # images need few digits
        }
    return Report(rows, partial(_words, work), numbers, sizes(work, records))


def _words(work: Work, rows: Sequence[Row], scale: Mapping[str, Any]) -> str:
    unit, lost = work.scale.unit, work.answers.read("test")["test"]["lost"]
    named = {**scale, "epochs": epochs_in_words(scale["epochs"]), "anchored": ""}
    if any(row.preset == ANCHORED for row in rows):
        named["anchored"] = WORDS.text["anchored"].format(**scale)
    return WORDS.text["report"].format(
        **named, factor=4 if unit else 0.25, other=RANGES[not unit], tables=tables(rows),
        unharmed=(lost == 0).sum(),
    )  # fmt: skip


def sizes(work: Work, records: Records) -> dict[str, Any]:
    """Return what ``summary.json`` says of the scale."""
    scale = work.scale
    return {
        "epochs": scale.config("PAIR").training.epochs,
        "train": records.data["train"],
        "test": len(work.answers.read("test")["test"]["lost"]),
        "digits": "made here" if scale.small else "of MNIST",
        "pixels": RANGES[scale.unit],
        "anchored_minutes": scale.anchored_minutes,
        "anchored_active": scale.anchored_active,
        "paper_scale": not scale.epochs and not scale.small and scale.test == 6000,
    }


TRAINED, ASKED = ("epochs", "unit", "small", "seeds"), ("epochs", "unit", "small", "seeds", "test")
OF_ANCHORED = ("unit", "small", "seeds", "test", "anchored_minutes", "anchored_active")

STUDY = Study[Scale, InpaintingData](
    name="mnist",
    title=WORDS.text["title"],
    load=load,
    describe=describe,
    stages={
        "train": Stage(train, TRAINED, grows=("seeds",)),
        "answers": Stage(ask_all, ASKED, ("seeds",), renews=("test",), reads=("train",)),
        # The images that it is shown on are those of the other models.
        "anchored": Stage(
            answer_anchored, OF_ANCHORED, ("seeds",), renews=("test",), reads=("answers",)
        ),
    },
    report=report,
    draw=draw_all,
    captions=CAPTIONS,
    joins=True,
)
"""The study of section 4.2: all models side by side, then what they and the floors answer."""
