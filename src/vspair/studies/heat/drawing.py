"""The figures of section 4.4, drawn from saved numbers: arrays by preset and name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from vspair.report import curves, figures
from vspair.report.figures import PRESETS, ColourScale
from vspair.report.images import ImageRow, image_grid, in_deviations, perturbation
from vspair.runs.files import Groups
from vspair.studies.fits import error_fit
from vspair.studies.words import read_words
from vspair.uncertainty import DEVIATIONS

__all__ = ["CAPTIONS", "draw_all"]

Part = Mapping[str, Any]

BEYOND = 5e-5, 20.0
"""The ends of the axis of errors; what lies beyond is written in words."""


def _reconstruction(part: Part, preset: str) -> Any:
    """Draw observations, truths, means of samples and their variance, row under row."""
    named = {"y": "observation y", "x": "truth x", "mean": "reconstruction"}
    values = ColourScale.values("temperature", *(part[name] for name in named))
    # A single pixel may stand out so far that all others would look the same.
    spread = ColourScale.spread("variance", part["variance"], share=0.995)
    top: dict[str, Any] = {"above": [f"test {i + 1}" for i in range(len(part["y"]))]}
    rows = [ImageRow(label, part[name], values) for name, label in named.items()]
    rows[0] = ImageRow(named["y"], part["y"], values, heading=f"vsPAIR ({preset})", **top)
    return image_grid([*rows, ImageRow("variance", part["variance"], spread)], 1.2).figure


def _perturbation(part: Part, preset: str) -> Any:
    """Draw what moving each of K factors does to the decoded mean codes of a few test pairs."""
    change, centre = part["walk_change"], part["walk_centre"]
    labels = {
        f"vsPAIR ({preset}), test {b + 1}": [
            f"no. {k}\n$\\hat\\omega$ = {value:.2f}"
            for k, value in zip(part["walk_dims"], omega, strict=True)
        ]
        for b, omega in enumerate(part["walk_omega"])
    }
    scale = ColourScale.change("difference to the mean", change, share=1.0)
    scales = scale, ColourScale.values("temperature", centre)
    return perturbation(
        labels, change, [in_deviations(s) for s in DEVIATIONS], scales, 0.8, centre=centre
    )


def _uncertainty_error(presets: Groups) -> Any:
    """Draw predicted variance over error, one point a test pair, with the line and r."""
    fits = {
        f"vsPAIR ({preset})": error_fit(part["image_mse"], part["image_variance"], PRESETS[preset])
        for preset, part in presets.items()
    }
    words = "mean MSE of samples", "mean pixelwise variance"
    return curves.uncertainty_against_error(fits, *words)


def _source(presets: Groups, shown: int = 3) -> Any:
    """Draw variance maps with the source's disc, and the share of variance inside it."""
    rows: list[ImageRow] = []
    for preset, part in presets.items():
        variance, disc = part["variance"][:shown], part["disc"][:shown]
        scale = ColourScale.spread("variance", variance, share=1.0)
        above = [] if rows else [f"test {i + 1}" for i in range(len(variance))]
        rows.append(ImageRow(f"vsPAIR\n({preset})", variance, scale, above, regions=disc))
    if not rows:
        return None
    sheet = image_grid(rows, 1.3, bottom=2.9, right=2.3 * max(0, len(rows) - 2))
    width = sheet.width / len(rows)
    for i, (preset, part) in enumerate(presets.items()):
        axes = sheet.axes(0.6 + i * width, sheet.height - 2.5, width - 0.75, 1.95)
        _shares(axes, part, PRESETS[preset])
        axes.set_title(f"vsPAIR ({preset})")
        axes.set_ylabel("" if i else "share in the disc (%)")
        figures.style_axes(axes, 9)
    return sheet.figure


def _shares(axes: Any, part: Part, colour: str) -> None:
    """Draw the share of variance and of error inside the disc over the share of area."""
    area, variance, error = (
        100 * part[f"image_{name}_inside"] for name in ("area", "variance", "error")
    )
    axes.axline((0, 0), slope=1, color=figures.GREY, linewidth=1.2, linestyle="--")
    rings: dict[str, Any] = {"facecolors": "none", "edgecolors": figures.GREY, "linewidths": 0.8}
    axes.scatter(area, error, s=18, label=f"error, mean {error.mean():.0f} %", **rings)
    style: dict[str, Any] = {"color": colour, "alpha": 0.8, "linewidths": 0}
    axes.scatter(area, variance, s=18, label=f"variance, mean {variance.mean():.0f} %", **style)
    most = figures.finite(variance, error).max(initial=1.0)
    axes.set(xlim=(0, 1.15 * figures.finite(area).max(initial=1.0)), ylim=(0, 1.5 * most))
    axes.set_xlabel(f"share of the area (%), mean {area.mean():.0f} %")
    figures.legend(axes, "upper left", fontsize=9, handletextpad=0.2)


def _noise(part: Part) -> Any:
    """Draw the error of every method over the observation noise."""
    return curves.errors_over_noise(
        [100 * level for level in part.get("levels", ())],
        {name: values for name, values in part.items() if name != "levels"},
        "observation noise (% of the observations' deviation)",
        y_label="MSE of the best estimate", beyond=BEYOND, spaced=True,
    )  # fmt: skip


CAPTIONS = read_words("heat").captions
"""What each figure shows, by its file name."""


def draw_all(numbers: Groups, folder: Path) -> list[Path]:
    """Draw every figure whose numbers are at hand into a folder; return their paths."""
    presets = {preset: numbers[preset] for preset in PRESETS if preset in numbers}
    draws: dict[str, Callable[[], Any]] = {}
    for name, draw in (("reconstruction", _reconstruction), ("perturbation", _perturbation)):
        draws |= {f"{name}_{preset}": partial(draw, presets[preset], preset) for preset in presets}
    draws["uncertainty_error"] = partial(_uncertainty_error, presets)
    draws["source"] = partial(_source, presets)
    draws["noise"] = partial(_noise, numbers.get("noise", {}))
    return figures.write_figures(draws, folder)
