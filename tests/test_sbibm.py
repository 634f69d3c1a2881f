"""Tasks of simulation-based inference against moments and likelihoods written down by hand."""

import bz2
import math
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor

from vspair.datasets.sbibm import find_sbibm, load_reference
from vspair.errors import VspairError
from vspair.metrics import c2st
from vspair.problems.sbibm import TASKS, Task

every = pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))
MANY = 400_000


def at(task: str, x: list[float]) -> Tensor:
    """Simulate many data of one x, with shape (MANY, y_size)."""
    many = torch.tensor(x, dtype=torch.float64).expand(MANY, -1)
    return TASKS[task].simulate(many, Generator().manual_seed(0))


# -- simulators -----------------------------------------------------------------------------


@every
def test_pairs_are_uniform_parameters_with_their_data(task: Task) -> None:
    pairs = task.pairs(20_000, Generator().manual_seed(1))
    assert pairs.shapes == ((task.x_size,), (task.y_size,))
    assert pairs.x.dtype == pairs.y.dtype == torch.float32
    assert pairs.x.abs().max() <= task.bound
    assert task.inside(pairs.x).all()
    assert not task.inside(pairs.x + 2 * task.bound).any()
    assert pairs.x.mean(0).abs().max() < 0.03 * task.bound
    assert pairs.x.var(0).numpy() == pytest.approx(task.bound**2 / 3, rel=0.04)
    again = task.pairs(20_000, Generator().manual_seed(1))
    assert torch.equal(again.x, pairs.x)
    assert torch.equal(again.y, pairs.y)
    assert not torch.equal(task.pairs(20_000, Generator().manual_seed(2)).y, pairs.y)


@pytest.mark.parametrize("x", [[0.3, 0.6], [-0.3, -0.6], [0.5, -0.9]])
def test_moments_of_two_moons(x: list[float]) -> None:
    y = at("two_moons", x)
    centre = 0.25 + 0.1 * 2 / math.pi - abs(x[0] + x[1]) / math.sqrt(2)
    assert y.mean(0).tolist() == pytest.approx([centre, (x[1] - x[0]) / math.sqrt(2)], abs=1e-3)
    square = 0.1**2 + 0.01**2  # of the radius
    spread = [square / 2 - (0.2 / math.pi) ** 2, square / 2]
    assert y.var(0).tolist() == pytest.approx(spread, rel=0.01)


def test_moments_of_the_mixture() -> None:
    noise = at("gaussian_mixture", [3.0, -7.0]) - torch.tensor([3.0, -7.0])
    assert noise.mean(0).abs().max() < 0.01
    assert noise.var(0).tolist() == pytest.approx([0.505, 0.505], rel=0.01)
    assert (noise**4).mean(0).tolist() == pytest.approx([1.50015] * 2, rel=0.03)
    # Both entries have the deviation in common, and data of one batch have not.
    assert float(noise.square().prod(1).mean()) == pytest.approx(0.50005, rel=0.03)


def test_moments_of_linear_uniform() -> None:
    x = torch.linspace(-1, 1, 10).tolist()
    y = at("linear_uniform", x)
    assert y.mean(0).tolist() == pytest.approx(x, abs=3e-3)
    assert torch.allclose(torch.cov(y.T), 0.1 * torch.eye(10).double(), atol=2e-3)


def test_moments_of_slcp() -> None:
    y = at("slcp", [1.0, -2.0, 1.2, -0.8, 0.5]).reshape(MANY, 4, 2)
    covariance = math.tanh(0.5) * 1.44 * 0.64
    one = torch.tensor([[1.44**2, covariance], [covariance, 0.64**2]], dtype=torch.float64)
    assert torch.allclose(y.mean(0), torch.tensor([1.0, -2.0]).double(), atol=0.01)
    assert torch.allclose(torch.cov(y.flatten(1).T), torch.block_diag(*[one] * 4), atol=0.02)


# -- posteriors -----------------------------------------------------------------------------


def two_moons(x: Tensor, y: Tensor) -> Tensor:
    """Return the log-likelihood: the radius is normal, its direction even on a half circle."""
    move = torch.stack([-(x[:, 0] + x[:, 1]).abs(), x[:, 1] - x[:, 0]], 1) / math.sqrt(2)
    p = y - move - torch.tensor([0.25, 0.0])
    radius = p.norm(dim=1)
    log = -((radius - 0.1) ** 2) / (2 * 0.01**2) - radius.log()
    return torch.where(p[:, 0] > 0, log, -math.inf)


def mixture(x: Tensor, y: Tensor) -> Tensor:
    square = (x - y).square().sum(1)
    return torch.logaddexp(-square / 2, -square / (2 * 0.01) - 2 * math.log(0.1))


