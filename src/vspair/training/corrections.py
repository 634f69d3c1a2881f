"""How far corrections of the anchor are trusted, and what answers leave in doubt.

Corrections are the mean of the networks and the step to the smooth regression (see
:class:`vspair.anchored.AnchoredModel`). Every pair is answered by what has not seen it.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from vspair.anchored import AnchoredModel
from vspair.training.doubt import Doubt, in_parts
from vspair.training.prepared import Prepared, Say

__all__ = ["Corrections", "left_in_doubt", "maps_of", "weigh"]

FEW_GROUPS = 2
"""Of so many held-out groups, half is believed of what many would say."""

LEAST_SHARE = 0.25
"""The least share of the squared error of a network that is ascribed to a mean of them."""


def maps_of(net: nn.Module, features: Tensor) -> Tensor:
    """Return what a network says of features (B, n_features, *size)."""
    maps: Tensor = net(features)[0]
    return maps


@torch.no_grad()
def say_out_of_fold(model: AnchoredModel, data: Prepared) -> Tensor:
    """Return what the network that has not seen it says of each pair; 0 without networks."""
    said = torch.zeros_like(model.frame.maps(data.residual))
    for k, net in enumerate(model.networks[: model.made.networks]):
        rows = data.fold == k
        said[rows] = in_parts(partial(maps_of, net), data.features[rows])
    return said


@torch.no_grad()
def take_steps(model: AnchoredModel, features: Tensor) -> Tensor:
    """Return the steps to the smooth regression, with the shape of maps; 0 without one."""
    if model.made.curve:
        return in_parts(model.curve_step, features)
    return features.new_zeros(len(features), model.frame.channels, *model.frame.size)


@torch.no_grad()
def left_in_doubt(model: AnchoredModel, data: Prepared) -> Doubt:
    """Return what answers leave of the pairs, each answered by what has not seen it.

    Residuals of single networks are as large as those of their mean then.
    """
    mirrored = model.made.mirrored
    if not model.corrects:
        return Doubt(data.features, data.residual, mirrored)
    if model.anchored.out_of_fold:
        said, step = say_out_of_fold(model, data), take_steps(model, data.features)
        added = model.trust * said + model.curve_trust * step
    else:
        added = in_parts(model.correction, data.features)
    left = data.residual - added.reshape(data.residual.shape)
    return Doubt(model.seen(data.features, added), left * model.shrinkage, mirrored)


class Corrections:
    """What networks and smooth regression say of training and of held-out pairs.

    Arguments:
        model: The model, whose networks are trained and trusted in full so far.
        data: What networks were trained on, each without one fold.
        held: What the answers of the model leave of held-out pairs.
        groups: How many groups these are of.
    """

    @torch.no_grad()
    def __init__(self, model: AnchoredModel, data: Prepared, held: Doubt, groups: int) -> None:
        self.model, self.groups = model, groups
        self.target = model.frame.maps(data.residual)
        self.said, self.step = say_out_of_fold(model, data), take_steps(model, data.features)
        seen = held.seen[:, : model.n_features]
        parts = [in_parts(partial(maps_of, net), seen) for net in model.answering]
        each = torch.stack(parts).double()
        self.held_said, self.held_step = each.mean(0), take_steps(model, seen)
        self.held_target = model.frame.maps(held.residual) + in_parts(model.correction, seen)
        self.agreement = float(
            self.held_said.square().mean() / each.square().mean().clamp(min=1e-30)
        )

    def trust(self, say: Say) -> None:
        """Set how far each correction is trusted, and how much smaller errors of the mean are.

        Trust is what lessens errors most, of two kinds of pairs. Those out of fold are many, but
        speak against networks: these learn what ridge left of other pairs, and ridge knew the pair
        in question there. Held-out pairs are few, and one group of them may be of another kind.
        """
        share = 0.5 * self.groups / (self.groups + FEW_GROUPS)
        inside, outside = self._moments_out_of_fold(), self._moments_held()
        gains, products = (
            (1 - share) * a + share * b for a, b in zip(inside, outside, strict=True)
        )
        trust, left = weigh(gains, products, self.model.anchored.anchor == "network")
        self.model.trust.fill_(float(trust[0]))
        self.model.curve_trust.fill_(float(trust[1]))
        self.model.shrinkage.fill_(self.shrinkage(*trust.tolist()))
        say(
            f"corrections: {left:.3g} times the error before; trust in networks {trust[0]:.2g}, "
            f"in the smooth regression {trust[1]:.2g}"
        )

    def _moments_out_of_fold(self) -> tuple[Tensor, Tensor]:
        """Return the moments of the mean of networks, which is smaller than each of them."""
        gains, products = _moments(self.target, self.said, self.step)
        return gains, agreeing(gains, products, self.agreement)

    def _moments_held(self) -> tuple[Tensor, Tensor]:
        return _moments(self.held_target, self.held_said, self.held_step)

    def shrinkage(self, trust: float, curve_trust: float) -> float:
        """Return how large errors of the mean of networks are beside those of each of them.

        The squared error of the mean is the mean of theirs less the variance among them.
        """
        if not self.model.anchored.out_of_fold:
            return 1.0
        left = self.target - trust * self.said - curve_trust * self.step
        among = (1 - self.agreement) * trust**2 * self.said.double().square().mean()
        share = 1 - float(among / left.double().square().mean().clamp(min=1e-30))
        return max(share, LEAST_SHARE) ** 0.5


def _moments(left: Tensor, said: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """Return means of products (2,) of two corrections with what is left, and (2, 2) of them.

    In units of the mean square of what is left.
    """
    rows = [t.flatten().double() for t in (said, step)]
    size = left.double().square().sum().clamp(min=1e-30)
    gains = torch.stack([row @ left.flatten().double() for row in rows]) / size
    products = torch.stack([torch.stack([a @ b for a in rows]) for b in rows]) / size
    return gains, products


def agreeing(gains: Tensor, products: Tensor, agreement: float) -> Tensor:
    """Return products in which the mean of networks is smaller than each of them.

    Their agreement was seen on other pairs. It is not below what these allow: no correction can
    gain more than all there is to correct, nor go along with another further than both reach.

    Arguments:
        gains: As in :func:`weigh`.
        products: The same, with single networks in place of their mean.
        agreement: The mean square of the mean of networks, as a share of that of each.
    """
    size = products[0, 0].clamp(min=1e-30)
    both = (size * products[1, 1]).clamp(min=1e-30)
    least = torch.maximum(gains[0].square() / size, products[0, 1].square() / both)
    found = products.clone()
    found[0, 0] *= least.clamp(min=agreement, max=1.0)
    return found


def weigh(gains: Tensor, products: Tensor, forced: bool = False) -> tuple[Tensor, float]:
    """Return weights (2,) of two corrections, from 0 to 1 in hundredths, and the error left.

    Errors are shares of that without corrections. One that does not lessen it by a hundredth has
    weight 0.

    Arguments:
        gains: The means of what is to be corrected times each correction, with shape (2,).
        products: The means of products of corrections, with shape (2, 2).
        forced: Whether the first has weight 1, whatever comes of it, and the second 0.
    """
    steps = torch.linspace(0, 1, 101, dtype=gains.dtype, device=gains.device)
    tried = gains.new_tensor([[1.0, 0.0]]) if forced else torch.cartesian_prod(steps, steps)
    left = 1 - 2 * tried @ gains + ((tried @ products) * tried).sum(1)
    best = (left * 1.01 ** (tried > 0).sum(1)).argmin()
    return tried[best], max(float(left[best]), 0.0)
