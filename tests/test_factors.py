"""Which factors carry the variance and of what kind it is, against closed forms and sampling."""

import itertools
import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Literal

import pytest
import torch
from torch import Generator, Tensor, nn

from vspair.codes import Code, Normal, Point, SpikeSlab
from vspair.config import ModelConfig
from vspair.errors import VspairError
from vspair.factors import Factors, Split, leading_factors, split_variance
from vspair.mixtures import gated
from vspair.model import InverseModel, build
from vspair.networks import NetworkConfig
from vspair.posterior import LatentPosterior, PointPosterior, SamplePosterior

Kind = Literal["vPAIR", "sVAE", "vsPAIR"]
KINDS: tuple[Kind, ...] = ("vPAIR", "sVAE", "vsPAIR")
NETWORKS: dict[str, tuple[tuple[int, ...], NetworkConfig]] = {
    "vector": ((5,), NetworkConfig(width=8)),
    "conv": ((5, 6), NetworkConfig(width=4)),
    "affine": ((2, 4, 4), NetworkConfig(width=4, depth=0)),
}
SIZE, BATCH = 7, 3

kinds = pytest.mark.parametrize("kind", KINDS)
networks = pytest.mark.parametrize("network", NETWORKS)
dtypes = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-10)], ids=["f32", "f64"]
)


