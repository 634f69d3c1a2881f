"""What the defaults of the anchored model do about y itself, networks, copies and widths."""

from itertools import pairwise

import pytest
import torch
from torch import Generator, Tensor, nn

import vspair
from vspair import config as configs
from vspair.anchored import DROPOUT, AnchoredModel, ask_first
from vspair.anchored_fit import AnchoredFit, _same_pairs, nominal_seconds
from vspair.anchors.folds import hold_out
from vspair.config import preset
from vspair.data import Pairs
from vspair.training.anchored import AnchoredTraining, hold_tenth
from vspair.training.doubt import CodeStage, Doubt, find_knee
from vspair.training.prepared import prepare, tell_domain
from vspair.verdict import Verdict

QUIET = {"progress": False, "device": "cpu", "epochs": 12}


@pytest.fixture
def no_waves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave curved relations to networks."""
    monkeypatch.setattr("vspair.training.prepared.MOST_CURVED", 0)


def test_ridge_starts_from_y_where_that_is_nearer_than_the_mean() -> None:
    g = Generator().manual_seed(0)
    x = torch.randn(60, 40, generator=g)
    y = x + 0.3 * torch.randn(60, 40, generator=g)
    model = vspair.fit(x, y, anchor="ridge", **QUIET)  # type: ignore[arg-type]
    assert isinstance(model, AnchoredModel)
    assert model.made.ridge == "toward-y"
    fresh = torch.randn(500, 40, generator=g)
    seen = fresh + 0.3 * torch.randn(500, 40, generator=g)
    error = (model.posterior(seen).mean() - fresh).square().mean()
    assert float(error) < 1.05 * float((seen - fresh).square().mean())


def test_networks_that_do_not_help_are_left_out(no_waves: None) -> None:
    g = Generator().manual_seed(0)
    y = torch.randn(300, 5, generator=g)
    x = y @ torch.randn(5, 3, generator=g) + torch.randn(300, 3, generator=g)
    linear = vspair.fit(x, y, **QUIET)  # type: ignore[arg-type]
    curved = vspair.fit(torch.cat((x, 3 * y[:, :1] ** 2), 1), y, **QUIET)  # type: ignore[arg-type]
    assert isinstance(linear, AnchoredModel)
    assert isinstance(curved, AnchoredModel)
    assert linear.made.networks == 0
    assert curved.made.networks == 5
    assert 0.5 < float(curved.trust) <= 1


def test_deviations_follow_each_entry_without_widening(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries of unequal noise: an average over them would hide what is wrong with each."""
    monkeypatch.setattr("vspair.training.doubt.find_sizes", lambda *_: (1.0, 1.0))
    monkeypatch.setattr("vspair.training.doubt.find_width", lambda *_: 1.0)
    g, std = Generator().manual_seed(0), torch.tensor([1.0, 0.5, 0.25, 0.12])
    y = torch.randn(2400, 4, generator=g)
    x = y + std * torch.randn(2400, 4, generator=g)
    model = vspair.fit(x[:1400], y[:1400], anchor="ridge", **QUIET)  # type: ignore[arg-type]
    found = model.posterior(y[1400:]).std(400, Generator().manual_seed(0)).mean(0)
    assert (found / std).tolist() == pytest.approx([1.0] * 4, rel=0.25)


def test_the_same_pairs_are_one_group() -> None:
    x = torch.tensor([[1.0], [2.0], [1.0], [1.0]])
    y = torch.tensor([[5.0], [5.0], [5.0], [6.0]])
    assert _same_pairs(Pairs(x, y)).tolist() == [0, 1, 2, 3]  # y = 5 has two answers: draws
    x[1] = 1.0
    assert _same_pairs(Pairs(x, y)).tolist() == [0, 0, 0, 1]


