r"""The data of the CT study: slices, noisy sinograms, and a validation split by patient.

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

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Generator, Tensor

from vspair.data import fingerprint
from vspair.datasets.lodopab import PAPER_TEST, PAPER_TRAIN, load_slices
from vspair.errors import VspairError
from vspair.problems.ct import CtPairs, CtProblem, Geometry

__all__ = [
    "GEOMETRY",
    "HALF",
    "SMOKE",
    "CtData",
    "Scale",
    "augment",
    "bin_of",
    "draw",
    "edges",
    "split_patients",
    "spread_out",
]

GEOMETRY = Geometry(pixel=2 / 88)
"""Section 4.3's geometry, in half sides of the image."""

HALF = Geometry(shape=(44, 44), angles=62, detectors=64, pixel=2 / 44)
"""The same image in half the resolution, seen by a quarter of the angles."""

HELD = 0.1
"""The largest share of the training slices that is held out; whole patients are."""

BINS = 4
"""Equal parts of the range of noise levels that results are told apart by."""


@dataclass(frozen=True)
class Scale:
    """How much is drawn, trained and sampled.

    Arguments:
        train: Training slices, validation patients among them.
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
        tv_images: Validation slices that TV-ADMM's weight is chosen on.
        tv_iterations: The most iterations of TV-ADMM.
        small: Whether networks are tiny, to see that everything runs.
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
    small: bool = False

    def __post_init__(self) -> None:
        for name in ("copies", "dps_images", "tv_images"):
            if getattr(self, name) < 1:
                raise VspairError(f"{name} = {getattr(self, name)}: expected 1 or more.")
        if self.samples < 2 or self.trajectories < 2:
            raise VspairError(
                f"samples = {self.samples}, trajectories = {self.trajectories}: expected at least "
                "2 of each, for a deviation."
            )


SMOKE = Scale(
    train=24, test=12, samples=6, epochs=2, copies=1, regression_epochs=1, prior_epochs=1,
    dps_images=4, trajectories=2, steps=4, tv_images=4, tv_iterations=2, small=True,
)  # fmt: skip


@dataclass(frozen=True)
class CtData:
    """Pairs to train, to validate and to test on, of different patients.

    Arguments:
        train: N pairs, as they are; copies of them that are moved behind.
        validation: M pairs.
        test: T pairs.
        validation_level: The deviation of the noise in per cent of the range, with shape (M,).
        test_level: The same of the test pairs, with shape (T,).
        problem: The ray transform and the noise.
        patients: How many patients each part has.
        phantoms: Whether the slices are phantoms.
        originals: How many of the training pairs are as they are.
    """

    train: CtPairs
    validation: CtPairs
    test: CtPairs
    validation_level: Tensor
    test_level: Tensor
    problem: CtProblem
    patients: tuple[int, int, int]
    phantoms: bool
    originals: int

    @property
    def plain(self) -> CtPairs:
        """The training pairs as they are, without moved copies."""
        return CtPairs(*(t[: self.originals] for t in self.train))

    @property
    def shown(self) -> dict[str, Any]:
        """Sizes and origin, for a table's caption."""
        parts = ("train", "validation", "test")
        return {
            "slices": {p: len(getattr(self, p).x) for p in parts} | {"train": self.originals},
            "patients": dict(zip(parts, self.patients, strict=True)),
            "phantoms": self.phantoms,
        }

    @cached_property
    def key(self) -> str:
        """The test pairs' fingerprint, by which they are known again."""
        return fingerprint(self.test.x, self.test.y)


# -- splits ---------------------------------------------------------------------------------


