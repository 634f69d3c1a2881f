"""Ridge regression on random waves, beside the kernel that it stands for."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Generator, Tensor

import vspair
from vspair import config as configs
from vspair.anchored import AnchoredModel
from vspair.anchors import CurvePath, assign_folds
from vspair.data import Pairs
from vspair.runs import load
from vspair.training.corrections import Corrections, weigh
from vspair.training.prepared import fit_ridge, prepare


def kernel(a: Tensor, b: Tensor, width: float) -> Tensor:
    """Return the linear kernel and the Gaussian one of a width, added."""
    m = a.shape[1]
    return a @ b.T / m + width**2 * torch.exp(-(torch.cdist(a, b) ** 2) / (4 * m * width**2))


@pytest.mark.parametrize("width", [1.0, 4.0])
def test_answers_are_those_of_kernel_ridge(width: float) -> None:
    g = Generator().manual_seed(0)
    y, fresh = torch.randn(200, 3, generator=g), torch.randn(50, 3, generator=g)
    x = torch.sin(2 * y[:, :2]) + y[:, 1:]
    path = CurvePath.fit(x, y, [0.5], width=width)
    mean, k = x.mean(0), kernel(y, y, width)
    centre = torch.eye(200) - 1 / 200
    weights = torch.linalg.solve(centre @ k @ centre + 0.5 * torch.eye(200), x - mean)
    exact = (kernel(fresh, y, width) - k.mean(0)) @ (centre @ weights) + mean
    off = (path(fresh)[:, 0] - exact).square().mean() / (exact - mean).square().mean()
    linear = (path.path.x_mean - exact).square().mean() / (exact - mean).square().mean()
    assert off < 0.02 < linear


def test_a_smooth_relation_is_learned_out_of_fold() -> None:
    g = Generator().manual_seed(0)
    y = torch.randn(300, 2, generator=g)
    x = torch.sin(y) + y[:, :1] * y[:, 1:]
    fold = assign_folds(torch.arange(300), 5, 0)
    straight = float(fit_ridge(x, y, fold)[2].min())
    curved = float(fit_ridge(x, y, fold, width=1.0)[2].min())
    assert curved < 0.05 * straight


def test_fit_corrects_a_curved_relation_and_reloads_it(tmp_path: Path) -> None:
    g = Generator().manual_seed(0)
    y, fresh = torch.randn(200, 4, generator=g), torch.randn(500, 4, generator=g)
    matrix = torch.randn(4, 3, generator=g)
    out = tmp_path / "run"
    how = {"epochs": 2, "progress": False, "device": "cpu"}
    model = vspair.fit(torch.sin(y @ matrix), y, out=out, **how)  # type: ignore[arg-type]
    assert isinstance(model, AnchoredModel)
    assert float(model.curve_trust) > 0.3
    truth = torch.sin(fresh @ matrix)
    error = float((model.posterior(fresh).mean() - truth).square().mean())
    assert error < 0.7 * float((model.ridge_answer(fresh) - truth).square().mean())
    assert torch.equal(load(out).posterior(fresh).mean(), model.posterior(fresh).mean())


def test_weights_of_corrections_are_those_of_least_squares() -> None:
    g = Generator().manual_seed(0)
    a, b, noise = torch.randn(3, 4000, generator=g, dtype=torch.float64)
    e = 0.7 * a + 0.2 * b + 0.1 * noise
    parts, size = torch.stack((a, b)), e.square().sum()
    products, gains = parts @ parts.T / size, parts @ e / size
    trust, error = weigh(gains, products)
    assert trust.tolist() == pytest.approx([0.7, 0.2], abs=0.02)
    assert error == pytest.approx(float((e - trust @ parts).square().sum() / size), rel=1e-6)
    assert weigh(gains, products, forced=True)[0].tolist() == [1.0, 0.0]
    assert weigh(0 * gains, products)[0].tolist() == [0.0, 0.0]


def test_a_weight_at_its_bound_leaves_the_other_free() -> None:
    """The unbounded optimum has a first weight above 1."""
    gains, products = torch.tensor([0.30, 0.36]), torch.tensor([[0.15, 0.20], [0.20, 0.60]])
    trust, error = weigh(gains.double(), products.double())
    assert trust.tolist() == pytest.approx([1.0, (0.36 - 0.20) / 0.60], abs=0.006)
    assert error == pytest.approx(0.507, abs=0.002)


def test_residuals_shrink_as_errors_of_a_mean_do() -> None:
    """Networks that err by 1 in common and by 1 each: a mean of five errs by the root of 1.2."""
    g = Generator().manual_seed(0)
    found = Corrections.__new__(Corrections)
    found.model = SimpleNamespace(anchored=SimpleNamespace(out_of_fold=True))  # type: ignore[assignment]
    found.target = 3 * torch.randn(20000, 2, generator=g)
    common = found.target + torch.randn(20000, 2, generator=g)
    each = common + torch.randn(5, 20000, 2, generator=g)
    found.said, found.step = each[0], torch.zeros(20000, 2)
    found.agreement = float(each.mean(0).square().mean() / each.square().mean())
    assert found.shrinkage(1.0, 0.0) == pytest.approx((1.2 / 2) ** 0.5, rel=0.02)


def test_a_step_has_the_shape_of_images_without_places() -> None:
    g = Generator().manual_seed(0)
    y = torch.randn(100, 3, generator=g)
    x = torch.sin(y @ torch.randn(3, 64, generator=g)).reshape(100, 8, 8)
    c = configs.override(configs.preset("anchored"), {"anchored": {"spatial": False}})
    model, data = prepare(Pairs(x, y), None, torch.arange(100), c, lambda _: None)
    assert model.made.curve > 0
    assert model.curve_step(data.features).shape == (100, 64)


def test_a_background_does_not_straighten_waves() -> None:
    """Distances are those of what varies, whatever the scale of y as a whole is."""
    g = Generator().manual_seed(0)
    s = torch.randn(200, 1, generator=g)
    y = s @ torch.randn(1, 64, generator=g) + 20 * torch.randn(64, generator=g)
    x, fold = torch.sin(2 * s), assign_folds(torch.arange(200), 5, 0)
    near = fit_ridge(x, y / y.std(), fold, width=1.0)[2].min()
    far = fit_ridge(x, (y - y.mean(0)) / y.std(0), fold, width=1.0)[2].min()
    assert float(near) < 1.2 * float(far) < 0.3 * float(x.var())