class Sum(nn.Module):
    """Decodes z as the sum over factors of a column times a function of the factor."""

    def __init__(self, columns: Tensor, f: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.columns, self.f = columns, f

    def forward(self, z: Tensor) -> Tensor:
        return self.f(z) @ self.columns


class Squares(nn.Module):
    """Decodes z as the squares of linear forms, with shape (B, 3)."""

    matrix = torch.tensor([[1.0, 0.5, 0.0], [-0.4, 1.0, 0.3], [0.2, 0.0, 0.8]]).double()

    def forward(self, z: Tensor) -> Tensor:
        return (z @ self.matrix + 1).square()


def seeded(seed: int = 5) -> Generator:
    return Generator().manual_seed(seed)


def close(a: Tensor, b: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def sparse(batch: int = BATCH, size: int = SIZE, dtype: torch.dtype = torch.float64) -> SpikeSlab:
    mu, logvar = 2 * torch.randn(2, batch, size, dtype=dtype)
    return SpikeSlab.of(mu, logvar - 1, torch.rand(batch, size, dtype=dtype))


def dense(batch: int = BATCH, size: int = SIZE) -> Normal:
    return Normal(*torch.randn(2, batch, size, dtype=torch.float64))


def linear(size: int = SIZE, pixels: int = 4) -> nn.Linear:
    return nn.Linear(size, pixels).double()


def make(kind: Kind | Literal["PAIR"], network: str = "conv") -> InverseModel:
    """Return a small model in double precision, in units of its own."""
    shape, config = NETWORKS[network]
    model = build(ModelConfig(kind, SIZE, 5, config, NetworkConfig(width=4)), shape, (6,))
    model.x_normaliser.fit(5 + 3 * torch.rand(50, *shape), "feature")
    with torch.no_grad():
        model.log_width.fill_(-1.0)
    return model.double()


def observed(batch: int = BATCH) -> Tensor:
    return torch.randn(batch, 6, dtype=torch.float64)


def parts(split: Split) -> dict[str, Tensor]:
    return {f.name: getattr(split, f.name) for f in fields(split)}


# -- split: closed forms ----------------------------------------------------------------------


@pytest.mark.parametrize("code", [sparse, dense], ids=["sparse", "dense"])
def test_the_split_is_exact_for_a_linear_decoder(code: Callable[[], Code]) -> None:
    given, decoder, std = code(), linear(), torch.rand(4).double() + 1
    split = split_variance(given, decoder, std, generator=seeded())
    squares = (decoder.weight.detach() * std[:, None]).square().T
    if isinstance(given, SpikeSlab):
        omega, mu = given.omega, given.mu
        close(split.structural, (omega * (1 - omega) * mu**2) @ squares)
        close(split.parametric, (omega * given.logvar.exp()) @ squares)
    else:
        assert (split.structural == 0).all()
        close(split.parametric, given.variance @ squares)
    close(split.total, given.variance @ squares)
    for name, error in parts(split).items():
        assert not name.endswith("_se") or (error == 0).all()


def test_a_decoder_without_a_bend_is_recognised_and_agrees_with_samples() -> None:
    post = make("vsPAIR", "affine").posterior(observed(), noise=True)
    split = post.split(2)
    assert (split.total_se == 0).all()
    std = post.std(20_000, seeded())
    assert ((std**2 / split.total - 1).abs() < 6 * math.sqrt(2 / 20_000)).all()


def quadratic(code: SpikeSlab) -> tuple[Tensor, Tensor]:
    """Return the structural and the parametric variance of :class:`Squares`, each (3,)."""
    weights, means, variances = [], [], []
    for gates in itertools.product((0.0, 1.0), repeat=3):
        g = torch.tensor(gates).double()
        weights.append((g * code.omega[0] + (1 - g) * (1 - code.omega[0])).prod())
        m = (g * code.mu[0]) @ Squares.matrix + 1
        v = (g * code.logvar[0].exp()) @ Squares.matrix.square()
        means.append(m**2 + v)
        variances.append(2 * v**2 + 4 * m**2 * v)
    w, mean, variance = torch.stack(weights)[:, None], torch.stack(means), torch.stack(variances)
    return (w * mean**2).sum(0) - (w * mean).sum(0) ** 2, (w * variance).sum(0)


MU, OMEGA = torch.tensor([[[1.0, -0.7, 2.0]], [[0.3, 0.8, 0.5]]]).double()
KNOWN = SpikeSlab.of(MU, torch.full_like(MU, -1.5), OMEGA)


def truth() -> Tensor:
    """Return structural, parametric and total variance of the known code, with shape (3, 3)."""
    structural, parametric = quadratic(KNOWN)
    return torch.stack((structural, parametric, structural + parametric))


def estimates(copies: int, n: int) -> Split:
    """Return independent estimates of those from n pairs each."""
    codes = KNOWN[torch.zeros(copies, dtype=torch.long)]
    return split_variance(codes, Squares(), torch.ones(3).double(), n, generator=seeded())


@pytest.mark.parametrize(("copies", "n"), [(20_000, 2), (20_000, 5), (2000, 300)])
def test_estimates_have_no_bias(copies: int, n: int) -> None:
    split = estimates(copies, n)
    found = (split.structural, split.parametric, split.total)
    for estimate, true in zip(found, truth(), strict=True):
        error = estimate.std(0) / math.sqrt(copies)
        assert ((estimate.mean(0) - true).abs() < 4 * error).all()
        assert (error < 0.03 * true).all()  # so that this says something


def test_standard_errors_are_those_of_the_estimates() -> None:
    split = estimates(2000, 1000)
    found = (
        (split.structural, split.structural_se),
        (split.parametric, split.parametric_se),
        (split.total, split.total_se),
    )
    for (estimate, error), true in zip(found, truth(), strict=True):
        torch.testing.assert_close(error.mean(0), estimate.std(0), rtol=0.06, atol=0)
        z = (estimate - true) / error
        assert (z.mean(0).abs() < 0.15).all()
        assert ((z.std(0) - 1).abs() < 0.1).all()
        assert (((z.abs() < 1.96).double().mean(0) - 0.95).abs() < 0.02).all()


def test_a_dense_code_has_no_structural_part() -> None:
    code = Normal(torch.zeros(2000, 3).double(), torch.full((2000, 3), -1.0).double())
    split = split_variance(code, Squares(), torch.ones(3).double(), 1000, generator=seeded())
    assert (split.structural == 0).all()
    assert (split.structural_se == 0).all()
    assert torch.equal(split.parametric, split.total)
    v = math.exp(-1) * Squares.matrix.square().sum(0)
    z = (split.total - (2 * v**2 + 4 * v)) / split.total_se
    assert (z.mean(0).abs() < 0.15).all()
    assert ((z.std(0) - 1).abs() < 0.1).all()


def test_gates_that_never_move_give_no_structural_part() -> None:
    omega = torch.tensor([[0.0, 1.0, 1.0]]).double().repeat(500, 1)
    mu, logvar = torch.ones(500, 3).double(), torch.zeros(500, 3).double()
    code, std = SpikeSlab.of(mu, logvar, omega), torch.ones(3).double()
    exact = split_variance(code, linear(3, 3), std)
    assert (exact.structural < 1e-11 * exact.parametric).all()
    sampled = split_variance(code, Squares(), std, 100, generator=seeded())
    mean, error = sampled.structural.mean(0), sampled.structural.std(0) / math.sqrt(500)
    assert (mean.abs() < 4 * error).all()
    assert (error < 0.02 * sampled.parametric.mean(0)).all()


def test_strengths_that_never_move_give_no_parametric_part() -> None:
    omega = torch.full((4, 3), 0.5).double()
    code = SpikeSlab.of(torch.ones_like(omega), torch.full_like(omega, -60.0), omega)
    split = split_variance(code, Squares(), torch.ones(3).double(), 50, generator=seeded())
    assert (split.parametric < 1e-20 * split.structural).all()


# -- split: contract --------------------------------------------------------------------------


@kinds
@networks
@dtypes
@pytest.mark.parametrize("noise", [False, True], ids=["clean", "noisy"])
def test_parts_add_up_to_the_total(
    kind: Kind, network: str, dtype: torch.dtype, tolerance: float, noise: bool
) -> None:
    model = make(kind, network).to(dtype)
    post = model.posterior(observed().to(dtype), noise=noise)
    split = post.split(20, seeded())
    assert torch.equal(split.structural + split.parametric + split.grain, split.total)
    assert {t.dtype for t in parts(split).values()} == {dtype}
    assert {t.shape for t in parts(split).values()} == {(BATCH, *model.x_shape)}
    grain = (model.noise_std * model.x_normaliser.std).square() * noise
    close(split.grain, grain.expand_as(split.grain), tolerance)
    one = model.posterior(observed()[0].to(dtype)).split(3)
    assert {t.shape for t in parts(one).values()} == {model.x_shape}


@kinds
def test_the_total_is_the_variance_of_samples(kind: Kind) -> None:
    post = make(kind).posterior(observed(), noise=True)
    split, n = post.split(3000, seeded()), 6000
    x = post.sample(n, seeded(6))
    variance, fourth = x.var(0), (x - x.mean(0)).pow(4).mean(0)
    error = ((fourth - variance**2) / n + split.total_se**2).sqrt()
    assert (((split.total - variance) / error).abs() < 5).all()


def test_chunks_do_not_matter_and_chance_is_the_generators() -> None:
    code, chance = make("vsPAIR").posterior(observed()).code, torch.get_rng_state()
    model = make("vsPAIR")
    torch.set_rng_state(chance)
    whole = LatentPosterior(model, code).split(9, seeded())
    for chunk in (1, 4, 13):
        split = LatentPosterior(model, code, chunk=chunk).split(9, seeded())
        for a, b in zip(parts(split).values(), parts(whole).values(), strict=True):
            close(a, b, 1e-9)
    assert torch.equal(torch.get_rng_state(), chance)
    assert not torch.equal(LatentPosterior(model, code).split(9, seeded(6)).total, whole.total)


def test_a_point_has_grain_alone() -> None:
    split = make("PAIR").posterior(observed(), noise=True).split()
    assert (split.structural == 0).all()
    assert (split.parametric == 0).all()
    assert torch.equal(split.total, split.grain)
    assert (split.grain > 0).all()


# -- factors: closed forms --------------------------------------------------------------------


@pytest.mark.parametrize("code", [sparse, dense], ids=["sparse", "dense"])
def test_shares_are_exact_for_a_linear_decoder(code: Callable[[], Code]) -> None:
    given, decoder, std = code(), linear(), torch.rand(4).double() + 1
    found = leading_factors(given, decoder, std, SIZE)
    columns = (decoder.weight.detach() * std[:, None]).T
    carried = given.variance * columns.square().sum(1)
    order = carried.argsort(dim=1, descending=True)
    assert torch.equal(found.index, order)
    close(found.share, (carried / carried.sum(1, keepdim=True)).gather(1, order))
    close(found.share.sum(1), torch.ones(BATCH).double())
    effect = given.variance.sqrt().gather(1, order)[..., None] * columns[order]
    close(found.effect, effect)
    sure = gated(given)
    close(
        found.structural / found.share,
        (sure.structural_variance / given.variance).gather(1, order),
    )
    close(found.structural + found.parametric, found.share)
    split = split_variance(given, decoder, std)
    close(found.effect.square().sum(1), split.total)


def test_each_factor_comes_with_its_numbers() -> None:
    code = sparse()
    found = leading_factors(code, linear(), torch.ones(4).double(), 3)
    named = (code.omega, found.presence), (code.mu, found.strength)
    for given, shown in (*named, (code.slab.variance.sqrt(), found.deviation)):
        assert torch.equal(given.gather(1, found.index), shown)
    assert (leading_factors(dense(), linear(), torch.ones(4).double(), 3).presence == 1).all()


def test_jumps_are_measured_where_the_factor_really_is() -> None:
    columns = torch.randn(4, 5).double()
    omega = torch.tensor([[0.1, 0.5, 0.9, 0.97]]).double()
    mu = torch.tensor([[1.0, -2.0, 0.5, 3.0]]).double()
    code = SpikeSlab.of(mu, torch.full_like(mu, -30.0), omega)
    found = leading_factors(
        code, Sum(columns, lambda z: (4 * z).tanh()), torch.ones(5).double(), 4
    )
    jump = (4 * mu[0]).tanh()
    carried = (omega * (1 - omega))[0] * jump**2 * columns.square().sum(1)
    order = carried.argsort(descending=True)
    assert torch.equal(found.index[0], order)
    close(found.share[0], carried[order] / carried.sum(), 1e-8)
    close(found.structural, found.share, 1e-8)
    effect = (omega * (1 - omega)).sqrt()[0] * jump.abs()
    close(found.effect[0], effect[order, None] * columns[order], 1e-6)


def test_factors_that_add_carry_the_whole_variance() -> None:
    code, columns = sparse(1, 6), torch.randn(6, 4).double()
    decoder = Sum(columns, lambda z: z + 0.3 * z.tanh())
    found = leading_factors(code, decoder, torch.ones(4).double(), 6)
    split = split_variance(code, decoder, torch.ones(4).double(), 20_000, generator=seeded())
    structural = float(found.structural.sum())
    assert structural == pytest.approx(float(split.structural.sum() / split.total.sum()), abs=0.03)
    generator = seeded()
    z = torch.cat([code.rsample(generator) for _ in range(20_000)])
    carried = decoder.f(z).var(0) * columns.square().sum(1)
    close(found.share[0], (carried / carried.sum())[found.index[0]], 0.03)


@kinds
@networks
def test_shares_and_effects_are_those_of_full_decodes(kind: Kind, network: str) -> None:
    post = make(kind, network).posterior(observed())
    code, every = gated(post.code), torch.arange(SIZE)
    on, off, sigma = code.omega, 1 - code.omega, code.slab.variance.sqrt()

    def at(value: Tensor) -> Tensor:
        z = code.mean[:, None].repeat(1, SIZE, 1)
        z[:, every, every] = value
        return post.decode(z).flatten(2)

    up, down = at(code.mu + sigma), at(code.mu - sigma)
    p, s = (up - down) / 2, (up + down) / 2 - at(torch.zeros_like(on))
    variance = on[..., None] * p**2 + (on * off)[..., None] * s**2
    share = variance.sum(-1) / variance.sum((1, 2))[:, None]
    found = post.factors(SIZE)
    assert torch.equal(found.index, share.argsort(dim=1, descending=True))
    close(found.share, share.gather(1, found.index), 1e-8)
    slope = (on * sigma)[..., None] * p + (on * off * code.mu)[..., None] * s
    effect = (slope / code.variance.sqrt()[..., None]).gather(
        1, found.index[..., None].expand(-1, -1, slope.shape[-1])
    )
    close(found.effect.flatten(2), effect, 1e-8)
    carried = variance.gather(1, found.index[..., None].expand_as(effect))
    assert (effect**2 <= carried * (1 + 1e-9)).all()


# -- factors: choices -------------------------------------------------------------------------


def test_a_known_order_is_recovered() -> None:
    order = torch.tensor([3, 0, 4, 1, 2])
    columns = torch.zeros(5, 8).double()
    columns[order] = 2.0 ** -torch.arange(5).double()[:, None] * torch.randn(5, 8).double().sign()
    ones = torch.ones(1, 5).double()
    code = SpikeSlab.of(ones, ones, ones / 2)
    found = leading_factors(code, Sum(columns, torch.sinh), torch.ones(8).double(), 5)
    assert found.index[0].tolist() == order.tolist()
    close(found.share[0, 1:] / found.share[0, :-1], torch.full((4,), 0.25).double())


def test_a_region_decides_what_counts() -> None:
    columns = torch.tensor([[9.0, 0.0, 0.0, 0.0], [0.0, 2.0, 2.0, 0.0], [0.0, 0.0, 3.0, 1.0]])
    code, std = Normal(*torch.zeros(2, 2, 3).double()), torch.ones(2, 2).double()
    decoder = nn.Sequential(Sum(columns.double(), lambda z: z), nn.Unflatten(1, (2, 2)))
    assert leading_factors(code, decoder, std, 3).index[0].tolist() == [0, 2, 1]
    region = torch.tensor([[False, True], [True, False]])
    found = leading_factors(code, decoder, std, 2, region=region)
    assert found.index.tolist() == [[2, 1]] * 2
    close(found.share[0], torch.tensor([9, 8]).double() / 17)
    both = torch.stack((region, ~region))
    found = leading_factors(code, decoder, std, 1, region=both)
    assert found.index.tolist() == [[2], [0]]
    assert found.effect.shape == (2, 1, 2, 2)
    close(found.effect[1, 0], torch.tensor([[9.0, 0.0], [0.0, 0.0]]).double())


def test_factors_are_chosen_among_those_that_are_allowed() -> None:
    code, decoder, std = sparse(), linear(), torch.ones(4).double()
    every = leading_factors(code, decoder, std, SIZE)
    first = every.index[:, 0]
    allowed = torch.ones(BATCH, SIZE, dtype=torch.bool).scatter(1, first[:, None], False)
    found = leading_factors(code, decoder, std, SIZE - 1, among=allowed)
    assert torch.equal(found.index, every.index[:, 1:])
    close(found.share.sum(1), torch.ones(BATCH).double())
    found = leading_factors(code, decoder, std, 2, among=torch.arange(SIZE) < 2)
    assert (found.index < 2).all()


def test_shared_factors_have_the_largest_mean_share() -> None:
    code, decoder, std = sparse(), linear(), torch.ones(4).double()
    every = leading_factors(code, decoder, std, SIZE)
    mean = torch.zeros(BATCH, SIZE).double().scatter(1, every.index, every.share).mean(0)
    found = leading_factors(code, decoder, std, 3, shared=True)
    assert found.index.tolist() == [mean.topk(3).indices.tolist()] * BATCH
    close(found.share.mean(0), mean.topk(3).values)
    # A factor that only some observations may name counts with those alone.
    among = torch.eye(BATCH, SIZE, dtype=torch.bool)
    found = leading_factors(code, decoder, std, BATCH, among=among, shared=True)
    assert sorted(found.index[0].tolist()) == list(range(BATCH))


def test_a_closed_code_has_shares_of_zero() -> None:
    none = torch.zeros(1, 3).double()
    code = SpikeSlab.of(none, none, none)
    decoder, std = Sum(torch.zeros(3, 4).double(), lambda z: z), torch.ones(4).double()
    found = leading_factors(code, decoder, std, 2)
    assert found.share.tolist() == [[0.0, 0.0]]
    assert (found.effect == 0).all()
    for only in range(3):
        found = leading_factors(code, decoder, std, 1, among=torch.arange(3) == only)
        assert found.index.tolist() == [[only]]


# -- factors: contract ------------------------------------------------------------------------


@kinds
@networks
@dtypes
def test_shapes_of_batches_and_single_observations(
    kind: Kind, network: str, dtype: torch.dtype, tolerance: float
) -> None:
    model, y = make(kind, network).to(dtype), observed().to(dtype)
    batch, one = model.posterior(y).factors(2), model.posterior(y[1]).factors(2)
    for f in fields(Factors):
        value, row = getattr(batch, f.name), getattr(one, f.name)
        shape = (2, *model.x_shape) if f.name == "effect" else (2,)
        assert (value.shape, row.shape) == ((BATCH, *shape), shape)
        assert value.dtype == (torch.long if f.name == "index" else dtype)
        close(row, value[1], tolerance)
    assert "effect" not in repr(batch)
    active = model.posterior(y[1]).active(-1.0)
    assert torch.equal(model.posterior(y[1]).factors(2, among=active).index, one.index)


@kinds
def test_modes_weights_and_global_chance_are_left_alone(kind: Kind) -> None:
    model, y = make(kind).train(), observed()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    post, chance = model.posterior(y, noise=True), torch.get_rng_state()
    found, split = post.factors(2), post.split(3, seeded())
    assert not found.effect.requires_grad
    assert not split.total.requires_grad
    assert all(m.training for m in model.modules())
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), chance)


