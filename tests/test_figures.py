"""Figures, tables and pages: a contract over all studies, and what the shared parts draw."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib import colormaps
from matplotlib._pylab_helpers import Gcf

from vspair.data import Pairs
from vspair.errors import VspairError
from vspair.factors import Factors, Split
from vspair.report import curves, figures
from vspair.report.figures import ColourScale
from vspair.report.heat_map import heat_map, readable
from vspair.report.images import ImageRow, image_grid, in_deviations, perturbation
from vspair.report.page import Picture, render
from vspair.report.tables import Table
from vspair.runs.files import Groups, read_groups
from vspair.studies.demo import drawing as demo
from vspair.studies.fits import error_fit

RESULTS = Path(__file__).parents[1] / "results"
STUDIES = {
    "gaussian": "gaussian",
    "mnist": "mnist",
    "heat": "heat",
    "ct": "ct",
    "ct_sweeps": "ct-sweeps-half",
}
"""The published results of each study."""
SETTINGS = ("noise.levels", "range", "factors", "steps", "alpha0", "beta0", "gamma_x", "epoch")
"""Ends of the names of arrays that say where something is drawn, not what."""


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw few pixels, to save time."""
    monkeypatch.setattr(figures, "DPI", 30)


@pytest.fixture(params=STUDIES)
def study(request: pytest.FixtureRequest) -> str:
    """The name of each study that has published figures."""
    return str(request.param)


def drawing(study: str) -> Any:
    return importlib.import_module(f"vspair.studies.{study}.drawing")


def published(study: str) -> Groups:
    return read_groups(RESULTS / STUDIES[study] / "figures.npz", "")


def expected(study: str) -> list[str]:
    """Return the names of the figures; those of the default where its numbers are published."""
    there = any("anchored" in group for group in published(study))  # of all of them, if of one
    return [k for k in drawing(study).CAPTIONS if there or not k.endswith("_anchored")]


def shown(draw: Callable[[Groups, Path], list[Path]], numbers: Groups, folder: Path) -> Any:
    """Return the figures that a study draws, by their names."""
    kept: list[Any] = []

    def keep_figure(figure: Any) -> bytes:
        kept.append(figure)
        return b""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "png", keep_figure)
        return {p.stem: figure for p, figure in zip(draw(numbers, folder), kept, strict=True)}


def words(figure: Any) -> list[str]:
    """Return every text on a sheet."""
    return [text.get_text() for axes in figure.axes for text in axes.texts if text.get_text()]


# -- the contract of every study ------------------------------------------------------------


def test_published_numbers_give_every_figure(study: str, tmp_path: Path) -> None:
    """The same bytes each time, a caption each, and no trace in matplotlib's global state."""
    module, before = drawing(study), dict(mpl.rcParams)
    paths = module.draw_all(published(study), tmp_path / "new" / "folder")
    assert [path.stem for path in paths] == expected(study)
    text = figures.captioned(paths, module.CAPTIONS)
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert f"]({path.name})\n\n{module.CAPTIONS[path.stem]}" in text
        assert (RESULTS / STUDIES[study] / path.name).stat().st_size < 500_000
    again = module.draw_all(published(study), tmp_path / "again")
    assert [p.read_bytes() for p in again] == [p.read_bytes() for p in paths]
    assert dict(mpl.rcParams) == before
    assert not Gcf.figs


def test_what_is_absent_is_left_out(study: str, tmp_path: Path) -> None:
    module, numbers = drawing(study), published(study)
    assert module.draw_all({}, tmp_path) == []
    assert module.draw_all({"unknown": {"other": np.zeros(3)}}, tmp_path) == []
    for group in numbers:
        fewer = shown(module.draw_all, {k: v for k, v in numbers.items() if k != group}, tmp_path)
        assert set(fewer) <= set(module.CAPTIONS)
        assert fewer


