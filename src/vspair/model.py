"""Models: two autoencoders and a map between their codes, or one sparse autoencoder.

A model answers one question, :meth:`InverseModel.latent`: which code of x belongs to an
observation y. Choosing the families of the codes gives the paper's four models (:func:`build`).
Encoders, decoders and maps work on normalised data; :meth:`InverseModel.posterior` takes and
returns data in its own units.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from vspair.codes import Code, Family, FamilyName
from vspair.config import ModelConfig
from vspair.data import Normaliser, as_array, as_data
from vspair.errors import VspairError
from vspair.networks import Decoder, Encoder, LatentMap, evaluating
from vspair.posterior import LatentPosterior

__all__ = ["InverseModel", "PairedAutoencoder", "SparseVAE", "build"]

Shape = tuple[int, ...]


class InverseModel(nn.Module, ABC):
    """What every model has: normalisation, the decoder of x, its noise, and a prior weight rho.

    Arguments:
        config: Families and sizes.
        x_shape: The shape of one unknown.
        y_shape: The shape of one observation.
        x_family: The family of the x code.
        x_decoder: From latents of shape (B, l) to normalised unknowns of shape (B, *x_shape).
    """

    rho_logit: nn.Parameter | None

    def __init__(
        self,
        config: ModelConfig,
        x_shape: Shape,
        y_shape: Shape,
        x_family: Family,
        x_decoder: nn.Module,
    ) -> None:
        super().__init__()
        self.config, self.x_shape, self.y_shape = config, x_shape, y_shape
        self.x_family = x_family
        self.x_normaliser = Normaliser(x_shape)
        self.y_normaliser = Normaliser(y_shape)
        self.x_decoder = x_decoder
        # Not trainable unless the objective learns it: the paper's decoders are deterministic.
        self.log_width = nn.Parameter(torch.zeros(()), requires_grad=False)
        sparse = x_family.name == "spikeslab"
        self.register_parameter("rho_logit", nn.Parameter(torch.zeros(())) if sparse else None)

    @abstractmethod
    def latent(self, y: Tensor) -> Code:
        """Return the x code that belongs to normalised observations of shape (B, *y_shape)."""

    @abstractmethod
    def answers(self) -> list[nn.Module]:
        """Return the networks that take part in an answer."""

    @property
    def rho(self) -> Tensor | None:
        """The prior probability that a factor is present, a scalar."""
        return None if self.rho_logit is None else torch.sigmoid(self.rho_logit.detach())

    @property
    def noise_std(self) -> Tensor:
        """The decoder's standard deviation s in normalised units, a scalar."""
        return self.log_width.detach().exp()

    @property
    def device(self) -> torch.device:
        """Where the model's weights are."""
        return self.log_width.device

    def posterior(self, y: Any, *, noise: bool = False) -> LatentPosterior:
        """Return what the model believes of x, given observations in their own units.

        Arguments:
            y: One observation of shape y_shape, or a batch of shape (B, *y_shape).
            noise: Whether samples include the decoder's noise. The paper's do not.
        """
        y, single = self._batch(y, "y", self.y_shape, "observations")
        with evaluating(self), torch.no_grad():
            code = self.latent(self.y_normaliser(y))
        return LatentPosterior(self, code, noise=noise, single=single)

    def _batch(self, values: Any, name: str, shape: Shape, words: str) -> tuple[Tensor, bool]:
        """Return one datum or a batch of them as a batch, and whether it was one."""
        values = as_array(values, name)
        given = tuple(values.shape)
        single = given == shape
        if not single and given[1:] != shape:
            raise VspairError(
                f"{name} has shape {given}: this model was trained on {words} of shape {shape}. "
                "Give one of that shape, or a batch with it behind the first dimension."
            )
        data = as_data(values[None] if single else values, name)
        return data.to(self.log_width), single

    @property
    def n_parameters(self) -> int:
        """The number of trainable parameters."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)


class PairedAutoencoder(InverseModel):
    """An autoencoder of x, an autoencoder of y and a map from y codes to x codes (section 3).

    Arguments:
        config: Families and sizes.
        x_shape: The shape of one unknown.
        y_shape: The shape of one observation.
        x_family: The family of the x code.
        y_family: The family of the y code.
    """

    def __init__(
        self,
        config: ModelConfig,
        x_shape: Shape,
        y_shape: Shape,
        x_family: Family,
        y_family: Family,
    ) -> None:
        decoder = Decoder(config.x_size, x_shape, config.x_network)
        super().__init__(config, x_shape, y_shape, x_family, decoder)
        self.x_encoder = Encoder(x_shape, x_family, config.x_network)
        self.y_encoder = Encoder(y_shape, y_family, config.y_network)
        self.y_decoder = Decoder(config.y_size, y_shape, config.y_network)
        depth = 0 if x_family.name == "point" else config.map_depth
        hidden = config.map_hidden or None
        self.inverse_map = LatentMap(y_family, x_family, hidden, depth)
        self.forward_map = (
            LatentMap(x_family, y_family, hidden, depth) if config.forward_map else None
        )

    def latent(self, y: Tensor) -> Code:  # noqa: D102
        return self.inverse_map(self.y_encoder(y))

    def answers(self) -> list[nn.Module]:  # noqa: D102
        return [self.y_encoder, self.inverse_map, self.x_decoder]

    def predict_y(self, x: Any) -> Tensor:
        """Return what would be observed of unknowns, by the learned surrogate of the experiment.

        The way is that of an answer, reversed: x encoder, forward map, y decoder, each at its
        mean. Comparing ``predict_y(posterior.mean())`` with y checks an answer against what was
        observed, without the operator. It needs ``model.forward_map = true`` in training; with
        the calibrated preset, ``objective.gamma_y = 0.01`` too, so that the code of y keeps all
        that is to be predicted.

        Arguments:
            x: One unknown of shape x_shape, or a batch of shape (B, *x_shape), in its own units.

        Returns:
            Observations in their own units, with shape y_shape or (B, *y_shape).
        """
        if self.forward_map is None:
            raise VspairError(
                "This model has no forward map to predict y with. Train it with "
                "model.forward_map = true in its configuration."
            )
        x, single = self._batch(x, "x", self.x_shape, "unknowns")
        with evaluating(self), torch.no_grad():
            code = self.forward_map(self.x_encoder(self.x_normaliser(x)))
            y = self.y_normaliser.inverse(self.y_decoder(code.mean))
        return y.squeeze(0) if single else y

    def maps(self) -> list[nn.Module]:
        """Return the latent maps: what the second of two stages trains."""
        return [m for m in (self.inverse_map, self.forward_map) if m is not None]


class SparseVAE(InverseModel):
    """One sparse autoencoder that encodes y and decodes x, without pairing (section 4.2).

    Arguments:
        config: Sizes; the encoder is ``y_network``, its code has x_size dimensions.
        x_shape: The shape of one unknown.
        y_shape: The shape of one observation.
        family: The family of the code.
    """

    def __init__(
        self, config: ModelConfig, x_shape: Shape, y_shape: Shape, family: Family
    ) -> None:
        decoder = Decoder(config.x_size, x_shape, config.x_network)
        super().__init__(config, x_shape, y_shape, family, decoder)
        self.encoder = Encoder(y_shape, family, config.y_network)

    def latent(self, y: Tensor) -> Code:  # noqa: D102
        return self.encoder(y)

    def answers(self) -> list[nn.Module]:  # noqa: D102
        return [self.encoder, self.x_decoder]


_FAMILIES: dict[str, tuple[FamilyName, FamilyName]] = {
    "PAIR": ("point", "point"),
    "vPAIR": ("normal", "normal"),
    "sVAE": ("spikeslab", "point"),
    "vsPAIR": ("spikeslab", "normal"),
}


def build(config: ModelConfig, x_shape: Shape, y_shape: Shape) -> InverseModel:
    """Create a model with fresh weights from torch's global generator.

    Arguments:
        config: Which model, and how large.
        x_shape: The shape of one unknown: (n,), (H, W) or (C, H, W).
        y_shape: The shape of one observation, likewise.

    Example:
        >>> build(ModelConfig(x_size=8, y_size=8), (2,), (4,)).n_parameters
        3495
    """
    if config.kind not in _FAMILIES:
        raise VspairError(
            f"kind = {config.kind!r}: expected one of {', '.join(_FAMILIES)}, as the pairs decide "
            "what weights an anchored model has. Call vspair.fit(x, y) for a new one, or "
            "vspair.load(FOLDER) for one that was trained."
        )
    for name, shape in (("x", x_shape), ("y", y_shape)):
        network = config.x_network if name == "x" else config.y_network
        if network.resolve(shape) == "conv" and len(shape) < 2:
            raise VspairError(
                f"{name} has shape {shape}: convolutions need images. Use kind = 'mlp'."
            )
    if config.kind == "sVAE" and config.forward_map:
        raise VspairError("forward_map = true, but sVAE has no maps: leave it out.")
    x_name, y_name = _FAMILIES[config.kind]
    x_family, y_family = (
        Family(name, size, config.gate, config.temperature, config.logvar_range)
        for name, size in ((x_name, config.x_size), (y_name, config.y_size))
    )
    if config.kind == "sVAE":
        return SparseVAE(config, x_shape, y_shape, x_family)
    return PairedAutoencoder(config, x_shape, y_shape, x_family, y_family)
