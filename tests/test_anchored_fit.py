"""Anchored models that were trained: against exact posteriors, resumed, reloaded, refused."""

import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

import vspair
from vspair import config as configs
from vspair.anchored import AnchoredModel
from vspair.anchored_fit import (
    MINUTES,
    doubt_of_fit,
    nominal_seconds,
    plan_epochs,
    planned,
    suggest_kinds,
)
from vspair.codes import SpikeSlab
from vspair.data import Pairs
from vspair.errors import VspairError
from vspair.mixtures import Mixture
from vspair.posterior import LatentPosterior
from vspair.runs import Run, describe, read_tensors, write_tensors
from vspair.training.anchored import AnchoredTraining, _Networks
from vspair.training.doubt import CodeStage, Doubt, undecided_share
from vspair.training.interrupts import Interrupted
from vspair.training.prepared import prepare, tell_domain
from vspair.training.stage import Stage
from vspair.verdict import Verdict

QUIET: dict[str, Any] = {"progress": False, "device": "cpu"}
SHORT: dict[str, Any] = {**QUIET, "epochs": 2}


class Linear:
    """x = A z + small noise, y = B x + noise, and what is exactly known of x given y."""

    def __init__(self, n: int, m: int, rank: int, noise: float = 0.1, seen: float = 0.5) -> None:
        g = Generator().manual_seed(7)
        self.a = torch.randn(n, rank, generator=g)
        self.b = torch.randn(m, n, generator=g) / math.sqrt(n)
        self.noise, self.seen = noise, seen
        prior = self.a @ self.a.T + noise**2 * torch.eye(n)
        joint = self.b @ prior @ self.b.T + seen**2 * torch.eye(m)
        self.gain = torch.linalg.solve(joint, self.b @ prior).T
        self.covariance = prior - self.gain @ self.b @ prior

    def pairs(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        g = Generator().manual_seed(seed)
        (n, rank), m = self.a.shape, len(self.b)
        x = torch.randn(count, rank, generator=g) @ self.a.T
        x = x + self.noise * torch.randn(count, n, generator=g)
        return x, x @ self.b.T + self.seen * torch.randn(count, m, generator=g)


def _fit(*pairs: Tensor, **how: Any) -> AnchoredModel:
    model = vspair.fit(*pairs, **how)
    assert isinstance(model, AnchoredModel)
    return model


def _images(count: int = 60) -> tuple[Tensor, Tensor]:
    """Return blurred squares x (N, 9, 9), and the means y (N, 9) of their columns."""
    g = Generator().manual_seed(0)
    x = torch.nn.functional.avg_pool2d(torch.randn(count, 1, 13, 13, generator=g), 5, 1)[:, 0]
    return 5 * x, 5 * x.mean(1) + 0.1 * torch.randn(count, 9, generator=g)


def _vectors(count: int = 60, seed: int = 0) -> tuple[Tensor, Tensor]:
    return Linear(5, 3, 2).pairs(count, seed)


def _same(a: AnchoredModel, b: AnchoredModel) -> bool:
    mine, other = a.state_dict(), b.state_dict()
    return mine.keys() == other.keys() and all(torch.equal(mine[k], other[k]) for k in mine)


# -- against what is exactly known --------------------------------------------------------------


@pytest.fixture(scope="module")
def linear() -> tuple[Linear, AnchoredModel, tuple[Tensor, Tensor]]:
    """A problem, a model with held-out pairs of its own, and those pairs."""
    problem = Linear(20, 6, 8)
    held = problem.pairs(200, 2)
    model = _fit(*problem.pairs(2000, 0), held=held, active=5, epochs=10, **QUIET)
    return problem, model, held


def test_a_linear_gaussian_problem_is_answered_almost_exactly(
    linear: tuple[Linear, AnchoredModel, tuple[Tensor, Tensor]],
) -> None:
    problem, model, _ = linear
    x, y = problem.pairs(1000, 1)
    post = model.posterior(y)
    exact = float((y @ problem.gain.T - x).square().mean())
    assert float((post.mean() - x).square().mean()) < 1.1 * exact
    found = vspair.evaluate(model, x, y)
    assert 0.85 < found["coverage_90"] < 0.95
    drawn = post.sample(200, Generator().manual_seed(0))
    ratio = float(drawn.var(0).mean()) / float(problem.covariance.diag().mean())
    assert 0.8 < ratio < 1.25


def test_the_number_of_factors_is_a_promise(
    linear: tuple[Linear, AnchoredModel, tuple[Tensor, Tensor]],
) -> None:
    problem, model, (_, y) = linear
    code, fresh = (model.posterior(v).code for v in (y[::2], problem.pairs(1000, 1)[1]))
    assert isinstance(code, SpikeSlab | Mixture)
    assert isinstance(fresh, SpikeSlab | Mixture)
    # Half of them set the threshold: what is missing is less than one gate of 100 answers.
    assert abs(float(code.counts()[0].mean()) - 5) < 1 / 100 + 1e-4
    assert abs(float(fresh.counts()[0].mean()) - 5) < 0.25
    _, present, hedged = code.counts()
    assert 2.5 < float(present.mean()) < 5.01  # each of them is rather present than absent
    assert float(hedged.abs().max()) < 1e-6  # and no other is in doubt
    assert isinstance(model.verdict, Verdict)
    assert abs(model.verdict.active - 5) < 0.25
    assert "MISSES" not in model.verdict.lines[2]


def test_gates_decide_before_undecided_ones_are_closed() -> None:
    problem, said = Linear(20, 6, 8), list[str]()
    train, held = (Pairs(*problem.pairs(n, n)) for n in (1000, 200))
    changes = {"anchored": {"active": 5, "kinds": 64}, "training": {"epochs": 40}}
    c, groups = configs.override(configs.preset("anchored"), changes), torch.arange(1000)
    AnchoredTraining(train, held, c, groups=groups, say=said.append).run(show=False)
    share = re.search(r"undecided gates are ([0-9.e+-]+) %", "\n".join(said))
    assert share
    assert float(share[1]) < 10
    hedging = torch.tensor([[0.9, 0.3, 0.01], [1.0, 0.3, 0.04]])
    assert undecided_share(hedging) == pytest.approx(0.6 / 2.55)


def test_the_verdict_is_of_the_held_out_pairs(
    linear: tuple[Linear, AnchoredModel, tuple[Tensor, Tensor]],
) -> None:
    problem, model, (x, y) = linear
    x, y = x[1::2], y[1::2]  # the others choose
    found = model.verdict
    assert isinstance(found, Verdict)
    scores = vspair.evaluate(model, x, y)
    train_x, _ = problem.pairs(2000, 0)
    assert found.pairs == 100
    assert found.mse == pytest.approx(scores["mse_mean"])
    assert found.coverage == pytest.approx(scores["coverage_90"])
    assert found.share == pytest.approx(scores["share_in_factors"])
    assert found.floor_mean == pytest.approx(
        float((x - train_x.mean(0)).square().mean()), rel=1e-4
    )
    assert found.floor_ridge == pytest.approx(
        float((model.ridge_answer(y) - x).square().mean()), rel=1e-4
    )
    assert found.floor_y is None
    assert found.factors == model.n_factors == 64
    code = model.posterior(y).code
    assert isinstance(code, Mixture)
    ever = {int(j) for j in (code.modes.omega > 0.5).nonzero()[:, 2]}
    assert found.dead == 64 - len(ever)
    assert len(ever) >= 5


def test_residuals_of_few_pairs_are_as_large_as_those_of_fresh_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Far more entries of y than pairs: in-sample residuals would promise too much.

    Held-out pairs would make up for it by a wider grain, so they are not asked here.
    """
    monkeypatch.setattr("vspair.training.doubt.find_sizes", lambda *_: (1.0, 1.0))
    monkeypatch.setattr("vspair.training.doubt.find_width", lambda *_: 1.0)
    g = Generator().manual_seed(0)
    y = torch.randn(1080, 120, generator=g)
    x = y[:, :6] + torch.randn(1080, 6, generator=g)
    settings: dict[str, Any] = {"kinds": 8, "anchor": "ridge", "modes": 1}
    covered = {}
    for honest in (True, False):
        c = configs.override(
            configs.preset("anchored"),
            {"anchored": {**settings, "out_of_fold": honest}, "training": {"epochs": 12}},
        )
        model = _fit(x[:80], y[:80], config=c, **QUIET)
        covered[honest] = vspair.evaluate(model, x[80:], y[80:])["coverage_90"]
    assert covered[True] > 0.82
    assert covered[False] < covered[True] - 0.1


def test_networks_answer_pairs_that_they_have_not_seen() -> None:
    """Residuals of the code are as large as those of fresh pairs, and not of the networks' own."""
    g = Generator().manual_seed(0)
    y = torch.randn(620, 20, generator=g)
    x = y[:, :2].abs() + 0.5 * torch.randn(620, 2, generator=g)
    train, held = Pairs(x[:120], y[:120]), Pairs(x[120:], y[120:])
    changes = {"anchored": {"anchor": "network", "kinds": 8, "width": 8}}
    c = configs.override(
        configs.preset("anchored"), {**changes, "training": {"epochs": 40, "batch_size": 32}}
    )
    groups = torch.arange(120)
    model, data = prepare(train, None, groups, c, lambda _: None)
    training = AnchoredTraining(train, held, c, groups=groups)
    doubt = training._anchor(model, data, False)
    with torch.no_grad():
        for k, network in enumerate(model.networks):
            rows = data.fold == k
            expected = data.residual[rows] - network(data.features[rows])[0]
            torch.testing.assert_close(doubt.residual[rows], model.shrinkage * expected)
            judged = _Networks(model, data, c.training).stage(k, None).rows
            assert not rows[judged].any()
        correction = model.correction(data.features)
    assert correction is not None
    inside = data.residual - correction
    fresh = float(training._held(model).residual.square().mean())
    assert float(inside.square().mean()) < 0.8 * fresh
    assert 0.85 * fresh < float(doubt.residual.square().mean()) < 1.25 * fresh
    assert 0.8 < float(model.shrinkage) < 1  # a mean of networks errs less than each of them


@pytest.mark.parametrize("kind", ["images", "vectors"])
def test_what_the_code_learned_from_can_be_had_again(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others learn from the same residuals; half of the held-out pairs chose, half judged."""
    x, y = _images(80) if kind == "images" else _vectors(80)
    labels, learned = torch.arange(80) // 2, []

    class Noted(CodeStage):
        def __init__(self, model: AnchoredModel, doubt: Doubt, *held: Any) -> None:
            super().__init__(model, doubt, *held)
            learned.append(doubt)

    monkeypatch.setattr("vspair.training.anchored.CodeStage", Noted)
    model = _fit(x, y, groups=labels, seed=3, **SHORT)
    doubt, held = doubt_of_fit(model, Pairs(x, y), labels, seed=3)
    torch.testing.assert_close(doubt.seen, learned[0].seen)
    torch.testing.assert_close(doubt.residual, learned[0].residual)
    assert len(held) + len(doubt.seen) == 80
    with torch.no_grad():
        answer, _ = model.ask(held.y)
    assert torch.equal(answer, model.posterior(held.y).mean())


# -- first guesses ------------------------------------------------------------------------------


def test_guesses_and_a_function_that_makes_them_are_the_same() -> None:
    x, y = _vectors(80)

    def guess(y: Tensor) -> Tensor:
        return torch.cat((y, y[:, :2]), 1)

    given = _fit(x, y, first=guess(y), **SHORT)
    called = _fit(x, y, anchor=guess, **SHORT)
    assert _same(given, called)
    one, other = given.posterior(y[:4], first=guess(y[:4])), called.posterior(y[:4])
    assert torch.equal(one.mean(), other.mean())
    assert torch.equal(*(p.sample(3, Generator().manual_seed(0)) for p in (one, other)))
    single = given.posterior(y[0], first=guess(y[:1])[0])
    torch.testing.assert_close(single.mean(), one.mean()[0])
    listed = given.posterior(y[0].tolist(), first=guess(y[:1])[0].tolist())
    assert torch.equal(listed.mean(), single.mean())
    assert torch.equal(called.posterior(y[0]).mean(), single.mean())


def test_a_guess_that_is_nearly_the_truth_is_the_answer() -> None:
    x, y = _vectors(300)
    g = Generator().manual_seed(1)
    guesses = x + 1e-3 * torch.randn(x.shape, generator=g)
    model = _fit(x[:200], y[:200], first=guesses[:200], **SHORT)
    assert model.made.base == "first"
    answer = model.posterior(y[200:], first=guesses[200:]).mean()
    assert float((answer - x[200:]).square().mean()) < 2e-6
    assert isinstance(model.verdict, Verdict)
    assert model.verdict.floor_first == pytest.approx(1e-6, rel=0.3)


def test_guesses_without_worth_do_not_answer() -> None:
    x, y = _vectors(300)
    noise = 10 * torch.randn(x.shape, generator=Generator().manual_seed(1))
    assert _fit(x, y, first=noise, **SHORT).made.base == "ridge"


def test_first_guesses_at_training_and_at_answers() -> None:
    x, y = _vectors()
    with_guesses, without = _fit(x, y, first=x + 0.5, **SHORT), _fit(x, y, **SHORT)
    with pytest.raises(VspairError, match=r"trained with first guesses: .*shape \(B, 5\)"):
        with_guesses.posterior(y)
    with pytest.raises(VspairError, match=r"trained without: leave them out, or train"):
        without.posterior(y, first=x)
    with pytest.raises(VspairError, match=r"first has shape \(59, 5\): expected \(60, 5\)"):
        with_guesses.posterior(y, first=x[1:])
    with pytest.raises(VspairError, match="only anchored models take first guesses"):
        vspair.evaluate(
            vspair.fit(x, y, preset="calibrated", epochs=1, progress=False), x, y, first=x
        )


def test_held_out_pairs_need_guesses_too() -> None:
    (x, y), (u, v) = _vectors(), _vectors(20, seed=1)
    with pytest.raises(VspairError, match=r"not for held: give held = \(x, y, first\)"):
        vspair.fit(x, y, first=x, held=(u, v), **SHORT)
    model = _fit(x, y, first=x, held=(u, v, u), **SHORT)
    assert isinstance(model.verdict, Verdict)
    assert model.verdict.floor_first == 0


# -- all shapes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["image", "signal", "channels", "y-like-x"])
def test_every_kind_of_unknown_is_answered(kind: str) -> None:
    g = Generator().manual_seed(0)
    x, y = _images(40)
    if kind == "signal":
        x = torch.randn(40, 58, generator=g).unfold(1, 9, 1).sum(2)
        y = x[:, ::10] + 0.1
    if kind == "channels":
        x = torch.stack((x, -x), 1)
    if kind == "y-like-x":
        y = x + torch.randn(x.shape, generator=g)
    model = _fit(x, y, active=3, batch_size=16, **SHORT)
    assert model.made.domain == ("signal" if kind == "signal" else "image")
    assert model.reads_y is (kind == "y-like-x")
    post = model.posterior(y[:3])
    assert post.mean().shape == x[:3].shape
    assert bool(post.sample(4).isfinite().all())
    assert post.sample(4).std(0).min() > 0
    assert post.factors(2).effect.shape == (3, 2, *x.shape[1:])
    split = post.split(8)
    torch.testing.assert_close(split.structural + split.parametric + split.grain, split.total)
    assert post.split(8).total.shape == x[:3].shape


def test_what_x_is_told_by_its_shape_and_its_neighbours() -> None:
    g = Generator().manual_seed(0)
    noise = torch.randn(500, 60, generator=g)
    assert tell_domain(noise, "auto") == "vector"
    assert tell_domain(noise.cumsum(1), "auto") == "signal"
    assert tell_domain(noise.cumsum(1)[:, :40], "auto") == "vector"
    assert tell_domain(noise[:, :1].expand(-1, 60), "auto") == "vector"
    assert tell_domain(noise.reshape(500, 6, 10), "auto") == "image"
    with pytest.raises(VspairError, match=r"domain = 'image', but x has shape \(500, 60\)"):
        tell_domain(noise, "image")


def test_groups_are_held_out_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def note(self: Any, train: Any, held: Any, config: Any, *, groups: Tensor, **_: Any) -> None:
        seen.update(train=train, held=held, groups=groups)
        raise Interrupted

    monkeypatch.setattr("vspair.anchored_fit.AnchoredTraining.__init__", note)
    x, y = _vectors(100)
    labels = [f"patient {i // 5}" for i in range(100)]
    with pytest.raises(Interrupted):
        vspair.fit(x, y, groups=labels, **SHORT)
    rows = {tuple(v): i for i, v in enumerate(x.tolist())}
    patients = [{labels[rows[tuple(v)]] for v in seen[k].x.tolist()} for k in ("train", "held")]
    assert not patients[0] & patients[1]
    assert [len(p) for p in patients] == [18, 2]
    assert seen["groups"].unique().tolist() == list(range(18))
    assert torch.bincount(seen["groups"]).tolist() == [5] * 18


# -- saved, reloaded, resumed -------------------------------------------------------------------


@pytest.mark.parametrize("make", [_vectors, _images], ids=["vectors", "images"])
def test_a_reloaded_model_answers_with_the_same_bits(
    make: Callable[[], tuple[Tensor, Tensor]], tmp_path: Path
) -> None:
    x, y = make()
    model = _fit(x, y, active=2, out=tmp_path / "run", **SHORT)
    names = {file.name for file in (tmp_path / "run").iterdir()}
    assert names == {
        "config.toml", "weights.safetensors", "metrics.jsonl", "verdict.json", "versions.json"
    }  # fmt: skip
    again = vspair.load(tmp_path / "run")
    assert isinstance(again, AnchoredModel)
    assert _same(model, again)
    posts = [m.posterior(y[:5]) for m in (model, again)]
    assert torch.equal(*(p.mean() for p in posts))
    assert torch.equal(*(p.sample(3, Generator().manual_seed(0)) for p in posts))
    assert isinstance(model.verdict, Verdict)
    numbers = {k: v for k, v in model.verdict.as_dict().items() if k != "lines"}
    found = describe(tmp_path / "run")
    assert Run(tmp_path / "run").verdict() == found["verdict"] == numbers
    assert found["model"]["factors"] == model.n_factors
    assert found["model"]["x is"] == model.made.domain
    assert not {"x_size", "rho", "decoder noise"} & set(found["model"])
    assert found["training"]["active asked for"] == 2
    assert found["training"]["epochs"] == "2 in each stage, 16 in all"


@pytest.mark.parametrize("made", [None, {"base": "ridge"}, [1], {"modes": -1}], ids=str)
def test_weights_without_what_the_pairs_decided_are_explained(made: Any, tmp_path: Path) -> None:
    x, y = _vectors()
    _fit(x, y, anchor="ridge", out=tmp_path / "run", **SHORT)
    path = tmp_path / "run" / "weights.safetensors"
    tensors, _ = read_tensors(path)
    write_tensors(path, tensors, {"epoch": 1, "made": made})
    with pytest.raises(VspairError, match=r"weights\.safetensors does not say what the pairs"):
        vspair.load(tmp_path / "run")


STOPS = [("network-1", 1), ("code", 0), ("code", 1), ("grain", 1)]


@pytest.mark.parametrize("make", [_vectors, _images], ids=["vectors", "images"])
def test_a_stopped_training_goes_on_to_the_same_bits(
    make: Callable[[], tuple[Tensor, Tensor]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped again and again, in each kind of stage, in the middle of an epoch."""
    (x, y), out = make(), tmp_path / "run"
    how: dict[str, Any] = {"active": 2, "anchor": "network", "batch_size": 16, **SHORT}
    whole = _fit(x, y, **how)
    monkeypatch.setattr(Stage, "_begin_step", _stopping(STOPS, Stage._begin_step))
    with pytest.raises(KeyboardInterrupt):
        _fit(x, y, out=out, checkpoint_seconds=0.0, **how)
    for _ in STOPS[1:]:
        with pytest.raises(VspairError, match=r"no weights yet.*Continue it with"):
            vspair.load(out)
        with pytest.raises(KeyboardInterrupt):
            _fit(x, y, out=out, resume=True, **QUIET)
    model = _fit(x, y, out=out, resume=True, **QUIET)
    assert _same(whole, model)
    again = vspair.load(out)
    assert isinstance(again, AnchoredModel)
    assert _same(whole, again)
    rows = Run(out).metrics()
    assert [row["epoch"] for row in rows] == [*range(1, len(rows) + 1)]
    # The first network is trained with dropout, or mirrors, and without.
    assert len(rows) == (2 + 4) * 2 + 2 + 2


def _stopping(stops: list[tuple[str, int]], plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a step that is stopped, once each, in named stages and epochs, at their second."""
    left = list(stops)

    def begin(self: Stage) -> Any:
        here = (self.folder.name if self.folder else "", self.state.epoch)
        if here in left and self.state.step == 1:
            left.remove(here)
            raise KeyboardInterrupt
        return plain(self)

    return begin


def test_a_copy_of_a_folder_can_be_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = _vectors()
    how: dict[str, Any] = {"anchor": "ridge", "checkpoint_seconds": 0.0, **SHORT}
    plain = Stage._describe_epoch

    def copying(self: Stage) -> Any:
        here = self.folder == tmp_path / "run" / "stages" / "code"
        if here and self.state.epoch == 1:
            shutil.copytree(tmp_path / "run", tmp_path / "copy")
        return plain(self)

    monkeypatch.setattr(Stage, "_describe_epoch", copying)
    model = _fit(x, y, out=tmp_path / "run", **how)
    assert (tmp_path / "copy" / "stages" / "code").is_dir()
    assert not (tmp_path / "run" / "stages").exists()
    assert _same(model, _fit(x, y, out=tmp_path / "copy", resume=True, **QUIET))


def test_a_finished_run_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = _vectors()
    model = _fit(x, y, anchor="ridge", out=tmp_path / "run", **SHORT)
    monkeypatch.setattr("vspair.anchored_fit.AnchoredTraining", None)
    again = _fit(x, y, out=tmp_path / "run", resume=True, **QUIET)
    assert _same(model, again)
    assert again.verdict == model.verdict
    for change in ({"anchor": "none"}, {"minutes": 3}, {"epochs": 3}, {"active": 1}):
        with pytest.raises(VspairError, match="keeps its configuration: leave out"):
            _fit(x, y, out=tmp_path / "run", resume=True, **change, **QUIET)


def test_other_pairs_groups_or_guesses_do_not_continue_a_run(tmp_path: Path) -> None:
    x, y = _vectors()
    _fit(x, y, first=x + 1, out=tmp_path / "run", anchor="ridge", **SHORT)
    others: list[tuple[Tensor, Tensor, dict[str, Any]]] = [
        (x + 1, y, {"first": x + 1}),
        (x, y, {}),
        (x, y, {"first": x}),
        (x, y, {"first": x + 1, "groups": torch.arange(60) // 2}),
    ]
    for a, b, more in others:
        with pytest.raises(VspairError, match=r"not the pairs that .* was started with"):
            vspair.fit(a, b, out=tmp_path / "run", resume=True, **more, **QUIET)


# -- how long, how many ---------------------------------------------------------------------------


def test_epochs_go_with_the_time_and_not_with_the_machine() -> None:
    x = torch.randn(20_000, 28, 28)
    c = configs.preset("anchored")
    few, some, many = (plan_epochs(c, x, minutes) for minutes in (0.01, 5, 500))
    assert few == 3
    assert few < some < many
    assert plan_epochs(c, torch.randn(100, 3), MINUTES) == 150
    assert plan_epochs(c, torch.randn(100, 3), 10 * MINUTES) == 1500
    assert plan_epochs(c, torch.randn(100, 8, 8), MINUTES) == 40


@pytest.mark.parametrize("minutes", [1.0, 8.0, 60.0])
def test_what_is_planned_takes_the_time_that_was_given(minutes: float) -> None:
    """One pass more would take longer; the extra steps of the code are charged too."""
    c, x = configs.preset("anchored"), torch.randn(20_000, 28, 28)
    config = planned(c, x, minutes)
    epochs = config.training.epochs
    assert nominal_seconds(config, x, epochs) <= 60 * minutes or epochs == 3
    assert nominal_seconds(config, x, epochs + 1) > 60 * minutes


@pytest.mark.parametrize("anchor", ["auto", "none", "ridge", "network"])
@pytest.mark.parametrize("shape", [(20_000, 5), (5000, 300), (20_000, 28, 28)])
def test_every_anchor_takes_time(anchor: str, shape: tuple[int, ...]) -> None:
    c = configs.override(configs.preset("anchored"), {"anchored": {"anchor": anchor}})
    x = torch.randn(shape)
    seconds = [nominal_seconds(planned(c, x, m), x, 10) for m in (1.0, 60.0)]
    assert all(s > 0 for s in seconds)
    without = nominal_seconds(c, x, 10) <= nominal_seconds(configs.preset("anchored"), x, 10)
    assert without
    assert plan_epochs(c, x, 1.0) <= plan_epochs(c, x, 60.0)


def test_long_observations_of_vectors_take_longer() -> None:
    c, x = configs.preset("anchored"), torch.randn(5000, 20)
    short, long = (nominal_seconds(c, x, 10, observed=m) for m in (30, 30_000))
    assert long > 3 * short
    assert plan_epochs(c, x, MINUTES, observed=30_000) < plan_epochs(c, x, MINUTES)


def test_many_pairs_in_little_time_make_fewer_folds() -> None:
    """Networks that see all pairs but a few times are better when there are less of them."""
    c = configs.preset("anchored")
    few, many = (planned(c, torch.randn(n, 28, 28)) for n in (5000, 54_000))
    assert (few.anchored.folds, many.anchored.folds) == (5, 3)
    assert many.training.epochs >= 5
    assert many.anchored.code_epochs < many.training.epochs
    wanted = configs.override(c, {"anchored": {"folds": 4}})
    assert planned(wanted, torch.randn(54_000, 28, 28)).anchored.folds == 4


@pytest.mark.parametrize(
    ("how", "epochs", "code"),
    [({}, 7, 7), ({"epochs": 2}, 2, 2), ({"minutes": 1e-6}, 3, 12)],
    ids=str,
)
def test_epochs_of_a_configuration_are_kept(
    how: dict[str, Any], epochs: int, code: int, tmp_path: Path
) -> None:
    """They are planned anew only where minutes say so; a preset's are always planned.

    Where there are few steps, the code has up to four times as many.
    """
    x, y = _vectors()
    changes = {"anchored": {"anchor": "ridge"}, "training": {"epochs": 7}}
    c = configs.override(configs.preset("anchored"), changes)
    model = _fit(x, y, config=c, out=tmp_path / "run", **how, **QUIET)
    assert Run(tmp_path / "run").config.training.epochs == epochs
    assert sum(row["stage"] == "code" for row in Run(tmp_path / "run").metrics()) == code
    assert model.made.networks == 0


def test_there_are_four_factors_for_each_one_asked_for() -> None:
    assert [suggest_kinds((7,), "vector", k) for k in (0, 5, 7, 10)] == [7, 28, 7, 10]
    assert [suggest_kinds((30,), "vector", k) for k in (0, 10, 100)] == [64, 64, 400]
    assert [suggest_kinds((28, 28), "image", k) for k in (0, 49, 1000)] == [16, 16, 84]
    assert 49 * suggest_kinds((28, 28), "image", 1000) >= 4000
    assert suggest_kinds((65,), "signal", 40) == 16


# -- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"anchor": lambda y: y}, r"first has shape \(60, 3\): expected \(60, 5\).*shape of x"),
        ({"first": np.ones((60, 4))}, r"first has shape \(60, 4\): expected \(60, 5\)"),
        ({"first": np.full((60, 5), np.nan)}, "first holds 300 values that are not finite"),
        ({"anchor": lambda y: y, "first": np.ones((60, 5))}, "give one of them"),
        ({"groups": [1, 2]}, r"groups has shape \(2,\): expected \(60,\)"),
        ({"groups": [0, 1] * 30}, "groups has 2 different labels: expected at least 3"),
        ({"active": -1}, "active = -1: expected the number of factors"),
        ({"kinds": 4, "wanted": 5}, "active = 5, but there are only 4 factors. Ask for fewer"),
        ({"minutes": 0}, "minutes = 0: expected a number above 0"),
        ({"minutes": -2}, "minutes = -2: expected a number above 0"),
        ({"minutes": math.nan}, "minutes = nan: expected a number above 0"),
        ({"minutes": 1, "epochs": 3}, "minutes and epochs both say how long.*give one"),
        ({"learning_rate": 1e-4}, "learning_rate was given, but .*expected epochs.*Leave it out"),
        ({"augment": "shift"}, "augment was given, but the stages of the anchored model"),
        ({"anchor": "Ridge"}, r"anchored\.anchor = 'Ridge'.*'ridge'"),
        *(
            (
                {"preset": "calibrated", name: value},
                f"{name} was given, but vsPAIR is not anchored",
            )
            for name, value in (
                ("first", np.ones((60, 5))),
                ("minutes", 5),
                ("groups", [1] * 60),
                ("anchor", "ridge"),
                ("anchor", lambda y: y),
            )
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_bad_input_is_explained(how: dict[str, Any], message: str, tmp_path: Path) -> None:
    x, y = _vectors()
    own: dict[str, Any] = {k: how[k] for k in ("kinds", "folds") if k in how}
    if own or "wanted" in how:
        own["active"] = how.get("wanted", 0)
        c = configs.override(configs.preset("anchored"), {"anchored": own})
        how = {"config": c, **{k: v for k, v in how.items() if k in ("groups",)}}
    with pytest.raises(VspairError, match=message):
        vspair.fit(x, y, out=tmp_path / "run", **how, **QUIET)
    assert not list(tmp_path.glob("run/weights*"))


@pytest.mark.parametrize("anchor", [3, [1], object()], ids=["number", "list", "object"])
def test_an_anchor_of_another_kind_is_refused(anchor: Any) -> None:
    x, y = torch.randn(40, 2), torch.randn(40, 3)
    with pytest.raises(VspairError, match=r"anchor is a .*: expected auto"):
        vspair.fit(x, y, anchor=anchor, progress=False)


@pytest.mark.parametrize("count", [2, 19])
def test_too_few_pairs_are_explained(count: int) -> None:
    x, y = _vectors()
    message = rf"{count} pairs are too few for 5 folds.*at least 20. Give more"
    with pytest.raises(VspairError, match=message):
        vspair.fit(x[:count], y[:count], **SHORT)


def test_twenty_pairs_are_enough() -> None:
    x, y = _vectors(20)
    post = _fit(x, y, **SHORT).posterior(y)
    assert isinstance(post, LatentPosterior)
    assert bool(post.mean().isfinite().all())


def test_one_group_larger_than_all_others_is_no_obstacle() -> None:
    x, y = _vectors(40)
    groups, held = [0] * 33 + [*range(1, 8)], _vectors(10, seed=1)
    model = _fit(x, y, groups=groups, held=held, **SHORT)
    assert bool(model.posterior(y).mean().isfinite().all())
