"""The contract of the uncertainty analyses, for every model on vectors and images."""

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn

from vspair import uncertainty as u
from vspair.codes import Normal, Point, SpikeSlab
from vspair.config import ModelConfig
from vspair.errors import VspairError
from vspair.model import InverseModel, build
from vspair.networks import LatentMoves, NetworkConfig, squared_changes
from vspair.posterior import LatentPosterior
from vspair.uncertainty.perturbation import Dims

Kind = Literal["PAIR", "vPAIR", "sVAE", "vsPAIR"]
KINDS: tuple[Kind, ...] = ("PAIR", "vPAIR", "sVAE", "vsPAIR")
NETWORKS: dict[str, tuple[tuple[int, ...], NetworkConfig]] = {
    "vector": ((5,), NetworkConfig(width=8)),
    "mlp": ((3, 4), NetworkConfig("mlp", width=8, depth=2)),
    "conv": ((5, 6), NetworkConfig(width=4)),
    "deep": ((2, 8, 8), NetworkConfig(width=4, depth=2)),
    "affine": ((4, 4), NetworkConfig(width=4, depth=0)),
}
SIZE, BATCH = 7, 4

kinds = pytest.mark.parametrize("kind", KINDS)
networks = pytest.mark.parametrize("network", NETWORKS)
dtypes = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=["f32", "f64"]
)


def make(
    kind: Kind, network: str = "conv", dtype: torch.dtype = torch.float32, batch: int = BATCH
) -> LatentPosterior:
    """Return the posterior of a small model whose batch norms and scales are not trivial."""
    shape, config = NETWORKS[network]
    model = build(ModelConfig(kind, SIZE, 5, config, NetworkConfig(width=4)), shape, (6,))
    model.x_normaliser.fit(5 + 3 * torch.randn(50, *shape), "feature")
    with torch.no_grad():
        for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
            assert norm.running_var is not None
            assert norm.running_mean is not None
            norm.weight.uniform_(0.5, 2.0)
            norm.running_var.uniform_(0.5, 2.0)
            norm.running_mean.normal_()
            norm.bias.normal_()
    return model.to(dtype).posterior(torch.randn(batch, 6, dtype=dtype))


def random_region(post: LatentPosterior) -> Tensor:
    region = torch.rand(len(post), *post.model.x_shape) < 0.4
    region.flatten(1)[:, 0], region.flatten(1)[:, 1] = True, False
    return region


def naive(post: LatentPosterior, z: Tensor, factor: float) -> Tensor:
    """Return the change of each image under each perturbation, with shape (B, l, *x_shape)."""
    moved = z.unsqueeze(1) * (1 + factor * torch.eye(z.shape[1], dtype=z.dtype))
    return post.decode(moved) - post.decode(z).unsqueeze(1)


def naive_localisation(
    post: LatentPosterior, z: Tensor, region: Tensor, factor: float
) -> list[Tensor]:
    """Return mean squared changes inside and outside by float64 decodes, each of shape (B, l)."""
    post = LatentPosterior(deepcopy(post.model).double(), post.code)
    z = z.double()
    square = naive(post, z, factor).square().flatten(2)
    masks = (region.flatten(1), ~region.flatten(1))
    return [torch.stack([s[:, m].mean(1) for s, m in zip(square, k, strict=True)]) for k in masks]


def seeded(seed: int = 5) -> Generator:
    return Generator().manual_seed(seed)


