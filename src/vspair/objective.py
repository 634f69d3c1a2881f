r"""The loss as a sum of named terms, eq. (14), and two presets of it.

Every term is summed over pixels and latent dimensions and averaged over the batch. The terms

=========== ======================================================== =====================
name        what it is                                               weight
=========== ======================================================== =====================
``x_fit``   :math:`-\log q(x \mid z_x)` for a decoder of width s     lambda_x
``x_prior`` KL of the x code to its prior, eq. (9)                   lambda_x gamma_x
``gates``   the price of open gates (with ``gate_prior = "price"``)  lambda_x
``y_fit``   :math:`-\log q(y \mid z_y)`                              lambda_y
``y_prior`` KL of the y code to its prior                            lambda_y gamma_y
``map``     loss of the latent map, eq. (16) or an alternative       lambda_map
``binary``  :math:`\sum \hat\omega(1-\hat\omega)` of mapped gates    lambda_map lambda_binary
``forward`` loss of the surrogate forward map                        lambda_forward
``beta``    negative log-density of rho, Beta(alpha0, beta0), (20)   lambda_rho
=========== ======================================================== =====================

are logged without their weights. The ``paper`` preset is eq. (14) as printed. The
``calibrated`` preset turns the same terms into a lower bound on :math:`\log p(x \mid y)`,

.. math:: \log p(x \mid y) \ge \mathbb{E}_{q(z \mid x)} \log \mathcal{N}(x \mid d(z), s^2)
    - \mathrm{KL}(q(z \mid x) \,\|\, q_M(z \mid y)),

in which the map is the prior of z given y. Its gap closes as s falls, because q(z | x) does not
see y. An open gate pays a price, :math:`\log((1 - \rho) / \rho)`: its share of the KL to a
Bernoulli(rho) prior. Dual ascent moves that price until ``active`` factors are worth it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn

from vspair.codes import Code, Factorised, Normal, Point, SpikeSlab
from vspair.config import ObjectiveConfig
from vspair.errors import VspairError
from vspair.model import InverseModel, PairedAutoencoder

__all__ = ["Objective", "Stage", "Terms"]

Stage = Literal["joint", "autoencoders", "map"]
Terms = dict[str, Tensor]

DUAL_RANGE = 20.0
"""How far the logarithm of the price can move in a whole training, where no rate is set."""

MOST_DUAL_RATE = 0.02
"""The most in one step then: gates need time to answer a price."""

WIDTH_RATE = 0.02
"""The share of the way to its closed form that the width goes in a step: batches scatter."""


def _total(t: Tensor) -> Tensor:
    """Sum over everything but the batch, then average over the batch."""
    return t.sum() / len(t)


class Objective:
    """Computes the loss of a model on a batch, and steers rho and the decoder's width.

    Arguments:
        config: Weights and conventions.
        steps: The steps of the whole training, by which dual ascent is paced.
    """

    def __init__(self, config: ObjectiveConfig, steps: int = 0) -> None:
        if config.rho == "dual" and not config.active:
            raise VspairError("rho = 'dual' steers to a number of factors: set active = K.")
        if config.rho in ("gradient", "closed") and config.gate_prior == "price":
            # Without the KL's entropy, the price would run away with the gates it opens or shuts.
            raise VspairError("gate_prior = 'price' needs rho = 'fixed' or 'dual'.")
        self.config = config
        self._cache: dict[Any, Tensor] = {}
        self.dual_rate = config.dual_rate or min(DUAL_RANGE / max(steps, 1), MOST_DUAL_RATE)

    def prepare(self, model: InverseModel) -> None:
        """Set which of rho and width are learned, and where they start."""
        c = self.config
        model.log_width.requires_grad_(c.width == "learned")
        model.log_width.data.fill_(0.0 if c.width == "unit" else math.log(c.width_start))
        if model.rho_logit is not None:
            model.rho_logit.requires_grad_(c.rho == "gradient")
            model.rho_logit.data.fill_(-c.price if c.rho in ("fixed", "dual") else 0.0)

    def at(self, model: InverseModel, progress: float) -> None:
        """Set the annealed width for a share of the training that is done, in [0, 1]."""
        c = self.config
        if c.width == "annealed":
            t = min(progress / c.anneal, 1.0) if c.anneal else 1.0
            log_width = (1 - t) * math.log(c.width_start) + t * math.log(c.width_end)
            model.log_width.data.fill_(log_width)

    def settled(self, progress: float) -> bool:
        """Whether schedules have ended, so that epochs can be compared with each other."""
        return self.config.width != "annealed" or progress >= self.config.anneal

    def __call__(
        self,
        model: InverseModel,
        x: Tensor,
        y: Tensor,
        generator: Generator | None = None,
        stage: Stage = "joint",
    ) -> tuple[Tensor, Terms]:
        """Return the loss and its terms on normalised pairs.

        Arguments:
            model: The model.
            x: Normalised unknowns, with shape (B, *x_shape).
            y: Normalised observations, with shape (B, *y_shape).
            generator: Draws the codes' samples.
            stage: All terms (``joint``), those of the autoencoders, or those of the maps.
        """
        if isinstance(model, PairedAutoencoder):
            terms = self._paired(model, x, y, generator, stage)
        else:
            terms = self._single(model, x, y, generator)
        if "x_fit" in terms and model.rho_logit is not None and self.config.gate_prior == "kl":
            terms["beta"] = self._beta(model.rho_logit)
        values = torch.stack(tuple(terms.values()))
        return values.dot(self._weights(stage, tuple(terms), values)), terms

    def _weights(self, stage: Stage, names: tuple[str, ...], values: Tensor) -> Tensor:
        """Return the weights of named terms, from a cache: this runs at every step."""
        key = (stage, names, values.device, values.dtype)
        if key not in self._cache:
            table = self.weights(stage)
            self._cache[key] = values.new_tensor([table[name] for name in names])
        return self._cache[key]

    def weights(self, stage: Stage = "joint") -> dict[str, float]:
        """Return the weight of every term."""
        c = self.config
        # Before there is a map, the prior takes its place in the conditional bound.
        gamma_x = 1.0 if stage == "autoencoders" and c.gate_prior == "price" else c.gamma_x
        return {
            "x_fit": c.lambda_x,
            "x_prior": c.lambda_x * gamma_x,
            "gates": c.lambda_x,
            "y_fit": c.lambda_y,
            "y_prior": c.lambda_y * c.gamma_y,
            "map": c.lambda_map,
            "binary": c.lambda_map * c.lambda_binary,
            "forward": c.lambda_forward,
            "beta": c.lambda_rho,
        }

    def _single(
        self, model: InverseModel, x: Tensor, y: Tensor, generator: Generator | None
    ) -> Terms:
        code = model.latent(y)
        fit = self._x_fit(model, x, model.x_decoder(code.rsample(generator)))
        return {"x_fit": fit, **self._prior(model, code)}

    def _paired(
        self,
        model: PairedAutoencoder,
        x: Tensor,
        y: Tensor,
        generator: Generator | None,
        stage: Stage,
    ) -> Terms:
        terms: Terms = {}
        code_x, code_y = model.x_encoder(x), model.y_encoder(y)
        if stage != "map":
            decoded = model.x_decoder(code_x.rsample(generator))
            terms["x_fit"] = self._x_fit(model, x, decoded)
            terms |= self._prior(model, code_x)
            terms["y_fit"] = self._fit(y, model.y_decoder(code_y.rsample(generator)))
            if isinstance(code_y, Normal):
                terms["y_prior"] = _total(code_y.kl_standard())
        if stage == "autoencoders":
            return terms
        mapped = model.inverse_map(code_y)
        decode = model.x_decoder
        terms["map"] = self._map_loss(mapped, code_x, x, decode, generator)
        if isinstance(mapped, SpikeSlab) and self.config.lambda_binary:
            terms["binary"] = _total(mapped.omega * (1 - mapped.omega))
        if model.forward_map is not None:
            ahead = model.forward_map(code_x)
            terms["forward"] = self._map_loss(ahead, code_y, y, model.y_decoder, generator)
        return terms

    def _fit(self, data: Tensor, decoded: Tensor) -> Tensor:
        error = _total((data - decoded).square())
        return 0.5 * error if self.config.half else error

    def _x_fit(self, model: InverseModel, x: Tensor, decoded: Tensor) -> Tensor:
        if self.config.width == "unit":
            return self._fit(x, decoded)
        error = 0.5 * _total((x - decoded).square())
        if self.config.width == "closed" and model.training:
            self._follow(model.log_width, error.detach() * 2 / x[0].numel())
        return error * torch.exp(-2 * model.log_width) + x[0].numel() * model.log_width

    def _prior(self, model: InverseModel, code: Code) -> Terms:
        if isinstance(code, Normal):
            return {"x_prior": _total(code.kl_standard())}
        if not isinstance(code, SpikeSlab) or model.rho_logit is None:
            return {}
        if model.training and self.config.rho in ("closed", "dual"):
            self._steer(model.rho_logit, code.omega)
        if self.config.gate_prior == "price":
            price = -model.rho_logit
            return {"x_prior": _total(code.kl_slab()), "gates": price * _total(code.omega)}
        return {"x_prior": _total(code.kl_slab() + code.kl_gate(model.rho_logit))}

    @torch.no_grad()
    def _follow(self, log_width: nn.Parameter, mse: Tensor) -> None:
        """Move the width towards its best value for an error."""
        log_width.lerp_(0.5 * mse.log(), WIDTH_RATE)

    @torch.no_grad()
    def _steer(self, rho_logit: nn.Parameter, omega: Tensor) -> None:
        """Move rho by its closed form or by dual ascent."""
        c = self.config
        open_gates = omega.sum(-1).mean()
        if c.rho == "closed":
            gamma = c.lambda_x * c.gamma_x
            rho = gamma * open_gates + c.lambda_rho * (c.alpha0 - 1)
            rho = rho / (gamma * omega.shape[-1] + c.lambda_rho * (c.alpha0 + c.beta0 - 2))
            rho_logit.copy_(torch.logit(rho.clamp(1e-6, 1 - 1e-6)))
        else:
            step = ((open_gates - c.active) / c.active).clamp(-1, 1)
            rho_logit.mul_(torch.exp(self.dual_rate * step))

    def _beta(self, rho_logit: Tensor) -> Tensor:
        a, b, log = self.config.alpha0 - 1, self.config.beta0 - 1, nn.functional.logsigmoid
        off = -b * log(-rho_logit)
        return off - a * log(rho_logit) if a else off

    def _map_loss(
        self,
        mapped: Factorised,
        target: Factorised,
        data: Tensor,
        decode: Callable[[Tensor], Tensor],
        generator: Generator | None,
    ) -> Tensor:
        """Return how far a mapped code is from the code it should be."""
        c = self.config
        target = target.detach() if c.target == "detached" else target
        if c.map == "kl":
            return _total(target.kl(mapped))
        if c.map == "decoded":
            return self._fit(data, decode(mapped.rsample(generator)))
        if c.map == "samples":
            difference = mapped.rsample(generator) - target.rsample(generator)
        else:
            difference = self._compared(mapped) - self._compared(target)
        squared = difference.square()
        return _total(squared) if c.reduction == "sum" else squared.mean()

    def _compared(self, code: Code) -> Tensor:
        """Return the parameters that eq. (16) compares, side by side."""
        if isinstance(code, Point):
            return code.z
        assert isinstance(code, Normal | SpikeSlab)
        forms = {
            "logvar": lambda: code.logvar,
            "sigma": lambda: (0.5 * code.logvar).exp(),
            "variance": lambda: code.logvar.exp(),
        }
        parts = [code.mu, forms[self.config.sigma]()]
        parts += [code.omega] if isinstance(code, SpikeSlab) else []
        return torch.cat(parts, dim=-1)
