"""What TV-ADMM gains where its weight is chosen from a finer list than the paper's.

The paper's weights are decades, in a unit of length that it does not give, so that where they fall
is chance. Here both lists are chosen from by the same rule, on the same validation slices, and
answer the same test slices as in the study. Run it with

    python benchmarks/tv_weights.py --data-dir D [--every 4]
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import pairwise
from pathlib import Path

import torch

from vspair.runs import commit, machine, pick_device
from vspair.studies.ct.answers import WEIGHTS, choose_weights, solve
from vspair.studies.ct.data import Scale, bin_of, draw, edges
from vspair.studies.ct.training import Bench

FINER = (1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2)
BLOCK = 100


def main() -> None:
    """Print the errors by noise, with the weights that were chosen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--every", type=int, default=1, help="Test slices from one to the next.")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    scale = Scale(copies=1)
    data, where = draw(scale, options.data_dir), pick_device(options.device)
    rows = torch.arange(0, len(data.test.x), options.every)
    place = bin_of(data.test_level[rows], scale.noise)
    names = [f"{a:g}-{b:g} %" for a, b in pairwise(edges(scale.noise))]
    print(f"{machine(where)}, commit {commit()}, {len(rows)} test slices; MSE (weight)")
    print(" " * 14, *(f"{name:>18}" for name in names), flush=True)
    for name, weights in (("the paper's", WEIGHTS), ("finer", FINER)):
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(scale, data, Path(folder), where)
            chosen = choose_weights(bench, weights)
        assert chosen is not None, "there is no time limit"
        error = torch.cat([
            (solve(bench, data.test.y[part], chosen[own].to(where)).x.cpu() - data.test.x[part])
            .square().mean((1, 2))
            for part, own in zip(rows.split(BLOCK), place.split(BLOCK), strict=True)
        ])  # fmt: skip
        cells = [f"{float(error[place == i].mean()):.3g} ({w:g})" for i, w in enumerate(chosen)]
        print(f"{name:<14}", *(f"{cell:>18}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
