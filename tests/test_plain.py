"""Plain networks, and the training in a budget that they share with other small networks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from vspair.errors import VspairError
from vspair.methods import Ridge
from vspair.methods.plain import Plain, PlainNetwork, train_plain
from vspair.networks.direct import DirectMap
from vspair.problems.gaussian import GaussianProblem
from vspair.training.budget import BudgetTraining, one_cycle, train_in_budget
from vspair.training.held import held_rows
from vspair.training.networks import Plan, Trainable

# -- the network ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "convolves"),
    [
        ((5,), (3,), False),
        ((4, 6), (7,), False),
        ((9, 8), (9, 8), True),
        ((2, 9, 11), (3, 9, 11), True),
        ((9, 8), (2, 9, 8), True),
        ((9, 8), (8, 9), False),
        ((7, 9), (7, 9), False),
    ],
)
def test_the_network_fits_the_shapes(
    a: tuple[int, ...], b: tuple[int, ...], convolves: bool
) -> None:
    network = DirectMap(a, b)
    data = torch.randn(6, *a)
    assert network(data).shape == (6, *b)
    assert any(isinstance(m, nn.Conv2d) for m in network.modules()) == convolves
    torch.testing.assert_close(network(data)[2:3], network(data[2:3]), rtol=1e-4, atol=1e-5)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.1)
    network(data).square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in network.parameters())


@torch.no_grad()
def test_a_brighter_image_is_not_the_same_image() -> None:
    """A norm over the few channels of a small network would hide the contrast."""
    network, x = DirectMap((8, 8), (8, 8)), torch.randn(2, 8, 8)
    change = (network(10 * x) - network(x)).std() / network(x).std()
    assert float(change) > 3


# -- the training -----------------------------------------------------------------------------


class Still(Trainable):
    """A model whose weights the loss does not pull at."""

    def __init__(self) -> None:
        super().__init__({})
        self.network = nn.Linear(2, 1)

    def loss(self, batch: tuple[Tensor, ...], _: Generator) -> Tensor:
        """Return 3, with a gradient of zero."""
        return 3 + 0 * self.network(batch[0]).sum()


def test_the_rate_goes_up_and_down_and_weights_decay_apart_from_the_gradient() -> None:
    """Without a gradient each step of AdamW multiplies by 1 - rate * decay."""
    model = Still()
    weight = next(model.parameters())
    before = weight.detach().clone()
    plan = Plan(epochs=4, batch_size=10, learning_rate=0.5, average=0.0)
    BudgetTraining(model, model.loss, (torch.zeros(50, 2),), plan, decay=0.1).train(False)
    factor = 1.0
    for step in range(20):
        factor *= 1 - 0.5 * one_cycle(step / 20) * 0.1
    torch.testing.assert_close(weight.detach(), factor * before)
    rates = torch.tensor([one_cycle(p / 100) for p in range(101)])
    assert int(rates.argmax()) == 20
    assert bool((rates[:21].diff() > 0).all())
    assert bool((rates[20:].diff() < 0).all())
    assert float(rates[-1]) == pytest.approx(0)


def test_time_ends_a_training_within_an_epoch() -> None:
    model, data = Still(), (torch.zeros(1000, 2),)
    plan = Plan(epochs=9, batch_size=300, average=0.0, keep="best")
    training = BudgetTraining(model, model.loss, data, plan, held=data, seconds=1e-9)
    rows = training.train(False)
    assert (len(rows), model.epochs) == (1, 1)
    assert rows[0]["loss"] == pytest.approx(3)  # of the part that was seen
    start = time.monotonic()
    train_in_budget(model, model.loss, data, seconds=0.5, epochs=None, seed=0)
    assert 0.5 <= time.monotonic() - start < 1.5


def test_passes_end_a_training_before_its_time() -> None:
    """The step size falls to 0 with the passes, as if these had been asked for as epochs."""
    x, y = GaussianProblem.random(0).pairs(60, 1, seed=1)
    start = time.monotonic()
    found = train_plain(x, y, seconds=1000.0, passes=3)
    assert found.network.epochs == 3
    assert time.monotonic() - start < 60
    torch.testing.assert_close(found(y), train_plain(x, y, epochs=3)(y))
    assert train_plain(x, y, seconds=1e-9, passes=3).network.epochs == 1


def test_too_few_pairs_or_no_time_are_refused() -> None:
    x, y = GaussianProblem.random(0).pairs(20, 1, seed=1)
    with pytest.raises(VspairError, match="4 pairs: expected at least 10"):
        train_plain(x[:4], y[:4], passes=1)
    with pytest.raises(VspairError, match=r"seconds = 0.*expected a time above 0"):
        train_plain(x, y, passes=1, seconds=0)


def test_groups_are_held_out_whole() -> None:
    """Pairs of one group choose the epoch: it is the best by those, not by others."""
    x, y = GaussianProblem.random(0).pairs(60, 1, seed=1)
    labels = ["b"] * 6 + ["a"] * 54
    rows = torch.arange(60) < 6
    for how in ({"epochs": 2}, {"passes": 2, "seconds": 1000.0}):
        found = train_plain(x, y, groups=labels, **how)
        assert found.network.epochs == 2
    kept = held_rows(60, 0.1, 0, labels)
    assert torch.equal(kept[1], rows.nonzero().flatten())
    with pytest.raises(VspairError, match="groups has one label"):
        train_plain(x, y, groups=[0] * 60, epochs=1)


def test_the_best_epoch_is_kept() -> None:
    """Labels are noise: the more is learned of them, the worse the held-out ones fare."""
    generator = Generator().manual_seed(0)
    x, y = torch.randn(60, 1, generator=generator), torch.randn(60, 20, generator=generator)
    model = PlainNetwork((1,), (20,))

    def loss(batch: tuple[Tensor, ...], _: Generator) -> Tensor:
        return (model(batch[1]) - batch[0]).square().mean()

    plan = Plan(30, 20, 5e-3, 0.0, "best")
    held = x[40:], y[40:]
    rows = BudgetTraining(model, loss, (x[:40], y[:40]), plan, held=held).train(False)
    found = [row["held"] for row in rows]
    assert min(found) < 0.95 * found[-1]
    assert float(loss(held, generator).detach()) == pytest.approx(min(found), rel=1e-4)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"seconds": 0.0, "epochs": None}, "seconds = 0.0: expected a time above 0"),
        ({"seconds": None, "epochs": None}, "seconds = None"),
        ({"seconds": 60.0, "epochs": 0}, "epochs = 0"),
    ],
)
def test_no_budget_is_refused(how: dict[str, Any], words: str) -> None:
    model = Still()
    with pytest.raises(VspairError, match=words):
        train_in_budget(model, model.loss, (torch.zeros(20, 2),), seed=0, **how)


# -- the method -------------------------------------------------------------------------------


def test_it_learns_the_posterior_mean() -> None:
    problem = GaussianProblem.random(0)
    x, y = problem.pairs(2000, 1, seed=1)
    _, seen = problem.pairs(300, 1, seed=2)
    exact = problem.posterior_mean(seen)
    answer = train_plain(x, y, epochs=12)(seen)
    error = (answer - exact).square().mean() / exact.var()
    assert float(error) < 0.01
    # Data in other units is the same problem.
    scaled = train_plain(1000 * x + 7, y / 50, epochs=12)(seen / 50)
    torch.testing.assert_close((scaled - 7) / 1000, answer, rtol=0, atol=0.05)


def test_it_learns_what_a_line_cannot() -> None:
    generator = Generator().manual_seed(0)
    y = torch.randn(1200, 2, generator=generator)
    x = (y[:, :1] * y[:, 1:]).expand(-1, 3) + torch.tensor([0.0, 1.0, 2.0])
    errors = [
        float((method(y[1000:]) - x[1000:]).square().mean())
        for method in (Ridge(x[:1000], y[:1000]), train_plain(x[:1000], y[:1000], epochs=15))
    ]
    assert errors[0] > 0.5
    assert errors[1] < 0.05


def test_it_sharpens_images() -> None:
    """Discs of either sign, blurred and noisy: a line leaves 1.5 times what the U-Net leaves."""
    generator = Generator().manual_seed(0)
    place = torch.arange(12.0) - 3 - 6 * torch.rand(2, 460, 1, generator=generator)
    inside = place[0][:, :, None] ** 2 + place[1][:, None] ** 2 < 8
    x = torch.randn(460, 1, 1, generator=generator) * inside
    y = F.avg_pool2d(x, 3, stride=1, padding=1)
    y = y + 0.1 * torch.randn(y.shape, generator=generator)
    plain, ridge = train_plain(x[:400], y[:400], epochs=40), Ridge(x[:400], y[:400])
    left = [float((m(y[400:]) - x[400:]).square().mean()) for m in (plain, ridge)]
    assert left[0] < left[1] / 1.5


def test_epochs_make_a_training_that_can_be_had_again() -> None:
    x, y = GaussianProblem.random(0).pairs(60, 1, seed=1)
    first, again, other = (train_plain(x, y, epochs=2, seed=s)(y) for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_bad_input_is_refused() -> None:
    x, y = GaussianProblem.random(0).pairs(60, 1, seed=1)
    with pytest.raises(VspairError, match="9 pairs: expected at least 10"):
        train_plain(x[:9], y[:9])
    plain = train_plain(x, y, epochs=1)
    assert plain.n_parameters == sum(p.numel() for p in plain.network.parameters())
    with pytest.raises(VspairError, match=r"y has shape \(60, 2\): expected.*\(B, 4\)"):
        plain(y[:, :2])


def test_a_plain_network_that_was_stopped_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    x, y, held = torch.randn(48, 3), torch.randn(48, 4), (torch.randn(9, 3), torch.randn(9, 4))
    once = train_plain(x, y, epochs=4, held=held)
    stopped = train_plain(x, y, epochs=4, held=held, folder=tmp_path, deadline=time.monotonic())
    assert stopped.network.epochs == 1
    again = train_plain(x, y, epochs=4, held=held, folder=tmp_path)
    assert again.network.epochs == 4
    torch.testing.assert_close(again(y), once(y), rtol=0, atol=0)
    loaded = Plain(PlainNetwork.load(tmp_path), first=lambda half: 2 * half)
    torch.testing.assert_close(loaded(y / 2), once(y), rtol=0, atol=0)
