"""The contract of the three families of codes."""

import itertools
import math
from dataclasses import fields

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor

from vspair.codes import LOG_FLOOR, Factorised, Family, GateName, Normal, Point, SpikeSlab
from vspair.mixtures import Mixture

SIZE, DRAWS = 5, 200_000
GATES: tuple[GateName, ...] = ("sigmoid", "exponential")
DTYPES = (torch.float32, torch.float64)
FAMILIES = [
    Family("point", SIZE),
    Family("normal", SIZE),
    Family("spikeslab", SIZE, "sigmoid"),
    Family("spikeslab", SIZE, "exponential", temperature=20.0),
]
VARIATIONAL = FAMILIES[1:]

families = pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f"{f.name}-{f.gate}")
variational = pytest.mark.parametrize("family", VARIATIONAL, ids=lambda f: f"{f.name}-{f.gate}")
gates = pytest.mark.parametrize("gate", GATES)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)

locations = st.floats(-10, 10)
logvars = st.floats(-20, 10)
logits = st.floats(-40, 40)


def draw(family: Family, *shape: int, dtype: torch.dtype = torch.float64) -> Factorised:
    """Return a random code whose gates are neither open nor shut."""
    return family.read(torch.randn(*shape, family.width, dtype=dtype))


def parts(code: Factorised) -> list[Tensor]:
    return [v for f in fields(code) if isinstance(v := getattr(code, f.name), Tensor)]  # type: ignore[arg-type]


def repeat(code: Factorised, n: int = DRAWS) -> Factorised:
    """Return n copies of a code of shape (l,)."""
    return code[None][torch.zeros(n, dtype=torch.long)]


def assert_mean(draws: Tensor, expected: Tensor) -> None:
    """Check a mean over the first dimension within five standard errors."""
    error = draws.std(0) / math.sqrt(len(draws))
    assert ((draws.mean(0) - expected).abs() <= 5 * error + 1e-12).all()


def prior(rho: float, size: int = SIZE) -> SpikeSlab:
    zeros = torch.zeros(size, dtype=torch.float64)
    return SpikeSlab.of(zeros, zeros, torch.full_like(zeros, rho))


# -- shapes, types and parts ------------------------------------------------------------------


@families
@dtypes
def test_shapes_and_dtypes(family: Family, dtype: torch.dtype) -> None:
    code, other = draw(family, 3, 2, dtype=dtype), draw(family, 3, 2, dtype=dtype)
    sample = code.rsample()
    each = [*parts(code), code.mean, code.variance, sample, code.log_prob(sample), code.kl(other)]
    assert [t.shape for t in each] == [(3, 2, SIZE)] * len(each)
    assert code.features.shape == (3, 2, family.width)
    assert {t.dtype for t in (*each, code.features)} == {dtype}


@pytest.mark.parametrize(
    ("family", "kind", "heads"),
    [(FAMILIES[0], Point, 1), (FAMILIES[1], Normal, 2), (FAMILIES[2], SpikeSlab, 3)],
)
def test_heads_are_read_in_order(family: Family, kind: type[Factorised], heads: int) -> None:
    h = torch.randn(4, heads * SIZE)
    code = family.read(h)
    assert isinstance(code, kind)
    assert (family.heads, family.width) == (heads, heads * SIZE)
    for part, expected in zip(parts(code)[: min(heads, 2)], h.split(SIZE, dim=-1), strict=False):
        assert torch.equal(part, expected)
    if isinstance(code, SpikeSlab):
        torch.testing.assert_close(code.omega, torch.sigmoid(h[:, 2 * SIZE :]))


@families
def test_features_are_the_parameters(family: Family) -> None:
    code = draw(family, 3)
    blocks = code.features.split(SIZE, dim=-1)
    expected = [code.omega] if isinstance(code, SpikeSlab) else []
    expected = parts(code)[: 2 if expected else len(blocks)] + expected
    assert all(torch.equal(a, b) for a, b in zip(blocks, expected, strict=True))


