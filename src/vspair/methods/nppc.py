r"""Neural posterior principal components: the directions in which an answer may be wrong.

Nehme, Yair and Michaeli, "Uncertainty Quantification via Neural Posterior Principal Components",
NeurIPS 2023.

An anchor answers r(y), and a network reads y and the answer and returns K vectors. Gram-Schmidt
makes them orthogonal, one after another; their directions are :math:`w_1, \dots, w_K` and their
lengths :math:`\sigma_1, \dots, \sigma_K`. Of the residual :math:`e = x - r(y)`

.. math:: L = - \sum_k \frac{(w_k^T e)^2}{\| e \|^2}
    + \tfrac{1}{10} \sum_k \left( \sigma_k^2 - \mathrm{sg}\,(w_k^T e)^2 \right)^2

is lessened, with residuals in a unit in which the mean of :math:`\| e \|^2` is 1. The first term
is least where the directions span most of the residual. Directions that come before are constant
in the gradient of those after them, so that the first is the leading principal direction of the
posterior by itself, the second the leading one of what it leaves, and so on. In it each residual
counts by its share: that has the principal directions of a Gaussian, or of any distribution that
is symmetric about each of them, and keeps few large residuals from ruling the others. The second
term, with sg for "no gradient", makes :math:`\sigma_k^2` the second moment along :math:`w_k`. It
has fourth powers of residuals: with more weight it would rule which epoch is best.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from vspair.data import Normaliser, as_data, as_pairs, expect_batch
from vspair.errors import VspairError
from vspair.methods.point import PointMethod
from vspair.metrics import spanned_share
from vspair.networks.direct import DirectMap
from vspair.networks.unet import channels_of
from vspair.posterior import Posterior
from vspair.runs import pick_device
from vspair.training.budget import train_in_budget
from vspair.training.mirrors import mirror
from vspair.training.networks import Trainable

__all__ = [
    "Components",
    "LowRankPosterior",
    "Nppc",
    "anchor_features",
    "orthogonalise",
    "train_components",
    "train_nppc",
]

_SECOND = 0.1
"""The weight of the second moments."""


def orthogonalise(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return orthonormal directions (B, K, n) of vectors (B, K, n), and lengths (B, K).

    The lengths are those after Gram-Schmidt. No gradient goes to the directions that a vector is
    made orthogonal to. Each is made so twice, which is enough for float32.
    """
    found: list[Tensor] = []
    lengths: list[Tensor] = []
    for vector in vectors.unbind(1):
        left = vector
        for _ in range(2 if found else 0):
            before = torch.stack(found, 1).detach()
            along = (before @ left.unsqueeze(-1)).squeeze(-1)
            left = left - (along.unsqueeze(1) @ before).squeeze(1)
        length = left.norm(dim=-1).clamp(min=torch.finfo(left.dtype).tiny)
        found.append(left / length.unsqueeze(-1))
        lengths.append(length)
    return torch.stack(found, 1), torch.stack(lengths, 1)


