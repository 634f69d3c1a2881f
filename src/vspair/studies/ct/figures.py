"""The numbers behind the figures of section 4.3, from the answers that the stages kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from vspair.evaluation import excess
from vspair.runs import Groups
from vspair.studies.ct.methods import PRESETS

__all__ = ["numbers"]

COMPARED = (
    "fbp", "tv", "regression", "vspair_paper", "vspair_calibrated", "dps", "ridge_unet",
    "fbp_unet", "vspair_anchored", "vspair_fbp",
)  # fmt: skip
"""The methods of the comparison."""

_COLUMNS = 7
"""Test slices of the comparison."""

_HALLUCINATED = 4
"""Test slices of the map of hallucinations."""


def _picked(n: int, most: int) -> Any:
    """Return up to so many of n positions, spread evenly."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int))


def _compared(answers: Mapping[str, Groups]) -> dict[str, Any]:
    seen, level = answers["test"]["shown"], answers["test"]["test"]["level"]
    found = {"noise": level[seen["index"]], "sinogram": seen["sinogram"], "truth": seen["truth"]}
    for name in COMPARED:
        part = answers.get(name, {}).get("shown", {})
        if part:
            found[name] = part["sample" if name == "dps" else "estimate"]
        if "std" in part:
            found[f"{name}_std"] = part["std"]
    columns = _picked(len(seen["index"]), _COLUMNS)
    return {name: values[columns] for name, values in found.items()}


def _hallucinated(answers: Mapping[str, Groups]) -> dict[str, Any]:
    seen = answers["test"]["shown"]
    columns = _picked(len(seen["index"]), _HALLUCINATED)
    truth = torch.from_numpy(seen["truth"][columns])
    found: dict[str, Any] = {}
    ours = [f"vspair_{preset}" for preset in reversed(PRESETS)]
    there = {"vspair": next((name for name in ours if name in answers), ""), "dps": "dps"}
    there["anchored"] = "vspair_anchored"
    for name, method in there.items():
        if method not in answers:
            continue
        shown, noise = answers[method]["shown"], 0.0
        if method == "vspair_calibrated":
            noise = float(answers[method]["row"]["decoder_noise"])
        estimate, std = (torch.from_numpy(shown[k][columns]) for k in ("estimate", "std"))
        beyond = excess(estimate, (std.square() + noise**2).sqrt(), truth)
        found |= {name: estimate.numpy(), f"{name}_excess": beyond.numpy()}
    return {"truth": truth.numpy()} | found if found else {}


def numbers(answers: Mapping[str, Groups], by_noise: Mapping[str, Any]) -> Groups:
    """Return what the figures show, as arrays by group and name; images in float16.

    A group, or a method in it, whose stage was not run is not there. ``comparison`` has up to 7
    test slices by rising noise: ``noise`` (7,) in per cent, ``sinogram``, ``truth`` and a method's
    images, and their deviation under its name with ``_std``; ``by_noise`` the MSE of each method
    at ``levels`` (bins,); ``hallucination`` up to 4 test slices: means of samples, and by how much
    they miss the truth beyond two deviations (``_excess``); ``omega`` and ``history`` have one
    array, or four, of each preset; ``perturbation_PRESET`` what :func:`perturbed` returns.

    Arguments:
        answers: What the stages kept, by method.
        by_noise: The middle of each bin of the noise, and the MSE of each method in it.
    """
    found: Groups = {
        "comparison": _compared(answers),
        "by_noise": dict(by_noise),
        "hallucination": _hallucinated(answers),
        "omega": {},
        "history": {},
    }
    for preset in (*PRESETS, "anchored"):
        if part := answers.get(f"vspair_{preset}"):
            found["omega"][preset] = part["omega"]["values"].astype(np.float16)
            found[f"perturbation_{preset}"] = part["perturbation"]
            history = part.get("history", {})
            found["history"] |= {f"{preset}_{k}": v for k, v in history.items()}
    return {
        group: {name: _small(name, v) for name, v in part.items()}
        for group, part in found.items()
        if part
    }


def _small(name: str, values: Any) -> Any:
    """Return values as they are, and images rounded: no eye can tell, and the file is half."""
    if values.ndim <= 2:
        return values
    return _stepped(values) if name == "difference" else _rounded(values)


def _stepped(changes: Any) -> Any:
    """Return changes in float16, in steps of a hundredth of the largest but a few."""
    largest = np.quantile(np.abs(np.float64(changes)), 0.999)
    step = 2.0 ** np.floor(np.log2(max(largest, 1e-9) / 100))
    return (np.round(changes / step) * step).astype(np.float16)


def _rounded(images: Any) -> Any:
    """Return images in float16 with 7 bits of each number; what is not 0 stays so."""
    mantissa, exponent = np.frexp(np.float64(images))
    return np.ldexp(np.round(128 * mantissa) / 128, exponent).astype(np.float16)
