"""Section 4.2 and appendix D.2: blind inpainting of MNIST by the four models of the paper.

Beside them stand the calibrated preset and methods that need no network. Errors are in the units
of the data, [-1, 1] by default.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vspair import config as configs
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
from vspair.studies.results import Row, over_seeds, table_of
from vspair.studies.study import Records, Report, Stage, Study, Workspace
from vspair.studies.trainings import load_trained, train_all, weights_digest
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
        seeds: Trainings of vsPAIR (paper); of every other model there is one.
        test: Test images, at most the paper's 6,000.
        unit: Whether pixels are on [0, 1], not on [-1, 1].
        small: Whether digits are made, few, and networks tiny, to see that everything runs.
    """

    epochs: int = 0
    seeds: int = 1
    test: int = 6000
    unit: bool = False
    small: bool = False

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
        return [f"{name}-{seed}" for seed in range(self.seeds if name == "vsPAIR" else 1)]

    def trainings(self) -> dict[str, Config]:
        """Return the configuration of every training by the name of its run folder."""
        every = {name: self.runs(name) for name in MODELS}
        return {run: self.config(k, seed) for k in every for seed, run in enumerate(every[k])}


SMOKE = Scale(epochs=2, test=16, small=True)

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


def ask_floors(work: Work) -> bool:
    """Ask the methods that need no network about the test images."""
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
    answers = {name: work.answers.read(f"{name}-0") for name in MODELS}
    errors = [torch.as_tensor(answers[name]["scores"]["mse_mean"]) for name in JUDGES]
    shared = measures.at_percentiles(torch.stack(errors).mean(0))
    for name, answer in answers.items():
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
    rows, numbers = floor_rows(work), {}
    for name, (model, preset) in MODELS.items():
        named: dict[str, Any] = {"model": model, "preset": preset, "paper": PAPER.get(name)}
        rows += rows_of(work, work.scale.runs(name), **named)
        shown = work.answers.read(f"figures/{name}")["numbers"]
        numbers[rows[-1].label] = {
            k: v.astype(np.float16) if v.ndim > 2 and v.dtype == np.float32 else v
            for k, v in shown.items()  # images need few digits
        }
    scale, unit = sizes(work, records), work.scale.unit
    unharmed = work.answers.read("trivial-y")["scores"]["mse_mean"] == 0
    text = WORDS.text["report"].format(
        **scale, factor=4 if unit else 0.25, other=RANGES[not unit], tables=tables(rows),
        unharmed=unharmed.sum(),
    )  # fmt: skip
    return Report(rows, text, numbers, scale)


def sizes(work: Work, records: Records) -> dict[str, Any]:
    """Return what ``summary.json`` says of the scale."""
    scale = work.scale
    return {
        "epochs": scale.config("PAIR").training.epochs,
        "train": records.data["train"],
        "test": len(work.answers.read("trivial-y")["scores"]["mse_mean"]),
        "digits": "made here" if scale.small else "of MNIST",
        "pixels": RANGES[scale.unit],
        "paper_scale": not scale.epochs and not scale.small and scale.test == 6000,
    }


TRAINED, ASKED = ("epochs", "unit", "small", "seeds"), ("epochs", "unit", "small", "seeds", "test")

STUDY = Study[Scale, InpaintingData](
    name="mnist",
    title=WORDS.text["title"],
    load=load,
    describe=describe,
    stages={
        "train": Stage(train, TRAINED, grows=("seeds",)),
        "answers": Stage(ask_all, ASKED, ("seeds",), renews=("test",), reads=("train",)),
    },
    report=report,
    draw=draw_all,
    captions=CAPTIONS,
)
"""The study of section 4.2: all models side by side, then what they and the floors answer."""
