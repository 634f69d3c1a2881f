r"""Diffusion posterior sampling: a learned prior that is steered towards an observation.

Song et al., "Score-Based Generative Modeling through Stochastic Differential Equations", ICLR
2021; Chung et al., "Diffusion Posterior Sampling for General Noisy Inverse Problems", ICLR 2023.

The variance-preserving equation turns images into noise between t = 0 and t = 1,

.. math:: dx = -\tfrac12 \beta(t)\, x \, dt + \sqrt{\beta(t)} \, dw, \qquad
    x_t \mid x_0 \sim N(\alpha_t x_0, \sigma_t^2 I), \qquad \alpha_t^2 + \sigma_t^2 = 1

A network :math:`\varepsilon(x_t, t)` predicts the noise in :math:`x_t`. It gives the score
:math:`\nabla \log p(x_t) = -\varepsilon / \sigma_t` and, by Tweedie's formula, the mean of the
image behind it, :math:`\hat x_0 = (x_t - \sigma_t \varepsilon) / \alpha_t`. The equation is run
backwards by Euler-Maruyama steps of length h, with z from N(0, I), and each is followed by a
*guidance*, the gradient of some g through the network:

.. math:: x_{t - h} = x_t + h \beta(t) \left( \tfrac12 x_t - \varepsilon / \sigma_t \right)
    + \sqrt{h \beta(t)}\, z - \nabla_{x_t} g(\hat x_0(x_t))

DPS takes :math:`g = \zeta \| y - A \hat x_0 \|`, the norm of each trajectory's own residual, with
a fixed :math:`\zeta` as in the paper ("the gradient of the residual, with fixed step size"). The
sources disagree: the code of Chung et al. differentiates the norm, that of a whole batch at once;
their algorithm differentiates its square and divides by the norm, which is twice that. With
``residual="squared"`` g is :math:`\zeta` times the square, and not divided.

Neither is multiplied by h, so that more steps follow y more closely; the norm's gradient grows
with the unit of A x, the square's with its square; and g does not know of the noise in y. So even
for a Gaussian prior, where all else is exact, the samples are not those of the posterior. Its
guidance would be :math:`g = h \beta(t) \tfrac12 r^T (\tau^2 I + A C_t A^T)^{-1} r` for the
residual r, noise of deviation :math:`\tau` in y, and the covariance :math:`C_t` of x_0 given x_t.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from vspair.data import Normaliser
from vspair.errors import VspairError
from vspair.networks.unet import WIDTHS, UNet, channels_of
from vspair.posterior import PointPosterior, Posterior, SamplePosterior
from vspair.runs import pick_device
from vspair.training.networks import NetworkTraining, Plan, Trainable

__all__ = [
    "T_END",
    "VPSDE",
    "Dps",
    "Guidance",
    "Predictor",
    "Prior",
    "dps",
    "noise_loss",
    "reverse",
    "sample_prior",
    "train_prior",
]

T_END = 1e-3
"""The time at which the paper's samples end; smaller ones are not learned either."""

Operator = Callable[[Tensor], Tensor]

Predictor = Callable[[Tensor, Tensor], Tensor]
"""From x_t (n, \\*shape) and t (n,) to the noise in x_t (n, \\*shape)."""

Guidance = Callable[[Tensor, slice, float, float], Tensor]
"""From the images x_0 (n, \\*shape) of some trajectories, which these are, t and the length of the
step to what the step is to lessen, one number a trajectory, with shape (n,)."""


@dataclass(frozen=True)
class VPSDE:
    r"""The variance-preserving equation with :math:`\beta` growing linearly from t = 0 to 1.

    Arguments:
        beta_min: The rate at t = 0.
        beta_max: The rate at t = 1.
    """

    beta_min: float = 0.1
    beta_max: float = 20.0

    def __post_init__(self) -> None:
        if not 0 < self.beta_min <= self.beta_max < math.inf:
            raise VspairError(
                f"beta_min = {self.beta_min}, beta_max = {self.beta_max}: expected numbers above "
                "0, the second not below the first."
            )

    def beta(self, t: Tensor) -> Tensor:
        """Return the rate at times t, with shape (*)."""
        return self.beta_min + t * (self.beta_max - self.beta_min)

    def marginal(self, t: Tensor) -> tuple[Tensor, Tensor]:
        r"""Return :math:`\alpha_t` and :math:`\sigma_t`, with the shape (*) of t.

        .. math:: \alpha_t = \exp\left( -\tfrac12 \int_0^t \beta \right), \qquad
            \sigma_t^2 = 1 - \alpha_t^2
        """
        integral = self.beta_min * t + (self.beta_max - self.beta_min) * t.square() / 2
        return torch.exp(-integral / 2), torch.sqrt(-torch.expm1(-integral))