def close(a: Tensor, b: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


# -- active sets ------------------------------------------------------------------------------


@kinds
def test_active_sets_are_those_of_the_samples(kind: Kind) -> None:
    post = make(kind, batch=9)
    counts = u.draw_active(post, 12, seeded())
    generator = seeded()
    z = torch.stack([post.code.rsample(generator) for _ in range(12)])
    assert counts.dtype == torch.long
    assert torch.equal(counts, (z != 0).sum(0))
    always = u.always_active(counts, 12)
    assert torch.equal(always, (z != 0).all(0))
    assert torch.equal(u.nnz(post, seeded()), (z[0] != 0).sum(1))
    if not isinstance(post.code, SpikeSlab):
        assert always.all()


def test_zero_means_of_dense_codes_count_as_active() -> None:
    model = make("vPAIR").model
    for code in (Point(torch.zeros(2, SIZE)), Normal(*torch.zeros(2, 2, SIZE))):
        post = LatentPosterior(model, code)
        assert (u.draw_active(post, 3) == 3).all()
        assert u.nnz(post).tolist() == [SIZE] * 2


def test_counts_follow_the_gates() -> None:
    omega = torch.tensor([[0.0, 0.3, 1.0]]).repeat(2000, 1)
    code = SpikeSlab.of(torch.ones_like(omega), torch.zeros_like(omega), omega)
    counts = u.draw_active(LatentPosterior(make("vsPAIR").model, code), 10, seeded())
    assert (counts[:, 0] == 0).all()
    assert (counts[:, 2] == 10).all()
    assert abs(float(counts[:, 1].double().mean()) - 3) < 5 * math.sqrt(2.1 / 2000)
    assert torch.equal(u.always_active(counts, 10)[:, 2], torch.ones(2000, dtype=torch.bool))


def test_summary_and_sparsity() -> None:
    values = torch.tensor([3, 5, 10])
    summary = u.summarise(values)
    assert (summary.mean, summary.min, summary.max) == (6.0, 3.0, 10.0)
    assert summary.std == pytest.approx(np.std([3, 5, 10], ddof=1))
    assert u.summarise(values[:1]) == u.Summary(3.0, 0.0, 3.0, 3.0)
    assert u.sparsity(values, 24) == pytest.approx(0.75)


@kinds
def test_spread_over_y(kind: Kind) -> None:
    post = make(kind, batch=6)
    spreads, named = u.spread_over_y(post), post.parameters()
    assert spreads.keys() == {f"std_{name}_over_y" for name in named}
    keep = torch.arange(SIZE) < 3
    for name, t in named.items():
        expected = t.double().numpy().std(axis=0, ddof=1)
        assert spreads[f"std_{name}_over_y"] == pytest.approx(expected.mean())
        part = u.spread_over_y(post, keep)[f"std_{name}_over_y"]
        assert part == pytest.approx(expected[:3].mean())
    with pytest.raises(VspairError, match="two"):
        u.spread_over_y(make(kind, batch=1))


# -- perturbation -----------------------------------------------------------------------------


@kinds
@networks
@dtypes
def test_perturb_is_the_mean_of_perturbed_samples(
    kind: Kind, network: str, dtype: torch.dtype, tolerance: float
) -> None:
    post = make(kind, network, dtype)
    dims, factors = [5, 0, 2], (-4.0, 0.0, 1.5)
    x = u.perturb(post, dims, factors, 4, seeded())
    generator = seeded()
    samples = [post.code.rsample(generator) for _ in range(4)]
    assert x.shape == (BATCH, 3, 3, *post.model.x_shape)
    for k, dim in enumerate(dims):
        for f, factor in enumerate(factors):
            scale = torch.ones(SIZE, dtype=dtype)
            scale[dim] += factor
            expected = torch.stack([post.decode(z * scale) for z in samples]).mean(0)
            close(x[:, k, f], expected, tolerance)
    close(x[:, 1, 1], post.mean(4, seeded()), tolerance)


def test_perturb_takes_other_factors_in_each_image() -> None:
    post = make("vsPAIR")
    dims = torch.tensor([[0, 1], [2, 3], [4, 5], [6, 0]])
    x = u.perturb(post, dims, (2.0,), 3, seeded())
    every = u.perturb(post, range(SIZE), (2.0,), 3, seeded())
    for b in range(BATCH):
        close(x[b], every[b, dims[b]], 1e-6)


@kinds
@networks
@dtypes
def test_a_traversal_moves_the_mean_code(
    kind: Kind, network: str, dtype: torch.dtype, tolerance: float
) -> None:
    post = make(kind, network, dtype)
    steps, sigma = (-2.0, 0.0, 1.5), post.parameters()["sigma"]
    dims = torch.tensor([[0, 1], [2, 3], [4, 5], [6, 0]])
    x = u.traversal(post, dims, steps)
    assert x.shape == (BATCH, 2, 3, *post.model.x_shape)
    for b in range(BATCH):
        for k, dim in enumerate(dims[b]):
            for s, step in enumerate(steps):
                z = post.code.mean[b].clone()
                z[dim] += step * sigma[b, dim]
                close(x[b, k, s], post.decode(z), tolerance)
    close(u.traversal(post, [5, 2], steps)[2, 0], x[2, 1], tolerance)


@kinds
@networks
@dtypes
@pytest.mark.parametrize("factor", [1.0, -1.0, 4.0])
def test_squared_changes_are_those_of_full_decodes(
    kind: Kind, network: str, dtype: torch.dtype, tolerance: float, factor: float
) -> None:
    post = make(kind, network, dtype)
    model, pixels = post.model, math.prod(post.model.x_shape)
    weights = torch.full((BATCH, 1, pixels), 1 / pixels, dtype=dtype)
    for z in (post.code.mean, post.code.rsample(seeded())):
        expected = naive(post, z, factor).square().flatten(2).mean(2)
        std = model.x_normaliser.std
        changes = squared_changes(model.x_decoder, std, z, factor * z, weights).squeeze(-1)
        close(changes, expected, tolerance)
        assert (changes[z == 0] == 0).all()
        assert changes.dtype == dtype


@networks
def test_several_moves_are_carried_at_once(network: str) -> None:
    post = make("vsPAIR", network, torch.float64)
    decoder, z = post.model.eval().x_decoder, post.code.mean
    shifts = torch.randn(BATCH, SIZE, 3, dtype=torch.float64) * (torch.rand(BATCH, SIZE, 1) < 0.6)
    seen = torch.zeros(BATCH, SIZE, dtype=torch.bool)
    with torch.no_grad():
        for rows, dims, change in LatentMoves(decoder, chunk=3)(z, shifts):
            seen[rows, dims] = True
            for i, (row, dim) in enumerate(zip(rows, dims, strict=True)):
                moved = z[row].repeat(3, 1)
                moved[:, dim] += shifts[row, dim]
                close(change[i], (decoder(moved) - decoder(z[row : row + 1])).flatten(1), 1e-10)
    assert torch.equal(seen, (shifts != 0).any(-1))


def test_several_perturbations_are_averaged() -> None:
    post, region = make("vPAIR"), EYE
    parts = torch.stack([u.localisation(post, region, f).inside for f in (-2.0, 0.5)])
    close(u.localisation(post, region, (-2.0, 0.5)).inside, parts.mean(0), 1e-6)


# -- localisation -----------------------------------------------------------------------------


@kinds
@networks
@dtypes
@pytest.mark.parametrize("factor", [1.0, -3.0])
def test_localisation_is_that_of_full_decodes(
    kind: Kind, network: str, dtype: torch.dtype, tolerance: float, factor: float
) -> None:
    post = make(kind, network, dtype)
    region = random_region(post)
    z = post.code.rsample(seeded())
    for base, latent in (("mean", post.code.mean), ("sample", z), (z, z)):
        result = u.localisation(post, region, factor, base=base, generator=seeded())  # type: ignore[arg-type]
        inside, outside = naive_localisation(post, latent, region, factor)
        close(result.inside.double(), inside, tolerance)
        close(result.outside.double(), outside, tolerance)
        has, moved = ~result.ratio.isnan(), latent != 0
        assert (has <= moved).all()
        assert has.sum() > 0.9 * moved.sum()
        ratio = (inside / outside)[has]
        torch.testing.assert_close(result.ratio[has].double(), ratio, rtol=500 * tolerance, atol=0)


@networks
@pytest.mark.parametrize("factor", [1.0, 0.05])
def test_lower_precision_is_near_however_small_the_change(network: str, factor: float) -> None:
    post = make("vsPAIR", network)
    region = random_region(post)
    low = u.localisation(post, region, factor, dtype=torch.bfloat16)
    inside, outside = naive_localisation(post, post.code.mean, region, factor)
    assert low.inside.dtype == torch.float32
    total = low.inside.double() + low.outside
    torch.testing.assert_close(total, inside + outside, rtol=0.1, atol=0)
    assert (low.ratio * outside / inside).log().abs().median() < 0.05


@networks
@pytest.mark.parametrize("chunk", [1, 3, 10])
def test_chunks_do_not_matter_and_bound_the_decoder(network: str, chunk: int) -> None:
    post = make("vsPAIR", network)
    region = random_region(post)
    whole = u.localisation(post, region, base="sample", generator=seeded())
    sizes: list[int] = []
    hooks = [
        m.register_forward_pre_hook(lambda _, x: sizes.append(len(x[0])))
        for m in post.model.x_decoder.modules()
    ]
    result = u.localisation(post, region, base="sample", generator=seeded(), chunk=chunk)
    for hook in hooks:
        hook.remove()
    assert max(sizes) <= chunk
    for name in ("inside", "outside"):
        close(getattr(result, name), getattr(whole, name), 1e-5)


class Counting(nn.Module):
    """A decoder that counts the rows it decodes."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder, self.rows = decoder, 0

    def forward(self, z: Tensor) -> Tensor:
        self.rows += len(z)
        return self.decoder(z)


def test_only_what_moves_is_decoded_and_any_decoder_works() -> None:
    post = make("vsPAIR")
    region, z = random_region(post), post.code.rsample(seeded())
    expected = u.localisation(post, region, base=z)
    counting = Counting(post.model.x_decoder)
    post.model.x_decoder = counting
    result = u.localisation(post, region, base=z)
    assert counting.rows == BATCH + int((z != 0).sum())
    close(result.inside, expected.inside, 1e-5)
    counting.rows, mask = 0, torch.rand(BATCH, SIZE) < 0.5
    part = u.localisation(post, region, base=z, dims=mask)
    assert counting.rows == BATCH + int((mask & (z != 0)).sum())
    assert torch.equal(part.inside.isnan(), ~mask)
    close(part.inside[mask], expected.inside[mask], 1e-5)


def test_dims_can_be_given_in_three_ways() -> None:
    post = make("vPAIR")
    region, mask = random_region(post), torch.arange(SIZE) % 3 == 1
    ways: list[Dims] = [[1, 4], torch.tensor([4, 1]), mask, mask.expand(BATCH, SIZE)]
    first, *rest = (u.localisation(post, region, dims=w).ratio for w in ways)
    for ratio in rest:
        torch.testing.assert_close(ratio, first, equal_nan=True)
    assert torch.equal(first.isnan(), ~mask.expand(BATCH, SIZE))


def test_both_kinds_of_decoder_are_taken_apart() -> None:
    sizes = {"vector": (1, 7), "mlp": (1, 10), "conv": (5, 9), "deep": (5, 13), "affine": (5, 5)}
    for name, expected in sizes.items():
        moves = LatentMoves(make("PAIR", name).model.eval().x_decoder)
        assert (moves.cut, len(moves.steps)) == expected
        assert moves.affine == (name == "affine")
    assert LatentMoves(nn.Identity()).cut == 0
    assert LatentMoves(nn.Linear(2, 3)).affine


# -- localisation that is known exactly -------------------------------------------------------


class Blocks(nn.Module):
    """Decodes four latents: three fill a pair of columns each, the last one everything."""

    def forward(self, z: Tensor) -> Tensor:
        blocks = z[:, :3].repeat_interleave(2, dim=1) + z[:, 3:]
        return blocks.unsqueeze(1).expand(len(z), 2, 6)


def blocks(z: list[list[float]]) -> LatentPosterior:
    """Return a posterior over 2 x 6 images, in units in which the decoder's are doubled."""
    config = ModelConfig("PAIR", 4, 2, NetworkConfig("mlp"), NetworkConfig("mlp"))
    model = build(config, (2, 6), (2,))
    model.x_decoder = Blocks()
    model.x_normaliser.std.fill_(2.0)
    return LatentPosterior(model, Point(torch.tensor(z)))


def test_disjoint_blocks_are_localised_exactly() -> None:
    post = blocks([[1.0, 2.0, 3.0, 0.5], [1.0, 0.0, -1.0, 0.0]])
    region = torch.zeros(2, 6, dtype=torch.bool)
    region[:, :3] = True  # the first block and half of the second
    result = u.localisation(post, region, factor=1.0)
    third = 1 / 3
    assert result.inside[0].tolist() == pytest.approx([4 * 2 * third, 16 * third, 0.0, 1.0])
    assert result.outside[0].tolist() == pytest.approx([0.0, 16 * third, 36 * 2 * third, 1.0])
    assert result.ratio[0].tolist() == pytest.approx([math.inf, 1.0, 0.0, 1.0])
    assert result.ratio[1].isnan().tolist() == [False, True, False, True]
    assert result.inside[1].tolist() == pytest.approx([4 * 2 * third, 0.0, 0.0, 0.0])
    best = u.best_localised(result)
    assert best.dim.tolist() == [0, 0]
    best = u.best_localised(result, torch.tensor([[False, True, True, False]] * 2))
    assert best.dim.tolist() == [1, 2]
    assert best.ratio.tolist() == pytest.approx([1.0, 0.0])


def test_the_floor_takes_ratios_from_tiny_changes() -> None:
    post = blocks([[1.0, 1e-2, 0.0, 1e-6]])
    region = torch.arange(6).expand(2, 6) < 2
    assert u.localisation(post, region).ratio.isnan().tolist() == [[False, False, True, True]]
    ratio = u.localisation(post, region, floor=0.0).ratio
    assert ratio.isnan().tolist() == [[False, False, True, False]]
    assert u.localisation(post, region, floor=1e-3).ratio.isnan().sum() == 3


def test_images_without_a_region_or_a_factor_are_excluded() -> None:
    full, part = [1.0, 2.0, 3.0, 0.5], [1.0, 0.0, 3.0, 0.5]
    post = blocks([full, part, part, full])
    region = torch.arange(6).expand(4, 2, 6) < 3
    region = region.clone()
    region[1], region[2] = False, True
    result = u.localisation(post, region)
    for t in (result.inside, result.outside, result.ratio):
        assert t[1:3].isnan().all()
        assert not t[0].isnan().any()
    allowed = torch.tensor([[True] * 4] * 3 + [[False] * 4])
    allowed[0, 0] = False
    best = u.best_localised(result, allowed)
    assert best.dim.tolist() == [1, -1, -1, -1]
    assert best.excluded == 3
    assert best.ratio.isnan().tolist() == best.inside.isnan().tolist() == [False, *[True] * 3]
    summary = best.summary()
    assert summary["median_ratio"] == summary["mean_ratio"] == pytest.approx(1.0)
    assert (summary["images"], summary["excluded"]) == (1.0, 3.0)
    nothing = u.best_localised(result, torch.zeros(4, dtype=torch.bool)).summary()
    assert math.isnan(nothing["median_ratio"])
    assert math.isnan(nothing["mean_inside"])


@kinds
def test_best_localised_is_the_highest_ratio(kind: Kind) -> None:
    post = make(kind, batch=6)
    result = u.localisation(post, random_region(post))
    allowed = torch.rand(6, SIZE) < 0.5
    allowed[:, 0] = True
    best = u.best_localised(result, allowed)
    for b in range(6):
        choice = max(np.flatnonzero(allowed[b]), key=lambda j: float(result.ratio[b, j]))
        assert best.dim[b] == choice
        assert best.ratio[b] == result.ratio[b, choice]
        assert best.inside[b] == result.inside[b, choice]
    summary = best.summary()
    assert summary["median_ratio"] == pytest.approx(float(np.median(best.ratio)))
    assert summary["mean_inside"] == pytest.approx(float(best.inside.mean()))


# -- variance and error -----------------------------------------------------------------------


@networks
def test_variance_ratio(network: str) -> None:
    post = make("vPAIR", network)
    variance, region = post.std(5, seeded()).square(), random_region(post)
    ratio = u.variance_ratio(variance, region)
    expected = [float(v[r].mean() / v[~r].mean()) for v, r in zip(variance, region, strict=True)]
    assert ratio.tolist() == pytest.approx(expected, rel=1e-5)
    same = u.variance_ratio(variance, region[0])
    assert float(same[0]) == pytest.approx(expected[0], rel=1e-5)
    region[1], region[2] = False, True
    assert u.variance_ratio(variance, region).isnan().tolist() == [False, True, True, False]
    assert u.variance_ratio(torch.zeros_like(variance), region).isnan().all()


def test_uncertainty_error_is_least_squares() -> None:
    error = torch.rand(40, generator=seeded())
    variance = 0.1 + 0.3 * error + 0.05 * torch.randn(40, generator=seeded(6))
    fit = u.uncertainty_error(variance, error)
    e, v = error.double().numpy(), variance.double().numpy()
    (slope, intercept), cov = np.polyfit(e, v, 1, cov=True)
    assert (fit.slope, fit.intercept) == pytest.approx((slope, intercept))
    assert fit.r == pytest.approx(np.corrcoef(e, v)[0, 1])
    at = torch.linspace(-1, 2, 7, dtype=torch.float64)
    low, high = fit.band(at)
    design = np.stack((at.numpy(), np.ones(7)))
    half = 2.0243941639 * np.sqrt(np.einsum("ik,ij,jk->k", design, cov, design))
    np.testing.assert_allclose((high - low) / 2, half, rtol=1e-6)
    np.testing.assert_allclose((high + low) / 2, slope * at + intercept, rtol=1e-6)
    wide = fit.band(at, 0.99)
    assert (wide[0] < low).all()
    assert (wide[1] > high).all()


def test_the_band_covers_the_line_as_often_as_it_says() -> None:
    generator, at, hits = seeded(), torch.tensor([0.2, 0.9]), torch.zeros(2)
    for _ in range(600):
        error = torch.rand(6, generator=generator)
        variance = 1 + 2 * error + torch.randn(6, generator=generator)
        low, high = u.uncertainty_error(variance, error).band(at)
        hits += (low < 1 + 2 * at) & (1 + 2 * at < high)
    assert ((hits / 600 - 0.95).abs() < 4 * math.sqrt(0.95 * 0.05 / 600)).all()


@pytest.mark.parametrize(
    ("p", "freedom", "expected"),
    [
        (0.975, 1, 12.706204736174698),
        (0.995, 2, 9.92484320091807),
        (0.95, 5, 2.015048372669157),
        (0.975, 30, 2.0422724563012373),
        (0.975, 498, 1.9647389829672648),
        (0.975, 1e7, 1.9599642),
        (0.025, 30, -2.0422724563012373),
        (0.5, 3, 0.0),
    ],
)
def test_t_quantile(p: float, freedom: float, expected: float) -> None:
    assert u.t_quantile(p, freedom) == pytest.approx(expected, rel=1e-7, abs=1e-12)


# -- side effects -----------------------------------------------------------------------------

ANALYSES: dict[str, Callable[[LatentPosterior, Generator], Any]] = {
    "draw_active": lambda p, g: u.draw_active(p, 3, g),
    "nnz": u.nnz,
    "perturb": lambda p, g: u.perturb(p, [1, 2], (0.0, 2.0), 3, g),
    "traversal": lambda p, g: u.traversal(p, [1, 2], (-1.0, 2.0)),
    "localisation": lambda p, g: (
        u.localisation(p, torch.eye(5, 6, dtype=torch.bool), base="sample", generator=g).inside
    ),
}


@kinds
@pytest.mark.parametrize("analysis", ANALYSES)
def test_modes_weights_and_global_chance_are_left_alone(kind: Kind, analysis: str) -> None:
    post = make(kind)
    reference = ANALYSES[analysis](post, seeded())
    model: InverseModel = post.model.train()
    post = LatentPosterior(model, post.code, noise=True)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    chance = torch.get_rng_state()
    result = ANALYSES[analysis](post, seeded())
    assert torch.equal(result, reference)
    assert not result.requires_grad
    assert all(m.training for m in model.modules())
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), chance)


