r"""Direct regression: a U-Net that cleans a first reconstruction.

Jin, McCann, Froustey and Unser, "Deep Convolutional Neural Network for Inverse Problems in
Imaging", IEEE Transactions on Image Processing 26 (2017).

.. math:: \min_\theta \; E \, \tfrac1n \| f_\theta(B y) - x \|^2

B is filtered back-projection or any other map to images, and x has unit variance as a whole. The
answer is a mean: it has no deviation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from vspair.data import Normaliser
from vspair.errors import VspairError
from vspair.methods.point import PointMethod
from vspair.networks.unet import WIDTHS, UNet, channels_of
from vspair.runs import pick_device
from vspair.training.networks import NetworkTraining, Plan, Trainable

__all__ = ["Regression", "RegressionAfter", "train_regression"]


class Regression(Trainable):
    """A U-Net from first reconstructions to images, both in their own units.

    Arguments:
        shape: The shape of one image, (H, W) or (C, H, W).
        widths: The widths of its :class:`UNet`.
    """

    def __init__(self, shape: Sequence[int], widths: Sequence[int] = WIDTHS) -> None:
        super().__init__({"shape": tuple(shape), "widths": tuple(widths)})
        self.shape = tuple(shape)
        channels = channels_of(self.shape)
        self.network = UNet(channels, channels, widths)
        self.first, self.normaliser = Normaliser(self.shape), Normaliser(self.shape)

    def forward(self, first: Tensor) -> Tensor:
        """Return images, with shape (B, *shape), from reconstructions with the same shape."""
        return self.normaliser.inverse(self.network(self.first(first)))


class RegressionAfter(PointMethod):
    """A trained regression behind the map that makes its first reconstructions.

    Arguments:
        first: From observations (B, *y_shape) to first reconstructions (B, *shape).
        network: The regression.
    """

    name = "regression"

    def __init__(self, first: Callable[[Tensor], Tensor], network: Regression) -> None:
        self.first, self.network = first, network
        self.n_parameters = sum(p.numel() for p in network.parameters())

    @torch.no_grad()
    def __call__(self, y: Tensor) -> Tensor:
        """Return images, with shape (B, *shape), of observations with shape (B, *y_shape)."""
        return self.network(self.first(y.to(self.network.normaliser.mean.device)))


def train_regression(
    first: Tensor,
    x: Tensor,
    plan: Plan | None = None,
    *,
    widths: Sequence[int] = WIDTHS,
    held: tuple[Tensor, Tensor] | None = None,
    folder: str | Path | None = None,
    device: str = "cpu",
    deadline: float | None = None,
    compile: bool = False,
    show: bool = False,
) -> Regression:
    """Return a regression trained on pairs.

    Arguments:
        first: First reconstructions in their own units, with shape (N, *shape).
        x: The images behind them, with shape (N, *shape).
        plan: How to train.
        widths: The widths of the U-Net.
        held: More pairs, whose loss is logged beside.
        folder: Where to save and go on from; see
            :class:`vspair.training.networks.NetworkTraining`.
        device: Where to train: ``cpu``, ``cuda``, or ``auto``.
        deadline: Stop at this time of ``time.monotonic``; ``epochs`` of the result say how far.
        compile: Whether to compile the network, which takes a minute.
        show: Whether to show a progress bar.
    """
    if first.shape != x.shape:
        raise VspairError(
            f"first has shape {tuple(first.shape)} and x {tuple(x.shape)}: expected the same."
        )
    plan = plan or Plan()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.seed)
        model = Regression(tuple(x.shape[1:]), widths)
    model.first.fit(first, "scalar")
    model.normaliser.fit(x, "scalar")
    model.to(pick_device(device))

    def loss(batch: tuple[Tensor, ...], _: Generator) -> Tensor:
        guess, truth = (model.normaliser(t) for t in (model(batch[0]), batch[1]))
        return (guess - truth).square().mean()

    how: dict[str, Any] = {"folder": folder, "deadline": deadline, "compile": compile}
    NetworkTraining(model, loss, (first, x), plan, held=held, **how).train(show)
    return model
