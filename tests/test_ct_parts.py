"""The parts of the CT study against answers computed another way."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn

from vspair import config as configs
from vspair.codes import SpikeSlab
from vspair.errors import VspairError
from vspair.model import InverseModel, build
from vspair.posterior import LatentPosterior
from vspair.problems.ct import LODOPAB_PIXEL, CtPairs, CtProblem, Geometry, RayTransform
from vspair.studies.ct import study
from vspair.studies.ct.answers import WEIGHTS, choose_weights, zeta_here
from vspair.studies.ct.data import (
    GEOMETRY,
    CtData,
    _observe,
    augment,
    bin_of,
    draw,
    edges,
    split_patients,
    spread_out,
)
from vspair.studies.ct.measures import (
    codes,
    excess,
    judge_samples,
)
from vspair.studies.ct.tables import PAPER
from vspair.studies.ct.training import PRESETS, Bench, vspair_config
from vspair.studies.factors import STEPS, code_row, leading, perturbed

FEW = replace(study.SMOKE, train=20, test=9, samples=4, epochs=1, steps=2, tv_iterations=1)


pytestmark = pytest.mark.usefixtures("no_data_folder")


@pytest.fixture(scope="module")
def data(no_data_folder: None) -> CtData:
    return draw(FEW)


def tiny() -> InverseModel:
    return build(vspair_config("calibrated", FEW).model, (88, 88), (248, 128)).eval()


# -- settings -------------------------------------------------------------------------------


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
        scale = study.Scale(copies=copies)
        planned = configs.shipped("ct-calibrated").training.epochs
        assert vspair_config("calibrated", scale).training.epochs * copies == planned
        assert vspair_config("paper", scale).training.epochs == 1000


@pytest.mark.parametrize("change", [{"copies": 0}, {"samples": 1}, {"dps_images": 0}])
def test_scales_that_cannot_be_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(VspairError, match="expected"):
        replace(FEW, **change)  # type: ignore[arg-type]


def test_weights_and_steps_in_other_units() -> None:
    """The same problem in metres and in half sides has the same objective, up to a factor."""
    x, metres = torch.rand(1, 88, 88), replace(GEOMETRY, pixel=4 * LODOPAB_PIXEL)
    assert metres == Geometry()
    ratio = RayTransform(metres)(x).square().sum() / RayTransform(GEOMETRY)(x).square().sum()
    assert (metres.pixel / GEOMETRY.pixel) ** 2 == pytest.approx(float(ratio), rel=1e-4)
    pixels = RayTransform(replace(GEOMETRY, pixel=1.0))(x).norm()
    here = RayTransform(GEOMETRY)(x).norm()
    assert 0.1 * float(pixels) == pytest.approx(zeta_here(0.1) * float(here), rel=1e-4)


# -- data -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_validation_patients_are_not_trained_on(seed: int) -> None:
    counts = [257, 132, 132, 134, 86, 131, 127, 132, 206, 155, 483, 122, 262, 519, 122]
    patient = np.repeat(np.array([f"P{i}" for i in range(15)]), counts)
    rng = np.random.default_rng(seed)
    rng.shuffle(patient)
    train, held = split_patients(patient, 0.1, seed)
    assert not set(patient[train]) & set(patient[held])
    assert sorted(torch.cat((train, held)).tolist()) == list(range(3000))
    assert 0 < len(held) <= 300


def test_one_patient_of_two_is_held_out_and_one_alone_refused() -> None:
    train, held = split_patients(np.array(["b", "a", "b", "b"]))
    assert (train.tolist(), held.tolist()) == ([0, 2, 3], [1])
    with pytest.raises(VspairError, match="at least 2"):
        split_patients(np.array(["a", "a"]))


def test_the_noise_is_what_it_is_said_to_be(data: CtData) -> None:
    clean = data.problem.forward(data.test.x)
    span = clean.amax((1, 2)) - clean.amin((1, 2))
    level = 100 * (data.test.y - clean).flatten(1).std(1) / span
    assert torch.allclose(level, data.test_level, rtol=0.03)
    assert 0 <= float(data.test_level.min()) < float(data.test_level.max()) <= 10
    again = draw(FEW)
    assert torch.equal(again.train.y, data.train.y)
    assert again.key == data.key
    assert (len(data.train.x), len(data.validation.x), len(data.test.x)) == (18, 2, 9)
    assert data.patients == (18, 2, 9)


def test_a_slice_is_projected_once(data: CtData, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what comes of it is what the problem observes, to the bit."""
    x, seen, plain = data.train.x, list[int](), CtProblem.forward
    clean = data.problem.forward(x)
    y, deviation = data.problem.observe(x, Generator().manual_seed(7))

    def counted(problem: CtProblem, part: Tensor) -> Tensor:
        seen.append(len(part))
        return plain(problem, part)

    monkeypatch.setattr(CtProblem, "forward", counted)
    pairs, level = _observe(data.problem, x, seed=7)
    assert seen == [len(x)]
    assert torch.equal(pairs.y, y)
    assert torch.equal(pairs.deviation, deviation)
    assert torch.equal(level, 100 * deviation / (clean.amax((1, 2)) - clean.amin((1, 2))))