def test_draws_of_few_values_are_not_taken_for_copies() -> None:
    """Held out with all its like, no pair would be answered by what is known of its y."""
    g = Generator().manual_seed(0)
    y = torch.randint(5, (600, 1), generator=g).float()
    x = (torch.rand(600, 1, generator=g) < (y + 1) / 7).float()
    model = vspair.fit(x, y, anchor="ridge", **QUIET)  # type: ignore[arg-type]
    assert isinstance(model.verdict, Verdict)
    assert model.verdict.groups == model.verdict.pairs == 30
    exact = float(((y + 1) / 7 * (1 - (y + 1) / 7)).mean())
    assert model.verdict.mse == pytest.approx(exact, rel=0.25)


def test_an_entry_in_a_small_unit_is_learned_as_well() -> None:
    g = Generator().manual_seed(0)
    y = torch.randn(800, 4, generator=g)
    x = y[:, :3] + 0.4 * torch.randn(800, 3, generator=g)
    x[:, 2] *= 1e-4
    model = vspair.fit(x[:600], y[:600], anchor="ridge", **QUIET)  # type: ignore[arg-type]
    post = model.posterior(y[600:])
    error = (post.mean() - x[600:]).square().mean(0).sqrt()
    std = post.std(200, Generator().manual_seed(0)).mean(0)
    unit = torch.tensor([1.0, 1.0, 1e-4])
    assert (error / unit).tolist() == pytest.approx([0.4] * 3, rel=0.2)
    assert (std / unit).tolist() == pytest.approx([0.4] * 3, rel=0.25)


def test_a_rare_entry_in_a_large_unit_does_not_rule_the_others() -> None:
    g = Generator().manual_seed(0)
    y = torch.randn(600, 4, generator=g)
    x = y + 0.3 * torch.randn(600, 4, generator=g)
    x[:, 3] = 1000 * (y[:, 3] > 1.5)
    model = vspair.fit(x[:500], y[:500], anchor="ridge", **QUIET)  # type: ignore[arg-type]
    post = model.posterior(y[500:])
    std = post.std(200, Generator().manual_seed(0)).mean(0)
    assert std[:3].tolist() == pytest.approx([0.3] * 3, rel=0.3)


@pytest.mark.parametrize("seed", range(4))
def test_held_out_groups_are_never_most_of_the_pairs(seed: int) -> None:
    groups = torch.tensor([0] * 90 + [1] * 5 + [2] * 5)
    held = hold_out(groups, 0.1, seed)
    assert not held[groups == 0].any()
    assert held.sum() in (5, 10)
    held = hold_out(groups, 0.1, seed, kept=2)
    assert held.sum() == 5  # one of two small groups is left
    assert hold_out(torch.arange(50), 0.1, seed).sum() == 5


def test_three_groups_of_unlike_size_can_be_fitted() -> None:
    y = torch.randn(100, 3, generator=Generator().manual_seed(0))
    labels = ["many"] * 90 + ["few"] * 5 + ["others"] * 5
    model = vspair.fit(y, y, groups=labels, anchor="ridge", epochs=1, out=None, progress=False)
    assert isinstance(model.verdict, Verdict)
    assert model.verdict.pairs == 5


