"""How far corrections are trusted: against least squares, and where pairs do not agree."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, Tensor

from vspair.training.corrections import agreeing, weigh


def moments(left: Tensor, said: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    rows = torch.stack((said, step))
    return rows @ left / (left @ left), rows @ rows.T / (left @ left)


def test_trust_is_least_squares() -> None:
    g = Generator().manual_seed(0)
    a, b, noise = torch.randn(3, 4000, generator=g, dtype=torch.float64)
    left = 0.7 * a + 0.3 * b + noise
    trust, error = weigh(*moments(left, a, b))
    torch.testing.assert_close(trust, torch.tensor([0.7, 0.3]).double(), rtol=0, atol=0.05)
    found = left - trust[0] * a - trust[1] * b
    assert error == pytest.approx(float(found.square().sum() / left.square().sum()), abs=1e-9)


def test_what_helps_less_than_a_hundredth_is_left_out() -> None:
    gains, products = torch.tensor([0.5, 0.001]), torch.diag(torch.tensor([0.5, 0.01]))
    assert weigh(gains, products)[0].tolist() == [1.0, 0.0]
    assert weigh(gains, products, forced=True)[0].tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("gains", "products", "agreement"),
    [
        ([0.98, 0.0], [[0.965, 0.0], [0.0, 1e-4]], 0.95),
        ([0.95, 0.95], [[0.91, 0.908], [0.908, 0.91]], 0.9),
    ],
)
def test_agreement_on_other_pairs_promises_no_error_below_none(
    gains: list[float], products: list[list[float]], agreement: float
) -> None:
    """What networks agree in was seen on few pairs, what they gain on others."""
    given = torch.tensor(gains).double(), torch.tensor(products).double()
    found = agreeing(*given, agreement)
    assert found[0, 0] >= agreement * given[1][0, 0]
    whole = torch.ones(3, 3).double()  # products of what is left and both corrections
    whole[0, 1:] = whole[1:, 0] = given[0]
    whole[1:, 1:] = found
    assert torch.linalg.eigvalsh(whole[:2, :2]).min() >= -1e-9
    assert torch.linalg.eigvalsh(found).min() >= -1e-9
    assert weigh(given[0], found)[1] >= 0


def test_networks_that_differ_are_trusted_more_as_their_mean() -> None:
    gains, products = torch.tensor([0.4, 0.0]), torch.diag(torch.tensor([0.8, 0.0]))
    assert float(weigh(gains, agreeing(gains, products, 1.0))[0][0]) == pytest.approx(0.5)
    assert float(weigh(gains, agreeing(gains, products, 0.6))[0][0]) == pytest.approx(0.83)