@families
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_heads_are_read_as_float32(family: Family, dtype: torch.dtype) -> None:
    h = torch.randn(3, family.width).to(dtype)
    for part, expected in zip(parts(family.read(h)), parts(family.read(h.float())), strict=True):
        assert part.dtype == torch.float32
        assert torch.equal(part, expected)


@variational
def test_logvar_is_clamped(family: Family) -> None:
    narrow = Family(family.name, SIZE, family.gate, logvar_range=(-1.0, 2.0))
    code = narrow.read(torch.linspace(-5, 5, 7)[:, None].expand(7, family.width))
    assert isinstance(code, Normal | SpikeSlab)
    assert torch.equal(code.logvar, torch.linspace(-5, 5, 7)[:, None].clamp(-1, 2).expand(7, SIZE))


@families
def test_detach_and_index(family: Family) -> None:
    code = family.read(torch.randn(4, 3, family.width, requires_grad=True))
    assert all(t.requires_grad for t in parts(code))
    cut = code.detach()
    assert not any(t.requires_grad for t in parts(cut))
    assert all(torch.equal(a, b) for a, b in zip(parts(cut), parts(code), strict=True))
    for index in (1, slice(1, 3), torch.tensor([2, 0]), (slice(None), 1)):
        some = code[index]
        assert all(torch.equal(a, b[index]) for a, b in zip(parts(some), parts(code), strict=True))
    if isinstance(code, SpikeSlab):
        assert cut.temperature == code[0].temperature == family.temperature  # type: ignore[attr-defined]


@families
def test_a_look_without_gradients_does_not_cut_the_graph(family: Family) -> None:
    h = torch.randn(4, family.width, dtype=torch.float64, requires_grad=True)
    code, other = family.read(h), draw(family, 4)
    (expected,) = torch.autograd.grad((code.mean + code.kl(other)).sum(), h)
    looked = family.read(h)
    with torch.no_grad():
        assert [looked.mean.shape, looked.variance.shape, looked.kl(other).shape] == [
            (4, SIZE)
        ] * 3
    (got,) = torch.autograd.grad((looked.mean + looked.kl(other)).sum(), h)
    assert torch.equal(got, expected)


# -- samples ----------------------------------------------------------------------------------


@families
def test_samples_have_the_mean_and_variance(family: Family) -> None:
    code = draw(family)
    z = repeat(code).rsample()
    assert_mean(z, code.mean)
    assert_mean((z - code.mean).square(), code.variance)


