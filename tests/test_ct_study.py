"""The CT study at a scale of seconds: it stops and goes on, and every method is asked alike."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from vspair import config as configs
from vspair.cli import app
from vspair.datasets.phantoms import chest_phantoms
from vspair.errors import VspairError
from vspair.evaluation import excess
from vspair.fitting import fit
from vspair.methods import Fbp, LargeRidge
from vspair.methods.plain import Plain, PlainNetwork
from vspair.methods.tv_admm import tv_admm
from vspair.model import build
from vspair.problems.ct import LODOPAB_PIXEL, Geometry, RayTransform
from vspair.report import figures as report_figures
from vspair.runs import Groups, Run, read_groups, read_tensors
from vspair.studies.ct.anchored import ADDED
from vspair.studies.ct.data import GEOMETRY, HALF, CtData, bin_edges, bin_of, load, spread_out
from vspair.studies.ct.methods import PRESETS, WEIGHTS, config_of
from vspair.studies.ct.study import SMOKE, STUDY, Scale
from vspair.studies.ct.tables import NAMES, PAPER, TABLES, by_noise
from vspair.studies.results import Row
from vspair.studies.study import Study

WHOLE = replace(SMOKE, train=20, test=9, samples=4, epochs=1, steps=2, tv_iterations=1)
FEW = replace(WHOLE, half=True)
PUBLISHED = Path(__file__).parents[1] / "results" / "ct"
"""Half the resolution takes a quarter of the time."""
UNDRAWN = replace(STUDY, draw=lambda *_: [])
FIGURES = {
    "comparison", "comparison_anchored", "omega", "perturbation_paper", "perturbation_calibrated",
    "perturbation_anchored", "noise", "overfitting", "hallucination",
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("no_data_folder", "few_pixels")


@pytest.fixture(scope="module")
def few_pixels() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_figures, "DPI", 40)
        yield


@pytest.fixture(scope="module")
def data(no_data_folder: None) -> CtData:
    return load(FEW)


def run(
    folder: Path, only: str = "", scale: Scale = FEW, study: Any = UNDRAWN, **more: Any
) -> str | None:
    """Run stages of the study, without figures, with the results beside the trainings."""
    how: dict[str, Any] = {"out": folder / "out", "folder": folder / "runs", "device": "cpu"}
    return study.reproduce(scale, only=only, **how | more)


def summary(out: Path) -> Any:
    return json.loads((out / "summary.json").read_text())


def rows(out: Path) -> dict[tuple[str, str, str, str], float]:
    """Return the values of a results folder but for times, by method, metric and condition."""
    return {
        (r["model"], r.get("preset", ""), r["metric"], r.get("condition", "")): r["value"]
        for r in summary(out)["rows"]
        if not r["metric"].startswith("seconds")
    }


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory, no_data_folder: None, few_pixels: None
) -> Path:
    """Run the study at once."""
    folder = tmp_path_factory.mktemp("whole")
    assert run(folder, study=STUDY)
    return folder


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    """Return a copy of the study that may be changed."""
    shutil.copytree(whole, tmp_path / "copy")
    return tmp_path / "copy"


# -- stages and records -----------------------------------------------------------------------


def test_it_stops_in_time_and_continues_to_the_same_rows(whole: Path, tmp_path: Path) -> None:
    assert run(tmp_path, minutes=1e-9) is None
    assert {p.name for p in (tmp_path / "runs").iterdir()} == {"paper", "records.json"}
    with pytest.raises(VspairError, match="paper did not come to an end"):
        run(tmp_path, "answers,report")
    assert run(tmp_path) is not None
    assert rows(tmp_path / "out") == rows(whole / "out")


def test_methods_without_training_are_reported_alone(no_data_folder: None, tmp_path: Path) -> None:
    text = run(tmp_path, "answers,report")
    assert "| TV-ADMM |" in str(text)
    part = {model for model, *_ in rows(tmp_path / "out")}
    assert part == {"mean image", "FBP", "FBP with a Hann window", "TV-ADMM"}
    assert "hallucination" not in read_groups(tmp_path / "out" / "figures.npz", "")


def test_what_is_done_is_not_done_again(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {p: p.stat().st_mtime_ns for p in (copy / "runs").rglob("*") if p.is_file()}
    monkeypatch.setattr("vspair.runs.commit", lambda: "another")
    assert run(copy)
    after = {p: p.stat().st_mtime_ns for p in (copy / "runs").rglob("*") if p.is_file()}
    assert after == before
    assert "another" not in (copy / "runs" / "records.json").read_text()
    assert summary(copy / "out")["commit"] != "another"


def test_damaged_answers_are_made_again(whole: Path, copy: Path) -> None:
    answers = copy / "runs" / "answers"
    for name in ("fbp.npz", "blocks/fbp-000.npz", "blocks/dps-samples-000.npz"):
        (answers / name).write_bytes((answers / name).read_bytes()[:-40])
    (answers / "vspair_paper.npz").unlink()
    with pytest.raises(VspairError, match=r"fbp.npz is damaged: .*remove it"):
        run(copy, "report")
    assert run(copy, "answers,dps,report")
    assert rows(copy / "out") == rows(whole / "out")


def test_lost_records_are_made_again_without_a_false_origin(copy: Path) -> None:
    (copy / "runs" / "records.json").write_text("{")
    with pytest.raises(VspairError, match=r"records.json is damaged: .*Restore it, or remove it"):
        run(copy)
    (copy / "runs" / "records.json").unlink()
    assert run(copy)
    assert summary(copy / "out")["commit"] == "unknown"


def test_the_report_needs_the_answers_alone(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole / "runs" / "answers", tmp_path / "runs" / "answers")
    shutil.rmtree(tmp_path / "runs" / "answers" / "blocks")
    shutil.copy(whole / "runs" / "records.json", tmp_path / "runs")
    text = run(tmp_path, "report", Scale(), STUDY, data_dir=tmp_path / "nowhere")
    assert text == (whole / "out" / "README.md").read_text()
    assert str(whole) not in str(text)


@pytest.mark.parametrize(
    ("stage", "change", "words"),
    [
        ("calibrated", {"epochs": 2}, "epochs is 1 there and 2 here"),
        ("answers", {"samples": 5}, "samples is 4 there and 5 here"),
        ("dps", {"dps_images": 3}, "dps_images is 4 there and 3 here"),
        ("regression", {"regression_epochs": 0}, "regression_epochs is 1 there and 0 here"),
        ("prior", {"copies": 2}, "copies is 1 there and 2 here"),
        ("seconds", {"train": 19}, "train is 20 there and 19 here"),
    ],
)
def test_another_scale_is_refused(
    whole: Path, stage: str, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(VspairError, match=f"{words}.*--runs"):
        run(whole, stage, replace(FEW, **change))


def test_a_unet_may_be_trained_on_and_dps_answered_anew(whole: Path, copy: Path) -> None:
    more = replace(FEW, regression_epochs=2, zeta=0.2)
    assert run(copy, "regression,answers,dps,report", more)
    assert len(Run(copy / "runs" / "regression").metrics()) == 2
    old, new = rows(whole / "out"), rows(copy / "out")
    changed = {model for (model, *_), value in old.items() if new[model, *_] != value}
    assert changed == {"regression", "DPS"}
    assert "zeta = 0.2" in (copy / "out" / "README.md").read_text()


def test_other_slices_are_refused(whole: Path, tmp_path: Path) -> None:
    x = (65535 * chest_phantoms(29, torch.Generator().manual_seed(0))).round().to(torch.int32)
    for part, rows_of in (("train", slice(20)), ("test", slice(20, 29))):
        some = x[rows_of].numpy()
        high, low = (some >> 8).astype(np.uint8), (some & 255).astype(np.uint8)
        who = np.array([f"{part}{i}" for i in range(len(some))])
        np.savez(tmp_path / f"ct_{part}.npz", hi=high, lo=low, scale=65535, patient=who)
    with pytest.raises(VspairError, match="phantoms is True there and False here"):
        run(whole, "answers", data_dir=tmp_path)


def test_an_unfinished_training_is_answered_with(copy: Path, data: CtData) -> None:
    """Its batch norms are measured when it is loaded, in one batch of all training pairs."""
    path = copy / "runs" / "calibrated" / "config.toml"
    text = path.read_text().replace('norms = "training"', 'norms = "answer"')
    path.write_text(text.replace("epochs = 1\n", "epochs = 2\n"))
    log = copy / "runs" / "calibrated" / "metrics.jsonl"
    log.write_text(log.read_text().replace('"epoch": 1,', '"epoch": 1 ,'))  # another training
    before = rows(copy / "out")["vsPAIR", "calibrated", "mse_mean", ""]
    assert run(copy, "answers,report")
    found = rows(copy / "out")
    assert found["vsPAIR", "calibrated", "epochs", ""] == 1
    assert found["vsPAIR", "calibrated", "epochs_planned", ""] == 2
    assert found["vsPAIR", "calibrated", "mse_mean", ""] != before


def test_times_need_no_training(tmp_path: Path) -> None:
    assert run(tmp_path, "seconds") == "Done: seconds."
    found = read_groups(tmp_path / "runs" / "answers" / "seconds.npz", "")
    assert set(found["one"]) == set(NAMES) - set(ADDED)  # these are timed where they are trained
    assert set(found["many"]) == {"vspair_paper", "vspair_calibrated", "dps"}
    assert min(float(v) for part in ("one", "many") for v in found[part].values()) > 0


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    for only, words in (
        ("report", "nothing in .* to report on.*--only"),
        ("dps", "no prior in .*--only prior"),
        ("prior,everything", "only = 'everything': expected some of paper, "),
    ):
        with pytest.raises(VspairError, match=words):
            run(tmp_path, only)
    assert run(tmp_path, "prior")
    with pytest.raises(VspairError, match=r"no answers in .*--only answers"):
        run(tmp_path, "report")
    with pytest.raises(VspairError, match="There are no slices"):
        run(tmp_path / "none", data_dir=tmp_path)
    assert not (tmp_path / "none").exists()


# -- numbers ----------------------------------------------------------------------------------


def test_every_method_stands_beside_the_others(whole: Path) -> None:
    found = rows(whole / "out")
    for own in NAMES.values():
        for metric in ("mse_mean", "psnr", "ssim", "crps"):
            assert (*own, metric, "") in found
        for metric in ("mse_mean", "psnr", "ssim", "slices"):
            assert (*own, metric, "slices of DPS") in found
        bins = {c for *who, _, c in found if tuple(who) == own and c.startswith("noise")}
        some = [found[(*own, "slices", c)] for c in bins if "DPS" in c]
        assert sum(some) == FEW.dps_images
    spread = [("vsPAIR", preset) for preset in (*PRESETS, "anchored")]
    for own in (*spread, ("vsPAIR with FBP", "anchored"), ("DPS", "")):
        assert (*own, "coverage_90", "") in found
        assert (*own, "beyond_2_std", "slices of DPS") in found
    for preset in PRESETS:
        for metrics in TABLES.values():
            assert {("vsPAIR", preset, metric, "") for metric in metrics} <= set(found)
        size = Run(whole / "runs" / preset).load().n_parameters
        assert found["vsPAIR", preset, "parameters", ""] == size
    for own in (("vsPAIR", "anchored"), ("vsPAIR with FBP", "anchored")):
        assert not [k for k in found if k[:2] == own and k[2].endswith("_with_noise")]
        assert {(*own, f"mse_mean_{part}", "") for part in ("train", "validation", "test")} <= set(
            found
        )
        value = found[(*own, "mse_mean", "")]
        assert value == pytest.approx(found[(*own, "mse_mean_test", "")], rel=1e-4)
    printed = {r["metric"]: r["paper"] for r in summary(whole / "out")["rows"] if "paper" in r}
    assert printed == PAPER


def test_the_default_is_what_fit_makes_of_slices_and_their_patients(
    whole: Path, data: CtData
) -> None:
    """The rows are those of models that a user gets who knows patients, and FBP."""
    pairs, found, fbp = data.with_copies(2), rows(whole / "out"), Fbp(FEW.geometry)
    assert (len(data.train), len(pairs)) == (18, 36)
    known: dict[str, Any] = {"groups": np.tile(data.patients, 2), "device": "cpu"}
    for model, first in (("vsPAIR", None), ("vsPAIR with FBP", fbp)):
        more: dict[str, Any] = {} if first is None else {"first": first(pairs.y)}
        trained = fit(pairs.x, pairs.y, minutes=0.001, progress=False, **known, **more)
        asked: dict[str, Any] = {} if first is None else {"first": first(data.test.y)}
        answer = trained.posterior(data.test.y, **asked).mean()
        wrong = (answer - data.test.x).square().mean()
        assert found[model, "anchored", "mse_mean", ""] == pytest.approx(float(wrong), rel=1e-3)


def test_ridge_and_the_network_after_it_never_see_the_same_patient(
    whole: Path, data: CtData
) -> None:
    """Answers that the network learns from are by fits without their patient."""
    pairs, groups = data.with_copies(2), np.tile(data.patients, 2)
    kept = read_tensors(whole / "runs" / "ridge" / "answers.safetensors")[0]["answers"]
    ridge, answers = LargeRidge.fit(pairs.x, pairs.y, groups=groups)
    torch.testing.assert_close(kept, answers)
    in_sample = (ridge(pairs.y) - pairs.x).square().mean()
    assert (answers - pairs.x).square().mean() > 1.2 * in_sample
    wrong = (ridge(data.test.y) - data.test.x).square().mean()
    assert rows(whole / "out")["ridge", "", "mse_mean", ""] == pytest.approx(
        float(wrong), rel=1e-4
    )
    network = PlainNetwork.load(whole / "runs" / "ridge_unet")
    wrong = (Plain(network, ridge)(data.test.y) - data.test.x).square().mean()
    found = rows(whole / "out")["ridge + U-Net", "", "mse_mean", ""]
    assert found == pytest.approx(float(wrong), rel=1e-4)


def test_new_methods_are_added_to_what_is_published(
    whole: Path, tmp_path: Path, expect_kept: Callable[..., None]
) -> None:
    """Only their stages were run, at full scale as far as the records say."""
    shutil.copytree(PUBLISHED, tmp_path / "out")
    (tmp_path / "runs" / "answers").mkdir(parents=True)
    for name in ("test", *ADDED):
        shutil.copy(whole / "runs" / "answers" / f"{name}.npz", tmp_path / "runs" / "answers")
    records, old = json.loads((whole / "runs" / "records.json").read_text()), summary(PUBLISHED)
    stages = {k: records["stages"][k] for k in ("anchored", "anchored_fbp", "ridge", "fbp_unet")}
    for stage in stages.values():
        stage["scale"] |= {"train": 3000, "test": 1600, "samples": 50, "small": False}
        stage["scale"] |= {"dps_images": 16, "half": False}
    about = {**old["scale"], **old["scale"].get("data", {})}
    records["data"] |= {k: v for k, v in about.items() if k in records["data"]}
    path = tmp_path / "runs" / "records.json"
    path.write_text(json.dumps(records | {"stages": stages}))
    shown = {"truth", "sinogram", "noise"}  # which are here those of other slices
    but = {f"{group}.{k}" for group in ("comparison", "hallucination") for k in shown}
    for _ in range(2):
        text = str(run(tmp_path, "report", Scale()))
        expect_kept(PUBLISHED, tmp_path / "out", but)
    found = summary(tmp_path / "out")["scale"]
    assert (found["copies"], found["regression_epochs"]) == (8, 64)
    assert found["paper_scale"] is False
    for words in (
        "0.001 for noise 0-2.5 %, 0.01 for noise 2.5-5 %",
        "| DPS | 0.000247 (4 of 410) |",
        "The networks of calibrated, regression and DPS are trained on 8 of each",
        "on NVIDIA H200: mean image, FBP, ",
        "| vsPAIR with FBP (anchored) |",
    ):
        assert words in text
    stages["ridge"]["scale"]["samples"] = 40
    path.write_text(json.dumps(records | {"stages": {"ridge": stages["ridge"]}}))
    with pytest.raises(VspairError, match=r"samples is 50 there and 40 here.*--out"):
        run(tmp_path, "report", Scale())


def test_rows_are_means_over_the_same_slices(whole: Path, data: CtData) -> None:
    """Answer by hand with the mean image, and compare overall, by bin and on DPS's slices."""
    found = {key[2:]: v for key, v in rows(whole / "out").items() if key[0] == "mean image"}
    error = (data.plain.x.mean(0) - data.test.x).square().mean((1, 2))
    assert found["mse_mean", ""] == pytest.approx(float(error.mean()), rel=1e-5)
    inside = (data.test.level >= 2.5) & (data.test.level < 5)
    own = found["mse_mean", "noise 2.5-5 %"]
    assert own == pytest.approx(float(error[inside].mean()), rel=1e-5)
    shown = spread_out(data.test.level, FEW.dps_images)
    own = found["mse_mean", "slices of DPS"]
    assert own == pytest.approx(float(error[shown].mean()), rel=1e-5)


