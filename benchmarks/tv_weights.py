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

from vspair.evaluation import score_method
from vspair.methods import TvAdmm
from vspair.runs import commit, machine, pick_device
from vspair.studies.ct.data import Scale, bin_edges, bin_of, load
from vspair.studies.ct.methods import WEIGHTS, Bench, choose_weights

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
    data, where = load(scale, options.data_dir), pick_device(options.device)
    test = data.test[torch.arange(0, len(data.test), options.every)]
    place = bin_of(test.level, scale.noise)
    names = [f"{a:g}-{b:g} %" for a, b in pairwise(bin_edges(scale.noise))]
    print(f"{machine(where)}, commit {commit()}, {len(test)} test slices; MSE (weight)")
    print(" " * 14, *(f"{name:>18}" for name in names), flush=True)
    for name, weights in (("the paper's", WEIGHTS), ("finer", FINER)):
        with tempfile.TemporaryDirectory() as folder:
            chosen = choose_weights(Bench(scale, lambda: data, Path(folder), where), weights)
        assert chosen is not None, "there is no time limit"
        error = torch.empty(len(test), dtype=torch.float64)
        for rows in torch.arange(len(test)).split(BLOCK):
            method = TvAdmm(data.problem.transform, chosen[place[rows]].to(where))
            pairs = test[rows]
            scored = score_method(method, pairs.x, pairs.y.to(where), chunk=BLOCK)
            error[rows] = scored["mse_mean"]
        cells = [f"{float(error[place == i].mean()):.3g} ({w:g})" for i, w in enumerate(chosen)]
        print(f"{name:<14}", *(f"{cell:>18}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
