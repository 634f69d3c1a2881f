r"""A plain network from y to x: what the same pairs and the same time give without any model.

.. math:: \min_\theta \; E \, \tfrac1n \| f_\theta(y) - x \|^2

Where y is an image of x's height and width, f is a small U-Net (Ronneberger, Fischer and Brox,
"U-Net: Convolutional Networks for Biomedical Image Segmentation", MICCAI 2015), of about 250,000
parameters; elsewhere an MLP with two hidden layers, layer norm (Ba, Kiros and Hinton, "Layer
Normalization", 2016) and SiLU: see :class:`vspair.networks.direct.DirectMap`. Its answer is a
mean; for a spread see :class:`vspair.methods.GaussianResiduals`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from vspair.data import Normaliser, as_pairs, expect_batch
from vspair.methods.point import PointMethod
from vspair.networks.direct import DirectMap
from vspair.runs import pick_device
from vspair.training.budget import train_in_budget
from vspair.training.networks import Trainable

__all__ = ["Plain", "PlainNetwork", "train_plain"]


class PlainNetwork(Trainable):
    """A network from observations to unknowns, both in their own units.

    Arguments:
        x_shape: The shape of one unknown.
        y_shape: The shape of one observation.
    """

    def __init__(self, x_shape: Sequence[int], y_shape: Sequence[int]) -> None:
        super().__init__({"x_shape": tuple(x_shape), "y_shape": tuple(y_shape)})
        self.x_shape, self.y_shape = tuple(x_shape), tuple(y_shape)
        self.network = DirectMap(self.y_shape, self.x_shape)
        self.x_normaliser, self.y_normaliser = Normaliser(self.x_shape), Normaliser(self.y_shape)

    def forward(self, y: Tensor) -> Tensor:
        """Return unknowns, with shape (B, *x_shape), of observations (B, *y_shape)."""
        return self.x_normaliser.inverse(self.network(self.y_normaliser(y)))


class Plain(PointMethod):
    """A trained plain network.

    Arguments:
        network: The network.
        first: From observations to what the network reads, such as the answer of another method;
            the observations themselves where not given.
    """

    name = "plain network"

    def __init__(
        self, network: PlainNetwork, first: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        self.network, self.first = network, first
        self.n_parameters = sum(p.numel() for p in network.parameters())

    @torch.no_grad()
    def __call__(self, y: Tensor) -> Tensor:
        """Return estimates, with shape (B, *x_shape), of observations with shape (B, *y_shape)."""
        y = y if self.first is None else self.first(y)
        expect_batch("y", y, self.network.y_shape)
        return self.network(y.to(self.network.x_normaliser.mean.device))


def train_plain(
    x: Any,
    y: Any,
    *,
    seconds: float = 60.0,
    epochs: int | None = None,
    passes: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    groups: Any = None,
    held: tuple[Tensor, ...] | None = None,
    **how: Any,
) -> Plain:
    """Return a plain network trained on pairs.

    Arguments:
        x: Unknowns, with shape (N, *x_shape), N at least 10.
        y: Observations, with shape (N, *y_shape).
        seconds: How long to train, where no epochs are given.
        epochs: How often to see each pair, whatever time that takes: then the training can be had
            again.
        passes: How often to see each pair at most, where no epochs are given and the time allows
            more. The step size then falls to 0 with the passes.
        seed: Fixes first weights, order, and which pairs are held out.
        device: Where to train: ``cpu``, ``cuda``, or ``auto``.
        groups: Labels (N,) of pairs that belong together and are held out together.
        held: Unknowns and observations that choose the best epoch; a tenth of the pairs where not
            given, or whole groups of about as many.
        how: ``show``, ``folder`` and ``deadline``; see
            :class:`vspair.training.networks.NetworkTraining`. A training that
            the deadline has stopped goes on where it is called again.
    """
    x, y = as_pairs(x, y)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = PlainNetwork(tuple(x.shape[1:]), tuple(y.shape[1:]))
    model.x_normaliser.fit(x, "channel")
    model.y_normaliser.fit(y, "channel")
    model.to(pick_device(device))

    def loss(batch: tuple[Tensor, ...], _: Generator) -> Tensor:
        truth, seen = batch
        guess = model.network(model.y_normaliser(seen))
        return (guess - model.x_normaliser(truth)).square().mean()

    given: dict[str, Any] = {"seconds": seconds, "epochs": epochs, "passes": passes, "seed": seed}
    train_in_budget(model, loss, (x, y), groups=groups, held=held, **given, **how)
    return Plain(model)
