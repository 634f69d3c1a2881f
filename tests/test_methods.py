"""One contract for every method: whatever it is, it answers with a posterior."""

from collections.abc import Callable

import pytest
import torch
from torch import Generator, Tensor

from vspair import evaluation, methods
from vspair.anchored import AnchoredModel
from vspair.anchors import Made
from vspair.config import AnchoredConfig, ModelConfig
from vspair.data import Pairs
from vspair.errors import VspairError
from vspair.methods.cvae import train_cvae
from vspair.methods.dps import Prior
from vspair.methods.flow import FlowNetwork
from vspair.methods.nppc import train_nppc
from vspair.methods.plain import train_plain
from vspair.methods.regression import Regression
from vspair.metrics import psnr, ssim
from vspair.model import build
from vspair.networks import NetworkConfig
from vspair.posterior import Method, PointPosterior, Posterior, SamplePosterior
from vspair.problems.ct import Geometry, RayTransform
from vspair.problems.heat import HeatProblem
from vspair.vocabulary import look_up

GEOMETRY = Geometry((8, 8), angles=5, detectors=12)
HEAT = HeatProblem(size=8, modes=2)
SMALL = NetworkConfig(width=4)


def fields(n: int = 6) -> Pairs:
    """Return images and observations of one shape, (n, 8, 8)."""
    x = torch.randn(n, 8, 8, generator=Generator().manual_seed(1))
    return Pairs(x, 0.5 * x + 0.1)


def _model(kind: str) -> Method:
    config = ModelConfig(kind, 6, 5, SMALL, SMALL)  # type: ignore[arg-type]
    return build(config, (8, 8), (8, 8)).eval()


def _anchored() -> AnchoredModel:
    made = Made("ridge", "image", 2, 1, 0, 0, 1, False)
    sizes = AnchoredConfig(kinds=2, width=4)
    return AnchoredModel(ModelConfig(kind="anchored"), sizes, made, (8, 8), (8, 8)).eval()


def _regression() -> Method:
    fbp = methods.Fbp(GEOMETRY)
    return methods.RegressionAfter(fbp, Regression((8, 8), (4, 8)).eval())


def _dps() -> Method:
    prior = Prior((8, 8), (4, 8)).eval().requires_grad_(False)
    return methods.Dps(prior, RayTransform(GEOMETRY), trajectories=3, steps=2, zeta=0.01)


METHODS: dict[str, Callable[[], Method]] = {
    "PAIR": lambda: _model("PAIR"),
    "vPAIR": lambda: _model("vPAIR"),
    "sVAE": lambda: _model("sVAE"),
    "vsPAIR": lambda: _model("vsPAIR"),
    "ridge": lambda: methods.Ridge(*_both(fields(12))),
    "large ridge": lambda: methods.LargeRidge.fit(*_both(fields(12)))[0],
    "y": methods.AnswerY,
    "mean": lambda: methods.AnswerMean(fields().x),
    "exact": lambda: methods.Tikhonov(HEAT),
    "tikhonov": lambda: methods.Tikhonov(HEAT, 0.1),
    "wiener": lambda: methods.Wiener(HEAT, fields().x),
    "shift ridge": lambda: methods.ShiftRidge(fields()),
    "fbp": lambda: methods.Fbp(GEOMETRY),
    "fbp hann": lambda: methods.Fbp(GEOMETRY, window="hann"),
    "tv": lambda: methods.TvAdmm(RayTransform(GEOMETRY), 0.01, max_iterations=5),
    "regression": _regression,
    "dps": _dps,
    "plain": lambda: train_plain(*_both(fields(12)), epochs=1),
    "gaussian residuals": lambda: methods.GaussianResiduals(methods.AnswerY(), *_both(fields())),
    "nppc": lambda: train_nppc(methods.AnswerY(), *_both(fields(12)), k=2, epochs=1),
    "anchor": lambda: methods.AnchorAnswer(_anchored()),
    "cvae": lambda: train_cvae(_anchored(), *_both(fields(12)), latent=2, epochs=1),
    "flow": lambda: methods.Flow(FlowNetwork((8, 8), (8, 8), "maf", 1, (16,)).eval()),
}
"""A new method of :mod:`vspair.methods` belongs into this list."""

SINOGRAMS = {"fbp", "fbp hann", "tv", "regression", "dps"}
SPREAD = {"vPAIR", "sVAE", "vsPAIR", "dps", "gaussian residuals", "nppc", "flow", "cvae"}
POINTS = set(METHODS) - SPREAD

every = pytest.mark.parametrize("name", METHODS)


def _both(pairs: Pairs) -> tuple[Tensor, Tensor]:
    return pairs.x, pairs.y


def observed(name: str, x: Tensor) -> Tensor:
    """Return observations of images (B, 8, 8) as a method expects them."""
    return RayTransform(GEOMETRY)(x) if name in SINOGRAMS else 0.5 * x + 0.1


def ask(name: str) -> tuple[Posterior, Tensor]:
    """Return a method's posterior of three observations, and their truths."""
    x = fields(3).x
    return METHODS[name]().posterior(observed(name, x)), x


def test_no_method_is_left_out() -> None:
    made = {type(make()) for make in METHODS.values()}
    offered = {getattr(methods, name) for name in dir(methods) if name[0].isupper()}
    assert offered - {methods.PointMethod} <= made