def test_bins_of_the_noise() -> None:
    level = torch.tensor([0.0, 2.4, 2.5, 6.0, 9.9, 10.0])
    assert bin_of(level, 0.1).tolist() == [0, 0, 1, 2, 3, 3]
    assert edges(0.1) == [0, 2.5, 5, 7.5, 10]
    assert bin_of(torch.zeros(3), 0.0).tolist() == [0, 0, 0]
    rows = spread_out(torch.tensor([5.0, 1.0, 4.0, 2.0, 3.0, 0.0]), 3)
    assert rows.tolist() == [1, 4, 0]


def test_copies_are_moved_and_their_sinograms_made_anew() -> None:
    x = draw(FEW).train.x
    more = augment(x, 3, Generator().manual_seed(0))
    assert more.shape == (54, 88, 88)
    assert torch.equal(more[:18], x)
    assert 0 <= float(more.min()) <= float(more.max()) <= 1
    moved = (more[18:36] - x).square().mean((1, 2))
    assert float(moved.min()) > 1e-4
    data = draw(replace(FEW, copies=2, noise=0.0))
    assert len(data.train.x) == 36
    assert torch.allclose(data.train.y, data.problem.forward(data.train.x), atol=1e-5)


def test_the_paper_sees_no_copies_and_all_others_do() -> None:
    once, twice = (draw(replace(FEW, copies=n)) for n in (1, 2))
    for plain in (once.train, twice.plain):
        assert torch.equal(plain.x, once.plain.x)
        assert torch.equal(plain.y, once.plain.y)
    bench = Bench(replace(FEW, copies=2), twice, Path(), torch.device("cpu"))
    assert len(bench.pairs("paper").x) == len(bench.pairs("sweep").x) == 18
    assert len(bench.pairs("calibrated").x) == 36
    assert (bench.epochs(100), bench.epochs(1)) == (50, 1)
    assert twice.shown["slices"]["train"] == 18


def test_bad_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(VspairError, match="no slices"):
        draw(FEW, tmp_path / "nowhere")
    with pytest.raises(VspairError, match=r"noise = -0\.1"):
        draw(replace(FEW, noise=-0.1))
    for part, n in (("train", 20), ("test", 9)):
        small = np.zeros((n, 64, 64), np.uint8)
        who = np.array([f"{part}{i}" for i in range(n)])
        np.savez(tmp_path / f"ct_{part}.npz", hi=small, lo=small, scale=65535, patient=who)
    with pytest.raises(VspairError, match="64"):
        draw(FEW, tmp_path)


def test_sinograms_of_another_geometry_are_refused(data: CtData, tmp_path: Path) -> None:
    other = data.test._replace(y=data.test.y[:, :100])
    bench = Bench(FEW, replace(data, test=other), tmp_path, torch.device("cpu"))
    with pytest.raises(VspairError, match="248"):
        study._WORK["answers"](bench)


# -- measures -------------------------------------------------------------------------------


