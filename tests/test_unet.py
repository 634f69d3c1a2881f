"""The U-Net, and the loop that trains it as a prior and as a regression."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from vspair.errors import VspairError
from vspair.methods.dps import VPSDE, Prior, noise_loss, train_prior
from vspair.methods.regression import Regression, train_regression
from vspair.networks.unet import UNet, _Time
from vspair.runs import read_metrics
from vspair.training.acceleration import Precision
from vspair.training.networks import NetworkTraining, Plan
from vspair.training.side_by_side import train_side_by_side


@pytest.mark.parametrize(("time", "count"), [(True, 32_268_097), (False, 27_934_017)])
def test_the_number_of_parameters(time: bool, count: int) -> None:
    with torch.device("meta"):
        network = UNet(time=time)
    assert sum(p.numel() for p in network.parameters()) == count
    assert not time or abs(count / 32.3e6 - 1) < 0.01


@pytest.mark.parametrize("time", [True, False])
def test_the_network(time: bool) -> None:
    network = UNet(2, 3, widths=(8, 12, 16), time=time)
    t = torch.tensor([0.1, 0.9]) if time else None
    x = torch.randn(2, 2, 9, 14)
    assert torch.equal(network(x, t), torch.zeros(2, 3, 9, 14))
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    network(x, t).square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in network.parameters())
    assert network(x, t)[0].allclose(network(x[:1], t[:1] if t is not None else t), atol=1e-5)
    if t is not None:
        assert not network(x, t).allclose(network(x, t.flip(0)), atol=1e-3)
    with torch.autocast("cpu", torch.bfloat16):
        assert network(x, t).dtype == torch.float32
    with pytest.raises(VspairError, match="t has shape"):
        network(x, None if time else torch.ones(2))
    with pytest.raises(VspairError, match=r"x has shape \(2, 9, 14\)"):
        network(x[:, 0], t)
    with pytest.raises(VspairError, match="at least one width"):
        UNet(widths=())


# -- training -------------------------------------------------------------------------------

TINY: dict[str, Any] = {"widths": (8, 16)}
PLAN = Plan(epochs=4, batch_size=16, learning_rate=3e-3, average=0.5)


def discs(n: int = 40) -> Tensor:
    """Return bright discs at several places, with shape (n, 10, 10)."""
    place = torch.arange(10.0) - 3 - 4 * torch.rand(2, n, 1, generator=Generator().manual_seed(0))
    return 5 + 3 * (place[0][:, :, None] ** 2 + place[1][:, None] ** 2 < 6).float()


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    pairs = zip(a.state_dict().items(), b.state_dict().items(), strict=True)
    return all(k == j and torch.equal(v, w) for (k, v), (j, w) in pairs)


def test_a_prior_is_trained_saved_and_continued(tmp_path: Path) -> None:
    x = discs()
    plan = Plan(epochs=12, batch_size=16, learning_rate=3e-3, average=0.5)
    prior = train_prior(x, plan, folder=tmp_path / "whole", held=x[:20], **TINY)
    log = rows(tmp_path / "whole")
    assert [row["epoch"] for row in log] == list(range(1, 13))
    assert log[-1]["loss"] < 0.6 * log[0]["loss"]
    assert log[-1]["held"] < 0.6 * log[0]["held"]
    assert float(prior.normaliser(x).std(correction=0)) == pytest.approx(1, abs=1e-5)
    assert not prior.training

    loaded = Prior.load(tmp_path / "whole")
    assert same(loaded, prior)
    assert loaded.sde == VPSDE()
    z, t = torch.randn(3, 10, 10), torch.rand(3)
    assert torch.equal(loaded(z, t), prior(z, t))

    part = tmp_path / "part"
    train_prior(x, Plan(5, 16, 3e-3, 0.5), folder=part, **TINY)
    assert same(train_prior(x, plan, folder=part, **TINY), prior)
    assert same(train_prior(x, plan, folder=part, **TINY), prior)
    assert len(rows(part)) == 12
    for words, other, settings in (
        ("plan differ", Plan(12, 8, 3e-3, 0.5), TINY),
        ("settings differ", plan, {"widths": (8, 8)}),
        ("epochs differ", Plan(6, 16, 3e-3, 0.5), TINY),
    ):
        with pytest.raises(VspairError, match=words):
            train_prior(x, other, folder=part, **settings)
    with pytest.raises(VspairError, match="data differ"):
        train_prior(x + 1, plan, folder=part, **TINY)
    with pytest.raises(VspairError, match="holds a Prior: expected a Regression"):
        Regression.load(part)
    (part / "metrics.jsonl").unlink()
    with pytest.raises(VspairError, match=r"lacks lines of metrics\.jsonl"):
        train_prior(x, plan, folder=part, **TINY)


def test_the_best_average_is_kept(tmp_path: Path) -> None:
    """Held-out images are dark discs, which a prior of bright ones unlearns."""
    x, held = discs(), 13 - discs()[:20]
    plan = Plan(6, 16, 0.01, 0.3, keep="best")
    prior = train_prior(x, plan, held=held, folder=tmp_path / "whole", **TINY)
    found = [row["held"] for row in rows(tmp_path / "whole")]
    assert found.index(min(found)) == 2
    generator, z = Generator().manual_seed(0), prior.normaliser(held)
    with torch.no_grad():
        parts = [noise_loss(prior, prior.sde, p, generator) * len(p) for p in z.split(16)]
    assert float(sum(parts)) / 20 == pytest.approx(min(found), rel=1e-5)
    last = train_prior(x, replace(plan, keep="last"), held=held, **TINY)
    assert not same(last, prior)
    for epochs in (4, 6):  # the best is the third
        how = replace(plan, epochs=epochs)
        stopped = train_prior(x, how, held=held, folder=tmp_path / "part", **TINY)
    assert same(stopped, prior)
    with pytest.raises(VspairError, match="give held"):
        train_prior(x, plan, **TINY)


def test_a_training_stops_at_its_deadline_and_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """Each call trains an epoch at least, and says how far it is."""
    x, now = discs(), time.monotonic()
    whole = train_prior(x, PLAN, **TINY)
    for reached in (1, 2):
        prior = train_prior(x, PLAN, folder=tmp_path, deadline=now - 1, **TINY)
        assert prior.epochs == Prior.load(tmp_path).epochs == len(rows(tmp_path)) == reached
    prior = train_prior(x, PLAN, folder=tmp_path, deadline=now + 1000, **TINY)
    assert prior.epochs == whole.epochs == PLAN.epochs
    assert same(prior, whole)
    again = train_prior(x, PLAN, folder=tmp_path, deadline=now - 1, **TINY)
    assert again.epochs == PLAN.epochs
    assert same(again, whole)
    pairs = [train_regression(x, x, PLAN, deadline=d, **TINY) for d in (None, now - 1)]
    assert [model.epochs for model in pairs] == [PLAN.epochs, 1]


def test_no_epoch_begins_that_would_end_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that an epoch takes ten seconds and nothing else takes any."""
    clock, plain = [0.0], NetworkTraining._step

    def step(training: NetworkTraining, batch: Tensor) -> None:
        clock[0] += 10
        plain(training, batch)

    monkeypatch.setattr(NetworkTraining, "_step", step)  # of which an epoch has one
    monkeypatch.setattr("vspair.training.networks.time.monotonic", lambda: clock[0])
    for deadline, done in ((5.0, 1), (25.0, 2), (30.0, 3), (1e3, 4)):
        clock[0] = 0.0
        assert train_prior(discs(16), PLAN, deadline=deadline, **TINY).epochs == done