@pytest.mark.parametrize(
    "change",
    [
        lambda v: np.full_like(v, np.nan),
        lambda v: np.full_like(v, 0.25),
        lambda v: np.where(np.arange(v.size).reshape(v.shape) % 3, v, np.nan),
    ],
    ids=["nan", "constant", "holes"],
)
def test_numbers_that_say_nothing_are_drawn(
    change: Callable[[Any], Any], study: str, tmp_path: Path
) -> None:
    numbers = {
        group: {
            name: change(np.asarray(v))
            if v.dtype.kind == "f" and not f"{group}.{name}".endswith(SETTINGS)
            else v
            for name, v in part.items()
        }
        for group, part in published(study).items()
    }
    paths = drawing(study).draw_all(numbers, tmp_path)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    assert len(paths) >= len(expected(study)) - 2  # no line, no ratio: no figure of them


# -- single studies -------------------------------------------------------------------------


def test_ct_shows_the_methods_that_are_there(tmp_path: Path) -> None:
    draw, numbers = drawing("ct").draw_all, published("ct")
    numbers["hallucination"]["dps_excess"] = np.zeros((4, 88, 88))
    numbers["hallucination"]["dps_excess"][:, :22] = 0.1
    full = shown(draw, numbers, tmp_path)
    assert "beyond two\ndeviations:\n25.0 %\nof pixels" in words(full["hallucination"])
    assert {"no. 3494", "mean", "truth"} <= set(words(full["perturbation_calibrated"]))
    for name in ("truth", "dps", "dps_std", "vspair_paper"):
        del numbers["comparison"][name]
    fewer = shown(draw, numbers, tmp_path)["comparison"]
    assert "vsPAIR\n(paper)\ndeviation" in words(fewer)
    assert full["comparison"].get_figheight() > fewer.get_figheight() + 4 * 0.73
    (left, right) = full["overfitting"].axes
    assert (left.get_xlabel(), right.get_xlabel()) == ("epoch (kept: 505)", "epoch (kept: 12)")


def test_mnist_needs_no_samples_of_pair(tmp_path: Path) -> None:
    """PAIR has no spread; where all gates are closed, nothing can be perturbed."""
    numbers = published("mnist")
    alone = shown(drawing("mnist").draw_all, {"PAIR": numbers["PAIR"]}, tmp_path)
    assert list(alone) == ["reconstructions", "codes"]
    closed = numbers["vsPAIR (paper)"]
    closed["localised_dim"][:] = -1
    closed = {k: v for k, v in closed.items() if k not in ("walk_images", "variance_ratio")}
    found = shown(drawing("mnist").draw_all, {"vsPAIR (paper)": closed}, tmp_path)
    assert set(drawing("mnist").CAPTIONS) - set(found) == {"perturbation", "variance_ratio"}
    assert words(found["localised"]).count("no active dimension") == 3


def test_appendix_b_names_colours_and_dashes(tmp_path: Path) -> None:
    numbers = published("ct_sweeps")
    figure = shown(drawing("ct_sweeps").draw_all, numbers, tmp_path)["curves"]
    legend = figure.axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == [
        *(f"$\\beta_0$ = {b}" for b in (1, 2, 16, 64)),
        *(f"$\\alpha_0$ = {a}" for a in (1, 2, 16, 64)),
    ]
    drawn = figure.axes[0].get_lines()
    for line, alpha, beta in zip(
        drawn, numbers["curves"]["prior_alpha0"], numbers["curves"]["prior_beta0"], strict=True
    ):
        shades = {1: 0, 2: 1, 16: 2, 64: 3}
        assert line.get_color() == figures.PALETTE[shades[beta]]
        assert line.get_linestyle() == figures.DASHES[shades[alpha]]


