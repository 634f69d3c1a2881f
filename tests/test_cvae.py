"""A dense conditional VAE about an anchor, against a Gaussian in closed form."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, Tensor

from vspair.anchored import AnchoredModel
from vspair.anchors import Made
from vspair.config import AnchoredConfig, ModelConfig
from vspair.errors import VspairError
from vspair.evaluation import score_method
from vspair.methods.cvae import (
    Cvae,
    CvaeNetwork,
    CvaePosterior,
    train_cvae,
    train_cvae_network,
)
from vspair.networks.spatial import Domain, Frame

SHAPES: dict[Domain, tuple[int, ...]] = {"vector": (6,), "signal": (16,), "image": (8, 8)}
every = pytest.mark.parametrize("domain", SHAPES)


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_last_batch_of_one_small_image_is_left_out(mirrored: bool) -> None:
    """Batch norm has no variance of a single pixel."""
    frame = Frame((8, 8), "image")
    data = randn(72, 2, 8, 8), randn(72, 8, 8)
    train_cvae_network(frame, *data, seconds=0.2, latent=2, mirrored=mirrored)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=Generator().manual_seed(seed))


def model_of(domain: Domain) -> AnchoredModel:
    """Return a model that answers with a constant, whose unit of residuals is 3."""
    made = Made("ridge", domain, 2, 1, 0, 0, 1, False)
    sizes = AnchoredConfig(kinds=4, width=4)
    torch.manual_seed(0)
    model = AnchoredModel(ModelConfig(kind="anchored"), sizes, made, SHAPES[domain], (2,))
    model.x_normaliser.std.fill_(3.0)
    model.x_scale.mean.fill_(5.0)
    return model.eval()


def test_samples_have_the_covariance_of_residuals() -> None:
    """Two directions and noise that differs from entry to entry: one Gaussian for all y."""
    basis = torch.linalg.qr(randn(8, 2)).Q * torch.tensor([1.5, 1.0])
    grain = torch.linspace(0.1, 0.5, 8)
    exact = basis @ basis.T + grain.square().diag()
    residual = randn(4000, 2, seed=1) @ basis.T + grain * randn(4000, 8, seed=2)
    frame, seen = Frame((8,), "vector"), randn(4000, 3, seed=3)
    network = train_cvae_network(frame, seen, residual, latent=4, epochs=15)
    fresh = randn(200, 3, seed=4)
    answer, unit = torch.full((200, 8), 7.0), torch.full((8,), 2.0)
    with torch.no_grad():
        post = CvaePosterior(network, network.prior(fresh), answer, unit)
    drawn = post.sample(100, Generator().manual_seed(0)).flatten(0, 1)
    off = drawn.T.cov() / 4 - exact
    assert float(off.norm() / exact.norm()) < 0.15
    # Independent noise of the right size would be this far off.
    assert float((exact - exact.diagonal().diag()).norm() / exact.norm()) > 0.5
    torch.testing.assert_close(drawn.mean(0), torch.full((8,), 7.0), rtol=0, atol=0.3)
    torch.testing.assert_close(network.grain, grain, rtol=0.2, atol=0.1)


@torch.no_grad()
def test_the_loss_is_the_bound() -> None:
    """With nothing in the code it is the density of the noise alone, and more can only cost."""
    network = CvaeNetwork((3,), "vector", 2, latent=2, grain="constant")
    network.log_grain.data.fill_(torch.tensor(0.5).log() / 5)
    for name in ("prior", "encoder"):
        for parameter in network.network[name].last.parameters():  # type: ignore[index]
            parameter.data.zero_()
    residual, seen = randn(5, 3), randn(5, 2, seed=1)
    drawn = Generator().manual_seed(0)
    found = float(network.loss(seen, residual, drawn))
    again = Generator().manual_seed(0)
    left = residual - network.decode(network.prior(seen).rsample(again))
    normal = torch.distributions.Normal(0.0, 0.5)
    constant = 0.5 * torch.log(torch.tensor(2 * torch.pi))
    assert found == pytest.approx(float((-normal.log_prob(left) - constant).mean()), rel=1e-4)
    network.network["prior"].last[1].bias.data[:2] = 1.0  # type: ignore[index]
    more = float(network.loss(seen, residual, Generator().manual_seed(0)))
    assert more - found == pytest.approx(0.5 * 2 / 3, rel=1e-4)  # KL of two unit shifts


@every
def test_it_answers_about_the_anchor(domain: Domain) -> None:
    model, shape = model_of(domain), SHAPES[domain]
    x, y = 5 + 3 * randn(40, *shape), randn(40, 2, seed=1)
    cvae = train_cvae(model, x, y, latent=3, epochs=2)
    post = cvae.posterior(y[:4])
    assert (len(post), post.x_shape) == (4, shape)
    torch.testing.assert_close(post.answer, torch.full((4, *shape), 5.0))
    drawn = post.sample(30, Generator().manual_seed(0))
    assert drawn.shape == (30, 4, *shape)
    assert float(drawn.std(0).mean()) == pytest.approx(3.0, rel=0.4)
    assert torch.equal(drawn, post.sample(30, Generator().manual_seed(0)))
    assert "coverage_90" in score_method(cvae, x, y, samples=5)
    assert cvae.n_parameters == sum(p.numel() for p in cvae.network.parameters())


@every
def test_it_is_made_again_from_its_settings(domain: Domain) -> None:
    model = model_of(domain)
    x, y = 5 + 3 * randn(20, *SHAPES[domain]), randn(20, 2, seed=1)
    first = train_cvae(model, x, y, latent=3, grain="constant", epochs=1)
    again = CvaeNetwork(**first.network.settings)
    again.load_state_dict(first.network.state_dict())
    drawn = [
        Cvae(model, network).posterior(y).sample(2, Generator().manual_seed(0))
        for network in (first.network, again)
    ]
    assert torch.equal(*drawn)
    twice = train_cvae(model, x, y, latent=3, grain="constant", epochs=1).network.state_dict()
    assert all(torch.equal(twice[k], v) for k, v in first.network.state_dict().items())


def test_held_out_residuals_leave_batch_norms_as_they_are() -> None:
    network = CvaeNetwork((8, 8), "image", 2).train()
    before = {k: v.clone() for k, v in network.state_dict().items()}
    batch = randn(6, 2, 8, 8), randn(6, 8, 8, seed=1)
    with torch.no_grad():
        network.loss(*batch, Generator().manual_seed(0))
    assert network.training
    assert all(torch.equal(before[k], v) for k, v in network.state_dict().items())
    network.loss(*batch, Generator().manual_seed(0))
    assert any(not torch.equal(before[k], v) for k, v in network.state_dict().items())


def test_bad_input_is_refused() -> None:
    frame = Frame((4,), "vector")
    with pytest.raises(VspairError, match="seen has 20 entries and residual has 19"):
        train_cvae_network(frame, randn(20, 3), randn(19, 4))
    with pytest.raises(VspairError, match="latent = 0: expected at least 1"):
        train_cvae_network(frame, randn(20, 3), randn(20, 4), latent=0)
    with pytest.raises(VspairError, match="grain = 'coarse'"):
        CvaeNetwork((4,), "vector", 3, grain="coarse")  # type: ignore[arg-type]
    cvae = train_cvae(model_of("vector"), randn(20, 6), randn(20, 2, seed=1), epochs=1)
    with pytest.raises(VspairError, match=r"y has shape \(2, 3\)"):
        cvae.posterior(randn(2, 3))