def noise_training(
    device: str = "cpu", precision: Precision = "float32", **how: Any
) -> NetworkTraining:
    """Return a prior's training on 40 discs, two whole batches and a smaller one an epoch."""
    torch.manual_seed(0)
    prior = Prior((10, 10), **TINY).to(device)
    plan = Plan(3, 16, 3e-3, 0.5, precision=precision)

    def loss(batch: tuple[Tensor, ...], generator: Generator) -> Tensor:
        return noise_loss(prior, prior.sde, batch[0], generator)

    return NetworkTraining(prior, loss, (discs(40),), plan, **how)


def run_two_epochs(training: NetworkTraining) -> list[float]:
    """Train two epochs of three and a step, so that weights and average differ."""
    rows: list[dict[str, Any]] = []
    for _ in training.run_steps(rows):
        if training.state.epoch == 2:
            break
    return [row["loss"] for row in rows]


@pytest.mark.parametrize("stop_after", [1, 3, 4, 8])
def test_a_training_that_is_stopped_between_any_two_steps_goes_on_to_the_same_bits(
    stop_after: int, tmp_path: Path
) -> None:
    """Also side by side with another, by the loop that paired models are trained by."""
    whole, alone = noise_training(), noise_training()
    assert train_side_by_side([whole, alone])
    assert same(whole.model, alone.model)
    stopped = noise_training(folder=tmp_path)
    for _ in zip(range(stop_after), stopped.run_steps([]), strict=False):
        pass
    stopped.save()
    again = noise_training(folder=tmp_path)
    assert again.epochs_done == stop_after / 3
    again.train(show=False)
    assert same(again.model, whole.model)
    assert same(Prior.load(tmp_path), whole.model)
    assert len(rows(tmp_path)) == again.model.epochs == 3


def test_the_average_follows_the_weights_step_by_step() -> None:
    training = noise_training("cpu")
    means, step = [m.clone() for m in training.average.values()], training._step
    decays: list[float] = []

    def watched(batch: Tensor) -> None:
        step(batch)
        k = len(decays)
        decays.append(min(0.5, (1 + k) / (10 + k)))
        for mean, parameter in zip(means, training.parameters, strict=True):
            mean.lerp_(parameter.detach(), 1 - decays[-1])

    training._step = watched  # type: ignore[method-assign]
    run_two_epochs(training)
    assert len(decays) == 7
    assert decays[0] == 0.1 < decays[-1]
    for mean, other in zip(training.average.values(), means, strict=True):
        torch.testing.assert_close(mean, other)