def test_samples_of_a_right_posterior_are_judged_as_such() -> None:
    """The truth is one more draw: coverage, CRPS and hallucinated pixels have known values."""
    generator = Generator().manual_seed(0)
    drawn = torch.randn(60, 3, 88, 88, generator=generator)
    x = torch.randn(3, 88, 88, generator=generator)
    row = {k: float(v.double().mean()) for k, v in judge_samples(drawn, x).items()}
    assert row["coverage_90"] == pytest.approx(0.9, abs=0.01)
    assert row["crps"] == pytest.approx(1 / math.sqrt(math.pi), rel=0.02)
    assert row["mse"] == pytest.approx(1 + 1 / 60, rel=0.03)
    assert row["mse_sample"] == pytest.approx(2, rel=0.03)
    beyond = 2 * float(torch.special.ndtr(torch.tensor(-2.0)))
    assert row["beyond"] == pytest.approx(beyond, rel=0.15)
    assert row["deviation"] == pytest.approx(1, rel=0.02)


def test_the_excess_by_hand() -> None:
    estimate, x = torch.tensor([[[1.0, 3.0, -5.0]]]), torch.zeros(1, 1, 3)
    found = excess(estimate, torch.tensor([[[1.0, 1.0, 1.0]]]), x)
    assert found.tolist() == [[[0.0, 1.0, 3.0]]]


def test_leading_factors_vary_and_are_open_in_that_slice() -> None:
    mu = torch.zeros(5, 6)
    mu[:, 1], mu[:, 2], mu[:, 4] = (s * torch.arange(5.0) for s in (1, 3, 2))
    omega = torch.full((5, 6), 0.9)
    omega[0, 2] = 0.2
    post = LatentPosterior(tiny(), SpikeSlab.of(mu, torch.zeros(5, 6), omega))
    assert leading(post, torch.tensor([0, 3]), 2).tolist() == [[4, 1], [2, 4]]


def test_codes_in_parts_are_the_codes_and_factors_move_by_sigma(data: CtData) -> None:
    model = tiny()
    post, whole = codes(model, data.test.y), model.posterior(data.test.y)
    torch.testing.assert_close(post.code.mean, whole.code.mean)
    row = code_row(post, Generator().manual_seed(0))
    assert row["active_share"] == row["nnz"] / 16
    rows, dims = torch.tensor([2, 5]), torch.tensor([[1, 3], [0, 15]])
    centre, change = perturbed(post, rows, dims)
    assert change.shape == (2, 2, 5, 88, 88)
    assert float(change[:, :, STEPS.index(0.0)].abs().max()) < 1e-6
    assert isinstance(whole.code, SpikeSlab)
    z = whole.code.mean[5].clone()
    z[15] += 2 * whole.code.slab.variance.sqrt()[5, 15]
    torch.testing.assert_close(centre[1] + change[1, 1, 4], whole.decode(z), rtol=1e-4, atol=1e-5)


def test_the_chosen_weight_has_the_least_error(
    data: CtData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pretend that a weight's error is its distance from one that grows with the noise."""
    level, wanted = torch.linspace(0.1, 9.9, 12), torch.tensor([1e-4, 1e-3, 1e-1, 1.0])
    x = data.train.x[:12]
    fake = replace(data, validation=CtPairs(x, data.train.y[:12], level), validation_level=level)
    own = wanted[bin_of(level, 0.1)]

    def tv(_bench: Bench, y: Tensor, weight: float) -> Tensor:
        place = [int((y == t).flatten(1).all(1).nonzero()[0]) for t in data.train.y[:12]]
        order = torch.tensor(place).argsort()
        return x[order] + (math.log(weight) - own[order].log()).reshape(-1, 1, 1)

    monkeypatch.setattr("vspair.studies.ct.answers._tv", tv)
    bench = Bench(replace(FEW, tv_images=12), fake, tmp_path, torch.device("cpu"))
    found = choose_weights(bench)
    assert found is not None
    assert found.tolist() == wanted.tolist()
    assert set(found.tolist()) <= {float(np.float32(w)) for w in WEIGHTS}
