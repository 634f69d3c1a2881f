"""Neural posterior principal components, against principal components in closed form."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Generator, Tensor

from vspair.errors import VspairError
from vspair.methods import AnswerY, Ridge
from vspair.methods.nppc import (
    Components,
    LowRankPosterior,
    anchor_features,
    orthogonalise,
    train_components,
    train_nppc,
)
from vspair.metrics import pca_share, pearson, spanned_share


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=Generator().manual_seed(seed))


def test_ten_residuals_are_enough() -> None:
    assert train_components(randn(10, 4), randn(10, 6, seed=1), k=2, epochs=1).k == 2
    with pytest.raises(VspairError, match="9 pairs: expected at least 10"):
        train_components(randn(9, 4), randn(9, 6), k=2, epochs=1, groups=[0, 1, 2] * 3)


def test_directions_of_mirrored_images_are_learned_from_both() -> None:
    """Residuals that lean to the left alone: mirrored, one direction cannot be theirs alone."""
    lean = torch.linspace(1, 0, 6).expand(200, 6, 6) * randn(200, 1, 1)
    shares = []
    for mirrored in (False, True):
        network = train_components(
            torch.zeros(200, 1, 6, 6), lean, k=1, epochs=30, mirrored=mirrored
        )
        shares.append(float(network.spanned(lean, torch.zeros(200, 1, 6, 6)).mean()))
    assert shares[0] > 0.98 > shares[1]


# -- directions -------------------------------------------------------------------------------


def test_vectors_are_orthogonalised_as_by_qr() -> None:
    vectors = randn(4, 5, 30)
    vectors[:, 3] = vectors[:, 0] + 1e-3 * vectors[:, 3]  # nearly the same direction
    directions, lengths = orthogonalise(vectors)
    torch.testing.assert_close(
        directions @ directions.mT, torch.eye(5).expand(4, 5, 5), rtol=0, atol=1e-6
    )
    q, r = torch.linalg.qr(vectors.double().mT)
    sign = r.diagonal(dim1=1, dim2=2).sign()
    torch.testing.assert_close(directions.double(), sign.unsqueeze(-1) * q.mT, rtol=0, atol=1e-3)
    torch.testing.assert_close(
        lengths.double(), r.diagonal(dim1=1, dim2=2).abs(), rtol=1e-3, atol=0
    )


def test_no_gradient_goes_to_directions_before() -> None:
    """Else the first would help the others instead of being the leading one by itself."""
    vectors = randn(2, 3, 6).requires_grad_()
    directions, lengths = orthogonalise(vectors)
    (directions[:, 2].square() * randn(2, 6, seed=1)).sum().backward(retain_graph=True)
    gradient = vectors.grad
    assert gradient is not None
    assert float(gradient[:, :2].abs().max()) == 0
    assert float(gradient[:, 2].abs().max()) > 0
    lengths[:, 1].sum().backward()
    assert float(gradient[:, 0].abs().max()) == 0


def test_the_loss_is_the_paper_s() -> None:
    model = Components((3,), (4,), k=2)
    model.scale.fill_(2.0)
    features, residuals = randn(6, 3), randn(6, 4, seed=1)
    with torch.no_grad():
        w, sigma = model(features)
        expected = 0.0
        for i in range(6):
            e = residuals[i] / 2
            for k in range(2):
                along = float(w[i, k] @ e) ** 2
                expected += 0.1 * (float(sigma[i, k]) ** 2 - along) ** 2 - along / float(e @ e)
        assert float(model.loss(features, residuals)) == pytest.approx(expected / 6, rel=1e-4)
        torch.testing.assert_close(model.components(features)[1], 2 * sigma)


def test_second_moments_do_not_turn_directions() -> None:
    """The gradient is that of a loss in which the squares along directions are numbers."""
    model = Components((3,), (4,), k=1)
    features, e = randn(6, 3), randn(6, 4, seed=1)
    numbers = (model.directions(features)[:, 0] * e).sum(1).square()
    w, sigma = model(features)
    share = (w[:, 0] * e).sum(1).square() / e.square().sum(1)
    by_hand = (0.1 * (sigma[:, 0].square() - numbers).square() - share).mean()
    weights = list(model.parameters())
    expected = torch.autograd.grad(by_hand, weights)
    found = torch.autograd.grad(model.loss(features, e), weights)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-6)


# -- against principal components -------------------------------------------------------------


def test_directions_of_one_covariance_are_its_principal_ones() -> None:
    """Features that say nothing: bounds are about twice what other seeds of data reached."""
    std, basis = torch.tensor([3.0, 2.0, 1.5] + [0.3] * 9), torch.linalg.qr(randn(12, 12)).Q
    residuals, features = (randn(7000, 12, seed=1) * std) @ basis.T, randn(7000, 4, seed=2)
    seen, fresh = slice(0, 6000), slice(6000, 7000)
    model = train_components(features[seen], residuals[seen], k=3, epochs=10)
    best = pca_share(residuals[seen], residuals[fresh], 3).mean()
    found = model.spanned(residuals[fresh], features[fresh])
    assert found.shape == (1000,)
    assert float(found.mean()) == pytest.approx(float(best), abs=0.006)
    directions, deviations = model.components(features[fresh])
    cosine = torch.einsum("bki,ik->bk", directions, basis[:, :3]).abs().mean(0)
    assert float(cosine.min()) > 0.97  # in order: the first is the leading one
    assert deviations.mean(0) == pytest.approx([3.0, 2.0, 1.5], rel=0.14)


def turning(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return residuals, features that tell their direction, it (n, 2 each), their size (n,)."""
    angle = 2 * math.pi * torch.rand(n, generator=Generator().manual_seed(seed))
    along = torch.stack((angle.cos(), angle.sin()), 1)
    size = 1 + along[:, 0].square()
    e = size[:, None] * randn(n, 1, seed=seed + 1) * along + 0.1 * randn(n, 2, seed=seed + 2)
    return e, torch.stack(((2 * angle).cos(), (2 * angle).sin()), 1), along, size


