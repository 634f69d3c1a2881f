"""The figures of the MNIST study, from models that were never trained."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from torch import Generator, Tensor
from typer.testing import CliRunner

from vspair.cli import app
from vspair.config import ModelConfig, ModelName
from vspair.errors import VspairError
from vspair.model import InverseModel, PairedAutoencoder, build
from vspair.networks import NetworkConfig
from vspair.problems.inpainting import InpaintingData, mnist_pairs, toy_digits
from vspair.report import figures as plots
from vspair.studies.mnist import drawing as report
from vspair.studies.mnist import drawing_images as mnist_images
from vspair.studies.mnist import figures, study
from vspair.studies.mnist.drawing_images import Numbers
from vspair.studies.results import Row
from vspair.uncertainty import localisation

SIZE, SURE = 12, 5
KINDS: dict[str, ModelName] = {
    "PAIR": "PAIR",
    "vPAIR": "vPAIR",
    "sVAE": "sVAE",
    "vsPAIR (paper)": "vsPAIR",
    "vsPAIR (calibrated)": "vsPAIR",
}
Measured = dict[str, tuple[InverseModel, dict[str, Tensor]]]


def make(kind: ModelName, gates: Tensor | None = None) -> InverseModel:
    """Return an untrained model; gates open half of the time unless biases are given."""
    network = NetworkConfig("conv", width=2, depth=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(len(kind))
        model = build(ModelConfig(kind, SIZE, 6, network, network), (28, 28), (28, 28))
    if gates is not None:
        assert isinstance(model, PairedAutoencoder)
        last = list(model.inverse_map.parameters())[-1]
        last.data[2 * SIZE :] = gates
    return model.eval()


@pytest.fixture(scope="module", autouse=True)
def coarse() -> Iterator[None]:
    """Draw few pixels, to save time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "DPI", 40)
        yield


@pytest.fixture(scope="module")
def data() -> InpaintingData:
    return mnist_pairs(toy_digits(51, seed=0), seed=0, train=30)


@pytest.fixture(scope="module")
def measured(data: InpaintingData) -> Measured:
    """All models of the study; only the calibrated one has factors that are always active."""
    sure = torch.zeros(SIZE)
    sure[:SURE] = 20.0
    found = {}
    for name, kind in KINDS.items():
        model = make(kind, sure if "calibrated" in name else None)
        found[name] = (model, study.measure(model, data)[1])
    return found


@pytest.fixture(scope="module")
def shared(measured: Measured) -> Tensor:
    errors = [measured[name][1]["mse30"] for name in figures.JUDGES]
    return figures.at_percentiles(torch.stack(errors).mean(0))


@pytest.fixture(scope="module")
def numbers(measured: Measured, data: InpaintingData, shared: Tensor) -> Numbers:
    return {k: figures.numbers(m, data, images, shared) for k, (m, images) in measured.items()}