@every
def test_samples_and_mean_have_the_shape_of_x(name: str) -> None:
    post, x = ask(name)
    assert isinstance(post, Posterior)
    assert (len(post), post.x_shape) == (3, (8, 8))
    assert post.sample(2, Generator().manual_seed(0)).shape == (2, 3, 8, 8)
    assert post.mean().shape == x.shape
    assert post.mean().dtype == torch.float32


@every
def test_spread_is_there_or_refused_in_words(name: str) -> None:
    post, x = ask(name)
    assert post.has_spread == (name not in POINTS)
    if post.has_spread:
        low, high = post.interval(0.5, 3)
        assert low.shape == post.std(3).shape == x.shape
        assert bool((low <= high).all())
        assert float(post.std(3).mean()) > 0
        return
    sample = post.sample(2)
    assert torch.equal(sample[0], sample[1])
    assert torch.equal(sample[0], post.mean())
    for spread in (post.std, post.interval, post.moments):
        with pytest.raises(VspairError, match=r"has no spread"):
            spread()


@every
def test_the_one_scorer_takes_every_answer(name: str) -> None:
    post, x = ask(name)
    found = evaluation.scores(post, x, samples=3, image_quality=True)
    assert all(values.shape == (3,) for values in found.values())
    assert all(map(look_up, found))
    assert ("coverage_90" in found) == post.has_spread
    error = (post.mean(3, Generator().manual_seed(0)) - x).square().mean((1, 2))
    if not post.has_spread or isinstance(post, SamplePosterior):
        torch.testing.assert_close(found["mse_mean"].float(), error)


@every
def test_an_answer_can_be_had_again(name: str) -> None:
    method, y = METHODS[name](), observed(name, fields(3).x)
    first, second = (method.posterior(y).mean(3, Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(first, second)


@every
def test_an_answer_is_timed(name: str) -> None:
    method, y = METHODS[name](), observed(name, fields(1).x)
    assert evaluation.answer_seconds(method, y, repeats=1) > 0
    assert evaluation.answer_seconds(method, y, samples=2, repeats=1) > 0


def test_one_trajectory_has_no_spread() -> None:
    prior = Prior((8, 8), (4, 8)).eval().requires_grad_(False)
    how: dict[str, float] = {"steps": 2, "zeta": 0.01}
    few = methods.Dps(prior, RayTransform(GEOMETRY), trajectories=1, **how)  # type: ignore[arg-type]
    post = few.posterior(observed("dps", fields(3).x))
    assert (post.has_spread, post.mean().shape) == (False, (3, 8, 8))


# -- the posteriors that are not a model's ----------------------------------------------------


def test_a_point_estimate_says_whose_it_is() -> None:
    post = PointPosterior(torch.zeros(2, 3), "FBP", {"converged": torch.ones(2)})
    assert "FBP" in repr(post)
    assert "converged" in evaluation.scores(post, torch.ones(2, 3))


def test_given_samples_are_summarised_as_they_are() -> None:
    samples = torch.randn(40, 2, 3, generator=Generator().manual_seed(0))
    post = SamplePosterior(samples)
    torch.testing.assert_close(post.mean(), samples.mean(0))
    torch.testing.assert_close(post.std(), samples.std(0))
    assert torch.equal(post.sample(5), samples[:5])
    with pytest.raises(VspairError, match=r"n = 41: only 40"):
        post.sample(41)


@pytest.mark.parametrize("shape", [(1, 2, 3), (2, 3)])
def test_too_few_samples_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(VspairError, match=r"expected \(K, B"):
        SamplePosterior(torch.zeros(shape))


def test_scores_of_exact_samples_are_calibrated() -> None:
    """Truths from the posterior itself: 90 % are covered, and CRPS is that of a normal."""
    generator = Generator().manual_seed(3)
    samples, x = (
        torch.randn(60, 400, 20, generator=generator),
        torch.randn(400, 20, generator=generator),
    )
    found = {
        k: float(v.mean())
        for k, v in evaluation.scores(SamplePosterior(samples), x, samples=60).items()
    }
    assert found["coverage_90"] == pytest.approx(0.9, abs=0.01)
    assert found["crps"] == pytest.approx(0.5642, abs=0.01)  # 1 / sqrt(pi) for N(0, 1)
    assert found["mse_mean"] == pytest.approx(1 + 1 / 60, abs=0.05)
    assert found["mse_sample"] == pytest.approx(2.0, abs=0.05)
    assert found["variance"] == pytest.approx(1.0, abs=0.02)
    assert found["deviation"] == pytest.approx(1.0, abs=0.02)
    # Of N(0, 1 + 1/60), 5.0 % are beyond two sample deviations; E max(|Z| - 2, 0) is 0.0186.
    assert found["beyond_2_std"] == pytest.approx(0.050, abs=0.006)
    assert found["excess_2_std"] == pytest.approx(0.0186, abs=0.004)
    assert found["beyond_4_std"] < 0.001


def test_image_quality_is_of_the_mean_and_of_one_sample() -> None:
    generator = Generator().manual_seed(4)
    x = torch.rand(3, 9, 9, generator=generator)
    samples = x + 0.3 * torch.randn(5, 3, 9, 9, generator=generator)
    found = evaluation.scores(SamplePosterior(samples), x, samples=5, image_quality=True)
    torch.testing.assert_close(found["ssim"], ssim(samples.mean(0), x))
    torch.testing.assert_close(found["ssim_sample"], ssim(samples[0], x))
    torch.testing.assert_close(found["psnr"], psnr(samples.mean(0), x))
    assert float(found["ssim"].mean()) > float(found["ssim_sample"].mean()) + 0.05
