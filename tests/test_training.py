import json
import math
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import vspair
from vspair import config as configs
from vspair.config import Config, TrainingConfig
from vspair.data import Pairs
from vspair.errors import VspairError
from vspair.fitting import (
    resume_training,
    split_pairs,
    start_or_resume_training,
    start_training,
    suggest_settings,
)
from vspair.metrics import sample_moments
from vspair.model import PairedAutoencoder
from vspair.problems.gaussian import GaussianProblem
from vspair.runs import Run
from vspair.studies.gaussian.study import exact_distances
from vspair.training.interrupts import Interrupted
from vspair.training.side_by_side import train_side_by_side
from vspair.training.trainer import Trainer

KINDS = ("PAIR", "vPAIR", "sVAE", "vsPAIR")


def pairs(n: int = 48) -> tuple[Tensor, Tensor]:
    return GaussianProblem.random(0).pairs(n, 2, seed=1)


def config(kind: str = "vsPAIR", preset: Any = "calibrated", **training: Any) -> Config:
    changes = {"epochs": 3, "batch_size": 32} | training
    sizes = {"kind": kind, "x_size": 5, "y_size": 4}
    return configs.override(configs.preset(preset), {"model": sizes, "training": changes})


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("preset", ["paper", "calibrated"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_model_learns_and_reloads_bitwise(kind: str, preset: Any, tmp_path: Path) -> None:
    x, y = pairs()
    model = vspair.fit(x, y, config=config(kind, preset), out=tmp_path / "run", progress=False)
    rows = Run(tmp_path / "run").metrics()
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert rows[-1]["loss"] < rows[0]["loss"]
    again = vspair.load(tmp_path / "run")
    assert same(model.state_dict(), again.state_dict())
    for ask in (model, again):
        ask.posterior(y).sample(2)
    first, second = (
        m.posterior(y).sample(3, torch.Generator().manual_seed(5)) for m in (model, again)
    )
    assert torch.equal(first, second)


def test_the_same_seed_gives_the_same_bits_and_another_does_not() -> None:
    x, y = pairs()
    a, b, c = (
        vspair.fit(x, y, config=config(seed=s), progress=False).state_dict() for s in (1, 1, 2)
    )
    assert same(a, b)
    assert not same(a, c)


def test_the_bar_leaves_standard_output_to_answers(capsys: pytest.CaptureFixture[str]) -> None:
    vspair.fit(*pairs(), config=config(epochs=2), progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "epoch 2/2" in shown.err


def test_training_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    vspair.fit(*pairs(), config=config(epochs=1), progress=False)
    assert torch.equal(torch.get_rng_state(), before)


def test_named_terms_are_logged() -> None:
    model_config = config("vsPAIR")
    x, y = pairs()
    trainer = _trainer(model_config, x, y)
    row = trainer.train(show=False)[-1]
    named = {"loss", "x_fit", "x_prior", "gates", "y_fit", "y_prior", "map", "active", "rho"}
    assert named | {"val_loss", "val_map", "val_score", "width", "rate", "seconds"} <= set(row)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("preset", ["paper", "calibrated"])
def test_logged_terms_add_up_to_the_loss(preset: Any, kind: str) -> None:
    """No term is missing from the log, or hidden behind another number."""
    trainer = _trainer(config(kind, preset), *pairs())
    row = trainer.train(show=False)[-1]
    weights = trainer.objective.weights()
    total = sum(weight * row[name] for name, weight in weights.items() if name in row)
    assert total == pytest.approx(row["loss"], rel=1e-4)


def _trainer(c: Config, x: Tensor, y: Tensor, run: Run | None = None) -> Trainer:
    from vspair.model import build
    from vspair.objective import Objective

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build(c.model, tuple(x.shape[1:]), tuple(y.shape[1:]))
    Objective(c.objective).prepare(model)
    return Trainer(model, c, *split_pairs(Pairs(x, y), c), run)


@pytest.mark.parametrize("stages", ["joint", "two-stage"])
@pytest.mark.parametrize("preset", ["paper", "calibrated", "closed"])
@pytest.mark.parametrize("stop_after", [1, 3, 4, 7])
def test_resume_is_bitwise_the_same(
    stop_after: int, preset: Any, stages: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop between any two steps, also in the middle of an epoch, and continue."""
    x, y = pairs()
    c = config(preset=preset.replace("closed", "calibrated"), stages=stages, keep="best")
    if preset == "closed":  # the width, by the decoder's error
        c = configs.override(c, {"objective": {"width": "closed"}})
    whole = vspair.fit(x, y, config=c, out=tmp_path / "whole", progress=False)
    _interrupt_after(monkeypatch, stop_after)
    with pytest.raises(Interrupted):
        vspair.fit(x, y, config=c, out=tmp_path / "broken", progress=False)
    monkeypatch.undo()
    vspair.load(tmp_path / "broken").posterior(y).sample(1)
    resumed = vspair.fit(x, y, out=tmp_path / "broken", resume=True, progress=False)
    assert same(whole.state_dict(), resumed.state_dict())
    rows, again = (
        [{k: v for k, v in row.items() if k != "seconds"} for row in Run(tmp_path / d).metrics()]
        for d in ("whole", "broken")
    )
    assert rows == again


def _interrupt_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Send this process a Ctrl-C after so many steps."""
    plain, count = Trainer._step, 0

    def step(self: Trainer, *args: Any) -> None:
        nonlocal count
        plain(self, *args)
        count += 1
        if count == steps:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Trainer, "_step", step)


SCRIPT = """
    import sys, torch, vspair
    from vspair import config as configs
    from vspair.problems.gaussian import GaussianProblem
    torch.set_num_threads(1)
    x, y = GaussianProblem.random(0).pairs(64, 4, seed=1)
    changes = {"model": {"x_size": 8, "y_size": 8},
               "training": {"epochs": 40, "checkpoint_seconds": 0.0}}
    c = configs.override(configs.preset("calibrated", 2), changes)
    vspair.fit(x, y, config=c, out=sys.argv[1], progress=False)
"""


def test_resume_after_a_kill_is_bitwise_the_same(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    subprocess.run([sys.executable, script, tmp_path / "whole"], check=True)
    process = subprocess.Popen([sys.executable, script, tmp_path / "killed"])
    while len(Run(tmp_path / "killed").metrics()) < 3 and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it finished before it could be killed"
    x, y = GaussianProblem.random(0).pairs(64, 4, seed=1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    resumed = vspair.fit(x, y, out=tmp_path / "killed", resume=True, progress=False)
    torch.set_num_threads(threads)
    assert same(vspair.load(tmp_path / "whole").state_dict(), resumed.state_dict())


def test_training_works_outside_the_main_thread() -> None:
    found: list[Any] = []
    x, y = pairs()
    work = threading.Thread(
        target=lambda: found.append(vspair.fit(x, y, config=config(epochs=1), progress=False))
    )
    work.start()
    work.join()
    assert found


def test_two_stages_freeze_the_autoencoders() -> None:
    x, y = pairs()
    trainer = _trainer(config(stages="two-stage", epochs=4, first_stage=0.5), x, y)
    model = trainer.model
    assert isinstance(model, PairedAutoencoder)
    seen: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = []
    plain = trainer._describe_epoch

    def row() -> Any:
        state = {k: v.clone() for k, v in model.state_dict().items()}
        maps = {k: v for k, v in state.items() if k.startswith("inverse_map")}
        seen.append((maps, {k: v for k, v in state.items() if k not in maps}))
        return plain()

    trainer._describe_epoch = row  # type: ignore[method-assign]
    rows = trainer.train(show=False)
    assert [r["stage"] for r in rows] == ["autoencoders", "autoencoders", "map", "map"]
    assert same(seen[0][0], seen[1][0])
    assert not same(seen[0][1], seen[1][1])
    assert not same(seen[1][0], seen[2][0])
    assert same(seen[1][1], seen[3][1])


def test_the_second_stage_leaves_batch_norm_alone() -> None:
    network = {"kind": "conv", "width": 4, "depth": 1}
    sizes = {"x_size": 5, "y_size": 4, "x_network": network, "y_network": network}
    training = {"epochs": 2, "stages": "two-stage", "first_stage": 0.5, "batch_size": 16}
    c = configs.override(configs.preset("paper"), {"model": sizes, "training": training})
    x = torch.randn(40, 8, 8)
    trainer = _trainer(c, x, 0.5 * x)
    seen: list[dict[str, Tensor]] = []
    plain = trainer._describe_epoch

    def row() -> Any:
        seen.append({k: v.clone() for k, v in trainer.model.named_buffers()})
        return plain()

    trainer._describe_epoch = row  # type: ignore[method-assign]
    trainer.train(show=False)
    assert any("running" in name for name in seen[0])
    assert same(seen[0], seen[1])


def test_held_out_pairs_are_looked_at_every_so_many_epochs_and_at_the_end() -> None:
    seldom, always = (
        _trainer(config(epochs=5, validate_every=n, keep="last"), *pairs()) for n in (2, 1)
    )
    rows, every = seldom.train(show=False), always.train(show=False)
    assert [r["epoch"] for r in rows if "val_score" in r] == [2, 4, 5]
    for row, other in zip(rows, every, strict=True):
        assert {k: v for k, v in row.items() if k != "seconds"}.items() <= other.items()
    assert same(seldom.model.state_dict(), always.model.state_dict())


def test_patience_begins_anew_with_every_improvement(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([3.0, 4.0, 2.0, 4.0, 1.0, 4.0, 4.0, 4.0])
    monkeypatch.setattr(Trainer, "validate", lambda _: {"val_score": next(scores)})
    trainer = _trainer(config(epochs=8, patience=2), *pairs())
    assert len(trainer.train(show=False)) == 7


@pytest.mark.parametrize(("rate", "validation"), [(1e39, 0.0), (1e30, 0.2)])
def test_what_is_not_a_number_is_never_saved(
    rate: float, validation: float, tmp_path: Path
) -> None:
    """After the last step there is no loss that would tell: weights and validation are asked."""
    c = config(epochs=1, learning_rate=rate, batch_size=512, validation=validation)
    with pytest.raises(vspair.VspairError, match="diverged"):
        vspair.fit(*pairs(), config=c, out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "weights.safetensors").exists()
    assert not (tmp_path / "run" / "metrics.jsonl").read_text()


def test_early_stop_and_best_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([3.0, 1.0, 2.0, 2.0, 2.0, 2.0])
    states: list[dict[str, Tensor]] = []

    def validate(self: Trainer) -> dict[str, float]:
        states.append({k: v.clone() for k, v in self.model.state_dict().items()})
        return {"val_score": next(scores)}

    monkeypatch.setattr(Trainer, "validate", validate)
    x, y = pairs()
    c = config(epochs=6, patience=3, keep="best")
    model = vspair.fit(x, y, config=c, out=tmp_path / "run", progress=False)
    assert len(states) == 5
    assert same(model.state_dict(), states[1])
    assert same(vspair.load(tmp_path / "run").state_dict(), states[1])


def test_annealing_epochs_are_not_compared() -> None:
    x, y = pairs()
    c = configs.override(
        config(epochs=5, keep="best"), {"objective": {"width": "annealed", "anneal": 0.6}}
    )
    trainer = _trainer(c, x, y)
    trainer.train(show=False)
    assert trainer.state.best_epoch >= 3


def test_the_default_learns_and_is_sparse() -> None:
    problem = GaussianProblem.random(0)
    x, y = problem.pairs(512, 4, seed=1)
    model = vspair.fit(x, y, epochs=40, progress=False)
    post = model.posterior(y[:200])
    error = (post.approximate_mean() - problem.posterior_mean(y[:200])).square().mean()
    assert error < 0.1 * x.var()
    assert 2 <= float(post.active().double().sum(-1).mean()) < 12


def test_the_calibrated_posterior_is_near_the_exact_one() -> None:
    """What a user gets who says nothing but the preset and the number of factors."""
    problem = GaussianProblem.random(100)
    x, y = problem.pairs(1024, 4, seed=1)
    model = vspair.fit(x, y, preset="calibrated", active=2, progress=False)
    unseen = problem.observe(100, torch.Generator().manual_seed(2))
    post = model.posterior(unseen.float())
    samples = post.sample(2000, torch.Generator().manual_seed(3)).double()
    found = exact_distances(problem, *sample_moments(samples), unseen)
    assert found["kl_exact"] < 0.08
    assert 0.9 < found["trace_ratio"] < 1.15
    assert abs(float(post.active().double().sum(-1).mean()) - 2) < 0.1


@pytest.mark.parametrize("active", [1, 2])
def test_active_steers_to_the_number_asked_for(active: int) -> None:
    x, y = GaussianProblem.random(0).pairs(256, 4, seed=1)
    changes = {
        "model": {"x_size": 8, "y_size": 8},
        "objective": {"width": "annealed", "width_end": 0.05},
        "training": {"epochs": 60, "learning_rate": 1e-2, "keep": "last"},
    }
    c = configs.override(configs.preset("calibrated", active), changes)
    model = vspair.fit(x, y, config=c, progress=False)
    counts = model.posterior(y[:200]).active().double().sum(-1)
    assert abs(float(counts.mean()) - active) < 0.1


def test_batches_of_one_are_left_out() -> None:
    x, y = torch.randn(65, 9, 9), torch.randn(65, 9, 9)
    c = configs.override(config(validation=0.0, epochs=1), {"training": {"batch_size": 64}})
    assert _trainer(c, x, y).steps == 1


def test_what_was_logged_after_the_checkpoint_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill comes after the last checkpoint, and cuts a line short."""
    x, y = pairs()
    _interrupt_after(monkeypatch, 4)
    with pytest.raises(Interrupted):
        vspair.fit(x, y, config=config(epochs=5), out=tmp_path / "run", progress=False)
    monkeypatch.undo()
    log = tmp_path / "run" / "metrics.jsonl"
    done = len(log.read_text().splitlines())
    with log.open("a") as file:
        file.write(json.dumps({"epoch": done + 1, "loss": 7.0}) + "\n")
        file.write('{"epoch": 99, "lo')
    vspair.fit(x, y, out=tmp_path / "run", resume=True, progress=False)
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4, 5]
    assert 7.0 not in [row["loss"] for row in rows]


@pytest.mark.parametrize(("epochs", "share"), [(2, 0.9), (1, 0.6)])
def test_the_second_stage_is_never_left_out(epochs: int, share: float) -> None:
    trainer = _trainer(config(stages="two-stage", epochs=epochs, first_stage=share), *pairs())
    assert trainer.train(show=False)[-1]["stage"] == "map"


def test_open_gates_are_logged_without_held_out_pairs() -> None:
    assert "active" in _trainer(config(validation=0.0), *pairs()).train(show=False)[-1]


def test_suggested_networks_suit_the_shape() -> None:
    image = suggest_settings((28, 28), (248, 128), active=39)
    assert image["model"]["x_network"] == {"kind": "conv", "width": 16, "depth": 2}
    assert image["model"]["x_size"] >= 4 * 39
    vector = suggest_settings((2,), (4,), pairs=1024)
    assert vector["model"]["x_network"]["kind"] == "mlp"
    assert vector["training"]["epochs"] * 1024 / 64 >= 5000
    configs.override(configs.preset(), image)
    configs.override(configs.preset(), vector)


def test_misuse_is_explained(tmp_path: Path) -> None:
    x, y = pairs()
    with pytest.raises(VspairError, match="only x_size = 64"):
        vspair.fit(x, y, config=configs.preset("calibrated", 65), progress=False)
    for wrong in ({"config": config()}, {"preset": "paper"}):
        with pytest.raises(VspairError, match="active = 3 steers the presets anchored and calib"):
            vspair.fit(x, y, active=3, progress=False, **wrong)
    plain = configs.override(configs.preset("calibrated", 3), {"model": {"kind": "vPAIR"}})
    with pytest.raises(VspairError, match="vPAIR has no gates"):
        vspair.fit(x, y, config=plain, progress=False)
    with pytest.raises(VspairError, match="above 0"):
        vspair.fit(x, y, config=Config(training=TrainingConfig(batch_size=0)), progress=False)
    with pytest.raises(VspairError, match=r"Did you mean training\.epochs"):
        vspair.fit(x, y, epoch=3, progress=False)
    with pytest.raises(VspairError, match="give out = FOLDER"):
        vspair.fit(x, y, resume=True, progress=False)
    with pytest.raises(VspairError, match="not a run folder"):
        vspair.fit(x, y, out=tmp_path / "none", resume=True, progress=False)
    with pytest.raises(VspairError, match="at least 2"):
        vspair.fit(x[:1], y[:1], preset="calibrated", progress=False)
    vspair.fit(x, y, config=config(epochs=1), out=tmp_path / "run", progress=False)
    with pytest.raises(VspairError, match="exists already"):
        vspair.fit(x, y, config=config(epochs=1), out=tmp_path / "run", progress=False)
    with pytest.raises(VspairError, match="keeps its configuration"):
        vspair.fit(x, y, out=tmp_path / "run", resume=True, epochs=9, progress=False)
    with pytest.raises(VspairError, match="not the pairs"):
        vspair.fit(2 * x, y, out=tmp_path / "run", resume=True, progress=False)
    with pytest.raises(VspairError, match="at least 2"):
        vspair.fit(x[:1], y[:1], preset="calibrated", out=tmp_path / "one", progress=False)
    assert not (tmp_path / "one").exists()
    with pytest.raises(VspairError, match="Give the pairs"):
        vspair.fit(x[:, :1], y, out=tmp_path / "run", resume=True, progress=False)


def test_a_full_disk_leaves_the_earlier_state(tmp_path: Path) -> None:
    """The kernel refuses files over a limit, as a full disk would, in a process of its own."""
    script = tmp_path / "full.py"
    script.write_text(
        textwrap.dedent("""
        import resource, signal, sys, torch, vspair
        from pathlib import Path
        from vspair import runs
        torch.manual_seed(0)
        run = runs.Run(sys.argv[1])
        model = run.load()
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))
        with torch.no_grad():
            for p in model.parameters():
                p.add_(1)
        try:
            run.save_weights(model, 9)
        except vspair.VspairError as error:
            sys.stdout.write(str(error))
            sys.exit(7)
    """)
    )
    x, y = pairs()
    model = vspair.fit(x, y, config=config(epochs=1), out=tmp_path / "run", progress=False)
    done = subprocess.run(
        [sys.executable, script, tmp_path / "run"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 7, done.stderr
    assert "Could not write" in done.stdout
    assert "unchanged" in done.stdout
    assert not list((tmp_path / "run").glob(".*part"))
    assert same(vspair.load(tmp_path / "run").state_dict(), model.state_dict())


def test_a_folder_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(VspairError, match="Could not make the folder"):
        vspair.fit(*pairs(), out=tmp_path / "file" / "run", progress=False)


def test_trainings_side_by_side_give_the_same_bits_as_alone(tmp_path: Path) -> None:
    x, y = pairs()
    alone = [vspair.fit(x, y, config=config(seed=s), progress=False) for s in (1, 2)]
    together = [_alike(x, y, s) for s in (1, 2)]
    assert train_side_by_side(together)
    for model, trainer in zip(alone, together, strict=True):
        assert same(model.state_dict(), trainer.model.state_dict())


def test_a_training_that_diverges_stops_no_other() -> None:
    x, y = pairs()
    alone = vspair.fit(x, y, config=config(seed=1), progress=False)
    good, bad = _alike(x, y, 1), _alike(x, y, 2)
    next(bad.model.parameters()).data.fill_(math.nan)
    with pytest.raises(VspairError, match="diverged"):
        train_side_by_side([bad, good])
    assert good.finished
    assert same(alone.state_dict(), good.model.state_dict())


def _alike(x: Tensor, y: Tensor, seed: int, out: Path | None = None) -> Trainer:
    c = config(seed=seed)
    return start_training(*split_pairs(Pairs(x, y), c), c, out=out)


def test_trainings_side_by_side_stop_at_a_deadline_and_continue(tmp_path: Path) -> None:
    x, y = pairs()
    whole = vspair.fit(x, y, config=config(seed=1), progress=False)
    assert not train_side_by_side([_alike(x, y, 1, tmp_path / "run")], deadline=1e-9)
    parts = split_pairs(Pairs(x, y), config(seed=1))
    again = resume_training(*parts, Run(tmp_path / "run"), torch.device("cpu"))
    assert train_side_by_side([again])
    assert same(whole.state_dict(), again.model.state_dict())
    with pytest.raises(VspairError, match="at most 16"):
        train_side_by_side([again] * 17)


def test_a_folder_is_continued_with_its_settings_and_no_others(tmp_path: Path) -> None:
    parts = split_pairs(Pairs(*pairs()), config())
    out, cpu = tmp_path / "run", torch.device("cpu")
    trainer = start_or_resume_training(*parts, config(keep="last"), out, cpu)
    trainer.train(show=False)
    again = start_or_resume_training(
        *parts, config(keep="last", capture=True, compile=True), out, cpu
    )
    assert again.finished
    assert same(again.model.state_dict(), trainer.model.state_dict())
    with pytest.raises(VspairError, match=r"training.epochs is 3 there and 9 here. Name another"):
        start_or_resume_training(*parts, config(keep="last", epochs=9), out, cpu)
    with pytest.raises(VspairError, match=r"model.kind is vsPAIR there and vPAIR here"):
        start_or_resume_training(*parts, config("vPAIR", keep="last"), out, cpu)


def test_held_out_pairs_can_be_given(tmp_path: Path) -> None:
    """They give the bits of the split that would have chosen them, and belong to the run."""
    (x, y), c, out = pairs(), config(keep="best"), tmp_path / "run"
    train, held = split_pairs(Pairs(x, y), c)
    whole = vspair.fit(x, y, config=c, progress=False)
    given: dict[str, Any] = {"held": (held.x.numpy(), held.y.numpy()), "progress": False}
    model = vspair.fit(train.x, train.y, config=c, out=out, **given)
    assert same(whole.state_dict(), model.state_dict())
    again = vspair.fit(train.x, train.y, out=out, resume=True, **given)
    assert same(whole.state_dict(), again.state_dict())
    with pytest.raises(VspairError, match="not the pairs"):
        vspair.fit(train.x, train.y, out=out, resume=True, progress=False, held=(x[:4], y[:4]))
    with pytest.raises(VspairError, match="held x has 3 entries and held y has 4"):
        vspair.fit(x, y, held=(x[:3], y[:4]), progress=False)
    for preset in ("calibrated", "anchored"):
        with pytest.raises(VspairError, match=r"held: x and y have shapes .*expected"):
            vspair.fit(x, y, held=(y, x), preset=preset, progress=False)
