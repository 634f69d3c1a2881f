"""Ridge regression on random waves, beside the kernel that it stands for."""

from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor

import vspair
from vspair.anchored import AnchoredModel
from vspair.anchors import CurvePath, assign_folds
from vspair.runs import load
from vspair.training.anchored import weigh
from vspair.training.prepared import fit_ridge


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
    parts = torch.stack((a, b))
    products, gains = parts @ parts.T / 4000, parts @ e / 4000
    trust, error = weigh(float(e.square().mean()), gains, products)
    assert trust.tolist() == pytest.approx([0.7, 0.2], abs=0.02)
    assert error == pytest.approx(float((e - trust @ parts).square().mean()), rel=1e-6)
    alone, _ = weigh(float(e.square().mean()), gains * torch.tensor([1.0, 0.0]), products)
    assert alone[1] == 0
    assert weigh(1.0, gains, products, forced=True)[0].tolist() == [1.0, 0.0]
    assert weigh(1.0, 0 * gains, products)[0].tolist() == [0.0, 0.0]
