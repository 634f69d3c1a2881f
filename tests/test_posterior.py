"""The contract of a posterior, for every model on vectors and images."""

import weakref
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from vspair.codes import Point, SpikeSlab
from vspair.config import ModelConfig
from vspair.errors import VspairError
from vspair.model import InverseModel, build
from vspair.networks import NetworkConfig
from vspair.posterior import LatentPosterior
from vspair.posterior import latent as module

Kind = Literal["PAIR", "vPAIR", "sVAE", "vsPAIR"]
KINDS: tuple[Kind, ...] = ("PAIR", "vPAIR", "sVAE", "vsPAIR")
SHAPES = {"vectors": ((3,), (4,)), "images": ((5, 6), (2, 4, 4))}

kinds = pytest.mark.parametrize("kind", KINDS)
spreading = pytest.mark.parametrize("kind", KINDS[1:])
shapes = pytest.mark.parametrize("shape", SHAPES)
noises = pytest.mark.parametrize("noise", [False, True], ids=["clean", "noisy"])


def make(kind: Kind, shape: str = "vectors") -> tuple[InverseModel, Tensor]:
    """Return a small model in evaluation mode, and three observations in their own units."""
    network = NetworkConfig(width=4)
    x_shape, y_shape = SHAPES[shape]
    model = build(ModelConfig(kind, 6, 5, network, network), x_shape, y_shape)
    model.x_normaliser.fit(5 + 3 * torch.randn(50, *x_shape), "feature")
    model.y_normaliser.fit(-2 + 7 * torch.randn(50, *y_shape), "feature")
    with torch.no_grad():
        model.log_width.fill_(-1.0)
    return model.eval(), -2 + 7 * torch.randn(3, *y_shape)


def seeded(seed: int = 5) -> Generator:
    return Generator().manual_seed(seed)


# -- samples and their summaries --------------------------------------------------------------


@spreading
@shapes
@noises
def test_shapes_of_batches_and_single_observations(kind: Kind, shape: str, noise: bool) -> None:
    model, y = make(kind, shape)
    for given, lead in ((y, (3,)), (y[0], ()), (y[:1], (1,))):
        post = model.posterior(given, noise=noise)
        assert post.sample(4).shape == (4, *lead, *model.x_shape)
        images = (post.mean(4), post.std(4), *post.interval(0.5, 4), post.approximate_mean())
        assert [t.shape for t in images] == [(*lead, *model.x_shape)] * 5
        assert [t.dtype for t in images] == [torch.float32] * 5
        latents = (post.active(), *post.parameters().values())
        assert [t.shape for t in latents] == [(*lead, 6)] * len(latents)
        assert len(post) == (len(given) if lead else 1)
        assert repr(post).startswith(f"Posterior({len(post)} observations")


@kinds
@shapes
def test_a_single_observation_is_a_batch_of_one(kind: Kind, shape: str) -> None:
    model, y = make(kind, shape)
    one, batch = model.posterior(y[1]), model.posterior(y[1:2])
    assert torch.equal(one.sample(5, seeded()), batch.sample(5, seeded())[:, 0])
    assert torch.equal(one.approximate_mean(), batch.approximate_mean()[0])
    torch.testing.assert_close(one.approximate_mean(), model.posterior(y).approximate_mean()[1])


