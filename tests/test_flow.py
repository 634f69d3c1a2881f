"""Conditional flows, against posteriors in closed form."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from torch import Generator, Tensor

from vspair.errors import VspairError
from vspair.methods import flow as flows
from vspair.methods.flow import FlowNetwork, Kind, train_flow
from vspair.problems.gaussian import GaussianProblem


@pytest.mark.parametrize("kind", ["nsf", "maf"])
def test_it_learns_a_gaussian_posterior(kind: Kind) -> None:
    problem = GaussianProblem.random(0)
    x, y = problem.pairs(3000, 1, seed=1)
    _, seen = problem.pairs(100, 1, seed=2)
    flow = train_flow(x, y, kind=kind, epochs=10)
    mean, std = flow.posterior(seen).moments(400, Generator().manual_seed(0))
    exact = problem.covariance.diagonal().sqrt().float()
    error = (mean - problem.posterior_mean(seen)).float() / exact
    assert float(error.square().mean().sqrt()) < 0.5
    torch.testing.assert_close(std.mean(0), exact, rtol=0.25, atol=0)


def test_it_learns_two_answers_where_there_are_two() -> None:
    """Of y = x^2, x and -x are equally likely, and nothing between them."""
    generator = Generator().manual_seed(0)
    x = 3 * (2 * torch.rand(4000, 1, generator=generator) - 1)
    y = x.square() + 0.1 * torch.randn(4000, 1, generator=generator)
    flow = train_flow(x, y, epochs=12)
    drawn = flow.posterior(torch.full((1, 1), 4.0)).sample(2000, generator).flatten()
    assert float((drawn > 0).float().mean()) == pytest.approx(0.5, abs=0.1)
    assert float(((drawn.abs() - 2).abs() < 0.4).float().mean()) > 0.9


@torch.no_grad()
@pytest.mark.parametrize("kind", ["nsf", "maf"])
def test_the_density_is_one_in_the_data_s_own_unit(kind: Kind) -> None:
    network = FlowNetwork((2,), (3,), kind, transforms=2, hidden=(16,))
    network.x_normaliser.mean.copy_(torch.tensor([3.0, -1.0]))
    network.x_normaliser.std.copy_(torch.tensor([5.0, 0.2]))
    axis = torch.linspace(-9, 9, 241)
    unit = torch.cartesian_prod(axis, axis)
    x = network.x_normaliser.inverse(unit)
    density = network.log_prob(x, torch.randn(1, 3).expand(len(x), 3)).exp()
    cell = float(axis[1] - axis[0]) ** 2 * 5.0 * 0.2
    assert float(density.sum()) * cell == pytest.approx(1, abs=0.02)


def small(shape: tuple[int, ...] = (2, 2)) -> tuple[Tensor, Tensor]:
    y = torch.randn(40, 3, generator=Generator().manual_seed(0))
    return torch.randn(40, *shape, generator=Generator().manual_seed(1)), y


def test_samples_are_fixed_by_the_generator_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = small()
    flow = train_flow(x, y, epochs=1)
    before = torch.get_rng_state()
    post = flow.posterior(y[:5])
    whole = post.sample(7, Generator().manual_seed(3))
    assert whole.shape == (7, 5, 2, 2)
    monkeypatch.setattr(flows, "_PART", 40)  # two samples at once
    torch.testing.assert_close(post.sample(7, Generator().manual_seed(3)), whole)
    assert not torch.equal(post.sample(7, Generator().manual_seed(4)), whole)
    assert torch.equal(before, torch.get_rng_state())


def test_samples_have_the_density_that_is_told() -> None:
    """The mean of -log q over samples is the entropy that a grid has of q."""
    network = FlowNetwork((1,), (3,), transforms=2, hidden=(16,))
    network.x_normaliser.std.fill_(2.0)
    y = torch.randn(1, 3)
    axis = torch.linspace(-30, 30, 20_001)[:, None]
    with torch.no_grad():
        log = network.log_prob(axis, y.expand(len(axis), 3))
        entropy = -float((log.exp() * log).sum()) * 60 / 20_000
        drawn = flows.FlowPosterior(network, y).sample(8000, Generator().manual_seed(0))
        found = -network.log_prob(drawn[:, 0], y.expand(len(drawn), 3)).mean()
    assert float(found) == pytest.approx(entropy, abs=0.04)


def test_epochs_make_a_training_that_can_be_had_again() -> None:
    x, y = small()
    first, again = (train_flow(x, y, epochs=1).network.state_dict() for _ in range(2))
    assert all(torch.equal(first[k], again[k]) for k in first)


def test_bad_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = small()
    flow = train_flow(x, y, epochs=1)
    assert flow.n_parameters == sum(math.prod(p.shape) for p in flow.network.parameters())
    with pytest.raises(VspairError, match=r"y has shape \(40, 2\): expected.*\(B, 3\)"):
        flow.posterior(y[:, :2])
    with pytest.raises(VspairError, match="kind = 'glow': expected nsf or maf"):
        train_flow(x, y, kind="glow")  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "zuko", None)
    with pytest.raises(VspairError, match=r"pip install 'vspair\[benchmarks\]'"):
        train_flow(x, y)