def test_the_chosen_weight_has_the_least_error_on_held_out_slices(
    whole: Path, data: CtData
) -> None:
    found = read_groups(whole / "runs" / "answers" / "tv-choice.npz", "")["choice"]
    chosen = [WEIGHTS[i] for i in found["mse_mean"].argmin(1)]
    np.testing.assert_array_equal(found["weight"], np.array(chosen, np.float32))
    held = data.held
    assert len(held) <= FEW.tv_images
    for i, weight in enumerate(WEIGHTS):
        x = tv_admm(data.problem.transform, held.y, weight, max_iterations=1).x
        error = (x - held.x).square().mean((1, 2))
        bins = bin_of(held.level, FEW.noise)
        for b in range(4):
            mask = bins == b if bool((bins == b).any()) else bins >= 0
            own = found["mse_mean"][b, i]
            assert own == pytest.approx(float(error[mask].mean()), rel=1e-4)


def figures(folder: Path) -> Groups:
    return read_groups(folder / "out" / "figures.npz", "")


def test_numbers_of_the_figures_keep_their_shapes(whole: Path) -> None:
    found, n = figures(whole), FEW.dps_images
    for name in ("truth", "fbp", "tv", "regression", "dps", "dps_std", "vspair_paper_std"):
        assert found["comparison"][name].shape == (n, 44, 44)
    assert found["comparison"]["sinogram"].shape == (n, 62, 64)
    assert (np.diff(found["comparison"]["noise"]) > 0).all()
    for preset in PRESETS:
        assert found[f"perturbation_{preset}"]["index"].shape == (2, 4)
        assert found[f"perturbation_{preset}"]["difference"].shape == (2, 4, 5, 44, 44)
        assert len(found["history"][f"{preset}_train"]) == 1
        assert found["history"][f"{preset}_best"].tolist() == [1]
        assert len(found["omega"][preset]) == 9 * 16
    assert found["by_noise"]["levels"].tolist() == [1.25, 3.75, 6.25, 8.75]
    with np.load(whole / "out" / "figures.npz") as file:  # images take a third less room
        assert {file[n].dtype for n in file.files if file[n].ndim > 2} == {np.dtype(np.float16)}
    kept, rounded = (
        read_groups(whole / "runs" / "answers" / "fbp.npz", "")["shown"]["estimate"],
        found["comparison"]["fbp"],
    )
    np.testing.assert_allclose(rounded, kept, rtol=0.01, atol=1e-7)
    assert ((rounded == 0) == (kept == 0)).all()
    moved = read_groups(whole / "runs" / "answers" / "vspair_paper.npz", "")["perturbation"]
    changes, shown = moved["difference"], found["perturbation_paper"]["difference"]
    np.testing.assert_allclose(shown, changes, rtol=1e-3, atol=np.abs(changes).max() / 200)


