r"""Solve the heat equation with Dedalus and write heat.npz, which test_heat_dedalus.py reads.

Dedalus 3 needs MPI and FFTW. On Debian or Ubuntu, in a virtual environment of its own::

    apt-get install libopenmpi-dev libfftw3-dev libfftw3-mpi-dev
    export FFTW_PATH=/usr MPI_PATH=/usr/lib/x86_64-linux-gnu/openmpi
    pip install dedalus==3.0.5
    OMP_NUM_THREADS=1 python tests/golden/make_heat.py

(``conda install -c conda-forge dedalus`` does the same elsewhere.) The run takes a quarter of a
minute in one process. The file holds, for each case, ``CASE/x`` of shape (n, n), ``CASE/u`` of
shape (times, n, n), and the numbers ``CASE/kappa``, ``CASE/step`` and ``CASE/times``. The first
index of a field is the first coordinate. All of it is made on Dedalus' own grid, with nothing of
vspair. Sizes are even: on an odd grid Dedalus 3.0.5 cannot build the equation.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Initial = Callable[[Array, Array], Array]


class Case(NamedTuple):
    """An initial field, as a function of the two coordinates, and how it is stepped."""

    initial: Initial
    size: int = 16
    kappa: float = 0.02
    step: float = 0.0005
    times: tuple[float, ...] = (0.5, 1.0, 3.0)


def series(r1: Array, r2: Array) -> Array:
    """Return a few modes far below the Nyquist modes, with no symmetry between the axes."""
    wave = 0.8 * np.cos(r1 + 0.3) + 0.5 * np.sin(2 * r2 - 1.1) + 0.4 * np.cos(3 * r1 - 2 * r2)
    return 0.25 + wave + 0.2 * np.sin(4 * r1 + 3 * r2 + 0.7)


def source(r1: Array, r2: Array) -> Array:
    """Return a periodic Gaussian of height 3 and width 0.45 at (1.3, 4.1)."""
    return 3.0 * np.exp((np.cos(r1 - 1.3) + np.cos(r2 - 4.1) - 2) / 0.45**2)


def both(r1: Array, r2: Array) -> Array:
    """Return the series and the source together, the kind of field that the paper has."""
    return series(r1, r2) + source(r1, r2)


def white(r1: Array, r2: Array) -> Array:
    """Return independent normal numbers, which have as much in the Nyquist modes as in others."""
    return np.random.default_rng(0).standard_normal((r1 + r2).shape)


CASES = {
    "series": Case(series),
    "source": Case(source),
    "both": Case(both),
    "white": Case(white),
    "small": Case(both, size=12, kappa=0.1, step=0.002),
    # One to six steps so long that fast modes are past the zero of the amplification factor.
    "stiff": Case(white, size=24, kappa=0.05, step=0.5),
}


def run(case: Case) -> tuple[Array, Array]:
    """Return the initial field (n, n) and Dedalus' solution (times, n, n)."""
    d3 = importlib.import_module("dedalus.public")
    coordinates = d3.CartesianCoordinates("r1", "r2")
    distributor = d3.Distributor(coordinates, dtype=np.float64)
    interval = (0, 2 * np.pi)
    bases = [d3.RealFourier(c, case.size, interval, dealias=1) for c in coordinates.coords]
    u = distributor.Field(name="u", bases=tuple(bases))
    problem = d3.IVP([u], namespace={"u": u, "kappa": case.kappa})
    problem.add_equation("dt(u) - kappa*lap(u) = 0")
    solver = problem.build_solver(d3.RK222)

    x = case.initial(*distributor.local_grids(*bases))
    u["g"] = x
    answer, done = [], 0
    for time in case.times:
        steps = round(time / case.step)
        for _ in range(steps - done):
            solver.step(case.step)
        done = steps
        u.change_scales(1)
        answer.append(u["g"].copy())
    return x, np.stack(answer)


def main() -> None:
    """Run every case and write the file beside this script."""
    logging.disable(logging.INFO)
    arrays: dict[str, Array] = {}
    for name, case in CASES.items():
        x, u = run(case)
        arrays |= {f"{name}/x": x, f"{name}/u": u, f"{name}/times": np.array(case.times)}
        arrays |= {f"{name}/kappa": np.array(case.kappa), f"{name}/step": np.array(case.step)}
        print(name, x.shape, f"{np.abs(u[-1]).max():.3g}")
    path = Path(__file__).with_name("heat.npz")
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
    print(path.name, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
