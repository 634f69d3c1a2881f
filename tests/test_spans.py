"""What factors explain and span, for a decoder whose directions are known."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, Tensor, nn

from vspair.anchored import AnchoredModel
from vspair.anchors import Made
from vspair.codes import SpikeSlab
from vspair.config import AnchoredConfig, ModelConfig
from vspair.errors import VspairError
from vspair.metrics import pca_share
from vspair.mixtures import Mixture
from vspair.networks.spatial import PlaceDecoder
from vspair.posterior import LatentPosterior
from vspair.uncertainty import FEW, factor_directions, spans

N, KINDS = 12, 8


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=Generator().manual_seed(seed))


def linear_model(modes: int = 1) -> tuple[AnchoredModel, Tensor]:
    """Return a model that answers 0, and the directions of its linear decoder, (l, n)."""
    made = Made("ridge", "vector", 2, 1, 0, 0, modes, False)
    sizes = AnchoredConfig(kinds=KINDS, width=4)
    torch.manual_seed(0)
    model = AnchoredModel(ModelConfig(kind="anchored"), sizes, made, (N,), (2,)).eval()
    model.x_normaliser.std.copy_(torch.linspace(0.5, 2, N))
    decoder = model.x_decoder
    assert isinstance(decoder, PlaceDecoder)
    assert isinstance(decoder.straight, nn.Linear)
    with torch.no_grad():
        for layer in decoder.layers.modules():
            if isinstance(layer, nn.Linear):
                layer.weight.zero_()
        decoder.straight.weight.copy_(randn(N, KINDS, seed=5))
    return model, (decoder.straight.weight * model.x_normaliser.std[:, None]).T.detach()


def code_of(omega: Tensor, modes: int = 1) -> SpikeSlab | Mixture:
    """Return codes with gates omega (B, l) and a strength that falls from factor to factor."""
    mu = torch.linspace(3, 1, KINDS).expand_as(omega)
    each = SpikeSlab.of(mu, torch.zeros_like(mu), omega)
    if modes == 1:
        return each
    weights = torch.full((len(omega), modes), 1 / modes).log()
    return Mixture(each._map(lambda t: t.unsqueeze(1).expand(-1, modes, -1)), weights)


@pytest.mark.parametrize("modes", [1, 3])
def test_directions_are_those_of_present_factors(modes: int) -> None:
    model, moves = linear_model(modes)
    omega = torch.full((3, KINDS), 1e-6)
    omega[0, [1, 4, 6]], omega[2] = 0.999, 0.999
    found = factor_directions(LatentPosterior(model, code_of(omega, modes)))
    assert [len(w) for w in found] == [3, 0, 8]
    for w, rows in ((found[0], [1, 4, 6]), (found[2], list(range(8)))):
        torch.testing.assert_close(w @ w.T, torch.eye(len(w), dtype=torch.float64))
        left = moves[rows].double()
        torch.testing.assert_close(left @ w.T @ w, left, rtol=1e-4, atol=1e-4)


def test_the_few_are_those_that_carry_most() -> None:
    model, moves = linear_model()
    post = LatentPosterior(model, code_of(torch.full((1, KINDS), 0.999)))
    order = moves.square().sum(1).argsort(descending=True)[:2]  # all strengths vary alike
    w = factor_directions(post, 2)[0]
    assert w.shape == (2, N)
    torch.testing.assert_close(moves[order].double() @ w.T @ w, moves[order].double(), rtol=1e-4,
                               atol=1e-4)  # fmt: skip


def test_factors_that_move_one_direction_count_once() -> None:
    model, _ = linear_model()
    decoder = model.x_decoder
    assert isinstance(decoder, PlaceDecoder)
    assert isinstance(decoder.straight, nn.Linear)
    with torch.no_grad():
        decoder.straight.weight[:, 1] = -2 * decoder.straight.weight[:, 0]
        decoder.straight.weight[:, 2] = 0
    post = LatentPosterior(model, code_of(torch.full((1, KINDS), 0.999)))
    assert len(factor_directions(post)[0]) == KINDS - 2


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> tuple[AnchoredModel, Tensor]:
    """Return a model whose answers have factors 0 to 5 of 8, and the directions."""
    model, moves = linear_model()
    omega = torch.full((1, KINDS), 1e-6)
    omega[:, :6] = 0.999

    def read(numbers: Tensor, shift: Tensor | None = None) -> SpikeSlab:
        code = code_of(omega.expand(len(numbers), -1))
        assert isinstance(code, SpikeSlab)
        return code

    def encode(residual: Tensor, seen: Tensor) -> SpikeSlab:
        """Return the exact least squares of residuals by all factors."""
        z = torch.linalg.lstsq(moves.T, (residual * model.x_normaliser.std).T).solution.T
        whole = z + 0.999 * torch.linspace(3, 1, KINDS) * (torch.arange(KINDS) < 6)  # centred
        return SpikeSlab.of(whole, torch.full_like(z, -20.0), torch.ones_like(z))

    monkeypatch.setattr(model, "read_code", read)
    monkeypatch.setattr(model, "encode", encode)
    return model, moves


def test_residuals_along_factors_are_spanned_and_explained(
    known: tuple[AnchoredModel, Tensor],
) -> None:
    model, moves = known
    x, y = randn(9, 6) @ moves[:6], randn(9, 2)
    found = spans(model, x, y, randn(50, N, seed=3))
    assert found["spanned_all"] == pytest.approx(1, abs=1e-6)
    assert found["explained"] == pytest.approx(1, abs=1e-4)
    assert found["spanned_5"] < 0.99


def test_shares_are_those_of_a_projection(known: tuple[AnchoredModel, Tensor]) -> None:
    """Of other residuals, factors span what least squares by them leave nothing of."""
    model, moves = known
    x, y, others = randn(9, N), randn(9, 2), randn(50, N, seed=3) * torch.linspace(3, 0.1, N)
    found = spans(model, x, y, others)
    strongest = moves[:6].square().sum(1).argsort(descending=True)[:FEW]
    for name, rows in (("spanned_all", torch.arange(6)), ("spanned_5", strongest)):
        a = moves[rows].T.double()
        left = x.double().T - a @ torch.linalg.lstsq(a, x.double().T).solution
        share = 1 - left.square().sum(0) / x.double().T.square().sum(0)
        assert found[name] == pytest.approx(float(share.mean()), abs=1e-5)
    assert found["spanned_pca"] == pytest.approx(float(pca_share(others, x, 6).mean()))
    assert found["spanned_pca_5"] == pytest.approx(float(pca_share(others, x, 5).mean()))


def test_what_is_explained_is_not_changed_by_the_width_of_the_doubt(
    known: tuple[AnchoredModel, Tensor],
) -> None:
    """The decoder is widened as a whole; what codes say of residuals is not the better for it."""
    model, moves = known
    x, y = randn(9, 8) @ moves[:8] + randn(9, N, seed=4), randn(9, 2)
    found = spans(model, x, y, randn(50, N))["explained"]
    z = torch.linalg.lstsq(moves.T, x.T).solution
    z[6:] = 0  # the answer does not have them
    said, own = (z.T @ moves).flatten(), x.flatten()
    by_hand = float((said @ own) ** 2 / (said @ said * (own @ own)))
    assert 0.3 < found < 0.95
    assert found == pytest.approx(by_hand, rel=1e-4)
    model.widen(1.7, 0.6)
    assert spans(model, x, y, randn(50, N))["explained"] == pytest.approx(found, rel=1e-5)


def test_without_present_factors_nothing_is_spanned(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = linear_model()
    nothing = code_of(torch.full((1, KINDS), 1e-6))
    monkeypatch.setattr(
        model, "read_code", lambda numbers, shift=None: nothing[[0] * len(numbers)]
    )
    found = spans(model, randn(4, N), randn(4, 2), randn(20, N))
    assert found["spanned_all"] == found["spanned_5"] == found["spanned_pca"] == 0
    assert found["spanned_pca_5"] > 0


def test_other_shapes_are_refused() -> None:
    with pytest.raises(VspairError, match=r"others \(20, 5\): expected batches .* \(12,\)"):
        spans(linear_model()[0], randn(4, N), randn(4, 2), randn(20, 5))