def test_dense_codes_have_gates_that_never_close() -> None:
    for code in (dense(), Point(torch.randn(2, 3))):
        same = gated(code)
        assert torch.equal(same.mean, code.mean)
        assert torch.equal(same.variance, code.variance)
        assert (same.omega == 1).all()
        assert (same.absent == 0).all()
        assert torch.equal(same.rsample(seeded()).isfinite(), torch.ones_like(code.mean) > 0)


# -- mistakes ---------------------------------------------------------------------------------

EYE = torch.eye(5, 6, dtype=torch.bool)
MISTAKES: dict[str, tuple[Callable[[LatentPosterior], Any], str]] = {
    "no factors": (lambda p: p.factors(0), "k = 0: expected 1 to 7"),
    "too many": (lambda p: p.factors(SIZE + 1), "k = 8: expected 1 to 7"),
    "fewer allowed": (lambda p: p.factors(3, among=torch.arange(SIZE) < 2), "1 to 2"),
    "among": (lambda p: p.factors(1, among=torch.arange(SIZE)), "among"),
    "region shape": (lambda p: p.factors(1, region=EYE[:4]), "region has"),
    "region dtype": (lambda p: p.factors(1, region=EYE.float()), "dtype"),
    "empty region": (lambda p: p.factors(1, region=EYE & False), "empty"),
    "one sample": (lambda p: p.split(1), "n = 1"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(mistake: str) -> None:
    call, message = MISTAKES[mistake]
    with pytest.raises(VspairError, match=message):
        call(make("vsPAIR").posterior(observed()))


def test_who_has_no_factors_says_so() -> None:
    point = make("PAIR").posterior(observed())
    for post in (point, PointPosterior(torch.zeros(2, 3), "FBP")):
        for call in (lambda p: p.factors(1), lambda p: p.split()):
            with pytest.raises(VspairError, match="no spread"):
                call(post)
    for call in (lambda p: p.factors(1), lambda p: p.split()):
        with pytest.raises(VspairError, match="no factors"):
            call(SamplePosterior(torch.randn(4, 2, 3)))
    with pytest.raises(VspairError, match="no spread"):
        make("PAIR").posterior(observed(), noise=True).factors(1)
