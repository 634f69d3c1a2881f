r"""Theorem 1 as an executable check.

With an affine encoder :math:`q(z \mid x) = \mathcal{N}(Bx + c, \Sigma)` of constant covariance,

.. math:: \mathbb{E}[Z \mid y] = B\,\mathbb{E}[X \mid y] + c, \qquad
    \mathrm{Cov}(Z \mid y) = \Sigma + B\,\mathrm{Cov}(X \mid y)\,B^\top .

The same two moments are estimated by Monte Carlo, and read off latent maps that were trained by
the KL and by the paper's parameter MSE.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn

from vspair import config as configs
from vspair.codes import Normal
from vspair.model import PairedAutoencoder, build
from vspair.objective import Objective
from vspair.problems.gaussian import GaussianProblem
from vspair.training import Trainer

__all__ = ["AffineEncoder", "theorem1"]


class AffineEncoder(nn.Module):
    """Encodes x as a normal whose mean is affine in x and whose variance is constant.

    Arguments:
        n: The dimension of x.
        size: The dimension of z.
    """

    def __init__(self, n: int, size: int) -> None:
        super().__init__()
        self.affine = nn.Linear(n, size)
        self.logvar = nn.Parameter(torch.full((size,), -1.0))

    def forward(self, x: Tensor) -> Normal:
        """Return the code of unknowns of shape (B, n)."""
        mu = self.affine(x)
        return Normal(mu, self.logvar.expand_as(mu))


def _model(problem: GaussianProblem, kind: str, epochs: int, size: int) -> PairedAutoencoder:
    """Train a paired autoencoder with an affine x encoder; its width stays at 0.3."""
    base = configs.override(
        configs.preset("calibrated"),
        {
            "model": {"kind": "vPAIR", "x_size": size, "y_size": 8, "normalise": "none"},
            "objective": {
                "map": kind,
                "width": "annealed",
                "width_start": 0.3,
                "width_end": 0.3,
                "gamma_x": 0.1,
            },
            "training": {"epochs": epochs, "learning_rate": 5e-3, "validation": 0.0},
        },
    )
    x, y = problem.pairs(1024, 10, seed=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build(base.model, (2,), (4,))
        assert isinstance(model, PairedAutoencoder)
        model.x_encoder = AffineEncoder(2, size)  # type: ignore[assignment]
    Objective(base.objective).prepare(model)
    Trainer(model, base, x, y).train(show=False)
    return model


def _moments(
    problem: GaussianProblem, model: PairedAutoencoder, y: Tensor, samples: int
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return mean and variances of Z given y by each route, each of shape (B, l)."""
    encoder = model.x_encoder
    assert isinstance(encoder, AffineEncoder)
    b, c = encoder.affine.weight.double(), encoder.affine.bias.double()
    covariance = encoder.logvar.double().exp().diag() + b @ problem.covariance @ b.T
    mean = problem.posterior_mean(y) @ b.T + c
    generator = Generator().manual_seed(0)
    x = problem.sample_posterior(y, samples, generator)
    z = encoder(x.float()).rsample(generator).double()
    mapped = model.latent(y.float())
    return {
        "formula": (mean, covariance.diagonal().expand_as(mean)),
        "Monte Carlo": (z.mean(0), z.var(0)),
        "map": (mapped.mean.double(), mapped.variance.double()),
    }


def _distance(a: Tensor, b: Tensor) -> float:
    """Return the root mean square of a - b, relative to that of b."""
    return float((a - b).norm() / b.norm())


@torch.no_grad()
def _distances(problem: GaussianProblem, model: PairedAutoencoder, y: Tensor) -> dict[str, Any]:
    found = _moments(problem, model, y, samples=4000)
    mean, variance = found.pop("formula")
    return {
        name: {"mean": _distance(m, mean), "variance": _distance(v, variance)}
        for name, (m, v) in found.items()
    }


def theorem1(seed: int = 0, epochs: int = 60, size: int = 3) -> dict[str, Any]:
    """Return how far Monte Carlo and learned maps are from the theorem's formula.

    Arguments:
        seed: Draws the operator.
        epochs: The training of each map.
        size: The number of latent dimensions.

    Returns:
        ``distances``: relative root-mean-square distances of means and variances. The maps are
        diagonal, so variances are compared, not covariances.
    """
    problem = GaussianProblem.random(seed)
    y = problem.observe(200, Generator().manual_seed(7))
    by_kl = _distances(problem, _model(problem, "kl", epochs, size), y)
    by_mse = _distances(problem, _model(problem, "parameters", epochs, size), y)
    return {
        "seed": seed,
        "epochs": epochs,
        "distances": {
            "Monte Carlo, 4,000 samples": by_kl["Monte Carlo"],
            "map fitted by KL": by_kl["map"],
            "map fitted to parameters, eq. (16)": by_mse["map"],
        },
    }
