r"""Theorem 1 as an executable check.

With an affine encoder :math:`q(z \mid x) = \mathcal{N}(Bx + c, \Sigma)` of constant covariance,

.. math:: \mathbb{E}[Z \mid y] = B\,\mathbb{E}[X \mid y] + c, \qquad
    \mathrm{Cov}(Z \mid y) = \Sigma + B\,\mathrm{Cov}(X \mid y)\,B^\top .

The same two moments are estimated by Monte Carlo, and read off two latent maps for the same
trained encoder: one fitted by the KL, one by the paper's parameter MSE, eq. (16).
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Generator, Tensor, nn

from vspair import config as configs
from vspair.codes import Normal
from vspair.config import Config
from vspair.data import Pairs
from vspair.metrics import sample_moments
from vspair.model import PairedAutoencoder, build
from vspair.objective import Objective
from vspair.problems.gaussian import GaussianProblem
from vspair.training.trainer import Trainer

__all__ = ["AffineEncoder", "theorem1"]

Moments = tuple[Tensor, Tensor]
"""Mean (B, l) and covariance (B, l, l)."""


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


def _config(epochs: int, size: int) -> Config:
    """Return a vPAIR whose decoder noise stays at 0.3, so that both parts of Cov(Z) count."""
    changes = {
        "model": {"kind": "vPAIR", "x_size": size, "y_size": 8, "normalise": "none"},
        "objective": {"width": "annealed", "width_start": 0.3, "width_end": 0.3, "gamma_x": 0.1},
        "training": {"epochs": epochs, "learning_rate": 5e-3, "validation": 0.0},
    }
    return configs.override(configs.preset("calibrated"), changes)


def _affine_model(config: Config) -> PairedAutoencoder:
    """Return a paired autoencoder with an affine x encoder, not trained."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build(config.model, (2,), (4,))
        assert isinstance(model, PairedAutoencoder)
        model.x_encoder = AffineEncoder(2, config.model.x_size)  # type: ignore[assignment]
    Objective(config.objective).prepare(model)
    return model


def _fitted(
    model: PairedAutoencoder, pairs: Pairs, config: Config, kind: str, y: Tensor
) -> Moments:
    """Return the moments of Z given y of a map that is fitted anew, all else frozen."""
    stages = {"stages": "two-stage", "first_stage": 0.0}
    config = configs.override(config, {"objective": {"map": kind}, "training": stages})
    model = deepcopy(model)
    Trainer(model, config, pairs).train(show=False)
    with torch.no_grad():
        code = model.latent(y.float())
    return code.mean.double(), torch.diag_embed(code.variance.double())


@torch.no_grad()
def _exact_and_sampled(
    problem: GaussianProblem, encoder: AffineEncoder, y: Tensor
) -> tuple[Moments, Moments]:
    """Return the moments of Z given y by the theorem's formula and from 4,000 samples."""
    b, c = encoder.affine.weight.double(), encoder.affine.bias.double()
    covariance = encoder.logvar.double().exp().diag() + b @ problem.covariance @ b.T
    exact = problem.posterior_mean(y) @ b.T + c, covariance.expand(len(y), -1, -1)
    generator = Generator().manual_seed(0)
    x = problem.sample_posterior(y, 4000, generator)
    return exact, sample_moments(encoder(x.float()).rsample(generator).double())


def _distances(found: Moments, exact: Moments) -> dict[str, float]:
    """Return how far moments are from exact ones, relative to these."""
    variances, truth = (c.diagonal(dim1=-2, dim2=-1) for _, c in (found, exact))
    mean, covariance = (
        float((a - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True)
    )
    off = float((variances / truth - 1).abs().mean())
    return {"mean": mean, "variances": off, "covariance": covariance}


def theorem1(seed: int = 0, epochs: int = 60, size: int = 2) -> dict[str, dict[str, float]]:
    """Return how far Monte Carlo and learned maps are from the theorem's formula.

    Arguments:
        seed: Makes the operator.
        epochs: The training of each map.
        size: The number of latent dimensions.

    Returns:
        For each way to the moments, ``mean`` and ``covariance``: the root-mean-square distance
        relative to their size, and ``variances``: the mean relative error of a dimension. The
        maps are diagonal, so what correlation the formula has counts against them in the
        covariance.
    """
    problem, config = GaussianProblem.random(seed), _config(epochs, size)
    pairs = Pairs(*problem.pairs(1024, 10, seed=1))
    y = problem.observe(200, Generator().manual_seed(7))
    model = _affine_model(config)
    Trainer(model, config, pairs).train(show=False)
    assert isinstance(model.x_encoder, AffineEncoder)
    exact, sampled = _exact_and_sampled(problem, model.x_encoder, y)
    found = {
        "Monte Carlo, 4,000 samples": sampled,
        "map fitted by KL": _fitted(model, pairs, config, "kl", y),
        "map fitted to parameters, equation (16)": _fitted(model, pairs, config, "parameters", y),
    }
    return {name: _distances(moments, exact) for name, moments in found.items()}
