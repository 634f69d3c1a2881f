"""The paper's problems, asked as a user's pairs are: the defaults of ``vspair.fit`` alone.

The pairs are those of the studies of MNIST, the heat equation and CT, and all that ``fit`` is told
is which patient a slice is of. The methods beside it, measures and tables are those of the study
of own pairs. CT is a quarter of the problem: 44 x 44 pixels, seen by 62 angles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.random import Generator as Chance
from torch import Generator

from vspair.data import Pairs
from vspair.datasets.lodopab import load_slices, split_patients
from vspair.datasets.mnist import load_mnist
from vspair.datasets.own import OwnSet, Part, package_versions
from vspair.problems.ct import CtProblem, coarsen, moved_copies
from vspair.problems.inpainting import mnist_pairs
from vspair.studies.ct.data import HALF
from vspair.studies.heat.study import NOISE, PROBLEM
from vspair.studies.own import drawing
from vspair.studies.own import study as own
from vspair.studies.study import Study
from vspair.studies.words import read_words

__all__ = ["SMOKE", "STUDY", "Scale", "problem_sets"]

WORDS = read_words("problems")

COPIES = 4
"""How often each slice is there: once as it is, else moved, with a sinogram of its own."""


def _part(pairs: Pairs, sources: object = None) -> Part:
    groups = None if sources is None else np.asarray(sources)
    return Part(pairs.x.numpy(), pairs.y.numpy(), groups)


def _heat(noise: float, rng: Chance) -> tuple[Part, Part]:
    """Return the fields of the heat study at a level of noise."""
    pairs = replace(PROBLEM, noise=noise).paper_pairs(int(rng.integers(2**31)))
    train, test = (_part(Pairs(each.x, each.y)) for each in pairs)
    return train, test


def _mnist(data_dir: Path | None, rng: Chance) -> tuple[Part, Part]:
    """Return the digits of the MNIST study, the same for all seeds."""
    data = mnist_pairs(load_mnist(data_dir).train_images, seed=0, low=-1.0, train=54000)
    return _part(data.train), _part(data.test)


def _quarter_ct(data_dir: Path | None, rng: Chance) -> tuple[Part, Part]:
    """Return slices and moved copies of all training patients, the same for all seeds."""
    problem, slices = CtProblem(HALF, noise=0.1), load_slices(data_dir)
    train, test = (coarsen(part.x, 2, 44) for part in (slices.train, slices.test))
    rows, _ = split_patients(slices.train.patient)
    kept, patients = train[rows], np.asarray(slices.train.patient)[rows.numpy()]
    moved = moved_copies(kept, COPIES - 1, Generator().manual_seed(3))
    seen, asked = problem.pairs(torch.cat((kept, moved)), 0), problem.pairs(test, 2)
    return _part(seen, np.tile(patients, COPIES)), _part(asked)


def problem_sets(data_dir: Path | None = None) -> dict[str, OwnSet]:
    """Return every problem by its name."""
    makers: dict[str, Callable[[Chance], tuple[Part, Part]]] = {
        f"heat-noise-{100 * noise:g}": partial(_heat, noise) for noise in NOISE
    }
    makers |= {"ct-quarter": partial(_quarter_ct, data_dir), "mnist": partial(_mnist, data_dir)}
    return {
        name: OwnSet(name, WORDS.names[name], (), make, tuned=False)
        for name, make in makers.items()
    }


@dataclass(frozen=True)
class Scale(own.Scale):
    """How much is trained, as in the study of own pairs, of one seed if not told otherwise."""

    seeds: int = 1

    def known(self, data_dir: Path | None = None) -> dict[str, OwnSet]:  # noqa: D102
        return problem_sets(data_dir)


SMOKE = Scale(sets="heat-noise-10", samples=20, seconds=1.0, epochs=1)

STUDY = Study(
    name="problems",
    title=WORDS.text["title"],
    load=own.load,
    describe=lambda cases: {"packages": package_versions()},
    stages={"answers": own.ANSWERS},
    report=partial(own.report, text=WORDS.text["report"]),
    draw=drawing.draw_all,
    captions=WORDS.captions,
)