def test_the_demo_draws_and_its_page_needs_nothing_else(tmp_path: Path) -> None:
    images = torch.rand(3, 16, 16)
    pairs, each = Pairs(images, images), images.square()
    parts = (0.25 * each, 0.25 * each, 0.5 * each, each)
    split = Split(*parts, *[torch.zeros_like(each)] * 3)
    answers = demo.Answers(pairs, images, torch.stack([images, images]), split)
    share = torch.tensor([0.25, 0.125, 0.125]).expand(3, 3)
    metrics = ["coverage_90", "coverage_50", "beyond_4_std", "active", "share_in_factors"]
    metrics += ["seconds_per_sample", "training_seconds"]
    rows = [{"metric": name, "model": "vsPAIR", "value": 0.5} for name in metrics]
    rows += [{"metric": "mse_mean", "model": name, "value": 0.25} for name in demo.METHODS]
    scale = {"train": 10_000, "test": 200, "factors": 64, "kinds": 4, "epochs": 5}
    summary = {"rows": rows, "scale": scale, "command": "<b>", "commit": "c", "machine": "m"}
    summary |= {"verdict": {"lines": ["Held-out error: 1 < 2", "Intervals: b", "Factors: c"]}}
    effect = images.expand(3, 3, 16, 16)
    factors = demo.NamedFactors(
        [["kind 1 at (2, 6)"] * 3] * 3, Factors(share, share, share, share, share, share, effect)
    )
    demo.write_report(tmp_path, summary, pairs, answers, factors)
    html = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert sorted(p.stem for p in (tmp_path / "figures").iterdir()) == sorted(demo.CAPTIONS)
    assert html.count('<img src="data:image/png;base64,') == 5
    assert "<li><strong>Held-out error.</strong> 1 &lt; 2</li>" in html
    assert "“&lt;b&gt;”" in html
    assert "carry 50 % of what all" in html
    assert "is 25.0 % of the doubt" in html
    assert "It was shown 10,000 examples" in html
    assert len({len(line) for line in demo.brief(summary).splitlines()[1:]}) == 1


# -- images ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scale", "limits", "extend"),
    [
        (ColourScale.between("", "grey", (0.0, 1.0), [-1, 0.5, 3]), (0, 1), "both"),
        (ColourScale.between("", "grey", (0.0, 1.0), [0, np.nan, 1]), (0, 1), "neither"),
        (ColourScale.between("", "grey", (2.0, 2.0)), (1.5, 2.5), "neither"),
        (ColourScale.values("", [-1.0, 3.0], [[2.0]]), (-1, 3), "neither"),
        (ColourScale.greys("", [0.01, 1.0], [-1.0]), (0, pytest.approx(1, rel=1e-3)), "both"),
        (ColourScale.spread("", [0.0, np.inf, 4.0], share=1), (0, 4), "neither"),
        (ColourScale.change("", [-4.0, 1.0], share=1), (-4, 4), "neither"),
        (ColourScale.spread(""), (0, 1), "neither"),
    ],
)
def test_scales_say_where_they_are_cut(
    scale: ColourScale, limits: tuple[float, float], extend: str
) -> None:
    assert scale.limits == limits
    assert scale.extend == extend


def test_images_stand_as_they_are_and_missing_pixels_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image = np.array([[0.0, 0.0, 1.0, 1.0], [np.nan, np.nan, 1.0, 1.0]]).repeat([1, 3], axis=0)
    monkeypatch.setattr(figures, "DPI", 40)
    sheet = image_grid([ImageRow("", [image], ColourScale("", "gray", (0.0, 1.0)))], 1.0)
    sheet.figure.canvas.draw()
    pixels = np.asarray(sheet.figure.canvas.buffer_rgba())[..., :3].astype(int)
    extent = sheet.ground.images[0].get_extent()
    left, top = round(extent[0] * 40), round(extent[3] * 40)
    assert pixels[top + 5, left + 10].tolist() == [0, 0, 0]
    assert pixels[top + 5, left + 30].tolist() == [255, 255, 255]
    missing = [int(figures.MISSING[i : i + 2], 16) for i in (1, 3, 5)]
    assert pixels[top + 25, left + 10].tolist() == missing


