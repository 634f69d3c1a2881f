"""One contract for every model, on vectors, images and images with channels.

``pytest tests/test_models.py --device cuda --dtype float64`` walks it elsewhere.
"""

from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Generator, Tensor

import vspair
from vspair import runs
from vspair.codes import SpikeSlab
from vspair.config import Config, ModelConfig, override, preset
from vspair.model import InverseModel, PairedAutoencoder, build
from vspair.networks import NetworkConfig
from vspair.objective import Objective
from vspair.problems.gaussian import GaussianProblem

Kind = Literal["PAIR", "vPAIR", "sVAE", "vsPAIR"]
KINDS: tuple[Kind, ...] = ("PAIR", "vPAIR", "sVAE", "vsPAIR")
SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "vectors": ((3,), (4,)),
    "images": ((5, 6), (4, 4)),
    "channels": ((2, 6, 5), (3, 4, 4)),
    "mixed": ((5, 6), (7,)),
}

kinds = pytest.mark.parametrize("kind", KINDS)
shapes = pytest.mark.parametrize("shape", SHAPES)


def configured(kind: Kind, name: Literal["paper", "calibrated"] = "paper") -> Config:
    """Return a preset with a tiny model."""
    network = {"width": 4, "depth": 1}
    sizes = {"kind": kind, "x_size": 6, "y_size": 5, "x_network": network, "y_network": network}
    return override(preset(name), {"model": sizes})


@pytest.fixture
def make(device: torch.device, dtype: torch.dtype) -> Any:
    """Return what makes a model, with unknowns and observations in their own units."""

    def made(kind: Kind, shape: str, n: int = 4) -> tuple[InverseModel, Tensor, Tensor]:
        x_shape, y_shape = SHAPES[shape]
        model = build(configured(kind).model, x_shape, y_shape)
        x, y = 5 + 3 * torch.randn(n, *x_shape), -2 + 7 * torch.randn(n, *y_shape)
        model.x_normaliser.fit(x, "scalar")
        model.y_normaliser.fit(y, "scalar")
        return model.to(device, dtype), x.to(device, dtype), y.to(device, dtype)

    return made


@kinds
@shapes
@pytest.mark.parametrize("name", ["paper", "calibrated"])
def test_a_loss_reaches_every_weight(kind: Kind, shape: str, name: Any, make: Any) -> None:
    model, x, y = make(kind, shape)
    objective = Objective(configured(kind, name).objective)
    objective.prepare(model)
    loss, terms = objective(model.train(), model.x_normaliser(x), model.y_normaliser(y))
    loss.backward()
    assert bool(torch.stack([loss, *terms.values()]).isfinite().all())
    missed = [k for k, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert not missed


@kinds
@shapes
def test_answers_have_shape_precision_and_place_of_the_model(
    kind: Kind, shape: str, make: Any
) -> None:
    model, x, y = make(kind, shape)
    for given, lead in ((y, (len(y),)), (y[0], ())):
        post = model.posterior(given)
        for answer in (post.mean(3), post.sample(3)[0], post.approximate_mean()):
            assert answer.shape == (*lead, *model.x_shape)
            assert (answer.dtype, answer.device.type) == (x.dtype, x.device.type)


@kinds
@shapes
def test_absent_factors_are_exactly_zero(kind: Kind, shape: str, make: Any) -> None:
    model, _, y = make(kind, shape)
    code = model.posterior(y).code
    z = code.rsample()
    if not isinstance(code, SpikeSlab):
        assert bool((z != 0).all())
        return
    closed = SpikeSlab.of(code.mu, code.slab.logvar, torch.zeros_like(code.mu))
    assert bool((closed.rsample() == 0).all())


@kinds
@shapes
def test_a_saved_model_answers_with_the_same_bits(
    kind: Kind, shape: str, make: Any, tmp_path: Path
) -> None:
    model, _, y = make(kind, shape)
    run = runs.Run.create(tmp_path / "run", configured(kind), (model.x_shape, model.y_shape))
    run.save_weights(model, 0)
    again = runs.load(tmp_path / "run").to(y.device, y.dtype)
    first, second = (
        m.posterior(y).sample(2, Generator(y.device).manual_seed(0)) for m in (model, again)
    )
    assert torch.equal(first, second)


# -- the surrogate of the experiment ----------------------------------------------------------


def test_a_forward_map_predicts_what_is_observed() -> None:
    """Its error is of the size of the noise, far below the scatter of the observations."""
    problem = GaussianProblem.random(0)
    x, y = problem.pairs(512, 4, seed=1)
    config = override(
        preset("calibrated"),
        {
            "model": {"x_size": 4, "y_size": 4, "forward_map": True},
            "objective": {"gamma_y": 0.01},
            "training": {"epochs": 40, "learning_rate": 5e-3, "validation": 0.0},
        },
    )
    model = vspair.fit(x, y, config=config, progress=False)
    assert isinstance(model, PairedAutoencoder)
    found = model.predict_y(x)
    expected = x.double() @ problem.operator.T
    share = (found - expected).square().mean() / (y - y.mean(0)).square().mean()
    assert float(share) < 0.06  # the noise is 0.03
    assert torch.equal(model.predict_y(x[0]), model.predict_y(x[:1])[0])


def test_a_model_without_forward_map_says_what_to_do() -> None:
    network = NetworkConfig(width=4)
    model = build(ModelConfig("vPAIR", 4, 4, network, network), (3,), (4,))
    assert isinstance(model, PairedAutoencoder)
    with pytest.raises(vspair.VspairError, match=r"forward_map = true"):
        model.predict_y(torch.zeros(3))


def test_unknowns_of_another_shape_are_refused() -> None:
    network = NetworkConfig(width=4)
    model = build(ModelConfig("vPAIR", 4, 4, network, network, forward_map=True), (3,), (4,))
    assert isinstance(model, PairedAutoencoder)
    with pytest.raises(vspair.VspairError, match=r"x has shape \(5,\).*unknowns of shape \(3,\)"):
        model.predict_y(torch.zeros(5))
