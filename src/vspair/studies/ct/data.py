r"""The data of the CT study: slices, noisy sinograms, and held-out patients.

**Units.** The paper does not give its unit of length, on which three of its settings depend: the
weights of TV-ADMM's list go with the square of the unit, the step size of DPS with the unit, and
vsPAIR reads sinograms as they are.

- Lengths are in half sides of the image, which covers :math:`[-1, 1]^2`. Sinograms then have the
  range of the images, about 0 to 0.6, and for noise from 0.5 to 10 % the best weight lies between
  5e-4 and 6e-2, inside the paper's list from 1e-4 to 1. In metres, LoDoPaB-CT's unit, the best for
  little noise lies below the list; in pixels the best for much noise lies a hundred times above.
- The step size of DPS is meant for lengths in pixels. With 0.1, a Gaussian prior fitted to the
  slices, and noise of 1 %, the residual is then 1.4 times the noise; in half sides it is 3.4 times
  and in metres 6.4 times, so that samples would hardly follow the sinogram.

A weight of 0.01 in half sides, pixels of side 2/88, is 19.36 in pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from vspair.datasets.lodopab import PAPER_TEST, PAPER_TRAIN, load_slices, split_patients
from vspair.errors import VspairError
from vspair.problems.ct import CtPairs, CtProblem, Geometry, coarsen, moved_copies

__all__ = [
    "GEOMETRY",
    "HALF",
    "SMOKE",
    "CtData",
    "Scale",
    "bin_edges",
    "bin_of",
    "load",
    "spread_out",
]

GEOMETRY = Geometry(pixel=2 / 88)
"""Section 4.3's geometry, in half sides of the image."""

HALF = Geometry(shape=(44, 44), angles=62, detectors=64, pixel=2 / 44)
"""The same image in half the resolution, seen by a quarter of the angles."""

BINS = 4
"""Equal parts of the range of noise levels, for which results are given apart."""


@dataclass(frozen=True)
class Scale:
    """How much is computed.

    Arguments:
        train: Training slices, those of the held-out patients among them.
        test: Test slices.
        samples: Posterior samples that a test slice is judged by.
        epochs: Passes over the pairs of each vsPAIR preset; 0 takes the configuration's.
        copies: How often each training slice is there for all but the preset ``paper``: once as
            it is, else moved, with sinogram and noise of its own. Their epochs are divided by
            it, so that there are as many steps.
        noise: The largest deviation of the noise, as a share of a sinogram's range.
        regression_epochs: Of the regression U-Net.
        prior_epochs: Of the diffusion prior.
        dps_images: Test slices that DPS answers, spread evenly over the noise.
        trajectories: DPS samples of each.
        steps: Of a trajectory.
        zeta: DPS's step size, for lengths in pixels.
        tv_images: Held-out slices that TV-ADMM's weights are chosen on.
        tv_iterations: The most iterations of TV-ADMM.
        half: Whether slices have half the resolution (:data:`HALF`), as appendix B may.
        small: Whether networks are tiny, to see that everything runs.
        anchored_minutes: How long ``fit`` is told that a training of the preset ``anchored`` may
            take.
        anchored_copies: How often each training slice is there for that preset, for ridge, and
            for the networks that read ridge or FBP.
        unet_epochs: Passes of these networks over those pairs.
    """

    train: int = PAPER_TRAIN
    test: int = PAPER_TEST
    samples: int = 50
    epochs: int = 0
    copies: int = 8
    noise: float = 0.1
    regression_epochs: int = 100
    prior_epochs: int = 500
    dps_images: int = 16
    trajectories: int = 10
    steps: int = 1500
    zeta: float = 0.1
    tv_images: int = 64
    tv_iterations: int = 1000
    half: bool = False
    small: bool = False
    anchored_minutes: float = 60.0
    anchored_copies: int = 4
    unet_epochs: int = 60

    def __post_init__(self) -> None:
        for name in ("copies", "anchored_copies", "dps_images", "tv_images"):
            if getattr(self, name) < 1:
                raise VspairError(f"{name} = {getattr(self, name)}: expected 1 or more.")
        if self.samples < 2 or self.trajectories < 2:
            raise VspairError(
                f"samples = {self.samples}, trajectories = {self.trajectories}: expected at least "
                "2 of each, for a deviation."
            )

    @property
    def geometry(self) -> Geometry:
        """How slices are seen."""
        return HALF if self.half else GEOMETRY