def test_what_is_beyond_two_deviations_counts_the_learned_noise(whole: Path) -> None:
    answers = whole / "runs" / "answers"
    ours = read_groups(answers / "vspair_calibrated.npz", "")
    truth = torch.from_numpy(read_groups(answers / "test.npz", "")["shown"]["truth"])
    mean, std = (torch.from_numpy(ours["shown"][k]) for k in ("estimate", "std"))
    wide = torch.hypot(std, torch.tensor(float(ours["row"]["decoder_noise"])))
    beyond = figures(whole)["hallucination"]["vspair_excess"].astype(np.float32)
    np.testing.assert_allclose(beyond, excess(mean, wide, truth), rtol=0.01, atol=1e-4)


# -- tables and words -------------------------------------------------------------------------


def test_a_method_on_fewer_slices_takes_no_bold() -> None:
    def binned(name: str, mse: float, slices: int, condition: str = "noise 0-2.5 %") -> list[Row]:
        bins = {"mse_mean": mse, "slices": float(slices)}
        return [Row(*NAMES[name], k, v, condition=condition) for k, v in bins.items()]

    found = binned("fbp", 0.3, 400) + binned("tv", 0.2, 400) + binned("dps", 0.1, 4)
    found += binned("tv", 0.4, 4, "noise 0-2.5 %, slices of DPS")
    found += binned("dps", 0.1, 4, "noise 0-2.5 %, slices of DPS")
    table = by_noise(found, "mse_mean")
    assert table.columns == ["", "0-2.5 %, 400 slices"]
    assert table.rows == [["FBP", "0.3"], ["TV-ADMM", "**0.2**"], ["DPS", "0.1 (4 of 400)"]]
    table = by_noise(found, "mse_mean", on_dps=True)
    assert table.columns == ["", "0-2.5 %, 4 slices"]
    assert table.rows == [["TV-ADMM", "0.4"], ["DPS", "**0.1**"]]