def noise_loss(
    network: Predictor, sde: VPSDE, x: Tensor, generator: Generator, *, t_end: float = T_END
) -> Tensor:
    r"""Return the mean squared error of predicted noise, a scalar.

    .. math:: E \, \tfrac1n \| \varepsilon(\alpha_t x + \sigma_t e, t) - e \|^2,
        \qquad t \sim U(t_{end}, 1), \quad e \sim N(0, I)

    This is denoising score matching with the weight :math:`\sigma_t^2`: its minimiser is
    :math:`-\sigma_t \nabla \log p(x_t)`.

    Arguments:
        network: Predicts the noise.
        sde: Says how much of it there is.
        x: Normalised images, with shape (B, *shape).
        generator: The source of times and noise, on the device of x.
        t_end: The smallest time.
    """
    t = torch.rand(len(x), generator=generator, dtype=x.dtype, device=x.device)
    t = t_end + (1 - t_end) * t
    e = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
    alpha, sigma = (s.reshape(-1, *(1,) * (x.ndim - 1)) for s in sde.marginal(t))
    return (network(alpha * x + sigma * e, t) - e).square().mean()


class Prior(Trainable):
    """A noise predictor for images, which it knows the normalisation of.

    Arguments:
        shape: The shape of one image, (H, W) or (C, H, W).
        widths: The widths of its :class:`UNet`.
        beta_min: The rate of the equation at t = 0.
        beta_max: The rate at t = 1.
    """

    def __init__(
        self,
        shape: Sequence[int],
        widths: Sequence[int] = WIDTHS,
        beta_min: float = 0.1,
        beta_max: float = 20.0,
    ) -> None:
        rates = {"beta_min": beta_min, "beta_max": beta_max}
        super().__init__({"shape": tuple(shape), "widths": tuple(widths), **rates})
        self.shape, self.sde = tuple(shape), VPSDE(beta_min, beta_max)
        channels = channels_of(self.shape)
        self.network = UNet(channels, channels, widths, time=True)
        self.normaliser = Normaliser(self.shape)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Return the noise in x_t (B, *shape), of normalised images, at times t (B,)."""
        return self.network(x, t)


def train_prior(
    x: Tensor,
    plan: Plan | None = None,
    *,
    widths: Sequence[int] = WIDTHS,
    sde: VPSDE | None = None,
    held: Tensor | None = None,
    folder: str | Path | None = None,
    device: str = "cpu",
    deadline: float | None = None,
    compile: bool = False,
    show: bool = False,
) -> Prior:
    """Return a prior trained on images, which are shifted and scaled as a whole first.

    Arguments:
        x: Images in their own units, with shape (N, *shape).
        plan: How to train; the paper's 500 epochs with a step size of 1e-4 where not given.
        widths: The widths of the U-Net.
        sde: The equation.
        held: More images, with shape (M, *shape), whose loss is logged beside.
        folder: Where to save and go on from; see
            :class:`vspair.training.networks.NetworkTraining`.
        device: Where to train: ``cpu``, ``cuda``, or ``auto``.
        deadline: Stop at this time of ``time.monotonic``; ``epochs`` of the result say how far.
        compile: Whether to compile the network, which takes a minute.
        show: Whether to show a progress bar.
    """
    plan, sde = plan or Plan(), sde or VPSDE()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.seed)
        prior = Prior(tuple(x.shape[1:]), widths, sde.beta_min, sde.beta_max)
    prior.normaliser.fit(x, "scalar")
    prior.to(pick_device(device))

    def loss(batch: tuple[Tensor, ...], generator: Generator) -> Tensor:
        return noise_loss(prior, sde, prior.normaliser(batch[0]), generator)

    tensors = None if held is None else (held,)
    how: dict[str, Any] = {"folder": folder, "deadline": deadline, "compile": compile}
    NetworkTraining(prior, loss, (x,), plan, held=tensors, **how).train(show)
    return prior


# -- sampling -------------------------------------------------------------------------------


def _normal(shape: Sequence[int], like: Tensor, generator: Generator) -> Tensor:
    """Return normal numbers drawn where the generator is, so that it alone fixes them."""
    noise = torch.randn(
        tuple(shape), generator=generator, dtype=like.dtype, device=generator.device
    )
    return noise.to(like.device)


def reverse(
    network: Predictor,
    sde: VPSDE,
    x: Tensor,
    generator: Generator,
    *,
    steps: int = 1500,
    t_end: float = T_END,
    guidance: Guidance | None = None,
    chunk: int = 256,
) -> Tensor:
    """Return where trajectories that start at t = 1 are at t_end, with shape (n, *shape).

    The times are equally spaced, the first step is taken at t = 1 and the last one ends at t_end.
    The last adds no noise, as Song et al. do. Noise is drawn for all trajectories at once: how
    they are cut into chunks changes nothing but round-off.

    Arguments:
        network: Predicts the noise.
        sde: The equation.
        x: Where to start: normal numbers, with shape (n, *shape).
        generator: The source of the noise.
        steps: The number of steps.
        t_end: Where to end, above 0.
        guidance: What each step is to lessen, if anything; differentiated through the network.
        chunk: The most trajectories that the network is given at once.
    """
    for name, value in (("steps", steps), ("chunk", chunk)):
        if value < 1:
            raise VspairError(f"{name} = {value}: expected 1 or more.")
    if not 0 < t_end < 1:
        raise VspairError(f"t_end = {t_end}: expected a time above 0 and below 1.")
    times = torch.linspace(1, t_end, steps + 1, dtype=torch.float64)[:-1]
    h = (1 - t_end) / steps
    moments = (s.tolist() for s in (times, *sde.marginal(times), sde.beta(times)))
    parts = [slice(i, min(i + chunk, len(x))) for i in range(0, len(x), chunk)]
    for k, (t, alpha, sigma, beta) in enumerate(zip(*moments, strict=True)):
        # In place of a step's noise, so that nothing is kept twice.
        new = torch.zeros_like(x) if k == steps - 1 else _normal(x.shape, x, generator)
        new *= math.sqrt(h * beta)
        for rows in parts:
            e, slope = _predict(network, x[rows], t, alpha, sigma, h, rows, guidance)
            new[rows] += (1 + h * beta / 2) * x[rows] - h * beta / sigma * e - slope
        x = new
    return x


def _predict(
    network: Predictor,
    x: Tensor,
    t: float,
    alpha: float,
    sigma: float,
    h: float,
    rows: slice,
    guidance: Guidance | None,
) -> tuple[Tensor, Tensor | float]:
    """Return the noise in x_t, and the gradient of the guidance."""
    times = x.new_full((len(x),), t)
    if guidance is None:
        with torch.no_grad():
            return network(x, times), 0.0
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        e = network(x, times)
        goal = guidance((x - sigma * e) / alpha, rows, t, h)
        (slope,) = torch.autograd.grad(goal.sum(), x)
    return e.detach(), slope


def sample_prior(
    network: Predictor,
    sde: VPSDE,
    shape: Sequence[int],
    steps: int = 1500,
    *,
    generator: Generator,
    t_end: float = T_END,
    chunk: int = 256,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return samples of the prior in normalised units, with the given shape (n, *shape).

    Arguments:
        network: Predicts the noise.
        sde: The equation.
        shape: The number of samples and the shape of one.
        steps: The number of Euler-Maruyama steps.
        generator: The source of all noise.
        t_end: Where to end.
        chunk: The most samples that the network is given at once.
        device: Where the network is.
        dtype: What to compute in.
    """
    x = _normal(shape, torch.empty(0, device=device, dtype=dtype), generator)
    return reverse(network, sde, x, generator, steps=steps, t_end=t_end, chunk=chunk)


