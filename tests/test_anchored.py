"""The parts of the anchored model: budgets, mixtures, answers with a spread, verdicts."""

import math
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch import Generator, Tensor, nn

import vspair
from vspair.anchored import AnchoredModel, decided
from vspair.anchors import Made
from vspair.anchors.made import BaseName
from vspair.codes import SpikeSlab
from vspair.config import AnchoredConfig, ModelConfig
from vspair.evaluation import scores
from vspair.mixtures import Mixture
from vspair.networks.spatial import Domain, PlaceDecoder
from vspair.posterior import LatentPosterior
from vspair.training.doubt import (
    Doubt,
    GrainStage,
    count_open,
    find_knee,
    find_sizes,
    find_width,
    gaussian_misfit,
    solve_budget,
)
from vspair.verdict import Verdict, standard_error

SHAPES: dict[Domain, tuple[int, ...]] = {"vector": (6,), "signal": (16,), "image": (8, 8)}


def _generator(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


# -- budgets ----------------------------------------------------------------------------------


@pytest.mark.parametrize("modes", [1, 3])
@pytest.mark.parametrize("active", [0.5, 3.0, 17.3])
def test_the_mean_number_of_open_gates_is_the_budget(modes: int, active: float) -> None:
    gates = 4 * torch.randn(64, modes, 40, generator=_generator())
    weights = torch.randn(64, modes, generator=_generator(1)).log_softmax(1)
    shift = solve_budget(gates, weights, active)
    counted = ((gates > shift).double().sum(-1) * weights.double().exp()).sum(1).mean()
    assert float(count_open(gates, weights, shift)) == pytest.approx(float(counted), rel=1e-5)
    # One gate of one of 64 observations is the least that can be closed.
    assert active - 1 / 64 <= float(counted) <= active + 1e-5


def test_budgets_of_nothing_and_of_everything() -> None:
    gates, weights = torch.randn(8, 2, 5), torch.full((8, 2), 0.5).log()
    for active in (0.0, 5.0, 9.0):
        shift = solve_budget(gates, weights, active)
        assert float(count_open(gates, weights, shift)) == pytest.approx(min(active, 5.0))


@pytest.mark.parametrize(("active", "shift"), [(2.0, 7.5), (1.0, 30.0), (3.0, -14.0)])
def test_gates_open_in_the_middle_between_open_and_closed_ones(
    active: float, shift: float
) -> None:
    """At the edge of a gap, those that are next to it could never decide."""
    gates = torch.tensor([[[-5.0, 20.0, 40.0]]])
    for seed, modes in enumerate([1, *[24] * 20]):
        weights = torch.randn(1, modes, generator=_generator(seed)).log_softmax(1)
        found = solve_budget(gates.expand(8, modes, 3), weights.expand(8, modes), active)
        assert float(found) == pytest.approx(shift, abs=1e-4)


@pytest.mark.parametrize("asked", [0, 1])
def test_gates_of_few_factors_decide_and_stay(asked: int) -> None:
    """A few factors, all of the same use: gates went on for ever, and took their shift along."""
    g = _generator()
    x = torch.randn(800, 2, generator=g)
    y = x + torch.randn(800, 2, generator=g) * torch.where(
        torch.rand(800, 1, generator=g) < 0.5, 1, 0.1
    )
    model = vspair.fit(
        x, y, anchor="ridge", active=asked, epochs=12, progress=False, device="cpu"
    )  # fmt: skip
    assert isinstance(model, AnchoredModel)
    assert abs(float(model.thresholds.answer)) < 30
    assert isinstance(model.verdict, Verdict)
    assert model.verdict.active == pytest.approx(asked or 2, rel=0.05)
    assert asked or model.verdict.share > 0.3
    assert ("chosen" in model.verdict.lines[2]) == 0


def test_gates_are_decided_by_the_shift_and_never_quite_sure() -> None:
    gates, shift = torch.tensor([-50.0, 1.0, 1.999, 2.0, 2.001, 3.0, 99.0]), torch.tensor(2.0)
    odds = decided(gates, shift)
    assert (odds > 0).tolist() == (gates > shift).tolist()
    assert bool((odds.diff() >= 0).all())
    assert float(odds.abs().max()) <= 9.0
    assert float(-odds[1]) > 3 * float(odds[5])  # they close faster than they open


@pytest.mark.parametrize("domain", ["vector", "image"])
def test_gates_below_the_threshold_are_closed_in_answers_alone(domain: Domain) -> None:
    model = _model(SHAPES[domain], domain)
    model.thresholds.answer.fill_(0.0)
    seen = 5 * torch.randn(40, model.n_features, *model.frame.size, generator=_generator())
    numbers = model.code_reader(seen)[1]
    answer, trained = model.read_code(numbers), model.read_code(numbers, torch.tensor(0.0))
    codes = [c.modes if isinstance(c, Mixture) else c for c in (answer, trained)]
    closed, soft = (code.omega.detach() for code in codes)
    assert torch.equal(closed > 0.5, soft > 0.5)
    assert 0 < int((soft > 0.5).sum()) < soft.numel()
    assert float(closed[soft <= 0.5].max()) < 1e-9 < float(soft[soft <= 0.5].max())


# -- the loss of the grain --------------------------------------------------------------------


@pytest.mark.parametrize("width", [0.1, 1.0, 4.0])
def test_the_likelihood_of_the_grain_is_that_of_a_normal(width: float) -> None:
    """Up to a constant; it is best where the width is the root of the mean square."""
    left = 3 * torch.randn(50, 6, generator=_generator())
    log_density = torch.distributions.Normal(0, width).log_prob(left).mean()
    found = gaussian_misfit(left, torch.full_like(left, width))
    torch.testing.assert_close(found, -log_density - 0.5 * math.log(2 * math.pi))
    best = gaussian_misfit(left, left.square().mean().sqrt().expand_as(left))
    assert float(best) < float(found)


@pytest.mark.parametrize("loss", ["crps", "likelihood"])
def test_outliers_rule_the_likelihood_and_not_the_crps(
    loss: Literal["crps", "likelihood"],
) -> None:
    """One residual of ten is ten times as large, and no factor explains any of them."""
    model = _model()
    model.anchored = replace(model.anchored, grain_loss=loss)
    model.thresholds.answer.fill_(1e3)  # no factor is present
    model.start_grain(torch.ones(1, 6))
    nn.init.zeros_(model.grain_reader.maps.weight)  # type: ignore[union-attr, arg-type]
    residual = torch.randn(2000, 6, generator=_generator())
    residual[::10] *= 10
    seen = torch.zeros(2000, model.n_features)
    stage, found = GrainStage(model, *2 * [Doubt(seen, residual)]), {}
    rms = float(residual.square().mean().sqrt())
    for share in torch.linspace(0.2, 1.5, 27).tolist():
        nn.init.constant_(model.grain_reader.maps.bias, math.log(share * rms))  # type: ignore[union-attr, arg-type]
        found[share] = stage.score(0.0)["score"]
        trained = float(stage.loss(torch.arange(2000), _generator(), 0.0)[0].detach())
        assert trained == pytest.approx(found[share], rel=0.05)
    best = min(found, key=lambda share: found[share])
    assert (0.9 < best < 1.1) if loss == "likelihood" else (best < 0.6)


# -- how wide ---------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0.9, 1.0, 1.7])
def test_the_width_that_held_out_residuals_ask_for_is_found(wrong: float) -> None:
    """Residuals are samples of the answers themselves, times a factor."""
    model = _model()
    model.thresholds.log_width.fill_(-1.0)
    seen = torch.randn(600, model.n_features, generator=_generator())
    p = model.read_code(model.code_reader(seen)[1])
    with torch.no_grad():
        drawn = model.x_decoder(p.rsample(_generator(1))) - model.centre(p)
        drawn += model.grain(seen) * torch.randn(drawn.shape, generator=_generator(2))
    assert find_width(model, Doubt(seen, wrong * drawn)) == pytest.approx(wrong, rel=0.08)


def test_entries_that_are_certain_narrow_no_others() -> None:
    """Half of the entries have a grain of nearly nothing, and residuals far below even that."""
    model = _model()
    model.x_decoder.scale(1e-6)  # type: ignore[operator]
    last = model.grain_reader.maps
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.tensor([0.0, 0.0, 0.0, -6.0, -6.0, -6.0]))
        seen = torch.randn(600, model.n_features, generator=_generator())
        truth = 1.2 * model.grain(seen) * torch.randn(600, 6, generator=_generator(2))
        truth[:, 3:] = 0
    assert find_width(model, Doubt(seen, truth)) == pytest.approx(1.2, rel=0.05)


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (0.7, 1.5), (1.4, 0.8)])
def test_factors_are_as_large_as_what_they_explain(
    a: float, b: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A linear decoder, and residuals of known codes: a and b times those of answers."""
    model = _model()
    model.thresholds.answer.fill_(-1.0)
    decoder = model.x_decoder
    assert isinstance(decoder, PlaceDecoder)
    with torch.no_grad():
        for parameter in decoder.layers[-1].parameters():
            parameter.zero_()
        seen = torch.randn(2000, model.n_features, generator=_generator())
        p = model.read_code(model.code_reader(seen)[1])
        z = p.mean + a * (p.rsample(_generator(1)) - p.mean)
        residual = decoder(z) - decoder(p.mean)
        residual += b * model.grain(seen) * torch.randn(residual.shape, generator=_generator(2))
    codes = iter(z.split(128))
    monkeypatch.setattr(model, "encode", lambda *_: _known(next(codes)))
    assert find_sizes(model, Doubt(seen, residual)) == pytest.approx((a, b), rel=0.05)


def _known(z: Tensor) -> SpikeSlab:
    return SpikeSlab.of(z, torch.full_like(z, -25.0), torch.ones_like(z))


@pytest.mark.parametrize(("base", "exponent"), [("ridge", 0.75), ("none", 0.0)])
def test_few_groups_change_little_and_none_the_answer(
    base: BaseName, exponent: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vspair.training.doubt.find_sizes", lambda *_: (1.25, 0.75))
    monkeypatch.setattr("vspair.training.doubt.find_width", lambda *_: 1.6)
    model = _model()
    model.made = replace(model.made, base=base)
    nothing = Doubt(torch.zeros(0), torch.zeros(0))
    with torch.no_grad():
        before, grain = model.x_decoder(torch.ones(1, model.n_factors)), model.noise_std.clone()
        GrainStage(model, nothing, nothing).settle(30)
        after = model.x_decoder(torch.ones(1, model.n_factors))
    torch.testing.assert_close(after, (1.25 * 1.6) ** exponent * before)
    torch.testing.assert_close(model.noise_std, (0.75 * 1.6) ** exponent * grain)


@pytest.mark.parametrize("domain", ["vector", "signal", "image"])
def test_factors_and_grain_are_widened(domain: Domain) -> None:
    model = _model(SHAPES[domain], domain)
    z = torch.randn(3, model.n_factors, generator=_generator())
    seen = torch.randn(3, model.n_features, *model.frame.size)
    with torch.no_grad():
        before = model.x_decoder(z), model.grain(seen)
        model.widen(1.5, 0.7)
        after = model.x_decoder(z), model.grain(seen)
    for a, b, factor in zip(before, after, (1.5, 0.7), strict=True):
        torch.testing.assert_close(b, factor * a)
    assert float(before[0].abs().max()) > 0


def test_the_knee_is_where_the_curve_bends() -> None:
    counts = [float(c) for c in (1, 2, 3, 5, 8, 12, 20, 35, 60, 100)]
    for knee in (5.0, 20.0, 60.0):
        shares = [min(c, knee) / knee + 1e-4 * c for c in counts]
        assert find_knee(counts, shares) == knee
    assert find_knee(counts, [0.3] * len(counts)) == counts[0]  # nothing is explained by more


# -- mixtures ---------------------------------------------------------------------------------


def _spikes(*shape: int, seed: int = 0, spread: float = 1.0) -> SpikeSlab:
    g = _generator(seed)
    mu, logvar, omega = (torch.randn(shape, generator=g).double() for _ in range(3))
    return SpikeSlab.of(spread * mu, logvar - 1, omega.sigmoid())


def _mixture(batch: int = 2, modes: int = 3, size: int = 4, spread: float = 1.0) -> Mixture:
    weights = torch.randn(batch, modes, generator=_generator(9)).double().log_softmax(1)
    return Mixture(_spikes(batch, modes, size, spread=spread), weights)


def _drawn(code: Mixture, n: int = 20_000) -> Tensor:
    """Return n samples, by a way of our own, with shape (n, B, l)."""
    g = _generator(5)
    which = torch.multinomial(code.log_weights.exp(), n, replacement=True, generator=g).T
    rows = torch.arange(which.shape[1])
    mu, omega = code.modes.mu[rows, which], code.modes.omega[rows, which]
    sigma = (0.5 * code.modes.logvar).exp()[rows, which]
    on = torch.rand(mu.shape, generator=g, dtype=mu.dtype) < omega
    return on * (mu + sigma * torch.randn(mu.shape, generator=g, dtype=mu.dtype))


def test_moments_of_a_mixture_are_those_of_samples() -> None:
    code = _mixture()
    drawn = _drawn(code)
    error = drawn.std(0) / math.sqrt(len(drawn))
    assert bool(((drawn.mean(0) - code.mean).abs() < 4.5 * error).all())
    torch.testing.assert_close(code.variance, drawn.var(0), rtol=0.08, atol=0)


def test_samples_of_a_mixture_have_its_moments() -> None:
    code, g = _mixture(), _generator()
    drawn = torch.stack([code.rsample(g) for _ in range(10_000)])
    error = code.variance.sqrt() / 100
    assert bool(((drawn.mean(0) - code.mean).abs() < 4.5 * error).all())
    torch.testing.assert_close(drawn.var(0), code.variance, rtol=0.1, atol=0)


def test_factors_of_one_sample_are_of_one_mode() -> None:
    """Their covariance is that of the modes' means; independent factors would have none."""
    code, g = _mixture(spread=3.0), _generator()
    drawn = torch.stack([code.rsample(g) for _ in range(10_000)])
    apart = code.modes.mean - code.mean.unsqueeze(1)
    expected = torch.einsum("bm,bmi,bmj->bij", code.log_weights.exp(), apart, apart)
    for b in range(2):
        off = ~torch.eye(4, dtype=torch.bool)
        found = drawn[:, b].T.cov()[off]
        assert float(expected[b][off].abs().max()) > 0.5
        torch.testing.assert_close(found, expected[b][off], rtol=0.1, atol=0.15)


def test_the_marginal_of_a_mixture_is_that_of_samples() -> None:
    code = _mixture()
    drawn, marginal = _drawn(code), code.marginal
    on = drawn != 0
    torch.testing.assert_close(marginal.omega, on.double().mean(0), rtol=0, atol=0.02)
    torch.testing.assert_close(marginal.mean, code.mean)
    torch.testing.assert_close(marginal.variance, code.variance)
    for b in range(2):
        for j in range(4):
            present = drawn[:, b, j][on[:, b, j]]
            assert float(marginal.mu[b, j]) == pytest.approx(float(present.mean()), abs=0.08)
            assert float(marginal.slab.variance[b, j]) == pytest.approx(
                float(present.var()), rel=0.12
            )


def test_counts_of_a_mixture_are_those_of_samples() -> None:
    code = _mixture()
    _, present, hedged = code.counts()
    drawn = (_drawn(code) != 0).double().sum(-1).mean(0)
    torch.testing.assert_close(present, drawn, rtol=0, atol=0.05)
    omega, weights = code.modes.omega, code.log_weights.exp()
    by_hand = [
        sum(
            float(weights[b, k] * w)
            for k in range(3)
            for w in omega[b, k].tolist()
            if 0.05 < w < 0.5
        )
        for b in range(2)
    ]
    assert hedged.tolist() == pytest.approx(by_hand)
    opened = [
        sum(float(weights[b, k]) * sum(w > 0.5 for w in omega[b, k].tolist()) for k in range(3))
        for b in range(2)
    ]
    assert code.counts()[0].tolist() == pytest.approx(opened)


def test_one_mode_has_the_divergence_itself() -> None:
    q, p = _spikes(2, 4, seed=1), _spikes(2, 1, 4, seed=2)
    found = Mixture(p, torch.zeros(2, 1).double()).kl_from(q)
    torch.testing.assert_close(found, q.kl(p[:, 0]).sum(-1))


@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0])
def test_the_divergence_to_a_mixture_is_bounded_from_above(spread: float) -> None:
    p, q = _mixture(spread=spread), _spikes(2, 4, seed=1)
    g = _generator()
    z = torch.stack([q.rsample(g) for _ in range(20_000)])
    each = torch.stack([p.modes[:, k].log_prob(z).sum(-1) for k in range(3)], -1)
    ratio = q.log_prob(z).sum(-1) - torch.logsumexp(each + p.log_weights, -1)
    found, error = ratio.mean(0), ratio.std(0) / math.sqrt(len(z))
    bound = p.kl_from(q)
    assert bool((bound > found - 4 * error).all())
    # It is no worse than that of any one mode.
    alone = torch.stack([q.kl(p.modes[:, k]).sum(-1) for k in range(3)], -1) - p.log_weights
    assert bool((bound <= alone.min(-1).values + 1e-9).all())


