r"""A dense conditional VAE about the anchor's answer: our residual code without gates and places.

Sohn, Lee and Yan, "Learning Structured Output Representation using Deep Conditional Generative
Models", NeurIPS 2015; with a learned deviation of the noise as in Rybkin, Daniilidis and Levine,
"Simple and Effective VAE Training with Calibrated Decoders", ICML 2021.

.. math:: x = r(y) + d(z) + s \odot \varepsilon, \qquad z \sim p(z \mid y) = N(\mu(y),
    \mathrm{diag}\, \sigma^2(y)), \qquad \varepsilon \sim N(0, I)

Of the residual :math:`e = x - r(y)` the bound

.. math:: \log p(e \mid y) \ge E_{q(z \mid e, y)} \log N(e \mid d(z), s^2)
    - \mathrm{KL}(q(z \mid e, y) \,\|\, p(z \mid y))

is raised. The anchor r, the features that are read of y, and the kinds of networks are those of an
anchored model; the decoder sees z alone. So it differs from that in what a code is: K numbers
that are always there, for the whole of x.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn

from vspair.anchored import AnchoredModel
from vspair.codes import Normal
from vspair.data import as_data, as_pairs
from vspair.errors import VspairError
from vspair.networks import evaluating
from vspair.networks.spatial import Domain, Frame, PlaceDecoder, PlaceEncoder, Reader
from vspair.posterior import Posterior
from vspair.runs import pick_device
from vspair.training.budget import train_in_budget
from vspair.training.mirrors import mirror
from vspair.training.networks import Trainable

__all__ = ["Cvae", "CvaeNetwork", "CvaePosterior", "train_cvae", "train_cvae_network"]

Grain = Literal["entries", "constant"]

_KINDS = 16
"""The numbers at each place between the networks and the code; of vectors four times K."""

_LOGVAR = (-10.0, 4.0)
"""The bounds of logarithms of variances, as in our codes."""

_FAST = 5.0
"""How much faster than a weight the logarithm of the grain is learned: it has far to go."""


class _Head(nn.Module):
    """From the numbers of all places to the mean and the logarithm of the variance of a code."""

    def __init__(self, reader: nn.Module, numbers: int, latent: int) -> None:
        super().__init__()
        self.reader, self.last = reader, nn.Sequential(nn.SiLU(), nn.Linear(numbers, 2 * latent))

    def forward(self, maps: Tensor) -> Normal:
        read = self.reader(maps)
        numbers = read[1] if isinstance(read, tuple) else read
        mu, logvar = self.last(numbers.flatten(1)).chunk(2, -1)
        return Normal(mu, logvar.clamp(*_LOGVAR))


class CvaeNetwork(Trainable):
    """Prior, encoder and decoder of residuals, in units of the residual.

    Arguments:
        x_shape: The shape of one unknown.
        domain: What unknowns are.
        channels: The features of y at each pixel; of vectors, all of them.
        latent: The number K of latents.
        grain: Whether each entry of x has noise of its own deviation, or all of the same.
    """

    def __init__(
        self,
        x_shape: Sequence[int],
        domain: Domain,
        channels: int,
        latent: int = 20,
        grain: Grain = "entries",
    ) -> None:
        known = {"x_shape": tuple(x_shape), "domain": domain, "channels": channels}
        super().__init__({**known, "latent": latent, "grain": grain})
        if latent < 1:
            raise VspairError(f"latent = {latent}: expected at least 1.")
        if grain not in ("entries", "constant"):
            raise VspairError(f"grain = {grain!r}: expected entries or constant.")
        frame = Frame(tuple(x_shape), domain)
        self.frame, self.channels, self.latent = frame, channels, latent
        kinds = _KINDS if frame.size else 4 * latent
        numbers = kinds * math.prod(frame.places)
        encoder = PlaceEncoder(frame, frame.channels + channels, kinds)
        self.network = nn.ModuleDict(
            {
                "prior": _Head(Reader(frame, channels, numbers=kinds), numbers, latent),
                "encoder": _Head(encoder, numbers, latent),
                "spread": nn.Linear(latent, numbers) if frame.size else nn.Identity(),
                "decoder": PlaceDecoder(frame, kinds if frame.size else latent),
            }
        )
        self.log_grain = nn.Parameter(torch.zeros(frame.shape if grain == "entries" else ()))

    @property
    def grain(self) -> Tensor:
        """The deviation of the noise, with shape x_shape, or () where it is constant."""
        return (_FAST * self.log_grain).clamp(*_LOGVAR).exp()

    def prior(self, seen: Tensor) -> Normal:
        """Return the code p(z | y) of features (B, channels, *size), with shape (B, K)."""
        code: Normal = self.network["prior"](seen)  # type: ignore[index]
        return code

    def encode(self, residual: Tensor, seen: Tensor) -> Normal:
        """Return the code q(z | e, y) of residuals (B, *x_shape), with shape (B, K)."""
        maps = torch.cat((self.frame.maps(residual), seen), 1)
        code: Normal = self.network["encoder"](maps)  # type: ignore[index]
        return code

    def decode(self, z: Tensor) -> Tensor:
        """Return residuals (B, *x_shape) of latents (B, K)."""
        return self.network["decoder"](self.network["spread"](z))  # type: ignore[index]

    def loss(self, seen: Tensor, residual: Tensor, generator: Generator) -> Tensor:
        """Return minus the bound by entry, up to a constant, a scalar."""
        # Batch norms learn from what is trained on alone.
        with nullcontext() if torch.is_grad_enabled() else evaluating(self):
            q, p = self.encode(residual, seen), self.prior(seen)
            error = (residual - self.decode(q.rsample(generator))) / self.grain
        fit = (0.5 * error.square() + self.grain.log()).flatten(1).sum(1)
        return (fit + q.kl(p).sum(-1)).mean() / residual[0].numel()


class CvaePosterior(Posterior):
    """Samples about an answer, made when they are asked for.

    Arguments:
        network: The network.
        code: The codes p(z | y), with shape (B, K).
        answer: The answers, with shape (B, *x_shape).
        unit: The unit of residuals, with shape x_shape.
    """

    def __init__(self, network: CvaeNetwork, code: Normal, answer: Tensor, unit: Tensor) -> None:
        super().__init__(tuple(answer.shape[1:]), answer.device)
        self.network, self.code, self.answer, self.unit = network, code, answer, unit

    def __len__(self) -> int:
        return len(self.answer)

    def __repr__(self) -> str:
        return f"CvaePosterior({len(self)} observations, {self.network.latent} latents)"

    @torch.no_grad()
    def _sampled(self, n: int, generator: Generator | None) -> Iterator[Tensor]:
        like = self.answer
        grain = self.unit * self.network.grain
        for _ in range(n):
            moved = self.unit * self.network.decode(self.code.rsample(generator))
            noise = torch.randn(
                like.shape, dtype=like.dtype, device=like.device, generator=generator
            )
            yield (like + moved + grain * noise).unsqueeze(0)


class Cvae:
    """A dense code about the answers of an anchored model.

    Arguments:
        model: The anchored model whose anchor answers.
        network: The network, trained on what its answers leave.
    """

    def __init__(self, model: AnchoredModel, network: CvaeNetwork) -> None:
        self.model, self.network = model, network
        parts = (*model.networks.parameters(), *network.parameters())
        self.n_parameters = sum(p.numel() for p in parts)

    @torch.no_grad()
    def posterior(self, y: Tensor) -> CvaePosterior:
        """Return samples about the answers to observations of shape (B, *y_shape)."""
        answer, seen = self.model.ask(y)
        with evaluating(self.network):
            code = self.network.prior(seen)
        return CvaePosterior(self.network, code, answer, self.model.x_normaliser.std)


def train_cvae_network(
    frame: Frame,
    seen: Any,
    residual: Any,
    *,
    latent: int = 20,
    grain: Grain = "entries",
    seconds: float = 60.0,
    epochs: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    groups: Any = None,
    mirrored: bool = False,
) -> CvaeNetwork:
    """Return a network trained on residuals, of which a tenth chooses the best epoch.

    Arguments:
        frame: How unknowns lie on a grid.
        seen: What is read of y, with shape (N, channels, *size), N at least 10.
        residual: Residuals of pairs that the anchor has not seen, in a unit in which they are
            near 1, with shape (N, *x_shape).
        latent: The number of latents.
        grain: Whether each entry has noise of its own deviation, or all of the same.
        seconds: How long to train, where no epochs are given.
        epochs: How often to see each residual, whatever time that takes.
        seed: Fixes first weights, order, noise, and which residuals are held out.
        device: Where to train: ``cpu``, ``cuda``, or ``auto``.
        groups: Labels (N,) of residuals that belong together and are held out together.
        mirrored: Whether to learn from mirrored images too.
    """
    seen, residual = as_data(seen, "seen").float(), as_data(residual, "residual").float()
    if len(seen) != len(residual):
        raise VspairError(
            f"seen has {len(seen)} entries and residual has {len(residual)}: expected as many of "
            "each."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = CvaeNetwork(frame.shape, frame.domain, seen.shape[1], latent, grain)
    network.to(pick_device(device))

    def loss(batch: tuple[Tensor, ...], generator: Generator) -> Tensor:
        of_y, left = mirror(batch, generator) if mirrored else batch
        return network.loss(of_y, left, generator)

    how: dict[str, Any] = {"seconds": seconds, "epochs": epochs, "seed": seed}
    train_in_budget(network, loss, (seen, residual), groups=groups, batch_size=64, **how)
    return network


def train_cvae(
    model: AnchoredModel,
    x: Any,
    y: Any,
    *,
    latent: int = 20,
    grain: Grain = "entries",
    seconds: float = 60.0,
    epochs: int | None = None,
    seed: int = 0,
) -> Cvae:
    """Return a dense code about a model's anchor, trained on pairs that it has not seen.

    Residuals out of fold, from which the model's own code was learned, are those of
    :func:`vspair.anchored_fit.doubt_of_fit`; give them to :func:`train_cvae_network`.

    Arguments:
        model: The anchored model whose anchor answers.
        x: Unknowns, with shape (N, *x_shape), of pairs that the model was **not** trained on.
        y: Their observations, with shape (N, *y_shape).
        latent: The number of latents.
        grain: Whether each entry has noise of its own deviation, or all of the same.
        seconds: How long to train, where no epochs are given.
        epochs: How often to see each pair, whatever time that takes.
        seed: Fixes first weights, order, noise, and which pairs are held out.
    """
    x, y = as_pairs(x, y)
    parts = [model.ask(part) for part in y.split(256)]
    answer, seen = (torch.cat(each) for each in zip(*parts, strict=True))
    residual = (x.to(answer) - answer) / model.x_normaliser.std
    how: dict[str, Any] = {"seconds": seconds, "epochs": epochs, "seed": seed}
    how |= {"latent": latent, "grain": grain, "device": str(answer.device)}
    return Cvae(model, train_cvae_network(model.frame, seen, residual, **how))