def test_the_words_say_what_was_done(whole: Path) -> None:
    text = (whole / "out" / "README.md").read_text()
    share = read_groups(whole / "runs" / "answers" / "tv.npz", "")["scores"]["converged"].mean()
    for words in (
        "(paper 0.0025)",
        "phantoms made by vspair",
        "18 slices (18) for train, 2 slices (2) for validation, 9 slices (9) for test",
        "DPS answers 4 of the test slices",
        "2 trajectories of 2 steps and zeta = 0.1",
        "vsPAIR is judged by 4 samples, DPS by 2",
        "would be 60.0 % and 33.3 %, as the interval of fewer than 19 samples",
        f"met the tolerance on {100 * share:.3g} % of the test slices",
        "| the same with its noise | - | - | - | - |",
    ):
        assert words in text
    assert "The networks of calibrated, regression and DPS are trained on" not in text
    for name in FIGURES:
        assert f"({name}.png)" in text
        assert (whole / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_real_slices_are_named_with_their_licence(copy: Path) -> None:
    path = copy / "runs" / "records.json"
    path.write_text(path.read_text().replace('"phantoms": true', '"phantoms": false'))
    text = str(run(copy, "report"))
    for words in (
        "LIDC-IDRI", "Armato et al. 2011", "10.7937/k9/tcia.2015.lo9ql9sx", "CC BY 3.0",
        "LoDoPaB-CT", "Leuschner et al. 2021", "CC BY 4.0",
    ):  # fmt: skip
        assert words in text
    assert "made by vspair" not in text


def test_redrawing_gives_the_same_pictures(whole: Path) -> None:
    out = whole / "out"
    before = {name: (out / f"{name}.png").read_bytes() for name in FIGURES}
    done = CliRunner().invoke(app, ["reproduce", "ct", "--draw", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert done.output.count("Drew") == len(FIGURES)
    assert {name: (out / f"{name}.png").read_bytes() for name in FIGURES} == before


# -- settings and data ------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_configurations_are_the_papers(preset: str) -> None:
    c = configs.shipped(f"ct-{preset}")
    with torch.device("meta"):
        model = build(c.model, GEOMETRY.shape, GEOMETRY.sinogram_shape)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert sum(b.numel() for m in norms for b in m.buffers()) == 2706
    assert (c.training.batch_size, c.training.keep) == (64, "best")
    o = c.objective
    if preset == "paper":
        assert model.n_parameters == 549_706_083 == PAPER["parameters"] - 2706
        assert (o.lambda_x, o.lambda_y, o.lambda_map, o.lambda_rho) == (1.0, 0.3, 1.0, 1.0)
        assert (o.alpha0, o.beta0, o.gamma_x, o.gamma_y) == (1.0, 64.0, 0.1, 0.1)
        assert (o.half, o.sigma, o.reduction, o.target) == (False, "logvar", "sum", "joint")
        assert o.lambda_binary == 0
        assert (c.training.epochs, c.training.learning_rate) == (1000, 1e-4)
    else:
        assert (o.rho, o.active, c.model.gate) == ("dual", 1383, "sigmoid")


def test_copies_cost_no_more_steps() -> None:
    for copies in (1, 4):
        scale = Scale(copies=copies)
        planned = configs.shipped("ct-calibrated").training.epochs
        assert config_of("calibrated", scale).training.epochs * copies == planned
        assert config_of("paper", scale).training.epochs == 1000


@pytest.mark.parametrize("change", [{"copies": 0}, {"samples": 1}, {"dps_images": 0}])
def test_scales_that_cannot_be_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(VspairError, match="expected"):
        replace(FEW, **change)  # type: ignore[arg-type]


def test_the_unit_of_length() -> None:
    """The same problem in metres, pixels and half sides differs by the size of a pixel."""
    x, metres = torch.rand(1, 88, 88), replace(GEOMETRY, pixel=4 * LODOPAB_PIXEL)
    assert metres == Geometry()
    here = RayTransform(GEOMETRY)(x).norm()
    for other in (metres, replace(GEOMETRY, pixel=1.0)):
        ratio = float(RayTransform(other)(x).norm() / here)
        assert ratio == pytest.approx(other.pixel / GEOMETRY.pixel, rel=1e-4)


def test_the_pairs_are_the_same_each_time_and_noisy_as_they_say(data: CtData) -> None:
    clean = data.problem.forward(data.test.x)
    span = clean.amax((1, 2)) - clean.amin((1, 2))
    level = 100 * (data.test.y - clean).flatten(1).std(1) / span
    assert torch.allclose(level, data.test.level, rtol=0.03)
    again = load(FEW)
    assert torch.equal(again.train.y, data.train.y)
    assert again.about == data.about
    assert (len(data.train), len(data.held), len(data.test)) == (18, 2, 9)


def test_copies_are_behind_and_change_nothing_of_the_rest(data: CtData) -> None:
    twice = load(replace(FEW, copies=2))
    assert len(twice.train) == 36
    for part in ("x", "y", "level"):
        assert torch.equal(getattr(twice.plain, part), getattr(data.train, part))
        assert torch.equal(getattr(twice.test, part), getattr(data.test, part))
    assert twice.about == data.about


def test_half_the_resolution_is_split_as_the_whole(data: CtData) -> None:
    halved, data = data, load(WHOLE)
    assert (data.problem.geometry, halved.problem.geometry) == (GEOMETRY, HALF)
    assert tuple(halved.test.y.shape[1:]) == (62, 64)
    for part in ("train", "held", "test"):
        x = getattr(data, part).x
        mean = x.unflatten(2, (44, 2)).unflatten(1, (44, 2)).mean((2, 4))
        torch.testing.assert_close(getattr(halved, part).x, mean)


def test_slices_of_another_size_are_refused(tmp_path: Path) -> None:
    for part, n in (("train", 20), ("test", 9)):
        small, who = np.zeros((n, 64, 64), np.uint8), [f"{part}{i}" for i in range(n)]
        np.savez(tmp_path / f"ct_{part}.npz", hi=small, lo=small, scale=65535, patient=who)
    with pytest.raises(VspairError, match=r"\(64, 64\): expected \(88, 88\)"):
        load(FEW, tmp_path)


def test_bins_of_the_noise() -> None:
    level = torch.tensor([0.0, 2.4, 2.5, 6.0, 9.9, 10.0])
    assert bin_of(level, 0.1).tolist() == [0, 0, 1, 2, 3, 3]
    assert bin_edges(0.1) == [0, 2.5, 5, 7.5, 10]
    assert bin_of(torch.zeros(3), 0.0).tolist() == [0, 0, 0]
    assert spread_out(torch.tensor([5.0, 1.0, 4.0, 2.0, 3.0, 0.0]), 3).tolist() == [1, 4, 0]


# -- the command ------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Return what the command asks of the study, without running it."""
    given: dict[str, Any] = {}

    def reproduce(_: Any, scale: Scale, **more: Any) -> str:
        given.update(more, scale=scale)
        return "done"

    monkeypatch.setattr(Study, "reproduce", reproduce)
    monkeypatch.chdir(tmp_path)

    def ask(*words: str) -> dict[str, Any]:
        done = CliRunner().invoke(app, ["reproduce", "ct", *words])
        assert done.exit_code == 0, done.output
        return given

    return ask


def test_the_command_hands_on_the_scale(asked: Callable[..., dict[str, Any]]) -> None:
    given = asked("--regression-epochs", "7", "--prior-epochs", "9", "--compile")
    assert given["scale"] == Scale(regression_epochs=7, prior_epochs=9)
    assert given["compile"] is True
    assert asked("--smoke")["scale"] == SMOKE
    done = CliRunner().invoke(app, ["reproduce", "ct", "--smoke", "--epochs", "3"])
    assert "leave out --epochs" in str(done.exception)


def test_no_smaller_study_replaces_a_whole_one(asked: Callable[..., dict[str, Any]]) -> None:
    real = ["--data-dir", "."]
    for words, name in (
        (real, "ct"),
        ([*real, "--epochs", "3"], "ct-part"),
        ([], "ct-phantoms"),
        (["--smoke"], "ct-smoke"),
        ([*real, "--smoke"], "ct-smoke-real"),
    ):
        given = asked(*words)
        assert (given["out"], given["folder"]) == (Path("results", name), Path("runs", name))


@pytest.mark.parametrize("phantoms", [True, False])
def test_a_report_is_filed_under_what_the_records_are_of(
    phantoms: bool, tmp_path: Path, asked: Callable[..., dict[str, Any]]
) -> None:
    (tmp_path / "records.json").write_text(json.dumps({"data": {"phantoms": phantoms}}))
    name = "ct-phantoms" if phantoms else "ct"
    assert asked("--runs", str(tmp_path), "--only", "report")["out"] == Path("results", name)
    (tmp_path / "records.json").write_text("{")
    given = asked("--runs", str(tmp_path), "--only", "report")
    assert given["out"] == Path("results", "ct-phantoms")