def test_a_part_of_a_mixture_and_its_graph() -> None:
    code = _mixture(batch=5)
    part = code[1:3]
    assert part.log_weights.shape == (2, 3)
    assert torch.equal(part.mean, code.mean[1:3])
    assert torch.equal(part.variance, code.variance[1:3])
    code.modes.mu.requires_grad_()
    assert _mixture().mean.requires_grad is False
    assert code.mean.requires_grad
    assert not code.detach().mean.requires_grad


# -- answers that samples spread about --------------------------------------------------------


def _model(
    shape: tuple[int, ...] = (6,), domain: Domain = "vector", kinds: int = 4, modes: int = 1
) -> AnchoredModel:
    """Return a model with the units of data and weights by chance."""
    made = Made("ridge", domain, 2, 1, 0, 0, modes, False)
    sizes = AnchoredConfig(kinds=kinds, width=4)
    model = AnchoredModel(ModelConfig(kind="anchored"), sizes, made, shape, (2,))
    model.x_normaliser.std.fill_(3.0)
    return model.eval()


def _linear(model: AnchoredModel) -> Tensor:
    """Make the decoder linear; return its matrix in the data's units, with shape (n, l)."""
    decoder = model.x_decoder
    assert isinstance(decoder, PlaceDecoder)
    assert isinstance(decoder.straight, nn.Linear)
    with torch.no_grad():
        for layer in decoder.layers.modules():
            if isinstance(layer, nn.Linear):
                layer.weight.zero_()
    return 3.0 * decoder.straight.weight.detach()


