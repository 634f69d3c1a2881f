"""The figures of the CT study and of appendix B, from made numbers."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.axes import Axes
from torch import Generator

from vspair.datasets.phantoms import chest_phantoms
from vspair.report import figures as plots
from vspair.report.figures import Scale
from vspair.report.heat_map import heat_map, readable
from vspair.studies.ct import drawing as ct
from vspair.studies.ct import figures as ct_figures
from vspair.studies.ct_sweeps import drawing as ct_sweeps

N, SIDE = 3, 16
SETTINGS = {"noise", "levels", "steps", "index", "alpha0", "beta0", "gamma_x"}
SETTINGS |= {"prior_alpha0", "prior_beta0", "gamma_gamma_x"}
GROUPS = {
    "comparison": "comparison",
    "omega": "omega",
    "perturbation_paper": "perturbation_paper",
    "perturbation_calibrated": "perturbation_calibrated",
    "by_noise": "noise",
    "history": "overfitting",
    "hallucination": "hallucination",
    "beta": "beta_prior",
    "gamma": "gamma_x",
    "curves": "curves",
}
"""The figure of each group of numbers."""


@pytest.fixture(scope="module", autouse=True)
def coarse() -> Iterator[None]:
    """Draw few pixels, to save time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "DPI", 40)
        yield


def perturbation(truth: Any, rng: np.random.Generator) -> dict[str, Any]:
    steps = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    change = rng.normal(size=(2, 4, 1, SIDE, SIDE)) * steps[:, None, None]
    index = np.array([[7, 4001, 12, 90], [7, 4001, 12, 90]])
    centre = {"index": index, "steps": steps, "centre": truth[:2] * 0.9}
    return centre | {"difference": 0.01 * change, "truth": truth[:2]}


@pytest.fixture
def numbers() -> dict[str, Any]:
    """Numbers of all figures, small and plausible."""
    rng = np.random.default_rng(0)
    truth = chest_phantoms(4, Generator().manual_seed(0), size=SIDE).numpy()
    few, epochs, levels = truth[:N], np.arange(1.0, 31.0), np.arange(0.5, 10)
    comparison: dict[str, Any] = {"noise": np.array([0.2, 5.0, 9.9]), "truth": few}
    comparison["sinogram"] = rng.random((N, 20, 12))
    for i, name in enumerate(ct.METHODS):
        comparison[name] = np.float16(few + 0.02 * i * rng.normal(size=few.shape))
    for i, name in enumerate(("vspair_paper", "vspair_calibrated", "dps")):
        comparison[f"{name}_std"] = (i + 1) * 0.01 * rng.random(few.shape)
    history = {f"{p}_epoch": epochs for p in ct.PRESETS}
    history |= {f"{p}_train": 1 / epochs for p in ct.PRESETS}
    history |= {f"{p}_validation": 1 / epochs + 0.02 * epochs for p in ct.PRESETS}
    return {
        "comparison": comparison,
        "omega": {p: rng.beta(0.3, 2, 500) for p in ct.PRESETS},
        "perturbation_paper": perturbation(truth, rng),
        "perturbation_calibrated": perturbation(truth, rng),
        "by_noise": {"levels": levels}
        | {name: (i + 1) * 1e-3 + 0 * levels for i, name in enumerate(ct.METHODS)},
        "history": history,
        "hallucination": {"truth": truth, "vspair": truth * 0.9, "dps": truth * 1.1}
        | {k: rng.random(truth.shape) * (truth > 0.2) for k in ("vspair_excess", "dps_excess")},
        "beta": {"alpha0": np.array([1, 2, 16]), "beta0": np.array([1, 64])}
        | {"nnz": rng.integers(20, 2000, (3, 2)) * 1.0, "mse": rng.random((3, 2)) / 500},
        "gamma": {"gamma_x": np.array([0.001, 0.1]), "truth": truth[0], "mean": truth[:2]}
        | {"variance": rng.random((2, SIDE, SIDE)) * 1e-4, "omega": rng.random((2, 300))},
        "curves": {"prior_alpha0": np.array([64.0, 1, 64]), "prior_beta0": np.array([1.0, 2, 2])}
        | {"prior_epoch": epochs, "prior_rho": rng.random((3, 30)), "gamma_epoch": epochs[:9]}
        | {"prior_kl": 900 / epochs * np.ones((3, 1)), "gamma_rho": rng.random((2, 9))}
        | {
            "gamma_kl": 10 ** rng.random((2, 9)) ** 0.1 * [[1], [9]],
            "gamma_gamma_x": np.array([0.001, 1.0]),
        },
    }


def draw(numbers: dict[str, Any], folder: Path) -> list[Path]:
    return ct.draw_all(numbers, folder) + ct_sweeps.draw_sweeps(numbers, folder)