@families
def test_samples_are_reproducible(family: Family) -> None:
    code = draw(family, 50)
    before = torch.get_rng_state()
    a, b = (code.rsample(Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(a, b)
    assert torch.equal(torch.get_rng_state(), before)
    other = code.rsample(Generator().manual_seed(4))
    assert torch.equal(a, other) == isinstance(code, Point)


@dtypes
def test_zeros_are_exact_and_as_frequent_as_the_gates_say(dtype: torch.dtype) -> None:
    omega = torch.tensor([0.0, 1e-3, 0.2, 0.9, 1.0], dtype=dtype)
    code = SpikeSlab.of(torch.ones(SIZE, dtype=dtype), torch.zeros(SIZE, dtype=dtype), omega)
    zero = repeat(code).rsample() == 0
    assert zero[:, 0].all()
    assert not zero[:, -1].any()
    assert_mean(zero.double(), 1 - omega.double())


@pytest.mark.parametrize("temperature", [3.0, 50.0])
def test_gradients_of_a_sample_are_those_of_appendix_a(temperature: float) -> None:
    mu, sigma, omega = (t.double().requires_grad_() for t in torch.rand(3, 4000).unbind())
    z = SpikeSlab.of(mu, 2 * sigma.log(), omega, temperature).rsample(Generator().manual_seed(1))
    noise = Generator().manual_seed(1)
    eta = torch.rand(4000, dtype=torch.float64, generator=noise)
    eps = torch.randn(4000, dtype=torch.float64, generator=noise)
    s = torch.sigmoid(temperature * (eta - 1 + omega))
    gate, slab = (s > 0.5).double(), mu + sigma * eps
    torch.testing.assert_close(z, gate * slab)
    got = torch.autograd.grad(z.sum(), (mu, sigma, omega))
    torch.testing.assert_close(got, (gate, gate * eps, temperature * s * (1 - s) * slab))


# -- divergences ------------------------------------------------------------------------------


@variational
def test_log_prob_is_that_of_torch(family: Family) -> None:
    code = draw(family, 7)
    assert isinstance(code, Normal | SpikeSlab)
    slab = torch.distributions.Normal(code.mu, (0.5 * code.logvar).exp())
    z = torch.randn(7, SIZE, dtype=torch.float64)
    if isinstance(code, Normal):
        torch.testing.assert_close(code.log_prob(z), slab.log_prob(z))
        return
    torch.testing.assert_close(code.log_prob(z), code.omega.log() + slab.log_prob(z))
    log_off = torch.log1p(-code.omega).clamp(min=LOG_FLOOR)  # an open gate's is -inf
    torch.testing.assert_close(code.log_prob(torch.zeros_like(z)), log_off)


def test_point_log_prob_is_a_unit_mass() -> None:
    z = torch.tensor([1.0, 2.0])
    assert Point(z).log_prob(torch.tensor([1.0, 2.5])).tolist() == [0.0, -math.inf]


@variational
def test_kl_is_the_mean_log_ratio(family: Family) -> None:
    q, p = draw(family), draw(family)
    z = repeat(q).rsample()
    assert_mean(q.log_prob(z) - p.log_prob(z), q.kl(p))


def test_normal_kl_to_the_prior_is_the_mean_log_ratio() -> None:
    q = draw(FAMILIES[1])
    assert isinstance(q, Normal)
    z, zeros = repeat(q).rsample(), torch.zeros_like(q.mu)
    assert_mean(q.log_prob(z) - Normal(zeros, zeros).log_prob(z), q.kl_standard())


@gates
@pytest.mark.parametrize("rho", [0.01, 0.6])
def test_spike_slab_kl_to_the_prior(gate: GateName, rho: float) -> None:
    q = draw(Family("spikeslab", SIZE, gate))
    assert isinstance(q, SpikeSlab)
    z = repeat(q).rsample()
    assert_mean(q.log_prob(z) - prior(rho).log_prob(z), q.kl_prior(rho))
    logit = torch.logit(torch.tensor(rho, dtype=torch.float64))
    torch.testing.assert_close(q.kl_slab() + q.kl_gate(logit), q.kl_prior(rho))
    torch.testing.assert_close(q.kl(prior(rho)), q.kl_prior(torch.tensor(rho)), rtol=1e-6, atol=0)


def test_spike_slab_kl_is_equation_9() -> None:
    mu, logvar = torch.randn(2, 1000, dtype=torch.float64).unbind()
    w = torch.rand(1000, dtype=torch.float64) * 0.998 + 0.001
    rho, variance = 0.13, logvar.exp()
    slab = w / 2 * (variance + mu**2 - 1 - variance.log())
    gate = (1 - w) * ((1 - w) / (1 - rho)).log() + w * (w / rho).log()
    code = SpikeSlab.of(mu, logvar, w)
    torch.testing.assert_close(code.kl_slab(), slab)
    torch.testing.assert_close(code.kl_prior(rho), slab + gate)


def test_point_kl_is_half_the_squared_distance() -> None:
    a, b = torch.randn(2, 6).unbind()
    torch.testing.assert_close(Point(a).kl(Point(b)), (a - b) ** 2 / 2)


@families
def test_kl_of_a_code_to_itself_is_zero(family: Family) -> None:
    code = draw(family, 20)
    assert torch.equal(code.kl(code), torch.zeros_like(code.mean))


@gates
@given(q=st.tuples(locations, logvars, logits), p=st.tuples(locations, logvars, logits))
def test_kl_is_never_negative(gate: GateName, q: tuple[float, ...], p: tuple[float, ...]) -> None:
    for name in ("normal", "spikeslab"):
        family = Family(name, 1, gate)
        a, b = (family.read(torch.tensor(v[: family.heads]).double()) for v in (q, p))
        assert a.kl(b) >= -1e-11
        assert (a.kl_prior(0.3) if isinstance(a, SpikeSlab) else a.kl(a)) >= -1e-11


@given(mu=locations, logvar=logvars, logit=logits)
def test_variance_splits_in_two(mu: float, logvar: float, logit: float) -> None:
    code = Family("spikeslab", 1).read(torch.tensor([mu, logvar, logit]).double())
    assert isinstance(code, SpikeSlab)
    w, m, v = code.omega, code.mu, code.logvar.exp()
    moments = w * (v + m**2) - (w * m) ** 2  # E z^2 - (E z)^2
    split = code.parametric_variance + code.structural_variance
    assert torch.equal(code.variance, split)
    torch.testing.assert_close(split, moments, rtol=1e-9, atol=1e-13)
    torch.testing.assert_close(code.parametric_variance, w * v)


# -- safety at the ends -----------------------------------------------------------------------


def assert_safe(q: SpikeSlab, p: SpikeSlab, inputs: Tensor) -> None:
    """Check that all that training computes is finite, and so are its gradients."""
    z = q.rsample()
    values = (z, q.kl(p), q.kl_prior(0.01), q.log_prob(z), q.mean, q.variance, q.features)
    for value in values:
        assert value.isfinite().all()
        (gradient,) = torch.autograd.grad(value.sum(), inputs, retain_graph=True)
        assert gradient.isfinite().all()


@gates
@dtypes
def test_extreme_heads_are_safe(gate: GateName, dtype: torch.dtype) -> None:
    grid = itertools.product((0.0, 3.0), (-1e4, 0.0, 1e4), (-1e4, -1e-6, 0.0, 1e-6, 1e4))
    h = torch.tensor(list(grid), dtype=dtype, requires_grad=True)
    family = Family("spikeslab", 1, gate)
    q, p = family.read(h[:, None].expand(-1, 30, -1)), family.read(h[None].expand(30, -1, -1))
    assert isinstance(q, SpikeSlab)
    assert isinstance(p, SpikeSlab)
    assert_safe(q, p, h)


@dtypes
def test_gates_of_exactly_0_and_1_are_safe(dtype: torch.dtype) -> None:
    omega = torch.tensor([0.0, 1.0, 0.5], dtype=dtype, requires_grad=True)
    ones = torch.ones(3, 3, dtype=dtype)
    q = SpikeSlab.of(ones, ones, omega.expand(3, 3))
    p = SpikeSlab.of(-ones, ones, omega[:, None].expand(3, 3))
    assert_safe(q, p, omega)
    torch.testing.assert_close(q.omega[0], omega)
    shut, opened, _ = q.kl_prior(0.5)[0].tolist()
    assert shut == pytest.approx(math.log(2))
    assert opened == pytest.approx((math.e - 1) / 2 + math.log(2))


@gates
def test_gate_functions(gate: GateName) -> None:
    g = torch.linspace(-8, 8, 200, dtype=torch.float64, requires_grad=True)  # 0 is not among them
    heads = torch.stack((torch.zeros_like(g), torch.zeros_like(g), g), dim=-1)
    code = Family("spikeslab", 1, gate).read(heads)
    assert isinstance(code, SpikeSlab)
    expected = {"sigmoid": torch.sigmoid(g), "exponential": torch.exp(-torch.relu(-g))}[gate]
    torch.testing.assert_close(code.omega[:, 0], expected)
    torch.testing.assert_close(code.log_off.exp()[:, 0], 1 - expected, rtol=1e-9, atol=1e-12)
    for value in (code.omega, code.kl_prior(0.1)):
        (slope,) = torch.autograd.grad(value.sum(), g, retain_graph=True)
        saturated = (g > 0) if gate == "exponential" else torch.zeros_like(g, dtype=torch.bool)
        assert torch.equal(slope == 0, saturated)


@pytest.mark.parametrize("rho", [0.0, 1.0])
def test_a_prior_that_is_certain_still_has_a_finite_divergence(rho: float) -> None:
    code = SpikeSlab.of(torch.zeros(3), torch.zeros(3), torch.tensor([0.0, 0.5, 1.0]))
    assert code.kl_prior(rho).isfinite().all()


@pytest.mark.parametrize("logvar", [-170.0, -100.0, 88.0])
def test_log_variances_far_out_are_safe_in_float32(logvar: float) -> None:
    far = Normal(torch.tensor([0.5]), torch.tensor([logvar]))
    assert torch.equal(far.kl(far), torch.zeros(1))
    assert far.log_prob(far.mu).isfinite().all()


def test_an_absent_factor_has_no_variance_however_wide_its_slab() -> None:
    wide = SpikeSlab.of(torch.ones(1), torch.tensor([100.0]), torch.zeros(1))
    assert wide.variance.isfinite().all()
    assert wide.kl_slab().isfinite().all()


# -- moments ------------------------------------------------------------------------------------


def test_a_gate_less_open_than_the_other_s_lets_no_slab_run_away() -> None:
    q = SpikeSlab.of(torch.tensor([1.0]), torch.tensor([-3.0]), torch.tensor([1.0]))
    narrow = torch.linspace(-12, 0, 200)
    p = SpikeSlab.of(torch.tensor([1.0]), narrow, torch.full_like(narrow, 0.6))
    least = -3 - math.log(0.6)  # omega sigma^2 is the variance of q
    assert float(narrow[p.fit_to(q).argmin()]) == pytest.approx(least, abs=0.1)


@pytest.mark.parametrize("open_gate", [0.6, 0.999])
def test_a_code_that_fits_another_has_its_moments_whatever_its_gate(open_gate: float) -> None:
    """q has the factor in three of ten cases; p, whose gate is held, has it far more often."""
    mu = torch.tensor([1.0, 2.0, -0.5, *[0.0] * 7], dtype=torch.float64)
    present = torch.tensor([1.0, 1.0, 1.0, *[0.0] * 7], dtype=torch.float64)
    q = SpikeSlab.of(mu, torch.full_like(mu, -1.0), present)
    heads = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    omega = torch.tensor(open_gate, dtype=torch.float64)

    def fitted() -> SpikeSlab:
        return SpikeSlab.of(heads[0].expand(10), heads[1].expand(10), omega.expand(10))

    optimiser = torch.optim.LBFGS(
        [heads], max_iter=100, tolerance_grad=1e-12, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss: Tensor = fitted().fit_to(q).sum()
        loss.backward()
        return loss

    for _ in range(5):
        optimiser.step(closure)
    p = fitted()
    mean, square = q.mean.mean(), (q.variance + q.mean.square()).mean()
    torch.testing.assert_close(p.mean[0], mean, rtol=1e-4, atol=0)
    torch.testing.assert_close(p.variance[0] + p.mean[0].square(), square, rtol=1e-4, atol=0)


def test_factors_that_a_code_lacks_are_fitted_where_the_other_has_them() -> None:
    q = SpikeSlab.of(torch.tensor([1.0]), torch.tensor([-1.0]), torch.tensor([0.8]))
    p = SpikeSlab.of(torch.tensor([0.5]), torch.tensor([0.3]), torch.tensor([0.2]))
    torch.testing.assert_close(p.fit_to(q), q.kl(p))
    other = SpikeSlab.of(torch.tensor([-1.0]), torch.tensor([0.0]), torch.tensor([0.3]))
    pairs = zip((p.mu, p.logvar, p.omega), (other.mu, other.logvar, other.omega), strict=True)
    mu, logvar, omega = (torch.stack(pair)[None] for pair in pairs)
    modes = SpikeSlab.of(mu, logvar, omega)
    both = Mixture(modes, torch.tensor([[0.4, 0.6]]).log())
    expected = -(0.4 * (-q.kl(p)).exp() + 0.6 * (-q.kl(other)).exp()).log()
    torch.testing.assert_close(both.fit_to(q._map(lambda t: t[None])), expected)