def _answered(modes: int = 1, **how: Any) -> tuple[LatentPosterior, Tensor, Tensor]:
    """Return a posterior with a linear decoder, its answer, and the decoder's matrix."""
    model = _model(modes=modes)
    matrix = _linear(model)
    answer = 10 + torch.randn(2, 6, generator=_generator(3))
    code = _mixture(2, modes, 4) if modes > 1 else _spikes(2, 4)
    return LatentPosterior(model, code._map(Tensor.float), answer=answer, **how), answer, matrix


@pytest.mark.parametrize("modes", [1, 3])
def test_the_answer_is_the_mean(modes: int) -> None:
    post, answer, _ = _answered(modes)
    assert torch.equal(post.mean(), answer)
    torch.testing.assert_close(post.approximate_mean(), answer)
    drawn = post.sample(4000, _generator())
    assert float(drawn.std(0).min()) > 0.05
    error = drawn.std(0) / math.sqrt(len(drawn))
    assert bool(((drawn.mean(0) - answer).abs() < 4.5 * error).all())


@pytest.mark.parametrize("modes", [1, 3])
def test_samples_have_the_covariance_of_the_code_and_the_grain(modes: int) -> None:
    grain = torch.linspace(0.1, 2, 12).reshape(2, 6)
    post, _, matrix = _answered(modes, noise=True, noise_std=grain)
    assert torch.equal(post.noise_std, grain)
    plain = post.with_noise(False)
    assert torch.equal(plain.mean(), post.mean())
    drawn, bare = (p.sample(6000, _generator()) for p in (post, plain))
    torch.testing.assert_close(
        (drawn.var(0) - bare.var(0)).clamp(min=1e-3).sqrt()[:, 3:], grain[:, 3:], rtol=0.15, atol=0
    )
    expected = bare.var(0)
    if modes == 1:
        expected = post.code.variance.float() @ matrix.T.square()
        torch.testing.assert_close(bare.var(0), expected, rtol=0.1, atol=1e-3)
    torch.testing.assert_close(drawn.var(0), expected + grain.square(), rtol=0.1, atol=1e-3)
    assert torch.equal(plain.with_noise().noise_std, grain)