def slcp(x: Tensor, y: Tensor) -> Tensor:
    root = torch.zeros(len(x), 2, 2, dtype=x.dtype)
    s, t, r = x[:, 2] ** 2, x[:, 3] ** 2, x[:, 4].tanh()
    root[:, 0, 0], root[:, 1, 0], root[:, 1, 1] = s, r * t, t * (1 - r * r).sqrt()
    normal = torch.distributions.MultivariateNormal(x[:, :2], scale_tril=root)
    return torch.stack([normal.log_prob(point) for point in y.reshape(4, 2)]).sum(0)


@pytest.mark.parametrize(
    ("name", "likelihood", "x"),
    [
        ("two_moons", two_moons, [0.2, 0.3]),
        ("two_moons", two_moons, [-0.9, 0.95]),
        ("gaussian_mixture", mixture, [9.3, 1.0]),
        ("slcp", slcp, [0.5, -1.0, 1.6, -1.9, 0.7]),
        ("slcp", slcp, [2.9, 2.0, 2.0, 1.4, -1.5]),
    ],
)
def test_samples_are_those_of_the_likelihood(
    name: str, likelihood: Callable[[Tensor, Tensor], Tensor], x: list[float]
) -> None:
    """Weigh draws of the prior by the likelihood, and compare moments."""
    task, generator = TASKS[name], Generator().manual_seed(3)
    y = task.simulate(torch.tensor([x], dtype=torch.float64), generator)[0]
    samples = task.sample_posterior(y, 20_000, generator).double()
    assert task.inside(samples).all()
    prior = task.prior(1_000_000, generator)
    weights = likelihood(prior, y).softmax(0)
    size = float(1 / weights.square().sum())
    assert size > 300
    for moment in (lambda t: t, torch.square, torch.abs, lambda t: t * t.roll(1, 1)):
        found, drawn = moment(samples), moment(prior)
        expected = weights @ drawn
        error = (weights @ (drawn - expected).square() * (1 / size + 1 / 20_000)).sqrt()
        assert ((found.mean(0) - expected).abs() < 4.5 * error).all()


def test_the_posterior_of_linear_uniform_is_a_truncated_normal() -> None:
    """Compare mean and variance of every entry with their closed form."""
    y = torch.linspace(-1.3, 1.3, 10, dtype=torch.float64)
    samples = TASKS["linear_uniform"].sample_posterior(y, 100_000, Generator().manual_seed(0))
    normal, scale = torch.distributions.Normal(0.0, 1.0), math.sqrt(0.1)
    low, high = (-1 - y) / scale, (1 - y) / scale
    mass = normal.cdf(high) - normal.cdf(low)
    a, b = normal.log_prob(low).exp(), normal.log_prob(high).exp()
    mean = y + scale * (a - b) / mass
    variance = 0.1 * (1 + (low * a - high * b) / mass - ((a - b) / mass) ** 2)
    assert torch.allclose(samples.double().mean(0), mean, atol=4e-3)
    assert torch.allclose(samples.double().var(0), variance, rtol=0.02)
    off_diagonal = torch.corrcoef(samples.T) - torch.eye(10)
    assert off_diagonal.abs().max() < 0.015


@every
def test_truths_have_even_ranks_among_posterior_samples(task: Task) -> None:
    """Check simulator and posterior against each other (simulation-based calibration)."""
    generator, few = Generator().manual_seed(4), 9
    pairs = task.pairs(100, generator)
    posterior = torch.stack([task.sample_posterior(y, few, generator) for y in pairs.y])
    for values in (lambda t: t, torch.abs):
        rank = (values(posterior) < values(pairs.x)[:, None]).double().sum(1)  # 0 to few
        centred = rank - few / 2
        spread = ((few + 1) ** 2 - 1) / 12
        fourth = torch.arange(few + 1.0).sub(few / 2).pow(4).mean()
        assert (centred.mean(0).abs() < 4 * math.sqrt(spread / 100)).all()
        error = math.sqrt((float(fourth) - spread**2) / 100)
        assert ((centred.square().mean(0) - spread).abs() < 4 * error).all()


def test_data_that_no_parameters_explain_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vspair.problems.sbibm._ROUNDS", 2)
    far, generator = torch.full((2,), 40.0), Generator()
    with pytest.raises(VspairError, match=r"Of 200,000 candidates .* 0 were accepted and 5 are"):
        TASKS["gaussian_mixture"].sample_posterior(far, 5, generator)
    with pytest.raises(VspairError, match=r"y has shape \(1, 2\): expected one datum"):
        TASKS["gaussian_mixture"].sample_posterior(far[None], 5, generator)