def changed(numbers: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return numbers with all arrays but the settings changed."""
    return {
        group: {k: v if k in SETTINGS else change(np.float32(v)) for k, v in part.items()}
        for group, part in numbers.items()
    }


def pictures(figure: Any) -> list[Any]:
    """Return the images of a figure, row by row, without those of colour bars."""
    every = [ax for ax in figure.findobj(Axes) if ax.images and ax.get_label() != "<colorbar>"]
    shown = [(ax.get_position().y0, ax.get_position().x0, ax.images[0]) for ax in every]
    return [image for *_, image in sorted(shown, key=lambda s: (-round(s[0], 4), s[1]))]


def words(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.texts]


# -- all figures ----------------------------------------------------------------------------


def test_every_figure_is_drawn_and_has_a_caption(numbers: dict[str, Any], tmp_path: Path) -> None:
    paths = draw(numbers, tmp_path / "new")
    assert [p.stem for p in paths] == [*ct.FIGURES, *ct_sweeps.FIGURES] == list(GROUPS.values())
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in paths)
    text = ct.gallery(paths[:-3]) + ct_sweeps.gallery(paths[-3:], {"curves": "How long."})
    assert text.endswith("a column a study. How long.")
    for path in paths:
        assert f"]({path.name})" in text
    before = [p.read_bytes() for p in paths]
    assert [p.read_bytes() for p in draw(numbers, tmp_path / "new")] == before


@pytest.mark.parametrize("group", GROUPS)
def test_what_is_absent_is_left_out(
    group: str, numbers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def note(figures: dict[str, Any], _: Path) -> list[Path]:
        seen.extend(figures)
        return []

    monkeypatch.setattr(plots, "write_all", note)
    del numbers[group]
    draw(numbers, Path("unused"))
    assert seen == [name for key, name in GROUPS.items() if key != group]


def test_groups_without_anything_to_show_are_left_out(tmp_path: Path) -> None:
    nothing = np.zeros(2)
    empty = {
        "comparison": {"noise": nothing}, "omega": {"other": nothing},
        "history": {"paper_train": nothing}, "hallucination": {"other": nothing},
        "beta": {"alpha0": nothing, "beta0": nothing}, "curves": {"other": nothing},
    }  # fmt: skip
    assert draw(empty, tmp_path) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda v: np.full_like(v, np.nan),
        lambda v: np.full_like(v, 0.25),
        np.zeros_like,
        lambda v: np.where(np.arange(v.size).reshape(v.shape) % 3, v, np.nan),
        lambda v: np.full_like(v, -np.inf),
    ],
    ids=["nan", "constant", "zero", "holes", "infinite"],
)
def test_numbers_that_say_nothing_are_drawn(
    change: Callable[[Any], Any], numbers: dict[str, Any], tmp_path: Path
) -> None:
    assert len(draw(changed(numbers, change), tmp_path)) == len(GROUPS)


# -- images ---------------------------------------------------------------------------------


def test_methods_share_scales_and_stand_as_they_are(numbers: dict[str, Any]) -> None:
    part = numbers["comparison"]
    figure = ct.draw_comparison(part)
    order = [
        "sinogram", "truth", "fbp", "tv", "regression", "vspair_paper", "vspair_paper_std",
        "vspair_calibrated", "vspair_calibrated_std", "dps", "dps_std",
    ]  # fmt: skip
    shown = pictures(figure)
    assert len(shown) == N * len(order)
    for i, image in enumerate(shown):
        name = order[i // N]
        assert np.allclose(image.get_array(), part[name][i % N]), name
        assert image.origin == "upper"
    for kind, wanted in (("_std", True), ("_std", False)):
        rows = [i for i, name in enumerate(order) if name.endswith(kind) == wanted and i > 0]
        scales = {shown[N * i].get_clim() for i in rows}
        assert len(scales) == 1
    top = float(part["truth"].max())
    assert shown[N].get_clim()[1] == pytest.approx(top, rel=0.05)
    assert "5.0 %" in words(figure)


def test_absent_methods_leave_no_gap(numbers: dict[str, Any]) -> None:
    part = numbers["comparison"]
    tall = ct.draw_comparison(part).get_figheight()
    for name in ("truth", "dps", "dps_std", "vspair_paper"):
        del part[name]
    figure = ct.draw_comparison(part)
    assert len(pictures(figure)) == N * 7
    assert figure.get_figheight() < tall - 4 * 0.7
    assert "vsPAIR\n(paper)\ndeviation" in words(figure)


def test_the_mean_code_stands_in_the_middle(numbers: dict[str, Any]) -> None:
    part = numbers["perturbation_paper"]
    figure = ct.draw_perturbation(part, "paper")
    shown = [image.get_array() for image in pictures(figure)]
    assert len(shown) == 2 * (4 * 5 + 2)
    for b in range(2):
        same = [np.allclose(image, part["centre"][b]) for image in shown]
        assert sum(same) == 4 + 1
        for k in range(4):
            assert any(np.allclose(image, part["difference"][b, k, 4]) for image in shown)
    limits = {i.get_clim() for i in pictures(figure) if i.get_cmap().name == plots.MAPS["change"]}
    ((low, high),) = limits
    assert low == -high
    assert {"no. 4001", "mean", "test 2: truth"} <= set(words(figure))


def test_the_share_of_pixels_beyond_is_written(numbers: dict[str, Any]) -> None:
    part = numbers["hallucination"]
    part["dps_excess"] = np.zeros((4, SIDE, SIDE))
    part["dps_excess"][:, : SIDE // 4] = 0.1
    figure = ct.draw_hallucination(part)
    assert "beyond two\ndeviations:\n25.0 %\nof pixels" in words(figure)
    assert len(pictures(figure)) == 4 * 5


def test_scales_say_where_they_are_cut() -> None:
    assert Scale.of("", "gray", [np.array([-1, 0.5, 3])], (0.0, 1.0)).extend == "both"
    assert Scale.of("", "gray", [np.array([0, np.nan, 1])], (0.0, 1.0)).extend == "neither"
    assert Scale.of("", "gray", [np.array([2.0])], (2.0, 2.0)).limits == (1.5, 2.5)
    assert Scale.spread("", np.array([0.0, np.inf, 4.0]), share=1).limits == (0, 4)
    assert Scale.change("", np.array([-4.0, 1.0]), share=1).limits == (-4, 4)


# -- curves ---------------------------------------------------------------------------------


def test_the_legend_has_the_order_of_the_lines(numbers: dict[str, Any]) -> None:
    part = numbers["by_noise"]
    part["DPS"] = part.pop("dps") * 100
    part["mean image"] = np.full(10, 0.0055)
    part["tv"][:] = np.nan
    figure = ct.draw_noise(part)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    expected = ["DPS", "mean image", "vsPAIR (calibrated)", "vsPAIR (paper)", "regression", "FBP"]
    assert labels == expected
    assert figure.axes[0].get_yscale() == "log"
    near = {"levels": part["levels"], "fbp": 1 + part["levels"] / 100}
    assert ct.draw_noise(near).axes[0].get_yscale() == "linear"


def test_the_epoch_of_the_weights_is_marked(numbers: dict[str, Any]) -> None:
    """It is the one that training kept, not that of the least loss; none where none is known."""
    part = numbers["history"]
    part["paper_validation"][::2] = np.nan
    part["paper_validation"][13] = -3.0
    part["paper_best"] = np.array([20.0])
    figure = ct.draw_overfitting(part)
    assert [ax.get_title() for ax in figure.axes] == ["vsPAIR (paper)", "vsPAIR (calibrated)"]
    assert figure.axes[0].get_xlabel() == "epoch (kept: 20)"
    dots = [line for line in figure.axes[0].get_lines() if line.get_marker() == "o"]
    expected = (20.0, part["paper_validation"][19])
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in dots] == [expected]
    assert figure.axes[1].get_xlabel() == "epoch"
    assert not [line for line in figure.axes[1].get_lines() if line.get_marker() == "o"]
    assert figure.axes[0].get_yscale() == "linear"
    low, high = figure.axes[0].get_ylim()
    assert low < -3 < high


def test_shares_of_a_histogram_sum_to_one_hundred() -> None:
    edges = np.linspace(0, 1, 11)
    shares = plots.share_of(np.array([0.05, 0.05, 1.0, 1.2, np.nan]), edges)
    assert shares.tolist() == [50, *[0] * 8, 50]
    assert plots.floor_of([shares]) == 0
    assert plots.floor_of([np.array([99.0, 0.0, 0.3])]) == pytest.approx(0.1)


# -- appendix B -----------------------------------------------------------------------------


def test_numbers_in_cells_can_be_told_apart() -> None:
    for cells, words in (
        ([[0.0123, 35.0], [0.2, np.nan]], ["0.0123", "35", "0.2", "none"]),
        ([[1e-5, 1e30], [1.0, 2.0]], ["1e-05", "1e+30", "1", "2"]),
        ([[0.869, 0.9], [0.87, 0.9017]], ["0.869", "0.900", "0.870", "0.902"]),
    ):
        axes = plots.new_figure(2, 2).subplots()
        heat_map(axes, np.array(cells))
        assert [text.get_text() for text in axes.texts] == words


def test_text_can_be_read_on_every_colour() -> None:
    """Contrast by the definition of the web's accessibility guidelines: at least 4.5."""
    for share in np.linspace(0, 1, 101):
        shade = colormaps[plots.MAPS["values"]](float(share))
        colour = np.array(shade[:3])
        linear = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
        luminance = float(linear @ [0.2126, 0.7152, 0.0722])
        text = 1.0 if readable(shade) == "white" else 0.0
        high, low = max(luminance, text) + 0.05, min(luminance, text) + 0.05
        assert high / low >= 4.5


def test_cells_carry_their_numbers_and_missing_ones_say_so(numbers: dict[str, Any]) -> None:
    part = numbers["beta"]
    part["mse"] = np.array([[0.0045, 0.00211], [np.nan, 0.005], [0.003, 0.004]])
    part["nnz"] = np.array([[1383.3, 20], [5, 6], [np.nan, 8]])
    left, right = ct_sweeps.draw_beta(part).axes
    assert [t.get_text() for t in left.texts] == ["1383", "20", "5", "6", "none", "8"]
    found = [t.get_text() for t in right.texts]
    assert found == ["0.00450", "0.00211", "none", "0.00500", "0.00300", "0.00400"]
    assert [t.get_text() for t in right.get_xticklabels()] == ["1", "64"]
    assert [t.get_text() for t in right.get_yticklabels()] == ["1", "2", "16"]


@pytest.mark.parametrize("apart", [2.0, 100.0])
def test_rows_have_one_scale_of_variance(apart: float, numbers: dict[str, Any]) -> None:
    part = numbers["gamma"]
    part["variance"][1] = apart * part["variance"][0]
    figure = ct_sweeps.draw_gamma(part)
    spread = [i for i in pictures(figure) if i.get_cmap().name == plots.MAPS["spread"]]
    assert len({image.get_clim() for image in spread}) == 1
    assert (type(spread[0].norm).__name__ == "LogNorm") == (apart > 6)
    assert "$\\gamma_x$ = 0.001" in words(figure)


def test_saved_images_are_right_to_1_per_cent_and_stay_off_0() -> None:
    """The share of pixels beyond two deviations is counted by what is not 0."""
    images = np.random.default_rng(0).normal(size=(2, 30, 30)).astype(np.float32)
    images[0, :, :7] = 0.0
    images[1, 0] = 1e-5
    kept = ct_figures._narrow({"images": images})["images"]
    np.testing.assert_allclose(kept, images, rtol=0.01)
    assert ((kept != 0) == (images != 0)).all()


def test_each_training_has_its_curves(numbers: dict[str, Any]) -> None:
    part = numbers["curves"]
    rho, other, kl, last = every = ct_sweeps.draw_curves(part).axes
    names = ("prior_rho", "gamma_rho", "prior_kl", "gamma_kl")
    for axes, name in zip(every, names, strict=True):
        assert np.array_equal([line.get_ydata() for line in axes.get_lines()], part[name])
        epoch = part[f"{name.split('_')[0]}_epoch"]
        assert all(np.array_equal(line.get_xdata(), epoch) for line in axes.get_lines())
    assert rho.get_ylim() == other.get_ylim() == (0, 1)
    assert (kl.get_yscale(), last.get_yscale()) == ("log", "log")
    one = {key: values for key, values in part.items() if key.startswith("gamma")}
    assert len(ct_sweeps.draw_curves(one).axes) == 2


def test_the_legends_of_curves_name_their_colours_and_dashes(numbers: dict[str, Any]) -> None:
    rho, other, *_ = ct_sweeps.draw_curves(numbers["curves"]).axes
    looks = [(line.get_color(), line.get_linestyle()) for line in rho.get_lines()]
    assert looks[0][0] != looks[1][0] == looks[2][0]  # by beta0
    assert looks[1][1] != looks[0][1] == looks[2][1]  # by alpha0

    def legend(axes: Any) -> dict[str, Any]:
        shown = axes.get_legend()
        return {
            text.get_text(): (line.get_color(), line.get_linestyle())
            for text, line in zip(shown.get_texts(), shown.get_lines(), strict=True)
        }

    assert legend(rho) == {
        "$\\beta_0$ = 1": (looks[0][0], "-"),
        "$\\beta_0$ = 2": (looks[1][0], "-"),
        "$\\alpha_0$ = 1": (plots.GREY, looks[1][1]),
        "$\\alpha_0$ = 64": (plots.GREY, looks[0][1]),
    }
    colours = [line.get_color() for line in other.get_lines()]
    assert colours[0] != colours[1]
    assert [look[0] for look in legend(other).values()] == colours
    assert list(legend(other)) == ["$\\gamma_x$ = 0.001", "$\\gamma_x$ = 1"]