def test_rows_share_bars_and_regions_are_outlined_between_pixels() -> None:
    values = ColourScale.values("values", [0.0, 1.0])
    spread = ColourScale.spread("spread", [0.0, 1e-3], share=1)
    region = np.zeros((4, 4), bool)
    region[0, 1:3] = True
    rows = [
        ImageRow("first", [np.eye(4)] * 2, values, above=["a", "b"], heading="new"),
        ImageRow("second", [np.eye(4), None], values, below=["c", ""], marked=0),
        ImageRow("third", [np.eye(4)] * 2, spread, regions=[region, None], near=True),
    ]
    sheet = image_grid(rows, groups=[1, 1])
    assert [axes.get_ylabel() for axes in sheet.figure.axes[1:]] == [
        "values",
        "spread ($10^{-3}$)",
    ]
    assert set(words(sheet.figure)) == {"first", "second", "third", "a", "b", "c", "new"}
    assert len(sheet.ground.images) == 5
    (outline,) = sheet.ground.collections
    assert len(outline.get_segments()) == 4  # two below, one at each side, none along the edge


def test_uneven_rows_are_refused() -> None:
    scale = ColourScale.values("", [0.0])
    with pytest.raises(VspairError, match=r"\[1, 2\]"):
        image_grid([ImageRow("", np.eye(2)[None], scale), ImageRow("", [np.eye(2)] * 2, scale)])
    with pytest.raises(VspairError, match="at least one"):
        image_grid([])


def test_the_unmoved_image_stands_in_the_middle() -> None:
    change = np.arange(2 * 3 * 5, dtype=float).reshape(1, 2, 3, 5, 1)
    centre, truth = np.full((1, 5, 1), -1.0), np.full((1, 5, 1), -2.0)
    scales = ColourScale.change("change", change), ColourScale.values("values", centre)
    steps = [in_deviations(step) for step in (-2, 0, 1)]
    assert steps == [f"{figures.MINUS}2$\\sigma$", "mean", "+$\\sigma$"]
    labels = {"test": ["no. 1", "no. 2"]}
    figure = perturbation(labels, change, steps, scales, centre=centre, truth=truth)
    first = [float(image.get_array()[0, 0]) for image in figure.axes[0].images]
    assert first == [-2, 0, -1, 10, 15, -1, 25]
    assert {image.get_clim() for image in figure.axes[0].images} == {s.limits for s in scales}
    both = perturbation(labels, change, steps, scales, images=-change)
    first = [float(image.get_array()[0, 0]) for image in both.axes[0].images]
    assert first == [0, -5, -10, 0, 5, 10, -15, -20, -25, 15, 20, 25]


# -- curves ---------------------------------------------------------------------------------


def test_the_legend_has_the_order_of_the_lines() -> None:
    levels = np.arange(4)
    errors = {"FBP": [1e-3] * 4, "other": [2.0] * 4, "DPS": [0.1] * 4, "ridge": [np.nan] * 4}
    figure = curves.errors_over_noise(levels, errors, "noise", beyond=(0, 1), loose=["DPS"])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["DPS", "FBP"]
    assert [line.get_linestyle() for line in figure.axes[0].get_lines()] == ["None", "-"]
    assert figure.axes[0].get_yscale() == "log"
    near = curves.errors_over_noise(levels, {"FBP": 1 + levels / 9}, "noise", spaced=True)
    assert near.axes[0].get_yscale() == "linear"
    assert curves.errors_over_noise(levels, {"FBP": [np.nan] * 4}, "noise") is None


def test_the_line_through_variance_and_error_is_that_of_least_squares() -> None:
    error, variance = np.array([1.0, 2.0, 4.0, np.nan]), np.array([1.0, 3.0, 4.0, 9.0])
    fit = error_fit(error, variance, "blue")
    slope, intercept = np.polyfit(error[:3], variance[:3], 1)
    at, line, low, high = fit.line
    np.testing.assert_allclose(line, intercept + slope * at)
    assert (low < line).all()
    assert (line < high).all()
    assert fit.r == pytest.approx(np.corrcoef(error[:3], variance[:3])[0, 1])
    figure = curves.uncertainty_against_error({"one": fit, "two": fit, "three": fit}, "x", "y")
    assert [axes.get_title() for axes in figure.axes] == [
        f"{name}: $r$ = {fit.r:.2f}" for name in ("one", "two", "three")
    ]
    constant = error_fit(np.ones(5), np.ones(5), "blue")
    assert np.isnan(constant.r)
    assert constant.line.shape == (4, 0)


