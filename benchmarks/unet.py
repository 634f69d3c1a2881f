"""Milliseconds a training step of the diffusion prior, and a step of DPS with it.

The U-Net has the paper's widths, images are made. Run it with

    python benchmarks/unet.py [--device cuda] [--compile] [--images 160]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from vspair.methods.dps import Prior, dps, noise_loss
from vspair.problems.ct import RayTransform
from vspair.runs import machine, pick_device
from vspair.studies.ct.data import GEOMETRY
from vspair.training.acceleration import compiled, precision
from vspair.training.networks import NetworkTraining, Plan

Name = Literal["float32", "bfloat16"]


def prior(device: torch.device) -> Prior:
    """Return an untrained prior."""
    torch.manual_seed(0)
    return Prior(GEOMETRY.shape).to(device)


def training(device: torch.device, name: Name, steps: int, **how: Any) -> NetworkTraining:
    """Return a training whose two epochs have so many steps each."""
    model, plan = prior(device), Plan(epochs=2, precision=name)
    x = torch.rand(plan.batch_size * steps, *GEOMETRY.shape, generator=Generator().manual_seed(0))

    def loss(batch: tuple[Tensor, ...], generator: Generator) -> Tensor:
        return noise_loss(model, model.sde, batch[0], generator)

    return NetworkTraining(model, loss, (x,), plan, **how)


def milliseconds_of(work: NetworkTraining) -> float:
    """Return the time of a step in the second epoch of a training."""
    rows = work.train(show=False)
    return 1e3 * (rows[1]["seconds"] - rows[0]["seconds"]) / work.steps


def milliseconds(work: Callable[[], object], steps: int) -> float:
    """Return the time of one of the steps that some work has, after it was done once."""
    for _ in range(2):
        start = time.perf_counter()
        work()
        torch.cuda.synchronize() if torch.cuda.is_available() else None
    return 1e3 * (time.perf_counter() - start) / steps


def sampling(model: Prior, device: torch.device, name: Name, images: int, steps: int) -> None:
    """Take some steps of DPS."""
    transform = RayTransform(GEOMETRY)
    y = transform(torch.rand(1, *GEOMETRY.shape, device=device))
    with precision(device, name):
        dps(
            model, model.sde, transform, y, GEOMETRY.shape, steps=steps, trajectories=images,
            generator=Generator(device).manual_seed(0),
        )  # fmt: skip


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--compile", action="store_true", help="compile too: minutes")
    parser.add_argument("--images", type=int, default=160, help="trajectories of DPS at once")
    options = parser.parse_args()
    device = pick_device(options.device)
    on_gpu = device.type == "cuda"
    steps = 20 if on_gpu else 1
    names: tuple[Name, ...] = ("float32", "bfloat16")
    print(machine(device))
    ways = ("plain", *(["captured"] * on_gpu), *(["compiled"] * options.compile))
    for name in names:
        for way in ways:
            how = {"capture": way != "plain", "compile": way == "compiled"}
            found = milliseconds_of(training(device, name, steps, **how))
            print(f"{f'training, {name}, {way}':<36} {found:8.2f} ms a step", flush=True)
    for name in names:
        for way in ("plain", *(["compiled"] * options.compile)):
            model = prior(device).eval().requires_grad_(False)
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            work_of = partial(sampling, model, device, name, options.images, steps)
            with compiled(model.network) if way == "compiled" else nullcontext():
                found = milliseconds(work_of, steps)
            words = f"DPS, {options.images} images, {name}, {way}"
            print(f"{words:<36} {found:8.2f} ms a step", flush=True)


if __name__ == "__main__":
    main()
