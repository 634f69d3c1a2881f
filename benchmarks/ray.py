"""The ray transform against scikit-image's radon and ASTRA's CPU projector, on one batch.

All of them project the same 64 images of section 4.3's size (88x88, 248 angles, 128 detector
pixels) in turn, in one thread, as the other two do; the median of the repeats counts. radon has a
detector pixel for each image pixel on the diagonal (125 of them) and rotates the image, which is
the same task in its own way. What is not installed is left out, and said. Run it with

    pip install scikit-image astra-toolbox==2.5.0    # optional, in a copy of the environment
    python benchmarks/ray.py [--batch 64] [--threads 1] [--device cpu]
"""

from __future__ import annotations

import argparse
import importlib
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from vspair.datasets.phantoms import chest_phantoms
from vspair.problems.ct import Geometry, RayTransform
from vspair.runs import machine

Way = Callable[[], Any]


def optional(name: str) -> Any:
    """Return a module, or None with a line that says it is absent."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        print(f"{name} is not installed and left out ({error})")
        return None


def vspair_ways(geometry: Geometry, x: Tensor) -> dict[str, Way]:
    """Return both methods of vspair, forward and adjoint."""
    ways: dict[str, Way] = {}
    for method in ("matrix", "free"):
        ray = RayTransform(geometry, method=method)
        start = time.perf_counter()
        y = ray(x)
        ray.adjoint(y)
        print(f"vspair {method}: first use {time.perf_counter() - start:.2f} s")
        ways[f"vspair {method}"] = partial(ray, x)
        ways[f"vspair {method}, adjoint"] = partial(ray.adjoint, y)
    return ways


def astra_ways(geometry: Geometry, images: Any) -> dict[str, Way]:
    """Return ASTRA's Joseph projector, image by image, as it is called from Python."""
    astra = optional("astra")
    if astra is None:
        return {}
    rows, columns = geometry.shape
    width, height = columns * geometry.pixel / 2, rows * geometry.pixel / 2
    volume = astra.create_vol_geom(rows, columns, -width, width, -height, height)
    rays = astra.create_proj_geom(
        "parallel", geometry.detector_spacing, geometry.detectors, geometry.theta.numpy()
    )
    projector = astra.create_projector("linear", rays, volume)
    operator = astra.optomo.OpTomo(projector)
    sinograms = np.stack([operator.FP(image) for image in images])
    return {
        "astra": lambda: np.stack([operator.FP(image) for image in images]),
        "astra, adjoint": lambda: np.stack([operator.BP(sinogram) for sinogram in sinograms]),
    }


def radon_ways(geometry: Geometry, images: Any) -> dict[str, Way]:
    """Return scikit-image's transform, image by image."""
    transform = optional("skimage.transform")
    if transform is None:
        return {}
    degrees = np.degrees(geometry.theta.numpy())
    return {
        "scikit-image": lambda: np.stack(
            [transform.radon(image, degrees, circle=False) for image in images]
        )
    }


def seconds(way: Way, device: str) -> tuple[float, Any]:
    """Return the time that a call takes, and its result."""
    if device != "cpu":
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = way()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def main() -> None:
    """Print milliseconds for the batch, ratios to the best of the others, and agreement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="of vspair; the others use the CPU")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    geometry = Geometry()
    x = chest_phantoms(options.batch, Generator().manual_seed(0))
    images = x.numpy()
    print(f"{machine(options.device)}, {options.threads} thread(s), batch {options.batch}")
    ways = vspair_ways(geometry, x.to(options.device))
    ways |= astra_ways(geometry, images) | radon_ways(geometry, images)
    times: dict[str, list[float]] = {name: [] for name in ways}
    results: dict[str, Any] = {}
    for _ in range(options.repeats):
        for name, way in ways.items():
            t, results[name] = seconds(way, options.device)
            times[name].append(t)
    middle = {name: statistics.median(t) for name, t in times.items()}
    others = [middle[name] for name in ("astra", "scikit-image") if name in middle]
    best = min(others, default=math.nan)
    for name, t in middle.items():
        ratio = (
            "" if "adjoint" in name or not others else f"  {best / t:7.2f} times the best other"
        )
        print(f"{name:<24} {1e3 * t:9.1f} ms{ratio}")
    if "astra" in results:
        for name in ("vspair matrix", "vspair free"):
            ours, theirs = results[name].cpu().numpy(), results["astra"]
            off = float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))
            print(f"{name} and astra differ by {off:.0e} of the sinograms' norm")


if __name__ == "__main__":
    main()