def test_the_width_is_the_model_s_where_none_is_given() -> None:
    post, _, _ = _answered(noise=True)
    assert isinstance(post.model, AnchoredModel)
    post.model.thresholds.log_width.fill_(math.log(0.5))
    torch.testing.assert_close(post.noise_std, torch.full((6,), 1.5))


def test_the_interval_of_an_answer_is_that_of_a_normal() -> None:
    """One factor that is always present: samples are normal about the answer."""
    model = _model(kinds=1)
    matrix = _linear(model)
    code = SpikeSlab.of(torch.full((2, 1), 5.0), torch.zeros(2, 1), torch.ones(2, 1))
    answer, grain = torch.tensor([[1.0], [-4.0]]).expand(2, 6), torch.full((2, 6), 0.7)
    post = LatentPosterior(model, code, noise=True, answer=answer, noise_std=grain)
    low, high = post.interval(0.9, 4000, _generator())
    reach = 1.6449 * (matrix[:, 0].square() + 0.49).sqrt().expand(2, 6)
    torch.testing.assert_close(low, answer - reach, rtol=0, atol=0.15)
    torch.testing.assert_close(high, answer + reach, rtol=0, atol=0.15)
    assert bool((post.with_noise(False).interval(0.9, 4000)[0] > low).all())