def dps(
    network: Predictor,
    sde: VPSDE,
    operator: Operator,
    y: Tensor,
    shape: Sequence[int],
    *,
    generator: Generator,
    trajectories: int = 1,
    steps: int = 1500,
    zeta: float = 0.1,
    t_end: float = T_END,
    residual: Literal["norm", "squared"] = "norm",
    inverse: Operator | None = None,
    chunk: int = 256,
) -> Tensor:
    r"""Return images that fit observations, in their own units, (trajectories, B, \*shape).

    Arguments:
        network: Predicts the noise in normalised images.
        sde: The equation.
        operator: A, from images (n, \*shape) in their own units to observations (n, \*y_shape);
            anything that can be differentiated.
        y: Observations, with shape (B, \*y_shape); where and in what precision to compute.
        shape: The shape of one image.
        generator: The source of all noise.
        trajectories: How often each observation is answered.
        steps: The number of Euler-Maruyama steps.
        zeta: The step size of the guidance, 0 or more; 0 samples the prior.
        t_end: Where to end.
        residual: Whether the guidance is the gradient of the residual's norm or of its square.
        inverse: From normalised images to those in their own units, such as
            ``prior.normaliser.inverse``; the images themselves where not given.
        chunk: The most trajectories that the network is given at once.
    """
    inverse = inverse or (lambda x: x)
    _check_dps(operator, inverse, y, tuple(shape), zeta, trajectories, residual)
    which = torch.arange(len(y), device=y.device).repeat(trajectories)

    def guidance(x: Tensor, rows: slice, t: float, h: float) -> Tensor:
        r = (y[which[rows]] - operator(inverse(x))).flatten(1)
        return zeta * (r.square().sum(1) if residual == "squared" else r.norm(dim=1))

    x = _normal((len(which), *shape), y, generator)
    x = reverse(
        network, sde, x, generator, steps=steps, t_end=t_end, guidance=guidance, chunk=chunk
    )
    lost = int((~x.flatten(1).isfinite().all(1)).sum())
    if lost:
        raise VspairError(
            f"{lost} of {len(x)} trajectories left the range of numbers with zeta = {zeta}. "
            "Lower zeta, or take more steps."
        )
    with torch.no_grad():
        return inverse(x).reshape(trajectories, len(y), *shape)


