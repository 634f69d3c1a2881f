"""How the paper perturbs a factor for its localisation table, settled by what reproduces it.

Its text gives the range of a figure, 400 %, but neither the step behind the table nor whether
the mean code or a sample is perturbed. Trained models are measured with each choice.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Generator

from vspair import runs
from vspair.errors import VspairError
from vspair.model import InverseModel
from vspair.problems.inpainting import InpaintingData, InpaintingProblem
from vspair.studies.mnist import study
from vspair.studies.mnist.readings import some_tests
from vspair.uncertainty import always_active, best_localised, draw_active, localisation

__all__ = ["BASES", "FACTORS", "compare", "measure"]

BASES = ("mean", "sample")
FACTORS = (0.25, 0.5, 0.75, 1.0, 4.0)
COLUMNS = {
    "localization_median_stable": "median ratio, always active",
    "localization_corrupted_mse_stable": "corrupted MSE, always active",
    "localization_median_any": "median ratio, all",
    "localization_mean_any": "mean ratio, all",
}
IMAGES = 500
"""Test images that a choice is judged by."""


def compare(
    data: InpaintingData, out: Path, *, folder: Path, device: str = "auto", images: int = IMAGES
) -> str:
    """Measure the trained models of the study with each base and factor.

    Arguments:
        data: The pairs; only test pairs are used.
        out: The folder of the results: ``perturbations.json`` and ``perturbations.md``.
        folder: The folder of the runs; models that are not there are left out.
        device: Where to decode.
        images: How many test images.

    Returns:
        The table as Markdown.
    """
    few, rows = some_tests(data, images), []
    for name in study.NAMES:
        job = study.Job(name, study.shipped(name))
        if name == "PAIR" or not (folder / job.label).exists():
            continue
        rows += [{"model": name, **row} for row in measure(study.load(job, folder, device), few)]
    if not rows:
        raise VspairError(
            f"{folder} holds no trained model of the study. Train first, by `vspair reproduce "
            "mnist`, or name the folder of the trainings by --runs."
        )
    machine = runs.machine(device)
    made = {"commit": runs.commit(), "machine": machine, "images": len(few.x_test)}
    text = _text(rows, made, few)
    runs.make_folder(out)
    runs.write_text(out / "perturbations.json", json.dumps(made | {"rows": rows}, indent=1) + "\n")
    runs.write_text(out / "perturbations.md", text)
    return text


@torch.no_grad()
def measure(model: InverseModel, data: InpaintingData, seed: int = 0) -> list[dict[str, Any]]:
    """Return the localisation table's values of a model, one row for each base and factor."""
    device = model.device
    generator = Generator(device).manual_seed(seed)
    x, y = data.x_test.to(device), data.y_test.to(device)
    post, region = model.posterior(y), InpaintingProblem.changed(x, y)
    counts = draw_active(post, study.SAMPLES, generator)
    chosen = {"stable": always_active(counts, study.SAMPLES), "any": counts > 0}
    bases = {"mean": post.code.mean, "sample": post.code.rsample(generator)}
    rows = []
    for base in BASES:
        for factor in FACTORS:
            found = localisation(post, region, factor, base=bases[base], dims=chosen["any"])
            row: dict[str, Any] = {"base": base, "factor": factor}
            for name, allowed in chosen.items():
                best = best_localised(found, allowed).summary()
                row[f"localization_median_{name}"] = best["median_ratio"]
                row[f"localization_mean_{name}"] = best["mean_ratio"]
                row[f"localization_corrupted_mse_{name}"] = best["mean_inside"]
            rows.append(row)
    return rows


def _text(rows: list[dict[str, Any]], made: dict[str, Any], data: InpaintingData) -> str:
    lines = [f"| model | perturbed | by | {' | '.join(COLUMNS.values())} |"]
    lines.append("|---" * (len(COLUMNS) + 3) + "|")
    for name in dict.fromkeys(row["model"] for row in rows):
        for row in rows:
            if row["model"] == name:
                lines.append(_line(name, row["base"], f"{100 * row['factor']:g} %", row))
        if name in study.PAPER:
            lines.append(_line(f"**{name}, paper**", "?", "?", study.PAPER[name]))
    return (
        "# How far and from where the paper perturbs\n\n"
        "Made by `vspair reproduce mnist --perturbations` at commit "
        f"{made['commit']} on {made['machine']}, from the trained models of seed 0 and "
        f"{made['images']:,} test images. Perturbed is the mean code or one sample. "
        f"{study.in_both_units(data)}\n\n" + "\n".join(lines) + "\n"
    )


def _line(model: str, base: str, by: str, row: dict[str, Any]) -> str:
    return f"| {model} | {base} | {by} | {' | '.join(f'{row[c]:.3g}' for c in COLUMNS)} |"