def test_an_answer_to_a_single_observation_has_no_batch() -> None:
    model = _model()
    answer, code = torch.randn(1, 6), _spikes(1, 4)._map(Tensor.float)
    post = LatentPosterior(model, code, answer=answer, single=True)
    assert post.mean().shape == post.approximate_mean().shape == (6,)
    assert post.sample(3).shape == (3, 6)
    assert post.interval(0.9, 20)[0].shape == (6,)


@pytest.mark.parametrize("modes", [1, 3])
def test_the_parts_of_the_variance_are_those_of_samples(modes: int) -> None:
    grain = torch.full((2, 6), 0.4)
    post, _, matrix = _answered(modes, noise=True, noise_std=grain)
    found = post.split(4000, _generator())
    torch.testing.assert_close(found.structural + found.parametric + found.grain, found.total)
    torch.testing.assert_close(found.grain, grain.square())
    drawn = post.sample(8000, _generator(1)).var(0)
    torch.testing.assert_close(found.total, drawn, rtol=0.1, atol=0)
    # How strong factors are, given which are there: omega sigma^2 of each, through the decoder.
    code = post.code
    if isinstance(code, Mixture):
        strength = code._average(code.modes.parametric_variance)
    else:
        assert isinstance(code, SpikeSlab)
        strength = code.parametric_variance
    expected = strength.float() @ matrix.T.square()
    torch.testing.assert_close(found.parametric, expected, rtol=0.1, atol=1e-3)


