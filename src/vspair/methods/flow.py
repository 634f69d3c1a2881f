r"""A conditional normalising flow: a density of x given y that is trained by its likelihood.

Durkan, Bekasov, Murray and Papamakarios, "Neural Spline Flows", NeurIPS 2019 (``nsf``);
Papamakarios, Pavlakou and Murray, "Masked Autoregressive Flow for Density Estimation", NeurIPS
2017 (``maf``); as an amortised posterior Greenberg, Nonnenmacher and Macke, "Automatic Posterior
Transformation for Likelihood-Free Inference", ICML 2019. The flows are those of zuko.

.. math:: \min_\theta \; - E \log q_\theta(x \mid y), \qquad
    q_\theta(x \mid y) = N(f_\theta(x; y); 0, I) \, | \det \partial f_\theta / \partial x |

Samples are :math:`f_\theta^{-1}(z; y)` of z from N(0, I). That takes one pass for each number in
x, so it is a method for vectors of a few to some hundred numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from vspair.data import Normaliser, as_pairs, expect_batch
from vspair.errors import VspairError
from vspair.posterior import Posterior
from vspair.runs import pick_device
from vspair.training.budget import train_in_budget
from vspair.training.networks import Trainable

__all__ = ["Flow", "FlowNetwork", "FlowPosterior", "train_flow"]

Kind = Literal["nsf", "maf"]

_PART = 2**16
"""The most numbers of samples that are computed at once; a spline needs 24 for each."""


def _load_zuko() -> Any:
    try:
        import zuko
    except ImportError:
        raise VspairError("A flow needs zuko: pip install 'vspair[benchmarks]'.") from None
    return zuko


class FlowNetwork(Trainable):
    """A flow between unknowns and noise, given observations, both in their own units.

    Arguments:
        x_shape: The shape of one unknown.
        y_shape: The shape of one observation.
        kind: ``nsf``, splines, or ``maf``, affine maps; both autoregressive.
        transforms: How many of them follow each other.
        hidden: The widths of the hidden layers of each.
    """

    def __init__(
        self,
        x_shape: Sequence[int],
        y_shape: Sequence[int],
        kind: Kind = "nsf",
        transforms: int = 5,
        hidden: Sequence[int] = (64, 64),
    ) -> None:
        shapes = {"x_shape": tuple(x_shape), "y_shape": tuple(y_shape)}
        super().__init__({**shapes, "kind": kind, "transforms": transforms, "hidden": [*hidden]})
        flows = {"nsf": "NSF", "maf": "MAF"}
        if kind not in flows:
            raise VspairError(f"kind = {kind!r}: expected nsf or maf.")
        self.x_shape, self.y_shape = tuple(x_shape), tuple(y_shape)
        self.network = getattr(_load_zuko().flows, flows[kind])(
            math.prod(x_shape),
            math.prod(y_shape),
            transforms=transforms,
            hidden_features=tuple(hidden),
        )
        self.x_normaliser, self.y_normaliser = Normaliser(self.x_shape), Normaliser(self.y_shape)

    def given(self, y: Tensor) -> Any:
        """Return zuko's distribution of normalised unknowns (B, n), given y (B, *y_shape)."""
        return self.network(self.y_normaliser(y).flatten(1))

    def log_prob(self, x: Tensor, y: Tensor) -> Tensor:
        """Return log q(x | y) of unknowns in their own unit, with shape (B,)."""
        volume = self.x_normaliser.std.log().sum()
        return self.given(y).log_prob(self.x_normaliser(x).flatten(1)) - volume


class FlowPosterior(Posterior):
    """Samples of a flow, made when they are asked for.

    Arguments:
        network: The flow.
        y: Observations, with shape (B, *y_shape), where the flow is.
    """

    def __init__(self, network: FlowNetwork, y: Tensor) -> None:
        super().__init__(network.x_shape, y.device)
        self.network, self.y = network, y

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        return f"FlowPosterior({len(self)} observations)"

    @torch.no_grad()
    def _sampled(self, n: int, generator: Generator | None) -> Iterator[Tensor]:
        shape = (len(self), math.prod(self.x_shape))
        step = max(1, _PART // math.prod(shape))
        given = self.network.given(self.y)
        for start in range(0, n, step):
            # One after another, so that samples do not depend on how many are made at once.
            drawn = [
                torch.randn(shape, device=self.device, generator=generator)
                for _ in range(min(step, n - start))
            ]
            x = given.transform.inv(torch.stack(drawn))
            yield self.network.x_normaliser.inverse(x.reshape(len(x), -1, *self.x_shape))


class Flow:
    """A trained conditional flow.

    Arguments:
        network: The flow.
    """

    def __init__(self, network: FlowNetwork) -> None:
        self.network = network
        self.n_parameters = sum(p.numel() for p in network.parameters())

    def posterior(self, y: Tensor) -> FlowPosterior:
        """Return the flow's density of x, given observations of shape (B, *y_shape)."""
        expect_batch("y", y, self.network.y_shape)
        return FlowPosterior(self.network, y.to(self.network.x_normaliser.mean))


def train_flow(
    x: Any,
    y: Any,
    *,
    kind: Kind = "nsf",
    seconds: float = 60.0,
    epochs: int | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> Flow:
    """Return a flow trained on pairs, of which a tenth chooses the best epoch.

    Arguments:
        x: Unknowns, with shape (N, *x_shape), N at least 10.
        y: Observations, with shape (N, *y_shape).
        kind: ``nsf``, splines, or ``maf``, affine maps.
        seconds: How long to train, where no epochs are given.
        epochs: How often to see each pair, whatever time that takes.
        seed: Fixes first weights, order, and which pairs are held out.
        device: Where to train: ``cpu``, ``cuda``, or ``auto``.
    """
    x, y = as_pairs(x, y)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = FlowNetwork(tuple(x.shape[1:]), tuple(y.shape[1:]), kind)
    model.x_normaliser.fit(x, "feature")
    model.y_normaliser.fit(y, "feature")
    model.to(pick_device(device))

    def loss(batch: tuple[Tensor, ...], _: Generator) -> Tensor:
        return -model.log_prob(*batch).mean()

    how: dict[str, Any] = {"seconds": seconds, "epochs": epochs, "seed": seed}
    train_in_budget(model, loss, (x, y), batch_size=128, **how)
    return Flow(model)
