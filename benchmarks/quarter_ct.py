"""What both presets want of CT, on a quarter of the problem: minutes on two cores.

Slices are halved to 44x44 pixels and seen by 62 angles and 64 detector pixels; networks have an
eighth of the factors of x, a quarter of those of y, half of the channels and two blocks instead of
three. Steps are ten times as long as in the study, as there are few of them. The preset `paper`
has beta0 = 9 instead of 64: beta0 - 1 goes with the factors, as its weight beside the gates does.
Weights are chosen on held-out patients. Run it with

    python benchmarks/quarter_ct.py --data-dir D [--rate 1e-3] [--map-depth 0] [--width closed]
    python benchmarks/quarter_ct.py --data-dir D --preset paper [--normalise scalar] [--half]

With `--patients K --slices N` it is trained on N slices of the first K training patients: what
patients are worth, and what slices are. Fewer slices have fewer steps in an epoch.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from vspair import config as configs
from vspair.config import Config
from vspair.datasets.lodopab import load_slices, split_patients
from vspair.evaluation import score_method
from vspair.fitting import start_training
from vspair.methods import Fbp
from vspair.model import InverseModel
from vspair.problems.ct import CtPairs, CtProblem, coarsen, moved_copies
from vspair.runs import commit, machine
from vspair.studies.ct.data import HALF
from vspair.uncertainty import posterior_in_parts, summarise_codes

PROBLEM = CtProblem(HALF, noise=0.1)
NETWORK = {"kind": "conv", "width": 8, "depth": 2}
SHOWN = ("mse_mean", "mse_sample", "crps", "coverage_90", "coverage_90_with_noise")


def configuration(options: argparse.Namespace) -> Config:
    """Return the small model's configuration."""
    base = configs.shipped(f"ct-{options.preset}")
    model = {"x_size": 512, "y_size": 256, "x_network": NETWORK, "y_network": NETWORK}
    training = {"epochs": max(1, options.epochs // options.copies)}
    more = {"validate_every": 1, "precision": "bfloat16", "learning_rate": options.rate}
    if options.preset == "paper":
        model = model | {"normalise": options.normalise or "none"}
        changes = {"objective": {"beta0": 9.0, "half": bool(options.half)}, "model": model}
    else:
        price = 0.02 if options.price is None else options.price
        given = {"width": options.width or "learned", "price": price}
        depth = {"map_depth": options.map_depth or 0}
        changes = {"objective": {"active": 170} | given, "model": model | depth}
    return configs.override(base, changes | {"training": training | more})


def chosen(patient: NDArray[Any], patients: int, slices: int) -> Tensor:
    """Return the indices of some slices of the first patients, spread evenly over them."""
    first = np.unique(patient)[: patients or None]
    rows = torch.from_numpy(np.flatnonzero(np.isin(patient, first)))
    if len(rows) < slices:
        raise SystemExit(f"{len(first)} patients have {len(rows)} slices, not {slices}.")
    return rows[torch.linspace(0, len(rows) - 1, slices or len(rows)).round().long()]


def judged(model: InverseModel, part: CtPairs) -> dict[str, float]:
    """Return means over up to 400 pairs, by 50 samples of each."""
    some = part[torch.linspace(0, len(part) - 1, min(400, len(part))).long()]
    found = score_method(model, some.x, some.y, chunk=100)
    return {name: float(found[name].mean()) for name in SHOWN}


def main() -> None:
    """Train once and print a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--preset", choices=("paper", "calibrated"), default="calibrated")
    parser.add_argument("--epochs", type=int, default=24, help="divided by the copies")
    parser.add_argument("--copies", type=int, default=8)
    parser.add_argument("--rate", type=float, default=1e-3)
    own = parser.add_argument_group("of the preset calibrated")
    own.add_argument("--map-depth", type=int, help="0 if not given")
    own.add_argument("--width", choices=("learned", "closed"), help="learned if not given")
    own.add_argument("--price", type=float, help="of a gate, at the start; 0.02 if not given")
    own = parser.add_argument_group("of the preset paper")
    own.add_argument("--normalise", choices=("none", "scalar"))
    own.add_argument("--half", action="store_true", default=None, help="with the printed 1/2")
    parser.add_argument("--patients", type=int, default=0, help="to train on; 0 for all")
    parser.add_argument("--slices", type=int, default=0, help="to train on; 0 for all")
    options = parser.parse_args()
    others = (
        ("map_depth", "width", "price") if options.preset == "paper" else ("normalise", "half")
    )
    for name in others:
        if getattr(options, name) is not None:
            parser.error(f"--{name.replace('_', '-')} is not of the preset {options.preset}.")
    if min(options.patients, options.slices) < 0:
        parser.error("--patients and --slices: expected 0 or more.")
    slices = load_slices(options.data_dir)
    rest, held = split_patients(slices.train.patient)
    halves = [coarsen(part.x, 2, 44) for part in (slices.train, slices.test)]
    few = rest[chosen(slices.train.patient[rest], options.patients, options.slices)]
    moved = moved_copies(halves[0][few], options.copies - 1, Generator().manual_seed(3))
    train = PROBLEM.pairs(torch.cat((halves[0][few], moved)), 0)
    held_out, test = PROBLEM.pairs(halves[0][held], 1), PROBLEM.pairs(halves[1], 2)
    trainer, start = start_training(train, held_out, configuration(options)), time.monotonic()
    trainer.train(show=True)
    took, model = time.monotonic() - start, trainer.model
    window = score_method(Fbp(HALF, window="hann"), test.x, test.y)["mse_mean"].mean()
    found = summarise_codes(posterior_in_parts(model, test.y), Generator().manual_seed(0))
    print(f"{machine('cpu')}, commit {commit()}, {took:.0f} s, {model.n_parameters:,} parameters")
    print(f"FBP with a Hann window has {float(window):.3g}")
    print(
        f"weights of epoch {trainer.state.best_epoch}, decoder noise {float(model.noise_std):.3g}"
    )
    print("codes of test patients:", ", ".join(f"{k} {v:.4g}" for k, v in found.items()))
    for who, part in (("training", train[: len(few)]), ("held-out", held_out), ("test", test)):
        words = [f"{name} {value:.3g}" for name, value in judged(model, part).items()]
        print(f"{who} patients: {', '.join(words)}")


if __name__ == "__main__":
    main()