def test_whole_groups_judge_epochs() -> None:
    groups = torch.arange(20).repeat_interleave(10)
    held = hold_tenth(groups[50:], 0)
    assert held.sum() == 20
    assert all(len(held[groups[50:] == g].unique()) == 1 for g in range(5, 20))
    for few in (2, 3, 4):
        held = hold_tenth(torch.arange(few).repeat_interleave(60 // few), 0)
        assert held.sum() == 6  # from everywhere, as a group would be too much


def test_held_out_groups_choose_or_judge() -> None:
    x = torch.randn(1000, 2, generator=Generator().manual_seed(0))
    groups = torch.arange(100).repeat_interleave(10)
    parts = AnchoredFit(preset("anchored"), Pairs(x, x), None, groups, "auto", None, ())
    chooses, judges = (parts.held_groups[parts._half(k)].unique() for k in (0, 1))
    assert sorted([*chooses.tolist(), *judges.tolist()]) == list(range(10))
    # Of few held-out groups, half of the pairs do both: one of them may be of another kind.
    parts = AnchoredFit(preset("anchored"), Pairs(x, x), None, groups // 5, "auto", None, ())
    chooses, judges = (parts.held_groups[parts._half(k)] for k in (0, 1))
    assert chooses.bincount().tolist() == judges.bincount().tolist() == [25, 25]


@pytest.mark.parametrize(("sources", "whole"), [(12, 2), (13, 0)])
def test_of_few_groups_networks_of_all_of_them_answer(sources: int, whole: int) -> None:
    """Those without a fold say what is left in doubt, and miss what only that fold shows."""
    g = Generator().manual_seed(0)
    y = torch.randn(260, 4, generator=g)
    x = y[:, :2] * y[:, 2:] + 0.1 * torch.randn(260, 2, generator=g)
    c = configs.override(preset("anchored"), {"training": {"epochs": 20}})
    c = configs.override(c, {"anchored": {"anchor": "network", "folds": 3}})
    pairs, groups = Pairs(x, y), torch.arange(260) % sources
    training = AnchoredTraining(pairs, pairs, c, groups=groups)
    model, data = prepare(pairs, None, groups, c, lambda _: None)
    assert (model.made.networks, model.made.whole) == (3, whole)
    doubt = training._anchor(model, data, False)
    assert len(model.answering) == (whole or 3)
    with torch.no_grad():
        said = torch.stack([net(data.features)[0] for net in model.answering]).mean(0)
        torch.testing.assert_close(model.correction(data.features), said)
        fresh = model.networks[0](data.features[data.fold == 0])[0]
    left = (data.residual[data.fold == 0] - fresh) * model.shrinkage
    torch.testing.assert_close(doubt.residual[data.fold == 0], left)


def test_time_is_planned_with_networks_of_few_groups() -> None:
    x = torch.randn(1000, 32, 32)
    known = [nominal_seconds(preset("anchored"), x, 10, groups=n) for n in (12, 13)]
    assert known[0] - known[1] == pytest.approx(1000 * 10 * 2 * 0.5e-6 * 32 * 32)


def test_an_odd_held_out_group_does_not_choose_the_number_of_factors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is learned from is believed more, the fewer groups are held out."""
    pairs = Pairs(torch.randn(400, 60), torch.randn(400, 3))
    c = configs.override(preset("anchored"), {"anchored": {"kinds": 120, "anchor": "none"}})
    model, data = prepare(pairs, None, torch.arange(400), c, lambda _: None)
    doubt = Doubt(data.features, data.residual)
    odd = doubt.take(torch.arange(50))

    def explained(_: CodeStage, of: Doubt, budget: float) -> float:
        return min(budget / 40, 1.0) if of is odd else 1 - 0.5**budget

    monkeypatch.setattr(CodeStage, "explained", explained)
    few, many = (CodeStage(model, doubt, odd, groups).knee() for groups in (1, 1000))
    assert few < 10
    assert 25 < many < 60


def test_a_users_anchor_is_asked_for_a_few_at_a_time() -> None:
    asked: list[tuple[int, bool]] = []

    def guess(y: Tensor) -> Tensor:
        asked.append((len(y), torch.is_grad_enabled()))
        return 2 * y

    y = torch.arange(600.0).reshape(600, 1).requires_grad_()
    assert torch.equal(ask_first(guess, y), 2 * y)
    assert asked == [(256, False), (256, False), (88, False)]


def test_entries_that_never_change_do_not_make_a_signal() -> None:
    g = Generator().manual_seed(0)
    x = torch.randn(1000, 64, generator=g)
    for constant in (0.1, -0.4242, 1e4):
        x[:, 5:10] = constant
        assert tell_domain(x, "auto") == "vector"
    waves = torch.randn(1000, 90, generator=g).cumsum(1) - 3 * torch.randn(1000, 1, generator=g)
    smooth = (waves[:, 10:] - waves[:, :-10]).repeat(1, 1)
    assert tell_domain(smooth, "auto") == "signal"
    smooth[:, 20:22] = 0.1
    assert tell_domain(smooth, "auto") == "signal"


def test_a_channel_in_a_small_unit_is_answered_as_well_as_others() -> None:
    g = Generator().manual_seed(0)
    x = torch.randn(300, 2, 8, 8, generator=g)
    y = x + 0.3 * torch.randn(300, 2, 8, 8, generator=g)
    unit = torch.tensor([1.0, 1e-4]).view(2, 1, 1)
    errors, said = [], list[list[str]]()
    for scale, shift in ((1.0, 0.0), (unit, 1000 * unit)):
        said.append([])
        pairs = Pairs(x * scale + shift, y * scale + shift)
        c = preset("anchored")
        model, data = prepare(pairs, None, torch.arange(300), c, said[-1].append)
        residual = data.residual * model.x_normaliser.std / scale
        errors.append(residual.double().square().mean((0, 2, 3)))
    torch.testing.assert_close(errors[0], errors[1], rtol=0.02, atol=0)
    assert said[0] == said[1]  # shares of the variance, about the means of entries


def test_a_curve_that_falls_has_its_knee_at_the_start() -> None:
    assert find_knee([1, 2, 3, 4], [0, -0.1, -0.3, -0.2]) == 1
    rising = [1 - 0.5**k for k in range(1, 9)]
    assert all(a < b for a, b in pairwise(rising))
    assert find_knee(range(1, 9), rising) in (2, 3)


def test_dropout_is_for_noisy_pairs_alone(no_waves: None) -> None:
    """A smooth relation would be blurred by it; many noisy numbers would be learned by heart."""
    g = Generator().manual_seed(0)
    y = torch.randn(1500, 3, generator=g)
    smooth = torch.stack((y[:, 0] * y[:, 1], y[:, 2].square()), 1)
    said: dict[str, list[str]] = {"smooth": [], "noisy": []}
    many = torch.randn(300, 60, generator=g)
    noisy = many[:, :1] * many[:, 1:2] + 0.3 * torch.randn(300, 8, generator=g)
    for name, pairs in {"smooth": Pairs(smooth, y), "noisy": Pairs(noisy, many)}.items():
        c = configs.override(configs.preset("anchored"), {"training": {"epochs": 25}})
        groups = torch.arange(len(pairs))
        training = AnchoredTraining(pairs, pairs, c, groups=groups, say=said[name].append)
        model, data = prepare(pairs, None, groups, c, lambda _: None)
        networks = list(model.networks)  # those of the noisy pairs are left out in the end
        training._anchor(model, data, False)
        shares = {m.p for net in networks for m in net.modules() if isinstance(m, nn.Dropout)}
        assert shares == {0.0 if name == "smooth" else DROPOUT}
    assert "networks: without dropout, by the first fold" in said["smooth"]
    assert "networks: with dropout, by the first fold" in said["noisy"]


def test_networks_read_y_where_it_lies_on_the_grid_of_x() -> None:
    """Colours from a mosaic: y has other channels than x, and the same pixels."""
    g = Generator().manual_seed(0)
    x = torch.rand(60, 3, 8, 8, generator=g)
    y = x[:, :1].clone()
    model = vspair.fit(x, y, anchor="network", **(QUIET | {"epochs": 1}))  # type: ignore[arg-type]
    assert isinstance(model, AnchoredModel)
    assert model.n_features == 3 * model.made.penalties + 1
    _, seen = model.answer(model.normalise_y(y[:4]), None)
    read = seen[:, model.n_features - 1] * model.feature_std[-1] + model.feature_mean[-1]
    torch.testing.assert_close(read, model.normalise_y(y[:4])[:, 0])
    far = vspair.fit(x, y[..., :4], anchor="network", **(QUIET | {"epochs": 1}))  # type: ignore[arg-type]
    assert isinstance(far, AnchoredModel)
    assert not far.reads_y
