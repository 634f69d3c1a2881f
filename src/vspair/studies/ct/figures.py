"""The numbers behind the figures of section 4.3, and where they are kept.

``report.ct`` draws from the saved numbers alone: arrays by group and name, images
and gates in float16. A group, or a method in it, whose stage was not run is not there.

``comparison``
    Up to 7 test slices: ``noise`` (7,), rising, in per cent; ``sinogram`` (7, 248, 128);
    ``truth``, ``fbp``, ``tv``, ``regression``, ``vspair_paper``, ``vspair_paper_std``,
    ``vspair_calibrated``, ``vspair_calibrated_std``, ``dps`` (one trajectory) and ``dps_std``,
    each (7, 88, 88).
``omega``
    ``paper`` and ``calibrated``: at most 50,000 values over test slices and factors.
``perturbation_paper``, ``perturbation_calibrated``
    ``index`` (2, 4), ``steps`` (5,) in multiples of sigma, ``centre`` and ``truth`` (2, 88, 88),
    ``difference`` (2, 4, 5, 88, 88).
``by_noise``
    ``levels`` (bins,), the middle of each bin in per cent, and an MSE (bins,) for each method.
``history``
    ``PRESET_epoch``, ``PRESET_train`` and ``PRESET_validation``: the losses of each epoch;
    ``PRESET_best`` (1,): the epoch of the weights.
``hallucination``
    Up to 4 test slices: ``truth``, ``vspair``, ``vspair_excess``, ``dps``, ``dps_excess``, each
    (4, 88, 88); the excess is ``max(abs(estimate - truth) - 2 std, 0)``. The estimates are
    means of samples, vsPAIR's those of the calibrated preset where it is there, whose deviation
    has the decoder's noise in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vspair.runs.files import read_groups, write_groups
from vspair.studies.ct import drawing as report
from vspair.studies.ct.answers import Groups
from vspair.studies.ct.measures import excess, with_noise
from vspair.studies.ct.training import PRESETS

__all__ = ["FILE", "illustrate", "numbers", "redraw"]

FILE = "figures.npz"
COLUMNS = 7
"""Test slices of the comparison."""

HALLUCINATED = 4
"""Test slices of the map of hallucinations."""

_COMPARED = ("fbp", "tv", "regression", "vspair_paper", "vspair_calibrated", "dps")


def _picked(n: int, most: int) -> Any:
    """Return up to so many of n positions, spread evenly."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int))


def _comparison(answers: Mapping[str, Groups]) -> dict[str, Any]:
    seen = answers["test"]["shown"]
    columns = _picked(len(seen["index"]), COLUMNS)
    level = answers["test"]["test"]["level"][seen["index"]]
    found = {"noise": level, "sinogram": seen["sinogram"], "truth": seen["truth"]}
    for name in _COMPARED:
        part = answers.get(name, {}).get("shown", {})
        if part:
            found[name] = part.get("one", part["estimate"])
        if "std" in part:
            found[f"{name}_std"] = part["std"]
    return {name: values[columns] for name, values in found.items()}


def _hallucination(answers: Mapping[str, Groups]) -> dict[str, Any]:
    seen = answers["test"]["shown"]
    columns = _picked(len(seen["index"]), HALLUCINATED)
    truth = seen["truth"][columns]
    learned = [f"vspair_{p}" for p in reversed(PRESETS) if f"vspair_{p}" in answers]
    methods = {"vspair": learned[0]} if learned else {}
    methods |= {"dps": "dps"} if "dps" in answers else {}
    found: dict[str, Any] = {}
    for name, method in methods.items():
        part = answers[method]
        estimate, std = (torch.from_numpy(part["shown"][k]) for k in ("estimate", "std"))
        reported = with_noise(part) if method == "vspair_calibrated" else std
        estimate = estimate[columns]
        beyond = excess(estimate, reported[columns], torch.from_numpy(truth))
        found |= {name: estimate.numpy(), f"{name}_excess": beyond.numpy()}
    return {"truth": truth} | found if found else {}


def numbers(answers: Mapping[str, Groups], by_noise: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the figures show, as arrays by group and name.

    Arguments:
        answers: What the stages kept, by method.
        by_noise: The levels and the errors of each method.
    """
    found: dict[str, Any] = {"comparison": _comparison(answers), "by_noise": dict(by_noise)}
    found["hallucination"] = _hallucination(answers)
    found["omega"], found["history"] = {}, {}
    for preset in PRESETS:
        part = answers.get(f"vspair_{preset}")
        if part:
            found["omega"][preset] = part["omega"]["values"]
            found[f"perturbation_{preset}"] = part["perturbation"]
            found["history"] |= {f"{preset}_{k}": v for k, v in part["history"].items()}
    return {group: part for group, part in found.items() if part}


def illustrate(found: Mapping[str, Mapping[str, Any]], out: Path) -> str:
    """Save numbers by group and name to ``figures.npz`` and draw every figure.

    Images are kept to 1 %, which no eye can tell from more: the file is a third smaller.

    Arguments:
        found: What :func:`numbers` returned.
        out: The folder of the results.

    Returns:
        The figures with their captions, as Markdown.
    """
    kept = {group: _narrow(part) for group, part in found.items()}
    if "omega" in kept:
        kept["omega"] = {name: v.astype(np.float16) for name, v in kept["omega"].items()}
    write_groups(out / FILE, kept)
    return report.gallery(redraw(out))


def _narrow(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _rounded(v) if v.ndim > 2 else v for name, v in part.items()}


def _rounded(images: Any) -> Any:
    """Return images in float16 with 7 bits of each number; what is not 0 stays so."""
    mantissa, exponent = np.frexp(np.float64(images))
    return np.ldexp(np.round(128 * mantissa) / 128, exponent).astype(np.float16)


def redraw(folder: Path) -> list[Path]:
    """Draw every figure again from the saved numbers of a results folder; return their paths."""
    return report.draw_all(
        read_groups(folder / FILE, "Run the study first, without --draw."), folder
    )