@spreading
@shapes
@noises
@pytest.mark.parametrize("n", [1, 2, 23])
def test_moments_are_those_of_the_samples(kind: Kind, shape: str, noise: bool, n: int) -> None:
    model, y = make(kind, shape)
    post = model.posterior(y, noise=noise)
    x = post.sample(n, seeded()).double()
    mean, std = post.moments(n, seeded())
    expected = x.std(0) if n > 1 else torch.zeros_like(x[0])
    torch.testing.assert_close(mean.double(), x.mean(0), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(std.double(), expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(post.mean(n, seeded()), mean)
    assert torch.equal(post.std(n, seeded()), std)


@spreading
@noises
def test_results_do_not_depend_on_chunk(kind: Kind, noise: bool) -> None:
    model, y = make(kind, "images")
    code = model.posterior(y).code
    whole = LatentPosterior(model, code, noise=noise)
    for chunk in (1, 4, 7):
        post = LatentPosterior(model, code, noise=noise, chunk=chunk)
        for name in ("sample", "mean", "std"):
            got, expected = (getattr(p, name)(11, seeded()) for p in (post, whole))
            torch.testing.assert_close(got, expected)


@spreading
@shapes
@noises
@pytest.mark.parametrize(("level", "n"), [(0.9, 21), (0.5, 40), (0.8, 1)])
def test_interval_holds_the_quantiles(
    kind: Kind, shape: str, noise: bool, level: float, n: int
) -> None:
    model, y = make(kind, shape)
    post = model.posterior(y, noise=noise)
    seed = int(torch.randint(2**62, (), generator=seeded()))  # the samples can be drawn again
    x = post.sample(n, seeded(seed)).double().numpy()
    tails = [(1 - level) / 2, (1 + level) / 2]
    expected = torch.from_numpy(np.quantile(x, tails, axis=0, method="weibull"))
    low, high = post.interval(level, n, seeded())
    torch.testing.assert_close(torch.stack((low, high)).double(), expected, rtol=1e-5, atol=1e-5)


@spreading
@noises
@pytest.mark.parametrize("block", [1, 200, 700])
def test_interval_does_not_depend_on_blocks(
    kind: Kind, noise: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, y = make(kind, "images")
    post = model.posterior(y, noise=noise)
    expected = post.interval(0.8, 20, seeded())
    monkeypatch.setattr(module, "_BLOCK", block)
    torch.testing.assert_close(post.interval(0.8, 20, seeded()), expected)


def test_samples_differ_between_draws_and_observations() -> None:
    model, y = make("vsPAIR")
    x = model.posterior(y[[0, 0]]).sample(2)
    assert len({tuple(t.tolist()) for t in x.flatten(0, 1)}) > 2


# -- memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["moments", "interval"])
@pytest.mark.parametrize("chunk", [1, 6])
def test_few_decoded_images_are_alive_at_once(
    what: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, y = make("vsPAIR", "images")
    plain, alive, most = LatentPosterior.decode, 0, 0

    def forget(images: int) -> None:
        nonlocal alive
        alive -= images

    def decode(self: LatentPosterior, z: Tensor) -> Tensor:
        """Decode into memory that reports when it is freed."""
        nonlocal alive, most
        memory = plain(self, z).numpy().copy()
        images = z.shape[:-1].numel()
        weakref.finalize(memory, forget, images)
        alive += images
        most = max(most, alive)
        return torch.from_numpy(memory)

    monkeypatch.setattr(LatentPosterior, "decode", decode)
    monkeypatch.setattr(module, "_BLOCK", 200 * 10)  # room for ten pixels of 200 samples
    post = LatentPosterior(model, model.posterior(y[:1]).code, chunk=chunk)
    post.moments(200) if what == "moments" else post.interval(n=200)
    assert most <= 2 * chunk
    assert alive == 0


@pytest.mark.parametrize("chunk", [1, 5])
def test_chunk_bounds_the_decoder(chunk: int) -> None:
    model, y = make("vsPAIR")
    sizes: list[int] = []
    handle = model.x_decoder.register_forward_pre_hook(lambda _, z: sizes.append(len(z[0])))
    post = LatentPosterior(model, model.posterior(y).code, chunk=chunk)
    post.sample(8), post.moments(8), post.interval(n=8), post.approximate_mean()
    handle.remove()
    assert max(sizes) <= chunk
    assert sum(sizes) == 3 * (8 + 8 + 8 + 1)


# -- what the numbers mean --------------------------------------------------------------------


@kinds
@shapes
def test_approximate_mean_is_the_decoded_mean_code(kind: Kind, shape: str) -> None:
    model, y = make(kind, shape)
    with torch.no_grad():
        code = model.latent((y - model.y_normaliser.mean) / model.y_normaliser.std)
        z = code.omega * code.mu if isinstance(code, SpikeSlab) else code.mean
        x = model.x_decoder(z) * model.x_normaliser.std + model.x_normaliser.mean
    post = model.posterior(y)
    torch.testing.assert_close(post.approximate_mean(), x)
    if isinstance(code, Point):
        torch.testing.assert_close(post.sample(2)[1], x)


@kinds
def test_noise_adds_its_variance(kind: Kind) -> None:
    model, y = make(kind)
    n = 2000
    clean, noisy = (model.posterior(y, noise=v).sample(n).double() for v in (False, True))
    added = (model.noise_std.detach() * model.x_normaliser.std).double() ** 2
    squares = [(x - x.mean(0)).square() for x in (clean, noisy)]
    error = sum(s.var(0) / n for s in squares) ** 0.5
    difference = squares[1].mean(0) - squares[0].mean(0)
    assert ((difference - added).abs() < 5 * error).all()
    shift = (noisy.mean(0) - clean.mean(0)).abs()
    assert (shift < 5 * (sum(s.mean(0) for s in squares) / n) ** 0.5 + 1e-5).all()


@kinds
def test_active_and_parameters(kind: Kind) -> None:
    model, y = make(kind)
    post = model.posterior(y)
    named = post.parameters()
    slab = post.code.slab if isinstance(post.code, SpikeSlab) else post.code
    torch.testing.assert_close(named["mu"], slab.mean)
    torch.testing.assert_close(named["sigma"].square(), slab.variance)
    if not isinstance(post.code, SpikeSlab):
        assert named.keys() == {"mu", "sigma"}
        assert post.active().all()
        return
    assert named.keys() == {"mu", "sigma", "omega"}
    omega, middle = post.code.omega, float(named["omega"].median())
    for threshold in (0.5, middle):
        assert torch.equal(post.active(threshold), omega > threshold)
    assert 0 < post.active(middle).sum() < omega.numel()


# -- side effects -----------------------------------------------------------------------------


@spreading
@noises
def test_a_generator_is_all_the_chance_there_is(kind: Kind, noise: bool) -> None:
    model, y = make(kind)
    before = torch.get_rng_state()
    post = model.posterior(y, noise=noise)
    post.sample(3, seeded()), post.moments(3, seeded()), post.interval(n=3, generator=seeded())
    post.approximate_mean(), post.active()
    assert torch.equal(torch.get_rng_state(), before)


@spreading
@pytest.mark.parametrize("frozen", [False, True], ids=["plain", "part-frozen"])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_modes_and_weights_are_left_alone(kind: Kind, training: bool, frozen: bool) -> None:
    model, y = make(kind, "images")
    reference = model.posterior(y).sample(3, seeded())
    model.train(training)
    if frozen:
        model.x_decoder.train(not training)
    modes = [m.training for m in model.modules()]
    state = {k: v.clone() for k, v in model.state_dict().items()}
    post = model.posterior(y)
    x = post.sample(3, seeded())
    post.interval(n=3)
    assert torch.equal(x, reference)  # evaluation mode, whatever mode the model is in
    assert not x.requires_grad
    assert not post.code.mean.requires_grad
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())


# -- what may be given ------------------------------------------------------------------------


@shapes
def test_arrays_tensors_and_lists_are_the_same(shape: str) -> None:
    model, y = make("vPAIR", shape)
    expected = model.posterior(y).approximate_mean()
    for given in (
        y.numpy(),
        y.double(),
        y.numpy().astype(np.float64),
        y.requires_grad_(),
        y.tolist(),
        list(y.detach()),
    ):
        torch.testing.assert_close(model.posterior(given).approximate_mean(), expected)
    one = model.posterior(y[0].tolist())
    torch.testing.assert_close(one.approximate_mean(), expected[0])


def test_half_precision_observations_are_accepted() -> None:
    model, y = make("vPAIR")
    for dtype in (torch.bfloat16, torch.half):
        expected = model.posterior(y.to(dtype).float()).approximate_mean()
        torch.testing.assert_close(model.posterior(y.to(dtype)).approximate_mean(), expected)
        one = model.posterior(y[0].to(dtype)).approximate_mean()
        torch.testing.assert_close(one, expected[0])


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (torch.zeros(5), "shape"),
        (torch.zeros(2, 5), "shape"),
        (torch.zeros(2, 2, 4), "shape"),
        (torch.zeros(()), "shape"),
        (torch.zeros(0, 4), "empty"),
        (torch.tensor([0.0, 1.0, np.nan, 2.0]), "not finite"),
        (torch.tensor([[0.0, 1.0, np.inf, 2.0]]), "not finite"),
        (np.array([0.0, 1.0, 2.0, 1e300]), "finite"),
        (torch.zeros(4, dtype=torch.complex64), "dtype"),
        (np.array(["a", "b", "c", "d"]), "dtype"),
        (["a", "b", "c", "d"], "dtype"),
        ([[1.0, 2.0], [3.0]], "y is ragged.*shape"),
        (torch.zeros(2, 4).to_sparse(), "y is a sparse tensor.*to_dense"),
        (None, "y"),
    ],
    ids=str,
)
def test_wrong_observations_are_refused(y: Any, message: str) -> None:
    model, _ = make("vsPAIR")
    with pytest.raises(VspairError, match=message):
        model.posterior(y)


@pytest.mark.parametrize("n", [0, -1])
@pytest.mark.parametrize("method", ["sample", "mean", "std", "moments", "interval"])
def test_fewer_than_one_sample_is_refused(method: str, n: int) -> None:
    model, y = make("vsPAIR")
    with pytest.raises(VspairError, match="n ="):
        getattr(model.posterior(y), method)(n=n)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 90, float("nan")])
def test_a_level_is_a_probability(level: float) -> None:
    model, y = make("vsPAIR")
    with pytest.raises(VspairError, match="level"):
        model.posterior(y).interval(level)
