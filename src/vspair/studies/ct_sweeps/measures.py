"""What is measured of appendix B's trainings, and of methods that nothing is learned for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator

from vspair.model import InverseModel
from vspair.studies.ct.answers import BLOCK, sampled, simple_methods
from vspair.studies.ct.data import spread_out
from vspair.studies.ct.measures import codes, judge
from vspair.studies.ct.training import Bench
from vspair.studies.factors import code_row

__all__ = ["SHOWN", "measure", "simple_errors"]

SHOWN = 3
"""Test slices whose images are kept, spread evenly over the noise."""


def measure(bench: Bench, model: InverseModel) -> tuple[dict[str, float], dict[str, Any]]:
    """Return a model's numbers over all test slices, and the images of a few.

    Arguments:
        bench: The pairs, and how many samples.
        model: A model with sparse codes.

    Returns:
        The numbers by name, and ``noise`` (k,) in per cent, ``truth``, ``mean`` and ``variance``
        (k, R, C) and ``omega`` (k, l).
    """
    test, level = bench.data.test, bench.data.test_level
    blocks = torch.arange(len(test.x)).split(BLOCK)
    parts = [sampled(bench, model, rows, False) for rows in blocks]
    row = {name: float(torch.cat([p[name] for p in parts]).double().mean()) for name in parts[0]}
    post = codes(model, test.y)
    omega = post.parameters()["omega"]
    row |= code_row(post, Generator(bench.device).manual_seed(0))
    row["omega"] = float(omega.double().mean())
    row["undecided"] = float(((omega > 0.1) & (omega < 0.9)).double().mean())
    if (rho := model.rho) is not None:
        row["rho"] = float(rho)
    row["parameters"] = float(model.n_parameters)
    rows = spread_out(level, SHOWN)
    seen = sampled(bench, model, rows, True)
    images = {"noise": level[rows], "truth": test.x[rows], "mean": seen["estimate"]}
    images |= {"variance": seen["std"].square(), "omega": omega[rows.to(omega.device)]}
    return row, {name: t.detach().cpu().float().numpy() for name, t in images.items()}


def simple_errors(bench: Bench) -> dict[str, float]:
    """Return the MSE over all test slices of each method that nothing is learned for."""
    x, errors = bench.data.test.x.to(bench.device), {}
    for name, _, method, _ in simple_methods(bench):
        blocks = torch.arange(len(x)).split(BLOCK)
        parts = [judge(method(rows), x[rows.to(x.device)])["mse"] for rows in blocks]
        errors[name] = float(torch.cat(parts).double().mean())
    return errors