def _check_dps(
    operator: Operator,
    inverse: Operator,
    y: Tensor,
    shape: tuple[int, ...],
    zeta: float,
    trajectories: int,
    residual: str,
) -> None:
    if not 0 <= zeta < math.inf:
        raise VspairError(f"zeta = {zeta}: expected a step size of 0 or more.")
    if trajectories < 1:
        raise VspairError(f"trajectories = {trajectories}: expected 1 or more.")
    if residual not in ("norm", "squared"):
        raise VspairError(f"residual = {residual!r}: expected norm or squared.")
    with torch.no_grad():
        image = inverse(torch.zeros(1, *shape, dtype=y.dtype, device=y.device))
        try:
            expected = tuple(operator(image).shape[1:])
        except RuntimeError as error:
            raise VspairError(
                f"The operator does not take images of shape {shape}: {error}. Give the shape of "
                "one image, as the operator is given it."
            ) from None
    if tuple(y.shape[1:]) != expected or not len(y):
        raise VspairError(
            f"y has shape {tuple(y.shape)}: expected (B, {', '.join(map(str, expected))}), what "
            f"the operator makes of images of shape {shape}, with at least one observation."
        )


class Dps:
    r"""Answers with trajectories of a trained prior that are steered towards the observations.

    Arguments:
        prior: The trained prior.
        operator: A, from images (n, \\*shape) to observations (n, \\*y_shape).
        trajectories: Samples of each observation; the paper has 10. A single one has no spread.
        seed: Fixes them.
        options: Other arguments of :func:`dps`, such as ``steps`` and ``zeta``.
    """

    name = "DPS"

    def __init__(
        self,
        prior: Prior,
        operator: Operator,
        *,
        trajectories: int = 10,
        seed: int = 0,
        **options: Any,
    ) -> None:
        self.prior, self.operator, self.options = prior, operator, options
        self.trajectories, self.seed = trajectories, seed
        self.n_parameters = sum(p.numel() for p in prior.parameters())

    def posterior(self, y: Tensor) -> Posterior:
        r"""Return samples for observations of shape (B, \\*y_shape); all are made at once."""
        y = y.to(self.prior.normaliser.mean.device)
        generator = Generator(y.device).manual_seed(self.seed)
        how: dict[str, Any] = {"trajectories": self.trajectories, **self.options}
        inverse = self.prior.normaliser.inverse
        network, sde, shape = self.prior, self.prior.sde, self.prior.shape
        drawn = dps(
            network, sde, self.operator, y, shape, generator=generator, inverse=inverse, **how
        )
        return SamplePosterior(drawn) if len(drawn) > 1 else PointPosterior(drawn[0], self.name)