# -- the benchmark's files ------------------------------------------------------------------


def table(values: Tensor) -> bytes:
    head = ",".join(f"column_{i}" for i in range(values.shape[1]))
    lines = [",".join(f"{v:.6f}" for v in row) for row in values.tolist()]
    return "\n".join([head, *lines, ""]).encode()


def contents(task: Task) -> dict[str, bytes]:
    """Return small files of the same form as the benchmark's."""
    files = {}
    for i in range(10):
        folder = f"sbibm/tasks/{task.published}/files/num_observation_{i + 1}"
        files[f"{folder}/observation.csv"] = table(torch.full((1, task.y_size), float(i)))
        samples = i + torch.arange(3.0)[:, None] / 4 + torch.zeros(3, task.x_size)
        packed = bz2.compress(table(samples))
        files[f"{folder}/reference_posterior_samples.csv.bz2"] = packed
    return files


def wheel(path: Path, files: dict[str, bytes]) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


NAME = "sbibm-1.1.0-py2.py3-none-any.whl"


@pytest.mark.parametrize("place", ["wheel", "folder", "below", "unpacked", "environment"])
def test_reference_samples_are_read(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = TASKS["slcp"]
    named: Path | None = tmp_path
    if place == "unpacked":
        for name, content in contents(task).items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(content)
    else:
        path = wheel(tmp_path / ("sbibm" if place == "below" else "") / NAME, contents(task))
        named = path if place == "wheel" else tmp_path
    if place == "environment":
        monkeypatch.setenv("VSPAIR_DATA", str(tmp_path))
        named = None
    source = find_sbibm(named)
    assert source is not None
    reference = load_reference(source, task)
    assert torch.equal(reference.y, torch.arange(10.0)[:, None].expand(10, 8))
    assert reference.samples.shape == (10, 3, 5)
    assert torch.equal(reference.samples[7, :, 4], torch.tensor([7.0, 7.25, 7.5]))


def test_nothing_is_read_where_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VSPAIR_DATA", raising=False)
    assert find_sbibm() is None


def test_an_empty_folder_is_explained(tmp_path: Path) -> None:
    with pytest.raises(VspairError, match=r"There is no sbibm-.*pip download sbibm --no-deps"):
        find_sbibm(tmp_path)


FIRST = "sbibm/tasks/slcp/files/num_observation_1"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("observation.csv", table(torch.zeros(1, 3)), r"shape \(1, 3\): expected .* 8 columns"),
        ("observation.csv", b"a,b\nx,y\n", "cannot be read"),
        ("observation.csv", table(torch.full((1, 8), math.nan)), "expected finite numbers"),
        ("reference_posterior_samples.csv.bz2", b"no archive", "cannot be read"),
        (
            "reference_posterior_samples.csv.bz2",
            bz2.compress(table(torch.zeros(2, 5))),
            r"\[2, 3\] reference samples",
        ),
        ("observation.csv", None, "cannot be read"),
    ],
)
def test_damaged_files_are_named(
    file: str, content: bytes | None, message: str, tmp_path: Path
) -> None:
    task = TASKS["slcp"]
    files = contents(task)
    if content is None:
        del files[f"{FIRST}/{file}"]
    else:
        files[f"{FIRST}/{file}"] = content
    path = wheel(tmp_path / NAME, files)
    with pytest.raises(VspairError, match=message) as caught:
        load_reference(path, task)
    assert "pip download sbibm" in str(caught.value)


def test_a_file_that_is_no_wheel_is_named(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"no archive")
    with pytest.raises(VspairError, match="cannot be read: File is not a zip file"):
        load_reference(tmp_path / NAME, TASKS["slcp"])


def _at_hand() -> bool:
    folder = os.environ.get("VSPAIR_DATA")
    return bool(folder) and any(Path(folder or "").glob("sbibm-*.whl"))


@pytest.mark.skipif(not _at_hand(), reason="VSPAIR_DATA names no folder with the wheel of sbibm")
@every
def test_exact_samples_are_those_of_the_benchmark(task: Task) -> None:
    source = find_sbibm()
    assert source is not None
    reference = load_reference(source, task)
    assert reference.samples.shape == (10, 10_000, task.x_size)
    assert task.inside(reference.samples).all()
    generator = Generator().manual_seed(0)
    own = torch.stack([task.sample_posterior(y, 10_000, generator) for y in reference.y])
    deviation = reference.samples.std(1)
    assert ((own.mean(1) - reference.samples.mean(1)) / deviation).abs().max() < 0.07
    assert (own.std(1) / deviation).log().abs().max() < 0.07
    assert c2st(reference.samples[:2, :400], own[:2, :400]).mean() == pytest.approx(0.5, abs=0.06)