def test_shares_of_a_histogram_sum_to_one_hundred() -> None:
    edges = np.linspace(0, 1, 11)
    heights = curves.shares(np.array([0.05, 0.05, 1.0, 1.2, np.nan]), edges)
    assert heights.tolist() == [50, *[0] * 8, 50]
    assert curves.least_share([heights]) == 0
    assert curves.least_share([np.array([99.0, 0.0, 0.3])]) == pytest.approx(0.1)


# -- heat maps ------------------------------------------------------------------------------


def test_numbers_in_a_heat_map_can_be_told_apart() -> None:
    for values, wanted in (
        ([[0.0123, 35.0], [0.2, np.nan]], ["0.0123", "35", "0.2", "none"]),
        ([[1e-5, 1e30], [1.0, 2.0]], ["1e-05", "1e+30", "1", "2"]),
        ([[0.869, 0.9], [0.87, 0.9017]], ["0.869", "0.900", "0.870", "0.902"]),
    ):
        axes = figures.new_figure(2, 2).subplots()
        heat_map(axes, np.array(values))
        assert [text.get_text() for text in axes.texts] == wanted


def test_text_can_be_read_on_every_colour() -> None:
    """Contrast by the definition of the web's accessibility guidelines: at least 4.5."""
    for share in np.linspace(0, 1, 101):
        shade = colormaps[figures.MAPS["values"]](float(share))
        colour = np.array(shade[:3])
        linear = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
        luminance = float(linear @ [0.2126, 0.7152, 0.0722])
        text = 1.0 if readable(shade) == "white" else 0.0
        high, low = max(luminance, text) + 0.05, min(luminance, text) + 0.05
        assert high / low >= 4.5


# -- files and pages ------------------------------------------------------------------------


@pytest.fixture
def noise() -> Any:
    """A figure that is written as a large file."""
    rows = [ImageRow("", torch.rand(6, 99, 99).numpy(), ColourScale.values("", [0.0, 1.0]))]
    return image_grid(rows).figure


def test_large_files_have_few_colours(noise: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from io import BytesIO

    from PIL import Image

    full = figures.png(noise)
    monkeypatch.setattr(figures, "LARGE", 1000)
    fewer = figures.png(noise)
    assert len(fewer) < len(full) / 2
    before, after = (Image.open(BytesIO(png)).convert("RGB") for png in (full, fewer))
    assert len(after.getcolors() or range(257)) <= 256
    assert np.abs(np.asarray(before, int) - np.asarray(after, int)).mean() < 1


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    kept = tmp_path / "figure.png"
    kept.write_bytes(b"earlier")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(VspairError, match="No space left"):
            figures.write_figures({"figure": lambda: figures.new_figure(1, 1)}, tmp_path)
    assert kept.read_bytes() == b"earlier"
    assert [p.name for p in tmp_path.iterdir()] == ["figure.png"]
    assert figures.write_figures({"figure": lambda: None}, tmp_path) == []


def test_tables_and_pictures_are_escaped_and_know_their_size(noise: Any) -> None:
    table = Table(("name", "value"), (("<b>", "1"), ("b", "2")), "a & b", strong=(1,))
    picture = Picture(figures.png(noise), "1 < 2. More")
    assert picture.size == (
        round(96 * noise.get_figwidth()),
        round(96 * noise.get_figheight()),
    )
    html = table.__html__() + picture.__html__()
    assert "<b>" not in html
    assert html.count('class="strong"') == 1
    assert "a &amp; b" in html
    assert 'alt="1 &lt; 2"' in html
    with pytest.raises(Exception, match="is undefined"):
        render("studies/demo/page.html")