def test_norms_stay_in_bfloat16_and_the_answer_is_near() -> None:
    torch.manual_seed(0)
    network, x, t = UNet(1, 1, (8, 16), time=True), torch.randn(4, 12, 12), torch.rand(4)
    for parameter in network.parameters():  # last layers are zero as they are drawn
        torch.nn.init.normal_(parameter, std=0.1)
    seen: set[torch.dtype] = set()
    for module in network.modules():
        if isinstance(module, torch.nn.GroupNorm):
            module.register_forward_hook(lambda *a: seen.add(a[-1].dtype))
    exact = network(x, t)
    assert seen == {torch.float32}
    seen.clear()
    with torch.autocast("cpu", torch.bfloat16):
        rough = network(x, t)
    assert seen == {torch.bfloat16}
    assert rough.dtype == torch.float32
    assert float((rough - exact).detach().norm() / exact.detach().norm()) < 0.03


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("compile", [False, True])
def test_a_step_captured_on_a_gpu_gives_the_plain_weights(
    precision: Precision, compile: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    plain = noise_training("cuda", precision, capture=False)
    fast = noise_training("cuda", precision, compile=compile)
    start = torch.cat([p.detach().flatten().clone() for p in plain.parameters])
    losses = [run_two_epochs(training) for training in (plain, fast)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3 if precision == "float32" else 1e-2)
    for part in (lambda t: t.parameters, lambda t: t.average.values()):
        a, b = (torch.cat([p.detach().flatten() for p in part(t)]) for t in (plain, fast))
        # Adam turns a rounding in a gradient near zero into a whole step.
        like = torch.nn.functional.cosine_similarity(a - start, b - start, dim=0)
        assert like > (0.999 if precision == "float32" else 0.9)


def test_a_compiled_training_gives_the_plain_weights(tmp_path: Path) -> None:
    x, plan = discs(10), Plan(epochs=2, batch_size=8, learning_rate=1e-3)
    found: list[tuple[Tensor, list[float]]] = []
    for compile in (False, True):
        folder = tmp_path / str(compile)
        prior = train_prior(x, plan, widths=(4,), held=x[:3], folder=folder, compile=compile)
        assert prior.network._compiled_call_impl is None
        rows = read_metrics(folder / "metrics.jsonl")
        losses = [float(row[name]) for row in rows for name in ("loss", "held")]
        found.append((torch.cat([p.detach().flatten() for p in prior.parameters()]), losses))
    assert found[1][1] == pytest.approx(found[0][1], rel=1e-5)
    # Adam turns a rounding in a gradient near zero into a part of a step, of which there are 4.
    torch.testing.assert_close(found[1][0], found[0][0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_features_of_a_time(dtype: torch.dtype) -> None:
    time, t = _Time().to(dtype), torch.tensor([0.0, 0.3, 1.0], dtype=dtype)
    seen: list[Tensor] = []
    time.layers.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    time(t)
    sin, cos = seen[0].chunk(2, 1)
    torch.testing.assert_close(sin.square() + cos.square(), torch.ones(3, 128, dtype=dtype))
    # Frequencies fall from 1000 by equal ratios, to a ten thousandth of it after 128 of them.
    assert float(sin[1, 0]) == pytest.approx(math.sin(300.0), abs=1e-4)
    assert float(cos[2, 64]) == pytest.approx(math.cos(10.0), abs=1e-4)
    assert float(sin[2, 96]) == pytest.approx(math.sin(1.0), abs=1e-4)


def test_seeds_and_the_average() -> None:
    x = discs(16)
    one = Plan(epochs=1, batch_size=16, learning_rate=1e-2, average=0.0)
    state = torch.get_rng_state()
    last = train_prior(x, one, **TINY)
    assert torch.equal(torch.get_rng_state(), state)
    assert same(last, train_prior(x, one, **TINY))
    assert not same(last, train_prior(x, Plan(1, 16, 1e-2, 0.0, seed=1), **TINY))
    torch.manual_seed(0)
    first = Prior((10, 10), **TINY)
    mean = train_prior(x, Plan(1, 16, 1e-2, 0.9), **TINY)
    for a, b, c in zip(first.parameters(), last.parameters(), mean.parameters(), strict=True):
        torch.testing.assert_close(c, 0.1 * a + 0.9 * b)
    with pytest.raises(VspairError, match=r"average = 1\.0"):
        Plan(average=1.0)


def test_regression_cleans_a_first_reconstruction(tmp_path: Path) -> None:
    x = discs()
    noisy = 0.2 * x + 0.3 * torch.randn_like(x)
    model = train_regression(noisy, x, Plan(40, 20, 1e-2, 0.5), folder=tmp_path, **TINY)
    with torch.no_grad():
        error = (model(noisy) - x).square().mean()
    assert error < 0.2 * x.var()
    assert same(Regression.load(tmp_path), model)
    with pytest.raises(VspairError, match="expected the same"):
        train_regression(noisy[:3], x, PLAN, **TINY)
