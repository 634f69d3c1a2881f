"""The two figures of the Gaussian study (section 4.1), drawn from saved numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vspair.report.figures import INK, PALETTE, new_figure, quiet

__all__ = ["draw_samples", "draw_traversal"]

Numbers = dict[str, dict[str, Any]]
EXACT, LEARNED = PALETTE[0], PALETTE[1]
WALKS = (PALETTE[1], PALETTE[2], PALETTE[3], PALETTE[4])


def _legend(axes: Any, **more: Any) -> None:
    """Add a legend on a white ground, so that points behind it do not disturb."""
    plain = {"fontsize": 8, "title_fontsize": 8, "edgecolor": "none", "framealpha": 0.85}
    axes.legend(**{"loc": "upper left", **plain, **more})


def _ellipse(mean: Any, covariance: Any, deviations: float = 2.0) -> Any:
    """Return points on the ellipse so many deviations from the mean, with shape (200, 2)."""
    angle = np.linspace(0, 2 * np.pi, 200)
    circle = np.stack((np.cos(angle), np.sin(angle)), axis=-1)
    return mean + deviations * circle @ np.linalg.cholesky(covariance).T


def _limits(parts: Numbers, b: int) -> tuple[Any, Any]:
    """Return limits that make a square around the exact samples of one observation."""
    truth = next(iter(parts.values()))["truth"][:, b]
    centre, half = (truth.min(0) + truth.max(0)) / 2, 0.7 * (truth.max(0) - truth.min(0)).max()
    return centre - half, centre + half


def _frame(axes: Any, parts: Numbers, b: int) -> None:
    low, high = _limits(parts, b)
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
    axes.locator_params(nbins=4)
    quiet(axes)


def _halves(height: float, numbers: Numbers) -> tuple[Any, list[tuple[Any, dict[str, Any]]]]:
    """Return a figure and, for each preset, its part of the figure and its numbers."""
    figure = new_figure(9.5, height * len(numbers))
    parts = list(np.atleast_1d(figure.subfigures(len(numbers), 1)))
    for part, preset in zip(parts, numbers, strict=True):
        part.suptitle(f"{preset} objective", color=INK, fontsize=12)
    return figure, list(zip(parts, numbers.values(), strict=True))


def draw_samples(numbers: Numbers, path: Path) -> None:
    """Draw exact and learned samples, the two-deviation ellipse and the gates, for each preset."""
    figure, halves = _halves(4.7, numbers)
    for half, part in halves:
        axes = half.subplots(2, 3, height_ratios=(3, 1))
        for b in range(3):
            _cloud(axes[0, b], numbers, part, b)
            _gates(axes[1, b], part["omega"][b])
        axes[0, 0].set_ylabel("$x_2$")
        axes[1, 0].set_ylabel("$\\hat\\omega$")
        _legend(axes[0, 0], markerscale=3)
    figure.savefig(path)


def _cloud(axes: Any, numbers: Numbers, part: dict[str, Any], b: int) -> None:
    dots: dict[str, Any] = {"s": 4, "alpha": 0.45, "linewidths": 0}
    axes.scatter(*part["truth"][:, b].T, color=EXACT, label="exact", **dots)
    axes.scatter(*part["learned"][:, b].T, color=LEARNED, label="learned", **dots)
    axes.plot(*_ellipse(part["mean"][b], part["covariance"]).T, color=EXACT, linewidth=1.2)
    cross: dict[str, Any] = {"marker": "x", "markersize": 9, "markeredgewidth": 2.2}
    axes.plot(*part["mean"][b], color="#003a5c", **cross)
    axes.plot(*part["approximate_mean"][b], color="#7a3000", **cross)
    axes.set_title(f"observation {b + 1}")
    axes.set_xlabel("$x_1$")
    _frame(axes, numbers, b)


def _gates(axes: Any, omega: Any) -> None:
    axes.bar(range(1, len(omega) + 1), omega, color=LEARNED)
    axes.set(ylim=(0, 1.05), xlabel="latent dimension", xticks=range(1, len(omega) + 1))
    quiet(axes)


def draw_traversal(numbers: Numbers, path: Path) -> None:
    """Draw how x moves along the four likeliest dimensions, over the eigenvectors."""
    figure, halves = _halves(4.7, numbers)
    for half, part in halves:
        axes = half.subplots(1, 3)
        for b in range(3):
            _walk(axes[b], numbers, part, b)
        axes[0].set_ylabel("$x_2$")
    figure.savefig(path, bbox_inches="tight")


def _walk(axes: Any, numbers: Numbers, part: dict[str, Any], b: int) -> None:
    axes.scatter(*part["truth"][:, b].T, s=4, alpha=0.2, linewidths=0, color=EXACT)
    values, vectors = np.linalg.eigh(part["covariance"])
    for value, vector in zip(values, vectors.T, strict=True):
        ends = part["mean"][b] + np.outer((-3, 3), vector * np.sqrt(value))
        axes.plot(*ends.T, color=INK, linewidth=1.0, linestyle="--", zorder=1)
    for walk, k, colour in zip(part["walks"][b], part["likely"][b], WALKS, strict=True):
        label = f"{k + 1}: $\\hat\\omega$ = {part['omega'][b][k]:.2f}"
        axes.plot(*walk.T, ".", markersize=4, color=colour, label=label)
    axes.set_title(f"observation {b + 1}")
    axes.set_xlabel("$x_1$")
    # Below the axes: inside, it would cover points for some operator.
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18), "ncols": 2}
    _legend(axes, title="dimension", columnspacing=1.0, **below)
    _frame(axes, numbers, b)