SMOKE = Scale(
    train=24, test=12, samples=6, epochs=2, copies=1, regression_epochs=1, prior_epochs=1,
    dps_images=4, trajectories=2, steps=4, tv_images=4, tv_iterations=2, small=True,
    anchored_minutes=0.001, anchored_copies=2, unet_epochs=1,
)  # fmt: skip


@dataclass(frozen=True)
class CtData:
    """Pairs to train on, to choose by and to test on, of different patients.

    Arguments:
        plain: Training pairs as they are.
        held: Pairs of the held-out patients.
        test: Test pairs.
        problem: The ray transform and the noise.
        patients: The patient of each of the training pairs as they are, with shape (N,).
        copies: How often each training slice is there in ``train``.
        about: What is published of the data.
    """

    plain: CtPairs
    held: CtPairs
    test: CtPairs
    problem: CtProblem
    patients: NDArray[Any]
    copies: int
    about: dict[str, Any]

    @cached_property
    def train(self) -> CtPairs:
        """Training pairs as they are, and behind them pairs of moved copies."""
        return self.with_copies(self.copies)

    def with_copies(self, copies: int) -> CtPairs:
        """Return training pairs with so many of each slice, one of them as it is."""
        if copies == 1:
            return self.plain
        # With seeds of their own, so that they change nothing of the others.
        moved = moved_copies(self.plain.x, copies - 1, Generator().manual_seed(3))
        return self.plain.followed_by(self.problem.pairs(moved, seed=4))


def load(scale: Scale, data_dir: str | Path | None = None) -> CtData:
    """Return the pairs of the study; the same ones each time, on the CPU.

    Arguments:
        scale: How many slices, how noisy, in which resolution.
        data_dir: Where real slices are; see :func:`vspair.datasets.lodopab.load_slices`.
    """
    problem = CtProblem(scale.geometry, noise=scale.noise)
    slices = load_slices(data_dir, train=scale.train, test=scale.test)
    for part in (slices.train, slices.test):
        if tuple(part.x.shape[1:]) != GEOMETRY.shape:
            raise VspairError(
                f"The slices have shape {tuple(part.x.shape[1:])}: expected {GEOMETRY.shape}, "
                f"those of the study's geometry ({GEOMETRY.describe()})."
            )
    size = scale.geometry.shape[0]
    train_x, test_x = (
        coarsen(part.x, GEOMETRY.shape[0] // size, size) for part in (slices.train, slices.test)
    )
    rows, held_rows = split_patients(slices.train.patient)
    plain = problem.pairs(train_x[rows], seed=0)
    held, test = problem.pairs(train_x[held_rows], seed=1), problem.pairs(test_x, seed=2)
    patients = slices.train.patient[rows], slices.train.patient[held_rows], slices.test.patient
    names = ("train", "validation", "test")
    about = {
        "slices": dict(zip(names, (len(rows), len(held), len(test)), strict=True)),
        "patients": dict(zip(names, (len(np.unique(p)) for p in patients), strict=True)),
        "phantoms": slices.source == "phantoms",
        "mean_sinogram": _mean(plain.y, test.y),
    }
    return CtData(plain, held, test, problem, np.asarray(patients[0]), scale.copies, about)


def _mean(*parts: Tensor) -> list[float]:
    """Return means by which data are known again, also on a CPU that rounds otherwise."""
    return [float(f"{float(part.mean(dtype=torch.float64)):.6g}") for part in parts]


# -- noise levels ---------------------------------------------------------------------------


def bin_edges(noise: float) -> list[float]:
    """Return the ends of the bins of noise levels, in per cent; one bin where there is none."""
    if not noise:
        return [0.0, 0.0]
    return [100 * noise * i / BINS for i in range(BINS + 1)]


def bin_of(level: Tensor, noise: float) -> Tensor:
    """Return the bin that each noise level, in per cent with shape (N,), falls into."""
    ends = torch.tensor(bin_edges(noise)[1:-1], dtype=level.dtype, device=level.device)
    return torch.bucketize(level, ends, right=True)


def spread_out(level: Tensor, n: int) -> Tensor:
    """Return the indices of n pairs whose noise levels (N,) are spread evenly, in rising order."""
    n = min(n, len(level))
    places = (torch.arange(n, dtype=torch.float64) + 0.5) * len(level) / n
    return level.argsort(stable=True)[places.long()]
