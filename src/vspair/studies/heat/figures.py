"""The numbers behind the figures of section 4.4, and where they are kept.

``report.heat`` draws from the saved numbers alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from vspair.codes import SpikeSlab
from vspair.model import InverseModel
from vspair.problems.heat import HeatPairs
from vspair.runs.files import read_groups, write_groups
from vspair.studies.factors import leading, perturbed
from vspair.studies.heat import drawing as report
from vspair.studies.heat.measures import FEW

__all__ = ["FILE", "illustrate", "numbers", "redraw"]

FILE = "figures.npz"
SHOWN = 4
"""Test pairs that are shown: the first ones."""

WALKED = 2
"""Test pairs whose factors are perturbed."""


@torch.no_grad()
def numbers(model: InverseModel, test: HeatPairs, images: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return what the figures show of one trained model, as arrays by name.

    Arguments:
        model: The model.
        test: The test pairs.
        images: The values of each test pair that ``heat_measures.measure`` returned.
    """
    post, few = model.posterior(test.y), model.posterior(test.y[:SHOWN])
    assert isinstance(few.code, SpikeSlab)
    drawn = few.sample(FEW, Generator(model.device).manual_seed(0))
    dims = leading(post)
    centre, change = perturbed(post, torch.arange(WALKED), dims)
    found = {
        "x": test.x[:SHOWN],
        "y": test.y[:SHOWN],
        "mean": drawn.mean(0),
        "variance": drawn.var(0),
        "disc": test.source[:SHOWN].disc(test.x.shape[-1]),
        "walk_dims": dims,
        "walk_omega": few.code.omega[:WALKED, dims],
        "walk_centre": centre,
        "walk_change": change,
    }
    found |= {f"image_{name}": values for name, values in images.items()}
    return {name: _array(values) for name, values in found.items()}


def _array(values: Tensor) -> Any:
    values = values.detach().cpu()
    return values.float().numpy() if values.is_floating_point() else values.numpy()


def illustrate(found: Mapping[str, Mapping[str, Any]], out: Path) -> str:
    """Save numbers by group and name to ``figures.npz`` and draw every figure.

    Arguments:
        found: The numbers of each preset, and those of the group ``noise``.
        out: The folder of the results.

    Returns:
        The figures with their captions, as Markdown.
    """
    write_groups(out / FILE, found)
    return report.gallery(redraw(out))


def redraw(folder: Path) -> list[Path]:
    """Draw every figure again from the saved numbers of a results folder; return their paths."""
    return report.draw_all(
        read_groups(folder / FILE, "Run the study first, without --draw."), folder
    )