def test_directions_that_know_y_span_more_than_global_ones() -> None:
    e, features, along, size = turning(4000, seed=3)
    model = train_components(features[:3000], e[:3000], k=1, epochs=20)
    found = float(model.spanned(e[3000:], features[3000:]).mean())
    assert found > float(pca_share(e[:3000], e[3000:], 1).mean()) + 0.25
    true = spanned_share(e[3000:], along[3000:, None])
    assert found == pytest.approx(float(true.mean()), abs=0.02)
    deviations = model.components(features[3000:])[1][:, 0]
    assert float(pearson(deviations, size[3000:])) > 0.7
    assert float(deviations.mean()) == pytest.approx(float(size.mean()), rel=0.15)


def test_directions_of_images() -> None:
    """The residual lies on a blob whose place the features show."""
    generator = Generator().manual_seed(0)
    grid = torch.arange(8.0)
    place = 1 + 6 * torch.rand(2, 500, 1, generator=generator)
    row, column = (torch.exp(-((grid - p).square())) for p in place)
    blob = row[:, :, None] * column[:, None]
    e = torch.randn(500, 1, 1, 1, generator=generator) * blob[:, None].expand(-1, 2, -1, -1)
    e = e + 0.02 * torch.randn(e.shape, generator=generator)
    model = train_components(blob[:400, None], e[:400], k=1, epochs=10)
    assert model.directions(blob[400:, None]).shape == (100, 1, 2, 8, 8)
    found = model.spanned(e[400:], blob[400:, None]).mean()
    assert float(found) > float(pca_share(e[:400], e[400:], 1).mean()) + 0.3


# -- the method -------------------------------------------------------------------------------


def test_the_posterior_is_a_gaussian_along_the_directions() -> None:
    directions, deviations = orthogonalise(randn(2, 3, 6))
    post = LowRankPosterior(randn(2, 6, seed=1), directions, deviations)
    covariance = torch.einsum("bki,bk,bkj->bij", directions, deviations.square(), directions)
    drawn = post.sample(40_000, Generator().manual_seed(2)).transpose(0, 1)
    for b in range(2):
        scale = float(covariance[b].diagonal().max())
        torch.testing.assert_close(drawn[b].T.cov(), covariance[b], rtol=0, atol=0.03 * scale)
    torch.testing.assert_close(post.std().square(), covariance.diagonal(dim1=1, dim2=2))
    torch.testing.assert_close(drawn.mean(1), post.mean(), rtol=0, atol=0.05)


def test_it_wraps_around_an_anchor() -> None:
    """Of x = (y, doubt) the anchor leaves the second half, along one direction."""
    y = randn(1500, 2)
    doubt = randn(1500, 1, seed=1) * torch.tensor([[0.6, 0.8]])
    x = torch.cat((y, doubt), 1)
    ridge = Ridge(x[:500], y[:500])
    nppc = train_nppc(ridge, x[500:1200], y[500:1200], k=1, epochs=8)
    residuals = x[1200:] - ridge(y[1200:])
    assert float(nppc.spanned(residuals, y[1200:]).mean()) > 0.95
    w = nppc.directions(y[1200:])
    assert w.shape == (300, 1, 4)
    assert float((w[:, 0] @ torch.tensor([0, 0, 0.6, 0.8])).abs().mean()) > 0.98
    post = nppc.posterior(y[1200:])
    torch.testing.assert_close(post.mean(), ridge(y[1200:]))
    assert post.deviations.mean(0) == pytest.approx([1.0], rel=0.15)
    assert nppc.n_parameters > ridge.n_parameters


@pytest.mark.parametrize(
    ("x_shape", "y_shape", "expected"),
    [
        ((5,), (3,), (8,)),
        ((5,), (3, 4), (17,)),
        ((8, 9), (8, 9), (2, 8, 9)),
        ((3, 8, 9), (2, 8, 9), (5, 8, 9)),
        ((8, 9), (7,), (1, 8, 9)),
        ((8, 9), (9, 8), (1, 8, 9)),
    ],
)
def test_what_the_network_reads(
    x_shape: tuple[int, ...], y_shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    features = anchor_features(torch.ones(2, *x_shape), torch.zeros(2, *y_shape))
    assert features.shape == (2, *expected)
    assert float(features.sum()) == 2 * math.prod(x_shape)
    assert float(features.flatten(1)[:, 0].min()) == 1  # the answer comes first


def test_bad_input_is_refused() -> None:
    with pytest.raises(VspairError, match="k = 5: expected from 1 to 4"):
        train_components(randn(20, 3), randn(20, 4), k=5)
    with pytest.raises(VspairError, match="features has 20 entries and residuals has 19"):
        train_components(randn(20, 3), randn(19, 4), k=1)
    with pytest.raises(VspairError, match="residuals are all 0"):
        train_nppc(AnswerY(), randn(20, 3), randn(20, 3), k=1)
    model = Components((3,), (4,), k=2)
    with pytest.raises(VspairError, match=r"features has shape \(2, 4\)"):
        model.directions(randn(2, 4))
