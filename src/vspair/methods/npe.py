"""Neural posterior estimation by the package ``sbi``, with its defaults.

Papamakarios and Murray, "Fast epsilon-free Inference of Simulation Models with Bayesian
Conditional Density Estimation", NeurIPS 2016; Greenberg, Nonnenmacher and Macke, "Automatic
Posterior Transformation for Likelihood-Free Inference", ICML 2019; Tejero-Cantero et al., "sbi: A
toolkit for simulation-based inference", Journal of Open Source Software 5 (2020). A conditional
density of x given y is trained by the likelihood of the pairs until held-out pairs have not become
likelier for 20 epochs. The prior is not told, so samples may leave its support.

The package is none of our dependencies: ``pip install sbi`` where it is to be compared with.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from io import StringIO
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from vspair.data import as_pairs, expect_batch
from vspair.errors import VspairError
from vspair.posterior import Posterior

__all__ = ["Npe", "NpePosterior", "has_sbi", "train_npe"]

Density = Literal["maf", "nsf", "mdn", "made"]


def has_sbi() -> bool:
    """Return whether the package is installed."""
    return find_spec("sbi") is not None


def _load_npe() -> Any:
    if not has_sbi():
        raise VspairError("NPE needs the package sbi, which is not installed: pip install sbi.")
    from sbi.inference import NPE

    return NPE


class _NoTracker:
    """Takes the numbers of a training, which sbi would else write into the working folder."""

    log_dir = None

    def _ignore(self, *_: Any, **__: Any) -> None: ...

    log_metric = log_metrics = log_params = add_figure = flush = _ignore


@contextmanager
def _chance_from(seed: int) -> Iterator[None]:
    """Let torch's own chance, which sbi draws from, come from a seed, and leave it as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


class NpePosterior(Posterior):
    """Samples of the density of sbi, made when they are asked for.

    Arguments:
        density: The trained density.
        y: Observations, with shape (B, *y_shape).
        x_shape: The shape of one unknown.
    """

    def __init__(self, density: Any, y: Tensor, x_shape: tuple[int, ...]) -> None:
        super().__init__(x_shape, y.device)
        self.density, self.y = density, y

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        return f"NpePosterior({len(self)} observations)"

    @torch.no_grad()
    def _sampled(self, n: int, generator: Generator | None) -> Iterator[Tensor]:
        seed = int(torch.randint(2**31, (), generator=generator))
        with _chance_from(seed):
            x = self.density.sample(torch.Size([n]), condition=self.y.flatten(1))
        yield x.reshape(n, len(self), *self.x_shape)


class Npe:
    """A density that sbi has trained.

    Arguments:
        density: The density.
        x_shape: The shape of one unknown.
        y_shape: The shape of one observation.
    """

    def __init__(self, density: Any, x_shape: tuple[int, ...], y_shape: tuple[int, ...]) -> None:
        self.density, self.x_shape, self.y_shape = density, x_shape, y_shape
        self.n_parameters = sum(p.numel() for p in density.parameters())

    def posterior(self, y: Tensor) -> NpePosterior:
        """Return the density of x, given observations of shape (B, *y_shape)."""
        expect_batch("y", y, self.y_shape)
        return NpePosterior(self.density, y.cpu(), self.x_shape)


def train_npe(
    x: Any, y: Any, *, density: Density = "maf", epochs: int | None = None, seed: int = 0
) -> Npe:
    """Return a density that sbi trains on pairs with its defaults.

    Arguments:
        x: Unknowns, with shape (N, *x_shape).
        y: Observations, with shape (N, *y_shape).
        density: What sbi calls the density: ``maf``, its default, ``nsf``, ``mdn`` or ``made``.
        epochs: The most passes over the pairs; until it has converged, where not given.
        seed: Fixes first weights, order, and which pairs are held out.
    """
    npe, (x, y) = _load_npe(), as_pairs(x, y)
    most: dict[str, Any] = {} if epochs is None else {"max_num_epochs": epochs}
    with _chance_from(seed), warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")  # that epochs came to an end before it has converged
        how: dict[str, Any] = {"show_progress_bars": False, "tracker": _NoTracker()}
        training = npe(density_estimator=density, **how)
        training.append_simulations(x.flatten(1), y.flatten(1))
        trained = training.train(**most).eval()
    return Npe(trained, tuple(x.shape[1:]), tuple(y.shape[1:]))
