r"""Project images with the ASTRA toolbox and write ct.npz, which test_ct.py compares with.

The toolbox comes with CUDA libraries of 400 MB, which are not used. In a virtual environment of
its own::

    pip install astra-toolbox==2.5.0
    python tests/golden/make_ct.py

The run takes a second. The file holds, for each case, the image ``CASE/x`` of shape (R, C), the
sinogram ``CASE/y`` of shape (A, D) by ASTRA's ``linear`` projector, which is Joseph's method on
the CPU in float32, the angles ``CASE/angles`` in radians, and the sides ``CASE/pixel`` and
``CASE/spacing`` of image and detector pixels. All of it is made with nothing of vspair.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class Case(NamedTuple):
    """An image and how it is scanned; spacing None lets the detector span the diagonal."""

    image: Array
    angles: Array
    detectors: int
    pixel: float
    spacing: float | None = None


def letter(size: int = 88) -> Array:
    """Return an F with a gradient: no turn, flip or transpose of it is itself."""
    x = np.zeros((size, size), np.float32)
    a, b, c = size // 8, size // 4, size // 2
    x[a:-a, b : b + a] = 0.8
    x[a : 2 * a, b : -2 * a] = 0.5
    x[c - a : c, b:c] = 1.0
    return x * np.linspace(0.5, 1, size, dtype=np.float32)[:, None]


def white(rows: int, columns: int) -> Array:
    """Return independent uniform numbers, to the last pixel at the edge."""
    return np.random.default_rng(0).random((rows, columns), np.float32)


def midpoints(n: int) -> Array:
    """Return the midpoints of n equal parts of the half circle."""
    return (np.arange(n) + 0.5) * np.pi / n


CASES = {
    # Section 4.3's geometry, of its 248 angles every eighth.
    "letter": Case(letter(), midpoints(248)[::8], 128, 4 * 0.26 / 362),
    "white": Case(white(88, 88), midpoints(248)[3::31], 128, 4 * 0.26 / 362),
    # Neither square nor of unit spacing, and right round; no multiple of 45 degrees but the axes.
    "wide": Case(
        white(20, 33), np.array([-2.9, -1.7, -0.5, 0, 0.4, 1.3, np.pi / 2, 2, 3, 4.4]), 37, 1, 1.7
    ),
    "tall": Case(white(33, 20), np.linspace(0.1, 7, 11), 90, 2.0, 0.9),
    # LoDoPaB-CT's own sizes, of its 1000 angles a few.
    "lodopab": Case(letter(362)[:, ::-1], midpoints(1000)[100::333], 513, 0.26 / 362),
}


def project(case: Case) -> tuple[Array, float]:
    """Return the sinogram (A, D) and the width of a detector pixel."""
    astra = importlib.import_module("astra")
    rows, columns = case.image.shape
    width, height = columns * case.pixel, rows * case.pixel
    spacing = case.spacing or float(np.hypot(width, height)) / case.detectors
    volume = astra.create_vol_geom(rows, columns, -width / 2, width / 2, -height / 2, height / 2)
    rays = astra.create_proj_geom("parallel", spacing, case.detectors, case.angles)
    projector = astra.create_projector("linear", rays, volume)
    sinogram, y = astra.create_sino(np.ascontiguousarray(case.image), projector)
    astra.data2d.delete(sinogram)
    astra.projector.delete(projector)
    return y.astype(np.float32), spacing


def main() -> None:
    """Project every case and write the file beside this script."""
    arrays: dict[str, Array] = {}
    for name, case in CASES.items():
        y, spacing = project(case)
        arrays |= {f"{name}/x": case.image.astype(np.float32), f"{name}/y": y}
        arrays |= {f"{name}/angles": np.asarray(case.angles, np.float64)}
        arrays |= {f"{name}/pixel": np.array(float(case.pixel))}
        arrays |= {f"{name}/spacing": np.array(spacing)}
        print(name, case.image.shape, y.shape, f"{y.max():.3g}")
    path = Path(__file__).with_name("ct.npz")
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
    print(path.name, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