class Components(Trainable):
    """The network that predicts principal components, from features in their own units.

    Arguments:
        features_shape: The shape of the features of one observation: (n,), or (C, H, W) with x's
            height and width.
        x_shape: The shape of one unknown.
        k: The number K of components.
    """

    scale: Tensor

    def __init__(self, features_shape: Sequence[int], x_shape: Sequence[int], k: int) -> None:
        shapes = {"features_shape": tuple(features_shape), "x_shape": tuple(x_shape)}
        super().__init__({**shapes, "k": k})
        self.x_shape, self.k, self.size = tuple(x_shape), k, math.prod(x_shape)
        if not 1 <= k <= self.size:
            raise VspairError(f"k = {k}: expected from 1 to {self.size}, the numbers in x.")
        self.normaliser = Normaliser(tuple(features_shape))
        self.network = DirectMap(features_shape, _stacked(self.x_shape, k))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return directions (B, K, n) and deviations (B, K) in units of ``scale``."""
        expect_batch("features", features, tuple(self.normaliser.mean.shape))
        raw = self.network(self.normaliser(features)).reshape(-1, self.k, self.size)
        return orthogonalise(raw / math.sqrt(self.size))

    def loss(self, features: Tensor, residuals: Tensor) -> Tensor:
        """Return L, the mean over features (B, *features_shape) and residuals (B, *x_shape)."""
        directions, deviations = self(features)
        e = residuals.flatten(1) / self.scale
        along = (directions @ e.unsqueeze(-1)).squeeze(-1).square()
        whole = e.square().sum(1).clamp(min=torch.finfo(e.dtype).tiny)
        second = (deviations.square() - along.detach()).square().sum(1)
        return (_SECOND * second - along.sum(1) / whole).mean()

    @torch.no_grad()
    def components(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return orthonormal directions (B, K, *x_shape) and deviations (B, K) in x's unit."""
        directions, deviations = self(features.to(self.scale.device))
        return directions.reshape(-1, self.k, *self.x_shape), deviations * self.scale

    def directions(self, features: Tensor) -> Tensor:
        """Return orthonormal directions, with shape (B, K, *x_shape)."""
        return self.components(features)[0]

    def spanned(self, residuals: Tensor, features: Tensor) -> Tensor:
        """Return the share of squared residuals (B, *x_shape) that is spanned, float64 (B,)."""
        directions = self.directions(features)
        return spanned_share(residuals.to(directions.device), directions)


def _stacked(x_shape: tuple[int, ...], k: int) -> tuple[int, ...]:
    """Return the shape of k unknowns as one: of images, with their channels side by side."""
    if len(x_shape) in (2, 3):
        return k * channels_of(x_shape), *x_shape[-2:]
    return (k * math.prod(x_shape),)