def test_a_region_names_the_factor_that_is_there() -> None:
    model = _model((16, 64), "image", kinds=2)
    mu, omega = torch.zeros(1, 2, 4, 16), torch.full((1, 2, 4, 16), 1e-6)
    left, right = (0, 1, 1, 1), (0, 0, 2, 12)
    for place, strength in ((left, 1.0), (right, 3.0)):
        mu[place], omega[place] = strength, 0.5
    code = SpikeSlab.of(mu.flatten(1), torch.full((1, 128), -8.0), omega.flatten(1))
    post = LatentPosterior(model, code, answer=torch.zeros(1, 16, 64))
    names = {}
    for name, columns in (("left", slice(0, 28)), ("right", slice(36, 64))):
        region = torch.zeros(16, 64, dtype=torch.bool)
        region[:, columns] = True
        found = post.factors(1, region=region)
        names[name] = model.factor_name(int(found.index[0, 0]))
        assert float(found.share[0, 0]) > 0.95
        outside = found.effect[0, 0][~region].square().sum()
        assert float(outside) < 0.01 * float(found.effect.square().sum())
    assert names == {"left": "kind 1 at (6, 6)", "right": "kind 0 at (10, 50)"}
    everywhere = post.factors(2)
    assert model.factor_name(int(everywhere.index[0, 0])) == "kind 0 at (10, 50)"


