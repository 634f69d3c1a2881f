r"""The anchored model: a deterministic answer, and a sparse code for what is left in doubt.

.. math:: x = r(y) + g(y) \odot (d(z) - d(\bar z(y))) + s(y) \odot \varepsilon, \qquad
          z \sim p(z \mid y), \quad \varepsilon \sim \mathcal{N}(0, I)

The *anchor* r answers. Factors z describe the residual x - r(y): they are the doubt. They are told
apart from their mean :math:`\bar z(y)`, whose part the anchor has in it already, so that samples
spread about the answer. Their *reach* g is how much of them is at each entry: none where y shows
x as it is. The *grain* s is what no factor explains.

The anchor is a ridge regression, or a few small networks that correct it, each trained without one
fold of the pairs; their mean answers, or that of networks of all folds. Of vectors, a smooth
regression may correct it too. Networks read *features*: answers of ridge for several penalties,
first guesses where there are any, and y itself where it lies on the grid of x.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vspair.anchors import CurvePath, Made, RidgePath, ShiftPath
from vspair.codes import Code, Family, SpikeSlab
from vspair.config import AnchoredConfig, ModelConfig
from vspair.data import Normaliser, as_array, as_data, expect_batch
from vspair.errors import VspairError
from vspair.mixtures import Mixture
from vspair.model import InverseModel, Shape
from vspair.networks import evaluating
from vspair.networks.spatial import STRIDE, Frame, PlaceDecoder, PlaceEncoder, Reader
from vspair.posterior import LatentPosterior

__all__ = ["AnchoredModel", "First", "as_first", "ask_first"]

First = Callable[[Tensor], Any]
"""From observations (B, *y_shape) to first guesses (B, *x_shape)."""

STEEPNESS = 10.0
"""How much faster gates close below 1/2 than they open above: few stay undecided."""

MOST_ODDS = 9.0
"""The largest log-odds of a gate: one that is sure could not learn that it is wrong."""

CLOSED = -30.0
"""The log-odds of a gate that is closed in an answer."""

DROPOUT = 0.3
"""The share of hidden numbers that networks of vectors leave out in training, where it helps."""

MOST_READ = 4096
"""The most entries of an observation that networks of vectors read one by one."""

PART = 256
"""How many observations are read at a time."""

LOG_GRAIN = (-8.0, 3.0)
"""The bounds of the logarithm of the grain, beside the constant one."""

LOG_REACH = (-8.0, 2.0)
"""The bounds of the logarithm of the reach of factors."""


def decided(gate: Tensor, shift: Tensor) -> Tensor:
    """Return log-odds above a shift, at most :data:`MOST_ODDS`; below it, they fall faster."""
    gate = gate - shift
    gate = torch.where(gate > 0, gate, STEEPNESS * gate)
    return MOST_ODDS * torch.tanh(gate / MOST_ODDS)


class Thresholds(nn.Module):
    """What training steers, not by gradients: where gates open, the width, the budget.

    Attributes:
        answer: The log-odds above which gates of answers are open, a scalar.
        own: The same of the codes of residuals themselves.
        log_width: The logarithm of the constant width, in units of the residual.
        active: How many gates are open on average in the end; 0 before that is chosen.
    """

    answer: Tensor
    own: Tensor
    log_width: Tensor
    active: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("answer", "own", "log_width", "active"):
            self.register_buffer(name, torch.zeros(()))


class AnchoredModel(InverseModel):
    """An anchor, a code of its residual, and grain.

    Arguments:
        config: What the code's parameters are bounded by.
        anchored: Sizes.
        made: What was decided by the pairs.
        x_shape: The shape of one unknown.
        y_shape: The shape of one observation.
    """

    feature_mean: Tensor
    feature_std: Tensor
    trust: Tensor
    curve_trust: Tensor
    shrinkage: Tensor

    def __init__(
        self,
        config: ModelConfig,
        anchored: AnchoredConfig,
        made: Made,
        x_shape: Shape,
        y_shape: Shape,
    ) -> None:
        frame = Frame(x_shape, made.domain)
        kinds = anchored.kinds
        self.kinds, self.n_factors = kinds, kinds * math.prod(frame.places)
        family = Family("spikeslab", self.n_factors, "sigmoid", config.temperature, (-10.0, 4.0))
        super().__init__(config, x_shape, y_shape, family, PlaceDecoder(frame, kinds))
        self.anchored, self.made, self.frame = anchored, made, frame
        self.first: First | None = None
        self.verdict: object = None
        self.x_scale = Normaliser(x_shape)
        self.ridge = self._make_ridge()
        sizes = math.prod(y_shape), math.prod(x_shape)
        self.curve = CurvePath(*sizes, made.curve, 1) if made.curve else None
        channels = self.n_features
        self.register_buffer("feature_mean", torch.zeros(channels, *[1] * len(frame.size)))
        self.register_buffer("feature_std", torch.ones(channels, *[1] * len(frame.size)))
        wide: dict[str, Any] = {} if frame.size else {"dropout": DROPOUT}
        wide["width"] = anchored.width * (1 if frame.size else 4)
        self.networks = nn.ModuleList(
            Reader(frame, channels, maps=1, **wide) for _ in range(made.networks + made.whole)
        )
        self.register_buffer("trust", torch.ones(()))
        self.register_buffer("curve_trust", torch.zeros(()))
        self.register_buffer("shrinkage", torch.ones(()))
        self.thresholds = Thresholds()
        self._make_readers()

    def _make_ridge(self) -> RidgePath | ShiftPath | CurvePath:
        """Return a path with room for the numbers of ridge regression."""
        if self.made.ridge == "shifts":
            return ShiftPath(self.frame, self.made.penalties)
        sizes = math.prod(self.y_shape), math.prod(self.x_shape)
        return RidgePath(*sizes, self.made.rank, self.made.penalties)

    def _make_readers(self) -> None:
        """Make what reads code and grain: features, and the correction where there is one."""
        seen = self.n_features + self.frame.channels * self.corrects
        each, modes, width = 3 * self.kinds, self.made.modes, self.anchored.width
        numbers = each if modes == 1 else (2 * modes + 1) * self.kinds + modes
        maps = int(self.made.reach)
        self.code_reader = Reader(self.frame, seen, maps=maps, numbers=numbers, width=width)
        self.grain_reader = Reader(self.frame, seen, maps=1, width=width)
        self.x_encoder = PlaceEncoder(self.frame, self.frame.channels + seen, each)
        self._spread_modes()

    def leave_out_networks(self) -> None:
        """Let the base answer alone, as if no networks had been made."""
        self.made, self.networks = replace(self.made, networks=0, whole=0), nn.ModuleList()
        self._make_readers()

    @property
    def noise_std(self) -> Tensor:
        """The constant width in units of the residual, a scalar."""
        return self.thresholds.log_width.exp()

    # -- what is read of y --------------------------------------------------------------------

    @property
    def reads_y(self) -> bool:
        """Whether networks read y itself: where it lies on x's grid, or neither has places."""
        size = self.frame.size
        if not size:
            return math.prod(self.y_shape) <= MOST_READ
        return len(self.y_shape) >= len(size) and self.y_shape[-len(size) :] == size

    @property
    def n_features(self) -> int:
        """The numbers that networks read at each pixel."""
        made = self.made
        maps = (made.penalties + made.first + (made.curve > 0)) * self.frame.channels
        return maps + (math.prod(self.y_shape) // math.prod(self.frame.size)) * self.reads_y

    @property
    def answering(self) -> nn.ModuleList:
        """The networks whose mean answers."""
        return self.networks[self.made.networks :] if self.made.whole else self.networks

    @property
    def corrects(self) -> bool:
        """Whether anything is added to the base."""
        return len(self.networks) > 0 or self.made.curve > 0

    def stack(
        self, ridge: Tensor, first: Tensor | None, curve: Tensor | None, y: Tensor
    ) -> Tensor:
        """Return what networks read, not yet normalised, with shape (B, n_features, *size).

        Arguments:
            ridge: Normalised answers of ridge, with shape (B, P, n).
            first: Normalised first guesses, with shape (B, *x_shape).
            curve: Normalised answers of the smooth regression, with shape (B, n).
            y: Normalised observations, with shape (B, *y_shape).
        """
        parts = [self.frame.maps(ridge)]
        parts += [self.frame.maps(each) for each in (first, curve) if each is not None]
        parts += [self.frame.maps(y)] if self.reads_y else []
        return torch.cat(parts, 1)

    def base(self, stacked: Tensor) -> Tensor:
        """Return the answer that networks correct, normalised, with shape (B, *x_shape)."""
        if self.made.base == "none":
            return stacked.new_zeros(len(stacked), *self.x_shape)
        which = self.made.best if self.made.base == "ridge" else self.made.penalties
        c = self.frame.channels
        return stacked[:, which * c : (which + 1) * c].reshape(-1, *self.x_shape)

    def normalise_features(self, stacked: Tensor) -> Tensor:
        """Return features as networks see them."""
        return (stacked - self.feature_mean) / self.feature_std

    def correction(self, features: Tensor) -> Tensor | None:
        """Return what is added to the base, in units of the residual.

        The mean of what the networks say and the step to the smooth regression, each times how
        far it is trusted.
        """
        parts = []
        if len(self.networks):
            said = torch.stack([net(features)[0] for net in self.answering]).mean(0)
            parts.append(self.trust * said)
        if self.made.curve:
            parts.append(self.curve_trust * self.curve_step(features))
        return sum(parts[1:], parts[0]) if parts else None

    def curve_step(self, features: Tensor) -> Tensor:
        """Return the way from the base to the smooth regression, in units of the residual."""
        stacked = features * self.feature_std + self.feature_mean
        at = (self.made.penalties + self.made.first) * self.frame.channels
        step = stacked[:, at : at + self.frame.channels] - self.base(stacked).flatten(1)
        scale = (self.x_scale.std / self.x_normaliser.std).expand(self.x_shape)
        return step * scale.reshape(-1)

    def normalise_y(self, y: Tensor) -> Tensor:
        """Return normalised observations, in float64 where filters may multiply round-off."""
        return self.y_normaliser(y.double() if self.made.ridge == "shifts" else y)

    def ridge_path(self, y: Tensor) -> Tensor:
        """Return answers of ridge to normalised observations, normalised, with shape (B, P, n)."""
        answers: Tensor = self.ridge(y.flatten(1))
        if self.made.ridge != "toward-y":
            return answers
        return answers + self.x_scale(self.y_normaliser.inverse(y)).flatten(1).unsqueeze(1)

    def seen(self, features: Tensor, correction: Tensor | None) -> Tensor:
        """Return what code and grain are read from: the features, and the correction."""
        return features if correction is None else torch.cat((features, correction), 1)

    # -- codes ---------------------------------------------------------------------------------

    def _spread_modes(self) -> None:
        """Let the means of modes start apart from each other, or they stay one."""
        last = self.code_reader.numbers
        if self.made.modes == 1 or last is None:
            return
        with torch.no_grad():
            bias = last.bias[: 2 * self.made.modes * self.kinds]  # type: ignore[index]
            bias.unflatten(0, (self.made.modes, 2, self.kinds))[:, 0].normal_()

    def modes_of(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers of each mode, (B, m, 3 l), and log-weights (B, m).

        Modes differ in how strong factors are; whether they are present is the same in all.
        """
        m, k = self.made.modes, self.kinds
        if m == 1:
            return numbers.flatten(1).unsqueeze(1), numbers.new_zeros(len(numbers), 1)
        strengths = numbers[:, : 2 * m * k].unflatten(1, (m, 2 * k)).flatten(2)
        gates = numbers[:, 2 * m * k : (2 * m + 1) * k].flatten(1).unsqueeze(1)
        weights = numbers[:, (2 * m + 1) * k :].reshape(len(numbers), m, -1).mean(2)
        return torch.cat((strengths, gates.expand(-1, m, -1)), 2), weights.log_softmax(1)

    def with_gates(self, parts: Tensor, shift: Tensor, closed: bool = False) -> SpikeSlab:
        """Return the codes of numbers (..., 3 l) whose gates open above a shift.

        Arguments:
            parts: The numbers.
            shift: The log-odds above which gates are rather open.
            closed: Whether all others are closed; while they are trained, they may be in doubt.
        """
        mu, logvar, gate = parts.chunk(3, -1)
        odds = decided(gate, shift)
        odds = odds.where(odds > 0, CLOSED) if closed else odds
        code = self.x_family.read(torch.cat((mu, logvar, odds), -1))
        assert isinstance(code, SpikeSlab)
        return code

    def read_code(self, numbers: Tensor, shift: Tensor | None = None) -> SpikeSlab | Mixture:
        """Return the code that numbers (B, ..., *places) of the reader stand for.

        In answers, for which no shift is given, gates below the threshold are closed.
        """
        parts, weights = self.modes_of(numbers)
        own = self.thresholds.answer if shift is None else shift
        modes = self.with_gates(parts, own, closed=shift is None)
        if self.made.modes == 1:
            return modes[:, 0]
        return Mixture(modes, weights)

    def read_seen(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers of the code, and the reach of factors (B, *x_shape).

        Its mean square is 1 for each y: how large all doubt is, is for the strengths of factors to
        say. Otherwise factors that are not yet learned would be silenced.
        """
        maps, numbers = self.code_reader(seen)
        if maps is None:
            return numbers, seen.new_ones(len(seen), *self.x_shape)
        reach = maps.clamp(*LOG_REACH).exp()
        size = reach.flatten(1).square().mean(1).sqrt().reshape(-1, *[1] * (maps.ndim - 1))
        return numbers, (reach / size).reshape(len(seen), *self.x_shape)

    def spread(self, z: Tensor, p: SpikeSlab | Mixture, reach: Tensor) -> Tensor:
        """Return what latents (B, l) add to the answer, in units of the residual, (B, *x_shape).

        Arguments:
            z: The latents.
            p: The code of y, whose mean the answer has in it already.
            reach: The reach of factors, with shape (B, *x_shape).
        """
        return reach * (self.x_decoder(z) - self.centre(p))

    def own_numbers(self, residual: Tensor, seen: Tensor) -> Tensor:
        """Return the numbers that the code of residuals is read from, with shape (B, 3 l)."""
        return self.x_encoder(torch.cat((self.frame.maps(residual), seen), 1)).flatten(1)

    def encode(self, residual: Tensor, seen: Tensor) -> SpikeSlab:
        """Return the code of normalised residuals of shape (B, *x_shape), given what y shows."""
        return self.with_gates(self.own_numbers(residual, seen), self.thresholds.own)

    def grain(self, seen: Tensor) -> Tensor:
        """Return the deviation of the grain in units of the residual, (B, *x_shape)."""
        if self.anchored.grain == "constant":
            return self.noise_std.expand(len(seen), *self.x_shape)
        maps = self.grain_reader(seen)[0]
        assert maps is not None
        log = self.thresholds.log_width + maps.clamp(*LOG_GRAIN)
        return log.exp().reshape(len(seen), *self.x_shape)

    @property
    def centred(self) -> bool:
        """Whether an anchor answers, and factors are told apart from their mean."""
        return self.made.base != "none" or self.corrects

    def centre(self, code: SpikeSlab | Mixture) -> Tensor | float:
        """Return what the anchor has of the factors in it already: what their mean decodes to."""
        return self.x_decoder(code.mean) if self.centred else 0.0

    # -- answers -------------------------------------------------------------------------------

    def latent(self, y: Tensor) -> Code:
        """Return the code of normalised observations; first guesses come from ``first``."""
        return self.read(y, self._guess(self.y_normaliser.inverse(y), None))[1]

    @torch.no_grad()
    def widen(self, factors: float, grain: float) -> None:
        """Multiply what is in doubt: what factors move, and the grain."""
        assert isinstance(self.x_decoder, PlaceDecoder)
        self.x_decoder.scale(factors)
        self.thresholds.log_width += math.log(grain)

    @torch.no_grad()
    def start_grain(self, left: Tensor) -> None:
        """Let the grain start at the size of what factors leave, entry by entry of a vector.

        Arguments:
            left: Residuals less what their own codes decode to, with shape (N, *x_shape).
        """
        last = self.grain_reader.maps
        assert isinstance(last, nn.Linear | nn.Conv1d | nn.Conv2d)
        assert last.bias is not None
        maps = self.frame.maps(left)
        rms = maps.square().mean((0, *range(2, maps.ndim))).sqrt().clamp(min=1e-8)
        start = (rms.log() - self.thresholds.log_width).clamp(*LOG_GRAIN)
        last.bias.copy_(start.repeat_interleave(len(last.bias) // len(start)))

    def answers(self) -> list[nn.Module]:  # noqa: D102
        return [*self.networks, self.code_reader, self.grain_reader, self.x_decoder]

    def _guess(self, y: Tensor, first: Any) -> Tensor | None:
        """Return normalised first guesses for observations in their own units, if any."""
        if not self.made.first:
            if first is not None:
                raise VspairError(
                    "first guesses were given, but this model was trained without: leave them "
                    "out, or train it with first = ..."
                )
            return None
        if first is None and self.first is None:
            raise VspairError(
                "This model was trained with first guesses: give them with y, as first = guesses "
                f"of shape (B, {', '.join(map(str, self.x_shape))}), or --first FILE."
            )
        given = ask_first(self.first, y) if first is None and self.first is not None else first
        return self.x_scale(as_first(given, len(y), self.x_shape).to(y))

    def answer(self, y: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the answer to normalised observations, and what code and grain are read from.

        The answer (B, *x_shape) is normalised as the unknown is.
        """
        curve = None if self.curve is None else self.curve(y.float().flatten(1))[:, 0]
        stacked = self.stack(self.ridge_path(y), first, curve, y.float())
        features = self.normalise_features(stacked)
        correction = self.correction(features)
        seen = self.seen(features, correction)
        answer = self.base(stacked)
        if correction is not None:
            scale = self.x_normaliser.std / self.x_scale.std
            answer = answer + correction.reshape(answer.shape) * scale
        return answer, seen

    @torch.no_grad()
    def ask(self, y: Tensor, first: Any = None) -> tuple[Tensor, Tensor]:
        """Return answers (B, *x_shape) in own units, and what code and grain are read from.

        Arguments:
            y: Observations in their own units, with shape (B, *y_shape).
            first: First guesses of x, where the model was trained with them.
        """
        expect_batch("y", y, self.y_shape)
        y = y.to(self.x_scale.mean)
        with evaluating(self):
            answer, seen = self.answer(self.normalise_y(y), self._guess(y, first))
        return self.x_scale.inverse(answer), seen

    def read(self, y: Tensor, first: Tensor | None) -> tuple[Tensor, Code, Tensor, Tensor]:
        """Return answer, code, reach and grain for normalised observations and first guesses.

        The answer (B, *x_shape) is normalised as the unknown is, the grain (B, *x_shape) is in
        units of the residual; the reach (B, *x_shape) multiplies what is decoded.
        """
        guesses = [None] * len(y) if first is None else first.split(PART)
        parts = [self._read_part(*each) for each in zip(y.split(PART), guesses, strict=False)]
        answer, numbers, reach, grain = (torch.cat(each) for each in zip(*parts, strict=True))
        return answer, self.read_code(numbers), reach, grain

    def _read_part(self, y: Tensor, first: Tensor | None) -> tuple[Tensor, ...]:
        """Return answer, the numbers of the code, reach, and grain."""
        answer, seen = self.answer(y, first)
        return answer, *self.read_seen(seen), self.grain(seen)

    def posterior(self, y: Any, *, first: Any = None, noise: bool = True) -> LatentPosterior:
        """Return what the model believes of x, given observations in their own units.

        Arguments:
            y: One observation of shape y_shape, or a batch of shape (B, *y_shape).
            first: First guesses of x, where the model was trained with them.
            noise: Whether samples include the grain.
        """
        y, single = self._batch(y, "y", self.y_shape, "observations")
        if single and first is not None:
            first = as_array(first, "first")[None]
        with evaluating(self), torch.no_grad():
            guess = self._guess(y, first)
            answer, code, reach, grain = self.read(self.normalise_y(y), guess)
            grain = grain * self.x_normaliser.std
        about = self.x_scale.inverse(answer) if self.centred else None
        how: dict[str, Any] = {"answer": about, "noise_std": grain, "single": single}
        how["reach"] = reach if self.made.reach else None
        return LatentPosterior(self, code, noise=noise, **how)

    def ridge_answer(self, y: Tensor) -> Tensor:
        """Return what ridge regression alone answers, in own units, with shape (B, *x_shape)."""
        y = self.normalise_y(y.to(self.x_scale.mean))
        answer = self.ridge_path(y)[:, self.made.best].reshape(-1, *self.x_shape)
        return self.x_scale.inverse(answer)

    def factor_name(self, index: int) -> str:
        """Return the name of a factor: its kind, and the pixel at the middle of its place."""
        if not self.frame.size:
            return f"factor {index}"
        places = math.prod(self.frame.places)
        kind, place = divmod(index, places)
        at = torch.unravel_index(torch.tensor(place), self.frame.places)
        sides = zip(at, self.frame.size, strict=True)
        middle = ", ".join(str(min(STRIDE * int(p) + STRIDE // 2, s - 1)) for p, s in sides)
        return f"kind {kind} at ({middle})"


@torch.no_grad()
def ask_first(call: First, y: Tensor) -> Tensor:
    """Return a user's first guesses for observations (B, *y_shape), asked for some at a time."""
    parts = [as_data(call(part), "first").float() for part in y.cpu().split(PART)]
    return torch.cat(parts)


def as_first(first: Any, count: int, x_shape: Shape) -> Tensor:
    """Return first guesses of shape (N, *x_shape), or say what is wrong with them."""
    guesses = as_data(first, "first").float()
    if tuple(guesses.shape) != (count, *x_shape):
        raise VspairError(
            f"first has shape {tuple(guesses.shape)}: expected {(count, *x_shape)}, one guess of "
            "x for each observation. An anchor of your own must answer with the shape of x."
        )
    return guesses
