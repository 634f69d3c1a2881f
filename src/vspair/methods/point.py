"""Methods that answer with one estimate, and the two that need no method at all."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from vspair.anchored import AnchoredModel
from vspair.posterior import PointPosterior

__all__ = ["AnchorAnswer", "AnswerMean", "AnswerY", "PointMethod"]


class PointMethod(ABC):
    """A method whose posterior is one estimate: it has no spread, and says so."""

    name: str
    """What tables and messages call it."""
    n_parameters = 0
    """The number of trained parameters."""

    @abstractmethod
    def __call__(self, y: Tensor) -> Tensor:
        """Return estimates, with shape (B, *x_shape), of observations with shape (B, *y_shape)."""

    def posterior(self, y: Tensor) -> PointPosterior:
        """Return the estimates as a posterior, which has all its probability there."""
        return PointPosterior(self(y), self.name)


class AnswerY(PointMethod):
    """Answers with the observation itself, where x and y have one shape."""

    name = "y itself"

    def __call__(self, y: Tensor) -> Tensor:
        """Return y."""
        return y


class AnswerMean(PointMethod):
    """Answers every observation with the mean of the training unknowns.

    Arguments:
        x: Training unknowns, with shape (N, *x_shape).
    """

    name = "mean of the training data"

    def __init__(self, x: Tensor) -> None:
        self.mean = x.mean(0)

    def __call__(self, y: Tensor) -> Tensor:
        """Return the mean for each of B observations, with shape (B, *x_shape)."""
        return self.mean.to(y).expand(len(y), *self.mean.shape)


class AnchorAnswer(PointMethod):
    """Answers with the anchor of an anchored model, and leaves out its doubt.

    Arguments:
        model: The model.
    """

    name = "the anchor"

    def __init__(self, model: AnchoredModel) -> None:
        self.model = model
        self.n_parameters = sum(p.numel() for p in model.networks.parameters())

    def __call__(self, y: Tensor) -> Tensor:
        """Return the anchor's answers to observations of shape (B, *y_shape)."""
        return self.model.ask(y)[0]