def test_a_single_observation_is_a_batch_of_one() -> None:
    model = make("vsPAIR").model
    y, region = torch.randn(6), torch.eye(5, 6, dtype=torch.bool)
    one, batch = model.posterior(y), model.posterior(y[None])
    assert torch.equal(u.traversal(one, [0], (1.0,)), u.traversal(batch, [0], (1.0,)))
    ratio = u.localisation(one, region).ratio
    torch.testing.assert_close(ratio, u.localisation(batch, region[None]).ratio, equal_nan=True)
    assert u.perturb(one, [0], (1.0,), 2).shape == (1, 1, 1, 5, 6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@kinds
@networks
def test_a_gpu_agrees(kind: Kind, network: str) -> None:
    post = make(kind, network, torch.float64)
    region = random_region(post)
    expected = u.localisation(post, region)
    code = type(post.code)(*(t.cuda() for t in _parts(post)))
    gpu = LatentPosterior(post.model.cuda(), code)
    result = u.localisation(gpu, region)
    close(result.inside.cpu(), expected.inside, 1e-10)
    generator = Generator("cuda").manual_seed(1)
    assert u.draw_active(gpu, 3, generator).device.type == "cuda"
    assert u.perturb(gpu, [1], (1.0,), 2, generator).device.type == "cuda"
    gpu = LatentPosterior(post.model.float(), code._map(Tensor.float))
    low = u.localisation(gpu, region, dtype=torch.bfloat16).inside.cpu().double()
    # Changes far below the largest are lost in bfloat16.
    atol = 1e-2 * float(expected.inside.max())
    torch.testing.assert_close(low, expected.inside, rtol=0.2, atol=atol)


def _parts(post: LatentPosterior) -> list[Tensor]:
    names = {Point: ("z",), Normal: ("mu", "logvar")}
    sparse = ("mu", "logvar", "log_on", "log_off")
    return [getattr(post.code, n) for n in names.get(type(post.code), sparse)]


# -- mistakes ---------------------------------------------------------------------------------

EYE = torch.eye(5, 6, dtype=torch.bool)
MISTAKES: dict[str, tuple[Callable[[LatentPosterior], Any], str]] = {
    "no samples": (lambda p: u.draw_active(p, 0), "samples"),
    "other samples": (lambda p: u.always_active(u.draw_active(p, 30), 3), "samples"),
    "region shape": (lambda p: u.localisation(p, EYE[:4]), "shape"),
    "region dtype": (lambda p: u.localisation(p, EYE.float()), "dtype"),
    "empty region": (lambda p: u.localisation(p, EYE & False), "empty or full"),
    "full region": (lambda p: u.variance_ratio(p.std(2), EYE | True), "empty or full"),
    "index": (lambda p: u.localisation(p, EYE, dims=[SIZE]), "dims"),
    "negative index": (lambda p: u.perturb(p, [-1], (1.0,)), "dims"),
    "no index": (lambda p: u.perturb(p, [], (1.0,)), "dims"),
    "mask as index": (lambda p: u.perturb(p, torch.ones(SIZE) > 0, (1.0,)), "dims"),
    "float index": (lambda p: u.perturb(p, torch.ones(2), (1.0,)), "dims"),
    "index shape": (lambda p: u.perturb(p, torch.zeros(3, 2).long(), (1.0,)), "shape"),
    "mask shape": (lambda p: u.localisation(p, EYE, dims=torch.ones(3) > 0), "mask"),
    "factor": (lambda p: u.localisation(p, EYE, math.nan), "factor"),
    "no factors": (lambda p: u.perturb(p, [0], ()), "factor"),
    "no draws": (lambda p: u.perturb(p, [0], (1.0,), 0), "samples"),
    "base": (lambda p: u.localisation(p, EYE, base="median"), "base"),  # type: ignore[arg-type]
    "base shape": (lambda p: u.localisation(p, EYE, base=torch.zeros(2, 3)), "base"),
    "chunk": (lambda p: u.localisation(p, EYE, chunk=0), "chunk"),
    "steps": (lambda p: u.traversal(p, [0], (math.inf,)), "factor"),
    "two points": (lambda p: u.uncertainty_error(torch.rand(2), torch.rand(2)), "three"),
    "shapes": (lambda p: u.uncertainty_error(torch.rand(4), torch.rand(5)), "shape"),
    "same errors": (lambda p: u.uncertainty_error(torch.rand(4), torch.ones(4)), "same"),
    "not finite": (lambda p: u.uncertainty_error(torch.rand(4) / 0, torch.rand(4)), "finite"),
    "level": (
        lambda p: u.uncertainty_error(torch.rand(4), torch.rand(4)).band(torch.ones(1), 95),
        "level",
    ),
    "p": (lambda p: u.t_quantile(1.0, 3), "p ="),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(mistake: str) -> None:
    call, message = MISTAKES[mistake]
    post = make("vsPAIR")
    with pytest.raises(VspairError, match=message):
        call(post)


def test_codes_are_summarised_by_counts_that_can_be_seen() -> None:
    """Two observations, four gates that are open or closed for certain."""
    omega = torch.tensor([[1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    mu = torch.tensor([[1.0, 2.0, 3.0, 4.0], [3.0, 2.0, 3.0, 4.0]])
    code = SpikeSlab.of(mu, torch.zeros(2, 4), omega)
    found = u.summarise_codes(LatentPosterior(make("vsPAIR").model, code), seeded())
    assert (found["nnz"], found["active"], found["ever_active"]) == (2, 2, 3)
    assert found["nnz_std"] == pytest.approx(2**0.5)
    assert found["active_share"] == 0.5
    assert found["std_mu_over_y"] == pytest.approx(2**0.5 / 4)
    assert found["std_omega_over_y"] == pytest.approx(2 * 0.5**0.5 / 4)


def test_a_posterior_in_parts_is_that_of_the_whole() -> None:
    model, y = make("vsPAIR").model, torch.randn(7, *make("vsPAIR").model.y_shape)
    whole, parts = model.posterior(y), u.posterior_in_parts(model, y, chunk=3)
    for name, values in whole.parameters().items():
        torch.testing.assert_close(parts.parameters()[name], values)