def test_scores_of_an_answer_tell_factors_from_grain() -> None:
    grain = torch.full((2, 6), 0.8)
    post, answer, matrix = _answered(noise=True, noise_std=grain)
    found = scores(post, answer, samples=3000, generator=_generator())
    assert not found["mse_mean"].any()
    expected = (post.code.variance.float() @ matrix.T.square()).mean(1)
    torch.testing.assert_close(found["variance_factors"].float(), expected, rtol=0.15, atol=0.02)
    assert isinstance(post.code, SpikeSlab)
    torch.testing.assert_close(found["present"], post.code.counts()[1])
    bare = scores(post.with_noise(False), answer)
    assert torch.equal(bare["variance_factors"], bare["variance"])


# -- what the model is made of ----------------------------------------------------------------


def test_modes_start_apart() -> None:
    model = _model(modes=3)
    code = model.read_code(model.code_reader(torch.randn(5, model.n_features))[1])
    assert isinstance(code, Mixture)
    assert code.modes.mu.shape == (5, 3, 4)
    torch.testing.assert_close(code.log_weights.exp().sum(1), torch.ones(5))
    assert float((code.modes.mu[:, 0] - code.modes.mu[:, 1]).detach().abs().mean()) > 0.3


def test_gates_open_above_the_threshold() -> None:
    model = _model((8, 8), "image", kinds=3)
    numbers = torch.randn(5, 9, 2, 2)
    gates = numbers[:, 6:].flatten(1)
    for shift in (-0.5, 0.0, 0.7):
        model.thresholds.answer.fill_(shift)
        code = model.read_code(numbers)
        assert isinstance(code, SpikeSlab)
        assert torch.equal(code.omega > 0.5, gates > shift)
        torch.testing.assert_close(code.mu, numbers[:, :3].flatten(1))


# -- verdicts ---------------------------------------------------------------------------------

GOOD = Verdict(
    pairs=200, mse=0.1, floor_ridge=0.2, floor_mean=1.0, floor_y=None, floor_first=None, crps=0.1,
    coverage=0.9, share=0.6, active=5.1, asked=5, dead=3, factors=64,
)  # fmt: skip