@pytest.fixture(scope="module")
def drawn(
    measured: Measured, data: InpaintingData, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("figures")
    return folder, figures.illustrate(measured, data, folder)


@pytest.mark.parametrize("name", KINDS)
def test_percentile_images_are_at_the_percentiles_of_the_models_own_error(
    name: str, measured: Measured, numbers: Numbers, data: InpaintingData
) -> None:
    error = measured[name][1]["mse" if name == "PAIR" else "mse30"]
    part = numbers[name]
    for place, index, mse in zip(
        figures.PERCENTILES, part["percentile_index"], part["percentile_mse"], strict=True
    ):
        assert mse == pytest.approx(float(error[index]))
        below = int((error < error[index]).sum())
        assert abs(below - place * (len(error) - 1)) <= 0.5
    assert np.allclose(part["percentile_x"], data.x_test[part["percentile_index"]], atol=1e-3)


@pytest.mark.parametrize("name", KINDS)
def test_numbers_have_the_shapes_of_what_they_show(
    name: str, numbers: Numbers, shared: Tensor
) -> None:
    part, images = numbers[name], (3, 28, 28)
    expected: dict[str, tuple[int, ...]] = {"code_sample": (3, SIZE), "code_nnz": (3,)}
    for group in ("shared", "percentile"):
        expected |= {f"{group}_{k}": images for k in ("x", "y", "region", "mean", "error")}
    if name != "PAIR":
        expected |= {"shared_sample": images, "shared_variance": images}
        expected |= {"walk_dims": (3,), "walk_images": (3, 7, 28, 28)}
        expected |= {"localised_change": images, "localised_walk": (3, 7, 28, 28)}
        expected |= dict.fromkeys(("scatter_error", "variance_ratio", "ratio_stable"), (21,))
    assert {k: part[k].shape for k in expected} == expected
    assert ("code_omega" in part) == (name not in ("PAIR", "vPAIR"))
    assert part["shared_index"].tolist() == shared.tolist()
    assert np.array_equal(part["code_nnz"], (part["code_sample"] != 0).sum(1))
    assert all(np.isfinite(v).all() for k, v in part.items() if "ratio" not in k and k[:2] != "in")
    assert sum(v.nbytes for v in part.values()) < 200_000


def test_what_pair_does_not_have_is_left_out(numbers: Numbers) -> None:
    kinds = {k.split("_")[0] for k in numbers["PAIR"]}
    assert kinds == {"range", "percentile", "shared", "code"}
    assert not {"shared_variance", "shared_sample", "code_omega"} & set(numbers["PAIR"])


def test_the_same_models_give_the_same_numbers(
    measured: Measured, numbers: Numbers, data: InpaintingData, shared: Tensor
) -> None:
    name = "vsPAIR (calibrated)"
    again = figures.numbers(*measured[name][:1], data, measured[name][1], shared)
    assert again.keys() == numbers[name].keys()
    assert all(np.array_equal(v, numbers[name][k], equal_nan=True) for k, v in again.items())


def test_perturbed_factors_are_always_active_where_there_are_enough(
    measured: Measured, numbers: Numbers, data: InpaintingData, shared: Tensor
) -> None:
    sure, unsure = numbers["vsPAIR (calibrated)"], numbers["vsPAIR (paper)"]
    assert sure["walk_stable"].all()
    assert (sure["walk_dims"] < SURE).all()
    assert not unsure["walk_stable"].any()
    post = measured["vsPAIR (calibrated)"][0].posterior(data.y_test[shared[1]][None])
    mean = post.mean(30, Generator().manual_seed(0))[0]
    assert np.allclose(sure["walk_images"][:, 3], mean, atol=2e-3)
    assert np.abs(sure["walk_images"][:, 0] - sure["walk_images"][:, 3]).max() > 1e-3


@pytest.mark.parametrize("name", ["vsPAIR (calibrated)", "vsPAIR (paper)"])
def test_change_maps_show_the_localised_dimension(
    name: str, measured: Measured, numbers: Numbers, shared: Tensor, data: InpaintingData
) -> None:
    (model, images), part = measured[name], numbers[name]
    kind = "stable" if "calibrated" in name else "any"
    assert part["localised_dim"].tolist() == images[f"dim_{kind}"][shared].tolist()
    assert part["localised_stable"].tolist() == [kind == "stable"] * 3
    assert part["localised_ratio"] == pytest.approx(images[f"ratio_{kind}"][shared].numpy())
    post, region = model.posterior(data.y_test[shared]), torch.tensor(part["shared_region"])
    ratios = localisation(post, region, 4.0).ratio
    for change, inside, dim, ratio in zip(
        part["localised_change"], part["shared_region"], part["localised_dim"], ratios, strict=True
    ):
        change = change.astype(np.float64)
        found = change[inside].mean() / change[~inside].mean()
        assert found == pytest.approx(float(ratio[dim]), rel=0.02)


def test_every_figure_is_drawn_and_named_in_the_text(drawn: tuple[Path, str]) -> None:
    folder, text = drawn
    for name in report.FIGURES:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert f"]({name}.png)" in text


def test_saved_numbers_give_the_same_pictures(
    drawn: tuple[Path, str],
    numbers: Numbers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, _ = drawn
    shutil.copy(folder / figures.FILE, tmp_path)
    kept = report.load(tmp_path / figures.FILE)
    assert list(kept) == list(KINDS)
    for name, part in numbers.items():
        assert list(kept[name]) == list(part)
        for key, values in part.items():
            assert np.array_equal(kept[name][key], values, equal_nan=values.dtype.kind == "f")
    quick = ("perturbation", "uncertainty_error", "variance_ratio", "localisation")
    monkeypatch.setattr(report, "FIGURES", {k: report.FIGURES[k] for k in quick})
    done = CliRunner().invoke(app, ["reproduce", "mnist", "--draw", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    for name in quick:
        assert f"{name}.png" in done.output
        again = (tmp_path / f"{name}.png").read_bytes()
        assert again == (folder / f"{name}.png").read_bytes(), name


def test_a_model_whose_gates_are_all_closed_is_drawn(
    data: InpaintingData, shared: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No factor is active, nothing varies, and there is nothing to perturb."""
    model = make("vsPAIR", torch.full((SIZE,), -40.0))
    part = figures.numbers(model, data, study.measure(model, data)[1], shared)
    assert part["code_nnz"].tolist() == [0, 0, 0]
    assert part["localised_dim"].tolist() == [-1, -1, -1]
    assert not {"walk_images", "variance_ratio"} & set(part)
    monkeypatch.setattr(
        report,
        "FIGURES",
        {k: v for k, v in report.FIGURES.items() if k not in ("reconstructions", "percentiles")},
    )
    names = {p.stem for p in report.draw_all({"vsPAIR (paper)": part}, tmp_path)}
    assert names == set(report.FIGURES) - {"perturbation", "variance_ratio"}


@pytest.mark.parametrize("figure", ["reconstructions", "localised", "codes"])
def test_rows_are_named_after_their_models(
    figure: str, numbers: Numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(mnist_images, "write", lambda figure, _: seen.append(figure))
    report.FIGURES[figure][0](numbers, Path("unused.png"))
    shown = [ax.get_ylabel() for ax in seen[0].findobj(Axes) if ax.yaxis.get_visible()]
    found = {label.replace("\n", " ").removesuffix(" $|z_j|$") for label in shown}
    assert found >= set(KINDS) - ({"PAIR"} if figure == "localised" else set())


def test_pair_alone_has_two_figures(numbers: Numbers, tmp_path: Path) -> None:
    paths = report.draw_all({"PAIR": numbers["PAIR"]}, tmp_path)
    assert [p.name for p in paths] == ["reconstructions.png", "codes.png"]


@pytest.mark.parametrize("study_name", ["mnist", "gaussian"])
def test_drawing_without_numbers_says_what_is_missing(study_name: str, tmp_path: Path) -> None:
    command = ["reproduce", study_name, "--draw", "--out", str(tmp_path)]
    for content, words in ((None, "There is no file"), (b"no zip", "is damaged")):
        if content is not None:
            (tmp_path / "figures.npz").write_bytes(content)
        done = CliRunner().invoke(app, command)
        assert isinstance(done.exception, VspairError)
        assert words in str(done.exception)
        assert str(tmp_path / "figures.npz") in str(done.exception)
    assert [p.name for p in tmp_path.iterdir()] == ["figures.npz"]


def test_gaussian_figures_are_drawn_again(tmp_path: Path) -> None:
    saved = Path(__file__).parents[1] / "results" / "gaussian" / "figures.npz"
    shutil.copy(saved, tmp_path)
    done = CliRunner().invoke(app, ["reproduce", "gaussian", "--draw", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    for name in ("samples.png", "traversal.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_tables_show_squared_errors_in_both_units(data: InpaintingData) -> None:
    rows = [Row("vsPAIR", "paper", "mse", 0.0712, spread=0.004, paper=0.0762)]
    rows += [Row("ridge", "", "mse", 0.4), Row("vsPAIR", "paper", "nnz", 40.0)]
    scale: dict[str, Any] = {"train": 30, "test": 21, "epochs": 1}
    text = study._text(rows, data, scale, "command", "cpu")
    whole, scaled = text.split("## Squared errors in units of [0, 1]")
    assert "0.0712 ± 0.004 (paper 0.0762)" in whole
    assert "0.0178 ± 0.001 (paper 0.0762)" in scaled
    assert "| 0.4 |" not in scaled
    assert "0.1" in scaled.split("ridge")[1]
    assert "nnz" not in scaled