def split_patients(
    patient: NDArray[Any], share: float = HELD, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Return the indices of training and validation slices, which share no patient.

    Patients are held out in a random order as long as their slices stay within the share; the
    one with the fewest slices where that is none.

    Arguments:
        patient: Whose each slice is, with shape (N,).
        share: The share of the slices to hold out.
        seed: Fixes the order.
    """
    names, counts = np.unique(patient, return_counts=True)
    if len(names) < 2:
        raise VspairError(
            f"The training slices are of {len(names)} patient: expected at least 2, of whom one "
            "is held out."
        )
    order = torch.randperm(len(names), generator=Generator().manual_seed(seed)).tolist()
    wanted, held, chosen = share * len(patient), 0, []
    for i in order:
        if held + counts[i] <= wanted:
            chosen.append(names[i])
            held += counts[i]
    chosen = chosen or [names[counts.argmin()]]
    inside = torch.from_numpy(np.isin(patient, chosen))
    return torch.nonzero(~inside)[:, 0], torch.nonzero(inside)[:, 0]


def edges(noise: float) -> list[float]:
    """Return the ends of the bins of noise levels, in per cent; one bin where there is none."""
    if not noise:
        return [0.0, 0.0]
    return [100 * noise * i / BINS for i in range(BINS + 1)]


def bin_of(level: Tensor, noise: float) -> Tensor:
    """Return the bin that each noise level, in per cent with shape (N,), falls into."""
    ends = torch.tensor(edges(noise)[1:-1], dtype=level.dtype, device=level.device)
    return torch.bucketize(level, ends, right=True)


def spread_out(level: Tensor, n: int) -> Tensor:
    """Return the indices of n pairs whose noise levels (N,) are spread evenly, in rising order."""
    n = min(n, len(level))
    places = (torch.arange(n, dtype=torch.float64) + 0.5) * len(level) / n
    return level.argsort(stable=True)[places.long()]


# -- pairs ----------------------------------------------------------------------------------


def augment(x: Tensor, copies: int, generator: Generator) -> Tensor:
    """Return slices as they are, and moved copies of them behind, with shape (copies N, R, C).

    A copy is turned by up to 10 degrees, scaled by up to a tenth and shifted by up to a tenth of
    the side; what comes in from outside repeats the border. It is not mirrored: chests are not
    symmetric.

    Arguments:
        x: Slices, with shape (N, R, C).
        copies: How many times each occurs in the result.
        generator: The source of randomness.
    """

    def between(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(len(x), *shape, generator=generator)

    parts = [x]
    for _ in range(copies - 1):
        angle, size = between(-1, 1) * math.pi / 18, between(0.9, 1.1)
        cos, sin = angle.cos() * size, angle.sin() * size
        turned = torch.stack((cos, -sin, sin, cos), 1).reshape(-1, 2, 2)
        where = torch.cat((turned, between(-0.2, 0.2, 2, 1)), 2)
        grid = F.affine_grid(where, [len(x), 1, *x.shape[1:]], align_corners=False)
        moved = F.grid_sample(x[:, None], grid, padding_mode="border", align_corners=False)
        parts.append(moved[:, 0])
    return torch.cat(parts)


def _averaged(x: Tensor, geometry: Geometry) -> Tensor:
    """Return slices (N, R, C) with the pixels of a geometry, each the mean of those it covers."""
    factor = GEOMETRY.shape[0] // geometry.shape[0]
    fits = tuple(n * factor for n in geometry.shape) == GEOMETRY.shape
    if not (fits and math.isclose(geometry.pixel, factor * GEOMETRY.pixel)):
        raise VspairError(
            f"The geometry is {geometry.describe()}, a pixel {geometry.pixel:.4g} wide: expected "
            f"pixels that cover whole ones of the study's, {GEOMETRY.shape} of width "
            f"{GEOMETRY.pixel:.4g}."
        )
    return x if factor == 1 else F.avg_pool2d(x[:, None], factor)[:, 0]


def _observe(problem: CtProblem, x: Tensor, seed: int) -> tuple[CtPairs, Tensor]:
    """Return slices with noisy sinograms, and the noise in per cent of each range, (N,)."""
    generator = Generator().manual_seed(seed)

    def parts() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for part in x.split(256):
            clean = problem.forward(part)
            span = clean.amax((1, 2)) - clean.amin((1, 2))
            yield *problem.disturb(clean, generator), span

    y, deviation, span = (torch.cat(t) for t in zip(*parts(), strict=True))
    level = 100 * deviation / span.clamp(min=torch.finfo(span.dtype).tiny)
    return CtPairs(x, y, deviation), level


def draw(
    scale: Scale, data_dir: str | Path | None = None, geometry: Geometry = GEOMETRY
) -> CtData:
    """Return the pairs of the study; the same ones each time, on the CPU.

    Arguments:
        scale: How many slices, how noisy.
        data_dir: Where real slices are; see :func:`vspair.datasets.lodopab.load_slices`.
        geometry: How they are seen: :data:`GEOMETRY`, or one of fewer, larger pixels, over which
            the slices are averaged.
    """
    problem = CtProblem(geometry, noise=scale.noise)
    slices = load_slices(data_dir, train=scale.train, test=scale.test)
    for part in (slices.train, slices.test):
        if tuple(part.x.shape[1:]) != GEOMETRY.shape:
            raise VspairError(
                f"The slices have shape {tuple(part.x.shape[1:])}: expected {GEOMETRY.shape}, "
                f"those of the study's geometry ({GEOMETRY.describe()})."
            )
    train_x, test_x = (_averaged(part.x, geometry) for part in (slices.train, slices.test))
    rest, held = split_patients(slices.train.patient)
    seen = augment(train_x[rest], scale.copies, Generator().manual_seed(3))
    # Apart, so that copies change nothing of the pairs that they are copies of.
    parts = seen[: len(rest)], seen[len(rest) :]
    pairs = [_observe(problem, x, s)[0] for x, s in zip(parts, (0, 4), strict=True) if len(x)]
    train = CtPairs(*(torch.cat(t) for t in zip(*pairs, strict=True)))
    validation, validation_level = _observe(problem, train_x[held], seed=1)
    test, test_level = _observe(problem, test_x, seed=2)
    whose = (slices.train.patient[rest], slices.train.patient[held], slices.test.patient)
    patients = tuple(len(np.unique(p)) for p in whose)
    return CtData(
        train, validation, test, validation_level, test_level, problem,
        (patients[0], patients[1], patients[2]), slices.source == "phantoms", len(rest),
    )  # fmt: skip