def test_a_good_verdict_names_numbers_and_no_fault() -> None:
    error, interval, factors = GOOD.lines
    assert (
        error == "Held-out error: 0.1 mean squared on 200 held-out pairs (ridge 0.2, the mean 1)."
    )
    assert interval == "Intervals: 90 % intervals hold 90.0 % of the held-out values."
    assert factors.startswith("Factors: 5.1 of 64 are present in an answer and carry 60 %")
    assert not any(word.isupper() for line in GOOD.lines for word in line.split() if len(word) > 3)


def test_few_groups_are_few_however_many_pairs_they_have() -> None:
    lines = {groups: replace(GOOD, groups=groups).lines[0] for groups in (None, 200, 9, 1)}
    assert lines[None] == lines[200] == GOOD.lines[0]
    assert "200 held-out pairs of 9 groups (ridge" in lines[9]
    assert "200 held-out pairs of 1 group, too few to be sure (ridge" in lines[1]


def test_the_standard_error_is_that_of_groups() -> None:
    values = torch.randn(40, generator=_generator()).double()
    alone = standard_error(values, torch.arange(40))
    assert alone == pytest.approx(float(values.std() / 40**0.5))
    copied = standard_error(values.repeat(5), torch.arange(40).repeat(5))
    assert copied == pytest.approx(alone)
    assert standard_error(values, torch.zeros(40)) is None
    assert "0.1 ± 0.013 mean squared on 200" in replace(GOOD, mse_error=0.0132).lines[0]


def test_verdicts_of_other_versions_are_read() -> None:
    kept = {k: v for k, v in GOOD.as_dict().items() if k != "lines"}
    assert Verdict.of(kept | {"undecided": 0.1}) == GOOD
    once = {k.replace("floor_", "mse_") if k != "floor" else k: v for k, v in kept.items()}
    assert "mse_ridge" in once
    assert Verdict.of(once) == GOOD


@pytest.mark.parametrize(
    ("changes", "line", "words"),
    [
        ({"mse": 0.21}, 0, "WORSE than ridge: more pairs"),
        ({"mse": 0.1, "floor_y": 0.05}, 0, "WORSE than y itself"),
        ({"mse": 0.1, "floor_first": 0.05, "floor_y": 0.07}, 0, "WORSE than the first guesses"),
        ({"mse": 1.1, "floor_ridge": 1.2}, 0, "WORSE than the mean"),
        ({"coverage": 0.8}, 1, "OVER-CONFIDENT: use more pairs, and groups"),
        ({"coverage": 0.97}, 1, "wider than they need be"),
        ({"active": 4.5}, 2, "MISSES the 5 asked for"),
        ({"active": 5.5}, 2, "MISSES the 5 asked for"),
        ({"share": 0.05}, 2, "factors say little"),
    ],
    ids=str,
)
def test_a_fault_is_named_with_what_to_do(changes: dict[str, Any], line: int, words: str) -> None:
    found = replace(GOOD, **changes)
    assert words in found.lines[line]
    for other in {0, 1, 2} - {line}:
        assert found.lines[other] == GOOD.lines[other]


@pytest.mark.parametrize(
    "changes", [{"mse": 0.2009}, {"coverage": 0.86}, {"coverage": 0.955}, {"asked": 0}], ids=str
)
def test_what_is_near_enough_is_no_fault(changes: dict[str, Any]) -> None:
    lines = replace(GOOD, **changes).lines
    assert not any(w in " ".join(lines) for w in ("WORSE", "OVER", "wider", "MISSES", "little"))


def test_a_verdict_as_numbers_leaves_out_what_there_is_not() -> None:
    found = replace(GOOD, floor_y=0.5).as_dict()
    assert found["floor_y"] == 0.5
    assert "floor_first" not in found
    assert found["lines"] == list(replace(GOOD, floor_y=0.5).lines)
    assert "y itself 0.5" in found["lines"][0]