def train_components(
    features: Any,
    residuals: Any,
    *,
    k: int = 5,
    seconds: float = 60.0,
    epochs: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    groups: Any = None,
    mirrored: bool = False,
) -> Components:
    """Return a network trained to predict the principal components of residuals.

    Arguments:
        features: What the network reads, with shape (N, n) or (N, C, H, W), N at least 10.
        residuals: Residuals x - r(y) of pairs that the anchor r was not trained on, with shape
            (N, *x_shape).
        k: The number of components.
        seconds: How long to train, where no epochs are given.
        epochs: How often to see each residual, whatever time that takes.
        seed: Fixes first weights, order, and which residuals are held out.
        device: Where to train: ``cpu``, ``cuda``, or ``auto``.
        groups: Labels (N,) of residuals that belong together and are held out together.
        mirrored: Whether to learn from mirrored images too.
    """
    features = as_data(features, "features").float()
    residuals = as_data(residuals, "residuals").float()
    if len(features) != len(residuals):
        raise VspairError(
            f"features has {len(features)} entries and residuals has {len(residuals)}: expected "
            "as many of each."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Components(tuple(features.shape[1:]), tuple(residuals.shape[1:]), k)
    model.normaliser.fit(features, "channel")
    square = float(residuals.double().square().flatten(1).sum(1).mean())
    if not square > 0:
        raise VspairError("residuals are all 0: there is no direction to learn from them.")
    model.scale.fill_(math.sqrt(square))
    model.to(pick_device(device))

    def loss(batch: tuple[Tensor, ...], generator: Generator) -> Tensor:
        return model.loss(*(mirror(batch, generator) if mirrored else batch))

    how: dict[str, Any] = {"seconds": seconds, "epochs": epochs, "seed": seed}
    train_in_budget(model, loss, (features, residuals), groups=groups, batch_size=64, **how)
    return model


def anchor_features(answer: Tensor, y: Tensor) -> Tensor:
    """Return what the network reads of an anchor's answer (B, *x_shape) and y (B, *y_shape).

    Of images, the answer's channels, and those of y where it has the same height and width, with
    shape (B, C, H, W); of vectors, all numbers of both, with shape (B, n).
    """
    if answer.ndim not in (3, 4):
        return torch.cat((answer.flatten(1), y.flatten(1)), 1)
    grid = answer.shape[-2:]
    parts = [answer, y] if y.ndim in (3, 4) and y.shape[-2:] == grid else [answer]
    return torch.cat([t.reshape(len(t), -1, *grid) for t in parts], 1)


class LowRankPosterior(Posterior):
    r"""A Gaussian about an answer that moves along a few directions only.

    .. math:: X = r(y) + \sum_k \sigma_k \varepsilon_k w_k, \qquad \varepsilon \sim N(0, I)

    Arguments:
        answer: The answers r(y), with shape (B, *x_shape).
        directions: Orthonormal directions, with shape (B, K, *x_shape).
        deviations: The deviation along each, with shape (B, K).
    """

    def __init__(self, answer: Tensor, directions: Tensor, deviations: Tensor) -> None:
        super().__init__(tuple(answer.shape[1:]), answer.device)
        self.answer, self.directions, self.deviations = answer, directions, deviations
        self._moves = deviations.unsqueeze(-1) * directions.flatten(2)

    def __len__(self) -> int:
        return len(self.answer)

    def __repr__(self) -> str:
        return f"LowRankPosterior({len(self)} observations, {self.directions.shape[1]} directions)"

    def _sampled(self, n: int, generator: Generator | None) -> Iterator[Tensor]:
        like = self.deviations
        unit = torch.randn(
            (n, *like.shape), dtype=like.dtype, device=like.device, generator=generator
        )
        moved = torch.einsum("nbk,bki->nbi", unit, self._moves)
        yield self.answer + moved.reshape(n, *self.answer.shape)

    def _moments(self, n: int, generator: Generator | None) -> tuple[Tensor, Tensor]:
        """Return mean and deviation in closed form."""
        std = self._moves.square().sum(1).sqrt()
        return self.answer, std.reshape(self.answer.shape)


class Nppc:
    """Principal components about the answers of an anchor.

    Arguments:
        anchor: The point method that answers.
        components: The network, trained on the anchor's residuals with :func:`anchor_features`.
    """

    def __init__(self, anchor: PointMethod, components: Components) -> None:
        self.anchor, self.network = anchor, components
        parameters = sum(p.numel() for p in components.parameters())
        self.n_parameters = anchor.n_parameters + parameters

    def posterior(self, y: Tensor) -> LowRankPosterior:
        """Return a Gaussian along the predicted components, about the answers to (B, *y_shape)."""
        answer = self.anchor(y).to(self.network.scale.device)
        features = anchor_features(answer, y.to(answer.device))
        return LowRankPosterior(answer, *self.network.components(features))

    def directions(self, y: Tensor) -> Tensor:
        """Return orthonormal directions, with shape (B, K, *x_shape)."""
        return self.posterior(y).directions

    def spanned(self, residuals: Tensor, y: Tensor) -> Tensor:
        """Return the share of squared residuals x - r(y) that the directions span, float64 (B,).

        Arguments:
            residuals: The residuals, with shape (B, *x_shape).
            y: The observations, with shape (B, *y_shape).
        """
        directions = self.directions(y)
        return spanned_share(residuals.to(directions.device), directions)


def train_nppc(
    anchor: PointMethod,
    x: Any,
    y: Any,
    *,
    k: int = 5,
    seconds: float = 60.0,
    epochs: int | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> Nppc:
    """Return components about an anchor's answers, trained on pairs that it has not seen.

    Arguments:
        anchor: The point method that answers.
        x: Unknowns, with shape (N, *x_shape), of pairs that the anchor was **not** trained on.
        y: Their observations, with shape (N, *y_shape).
        k: The number of components.
        seconds: How long to train, where no epochs are given.
        epochs: How often to see each pair, whatever time that takes.
        seed: Fixes first weights, order, and which pairs are held out.
        device: Where to train: ``cpu``, ``cuda``, or ``auto``.
    """
    x, y = as_pairs(x, y)
    with torch.no_grad():
        answer = torch.cat([anchor(part).cpu() for part in y.split(256)])
    how: dict[str, Any] = {"seconds": seconds, "epochs": epochs, "seed": seed, "device": device}
    return Nppc(anchor, train_components(anchor_features(answer, y), x - answer, k=k, **how))
