"""How long each method of the CT study takes for one slice, all timed in one run.

Networks that are not trained here are timed as they are drawn, which takes as long.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

import torch
from torch import Generator, Tensor

from vspair import runs
from vspair.methods.dps import Prior, dps
from vspair.methods.fbp import Fbp
from vspair.methods.regression import Regression
from vspair.model import InverseModel, build
from vspair.studies.ct.answers import digest, in_layout, keep, known, methods, shown
from vspair.studies.ct.data import GEOMETRY
from vspair.studies.ct.measures import clock, decoded
from vspair.studies.ct.training import (
    PRESETS,
    Bench,
    load_prior,
    load_regression,
    load_vspair,
    vspair_config,
)

__all__ = ["measure_seconds"]

TIMED_STEPS = 30
"""Steps that a DPS trajectory is timed over; all its steps cost the same."""


def _vspair(bench: Bench, preset: str) -> InverseModel:
    trained = load_vspair(bench, preset)
    if trained is not None:
        return trained
    config = vspair_config(preset, bench.scale)
    return build(config.model, GEOMETRY.shape, GEOMETRY.sinogram_shape).to(bench.device).eval()


def _regression(bench: Bench) -> Regression:
    trained = load_regression(bench)
    return trained or Regression(GEOMETRY.shape, bench.widths).to(bench.device).eval()


def _prior(bench: Bench) -> Prior:
    found = load_prior(bench) or Prior(GEOMETRY.shape, bench.widths).to(bench.device).eval()
    return in_layout(found.requires_grad_(False))


@torch.no_grad()
def _regress(network: Regression, fbp: Fbp, y: Tensor) -> Tensor:
    return network(fbp(y))


def measure_seconds(bench: Bench) -> bool:
    """Keep the seconds that each method takes for one slice, alone on the device."""
    device, scale = bench.device, bench.scale
    key = digest(bench.data.key, "seconds", asdict(scale), runs.machine(device))
    if known(bench.answers / "seconds.npz", key):
        return True
    row = shown(bench)[len(shown(bench)) // 2][None]
    y = bench.data.test.y[row].to(device)
    one: dict[str, float] = {}
    many: dict[str, float] = {}
    for method in methods(bench):
        if method is None:
            return False
        if method[0] != "regression":
            one[method[0]] = clock(partial(method[2], row), device)
    one["regression"] = clock(partial(_regress, _regression(bench), Fbp(GEOMETRY), y), device)
    for preset in PRESETS:
        model, name = _vspair(bench, preset), f"vspair_{preset}"
        one[name] = clock(partial(decoded, model, y), device)
        many[name] = clock(partial(decoded, model, y, scale.samples), device)
    prior, steps = _prior(bench), min(TIMED_STEPS, scale.steps)
    sample = partial(
        dps, prior, prior.sde, bench.data.problem.transform, y, GEOMETRY.shape,
        generator=Generator(device).manual_seed(0), steps=steps, zeta=0.0,
        inverse=prior.normaliser.inverse,
    )  # fmt: skip
    for count, kept in ((1, one), (scale.samples, many)):
        took = clock(partial(sample, trajectories=count), device, repeats=1)
        kept["dps"] = took * scale.steps / steps
    keep(bench, "seconds", key, {"one": one, "many": many})
    return True
