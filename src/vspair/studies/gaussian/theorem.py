r"""Theorem 1 as an executable check.

With an affine encoder :math:`q(z \mid x) = \mathcal{N}(Bx + c, \Sigma)` of constant covariance,

.. math:: \mathbb{E}[Z \mid y] = B\,\mathbb{E}[X \mid y] + c, \qquad
    \mathrm{Cov}(Z \mid y) = \Sigma + B\,\mathrm{Cov}(X \mid y)\,B^\top .

The same two moments are estimated by Monte Carlo, and read off two latent maps for the same
trained encoder: one fitted by the KL, one by the paper's parameter MSE, eq. (16).
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Generator, Tensor, nn

from vspair import config as configs
from vspair.codes import Normal
from vspair.config import Config
from vspair.data import Pairs
from vspair.fitting import split_pairs
from vspair.model import PairedAutoencoder, build
from vspair.objective import Objective
from vspair.problems.gaussian import GaussianProblem
from vspair.training.trainer import Trainer

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


def _config(epochs: int, size: int, **changes: Any) -> Config:
    """Return a vPAIR whose decoder's width stays at 0.3, so that both parts of Cov(Z) count."""
    width = {"width": "annealed", "width_start": 0.3, "width_end": 0.3, "gamma_x": 0.1}
    training = {"epochs": epochs, "learning_rate": 5e-3, "validation": 0.0}
    return configs.override(
        configs.preset("calibrated"),
        {
            "model": {"kind": "vPAIR", "x_size": size, "y_size": 8, "normalise": "none"},
            "objective": width | changes.get("objective", {}),
            "training": training | changes.get("training", {}),
        },
    )


def _paired(problem: GaussianProblem, epochs: int, size: int) -> PairedAutoencoder:
    """Train a paired autoencoder with an affine x encoder, map included."""
    config = _config(epochs, size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build(config.model, (2,), (4,))
        assert isinstance(model, PairedAutoencoder)
        model.x_encoder = AffineEncoder(2, size)  # type: ignore[assignment]
    Objective(config.objective).prepare(model)
    pairs = Pairs(*problem.pairs(1024, 10, seed=1))
    Trainer(model, config, *split_pairs(pairs, config)).train(show=False)
    return model


def _refitted(
    problem: GaussianProblem, model: PairedAutoencoder, kind: str, epochs: int
) -> PairedAutoencoder:
    """Fit the map of a copy by another objective, all else frozen."""
    config = _config(
        epochs,
        model.config.x_size,
        objective={"map": kind},
        training={"stages": "two-stage", "first_stage": 0.0},
    )
    model = deepcopy(model)
    pairs = Pairs(*problem.pairs(1024, 10, seed=1))
    Trainer(model, config, *split_pairs(pairs, config)).train(show=False)
    return model


def _moments(
    problem: GaussianProblem, model: PairedAutoencoder, y: Tensor, samples: int
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return mean (B, l) and covariance (B, l, l) of Z given y by each route."""
    encoder = model.x_encoder
    assert isinstance(encoder, AffineEncoder)
    b, c = encoder.affine.weight.double(), encoder.affine.bias.double()
    covariance = encoder.logvar.double().exp().diag() + b @ problem.covariance @ b.T
    mean = problem.posterior_mean(y) @ b.T + c
    generator = Generator().manual_seed(0)
    x = problem.sample_posterior(y, samples, generator)
    z = encoder(x.float()).rsample(generator).double()
    centred = z - z.mean(0)
    mapped = model.latent(y.float())
    return {
        "formula": (mean, covariance.expand(len(y), -1, -1)),
        "Monte Carlo": (z.mean(0), torch.einsum("nbi,nbj->bij", centred, centred) / len(z)),
        "map": (mapped.mean.double(), torch.diag_embed(mapped.variance.double())),
    }


def _distance(a: Tensor, b: Tensor) -> float:
    """Return the root mean square of a - b, relative to that of b."""
    return float((a - b).norm() / b.norm())


@torch.no_grad()
def _distances(problem: GaussianProblem, model: PairedAutoencoder, y: Tensor) -> dict[str, Any]:
    found = _moments(problem, model, y, samples=4000)
    mean, covariance = found.pop("formula")
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    return {
        name: {
            "mean": _distance(m, mean),
            "variance": float((c.diagonal(dim1=-2, dim2=-1) / variance - 1).abs().mean()),
            "covariance": _distance(c, covariance),
        }
        for name, (m, c) in found.items()
    }


def theorem1(seed: int = 0, epochs: int = 60, size: int = 2) -> dict[str, Any]:
    """Return how far Monte Carlo and learned maps are from the theorem's formula.

    Arguments:
        seed: Draws the operator.
        epochs: The training of each map.
        size: The number of latent dimensions.

    Returns:
        ``distances``: for means and covariances, the root-mean-square distance relative to
        their size; for variances, the mean relative error of a dimension. The maps are diagonal,
        so what correlation the formula has counts against them in the covariance.
    """
    problem = GaussianProblem.random(seed)
    y = problem.observe(200, Generator().manual_seed(7))
    model = _paired(problem, epochs, size)
    by_kl = _distances(problem, _refitted(problem, model, "kl", epochs), y)
    by_mse = _distances(problem, _refitted(problem, model, "parameters", epochs), y)
    return {
        "seed": seed,
        "epochs": epochs,
        "distances": {
            "Monte Carlo, 4,000 samples": by_kl["Monte Carlo"],
            "map fitted by KL": by_kl["map"],
            "map fitted to parameters, eq. (16)": by_mse["map"],
        },
    }
