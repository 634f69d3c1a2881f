"""Milliseconds a training step of the paper's MNIST, heat or CT vsPAIR, plain and accelerated.

Digits and slices are made; what is timed does not depend on them. Run it with

    python benchmarks/step.py [--problem heat] [--device cuda] [--compile] [--together 4]

CT has 550 million parameters: 20 GB of memory, and on a CPU minutes.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

from vspair import config as configs
from vspair.data import Pairs
from vspair.fitting import start_training
from vspair.problems.inpainting import mnist_pairs, toy_digits
from vspair.runs import machine, pick_device
from vspair.studies.ct.data import GEOMETRY
from vspair.studies.heat.study import PROBLEM
from vspair.training.trainer import Trainer


def trainer(problem: str, device: torch.device, steps: int, **training: Any) -> Trainer:
    """Return a training of the paper's network that has so many steps in its one epoch."""
    names = {"heat": "heat-paper", "ct": "ct-paper", "mnist": "mnist-vspair"}
    changes = {"training": {"epochs": 1} | training}
    config = configs.override(configs.shipped(names[problem]), changes)
    if problem == "heat":
        x, y = PROBLEM.pairs(config.training.batch_size * steps, seed=0)
    elif problem == "ct":
        noise, n = torch.Generator().manual_seed(0), config.training.batch_size * steps
        x, y = (
            torch.rand(n, *s, generator=noise) for s in (GEOMETRY.shape, GEOMETRY.sinogram_shape)
        )
    else:
        data = mnist_pairs(toy_digits(64 * steps + 1, seed=0), seed=0, train=64 * steps)
        x, y = data.train.x, data.train.y
    return start_training(Pairs(x, y), None, config, device=device)


def milliseconds(trainers: list[Trainer], warm: int, timed: int) -> float:
    """Return the time of a step of one model, with all of them taking turns."""
    on_gpu = trainers[0].device.type == "cuda"
    lanes = [torch.cuda.Stream() if on_gpu else None for _ in trainers]
    work = [t.run_steps([]) for t in trainers]
    start = 0.0
    for i in range(warm + timed):
        if i == warm:
            torch.cuda.synchronize() if on_gpu else None
            start = time.perf_counter()
        for steps, lane in zip(work, lanes, strict=True):
            with torch.cuda.stream(lane):
                next(steps)
    torch.cuda.synchronize() if on_gpu else None
    seconds = time.perf_counter() - start
    for steps in work:
        steps.close()
    return 1e3 * seconds / timed / len(trainers)


def main() -> None:
    """Print a line for each way, with its ratio to the plain one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problem", choices=("mnist", "heat", "ct"), default="mnist")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--compile", action="store_true", help="compile too: a minute")
    parser.add_argument("--together", type=int, default=1, help="trainings side by side")
    options = parser.parse_args()
    device = pick_device(options.device)
    few = {"heat": 20, "mnist": 5, "ct": 1}[options.problem]
    timed = 40 if device.type == "cuda" else few
    ways: dict[str, dict[str, Any]] = {"plain": {}, "bfloat16": {"precision": "bfloat16"}}
    if device.type == "cuda":
        ways["captured"] = {"capture": True}
        ways["captured, bfloat16"] = {"capture": True, "precision": "bfloat16"}
    if options.compile:
        ways["compiled"] = {"capture": True, "compile": True, "precision": "bfloat16"}
    print(machine(device))
    plain = 0.0
    for name, training in ways.items():
        count = options.together if "captured" in name else 1
        trainers = [trainer(options.problem, device, timed + 12, **training) for _ in range(count)]
        found = milliseconds(trainers, warm=10 if device.type == "cuda" else 2, timed=timed)
        plain = plain or found
        beside = f", {count} side by side" if count > 1 else ""
        print(f"{name + beside:<36} {found:8.2f} ms a step  {plain / found:5.2f} times plain")


if __name__ == "__main__":
    main()
