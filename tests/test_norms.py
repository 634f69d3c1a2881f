"""Batch norm's averages along the path of an answer."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import vspair
from vspair import config as configs
from vspair.config import Config
from vspair.data import Pairs
from vspair.fitting import split_pairs, start_training
from vspair.model import InverseModel, build
from vspair.runs import read_tensors
from vspair.training.batch_norms import answering_norms, refresh_norms

NETWORK = {"kind": "conv", "width": 4, "depth": 2}
SIZES = {"x_size": 6, "y_size": 5, "x_network": NETWORK, "y_network": NETWORK}


def model_of(kind: str) -> InverseModel:
    c = configs.override(configs.preset("paper"), {"model": SIZES | {"kind": kind}})
    torch.manual_seed(0)
    return build(c.model, (12, 12), (12, 12))


def observations(n: int) -> Tensor:
    return 3 + 2 * torch.randn(n, 12, 12, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", ["PAIR", "vPAIR", "sVAE", "vsPAIR"])
def test_evaluation_then_answers_as_training_did(kind: str) -> None:
    """With one batch that holds everything, its averages are those of that batch."""
    model, y = model_of(kind), observations(64)
    weights = [p.clone() for p in model.parameters()]
    refresh_norms(model, y, batch=64, seed=7)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        model.train()
        noise = torch.Generator().manual_seed(7)
        expected = model.x_decoder(model.latent(y[order]).rsample(noise))
        refresh_norms(model, y, batch=64, seed=7)
        assert not any(m.training for m in model.modules())
        noise = torch.Generator().manual_seed(7)
        found = model.x_decoder(model.latent(y[order]).rsample(noise))
    # Not equal: a batch divides by n, its running variance by n - 1.
    assert (found - expected).abs().mean() < 0.05 * expected.std()
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))


def test_only_the_path_of_an_answer_is_touched() -> None:
    model = model_of("vsPAIR")
    before = {k: v.clone() for k, v in model.named_buffers()}
    refresh_norms(model, observations(40), batch=16)
    changed = {k for k, v in model.named_buffers() if not torch.equal(v, before[k])}
    assert changed
    assert {name.partition(".")[0] for name in changed} == {"y_encoder", "x_decoder"}
    momenta = {m.momentum for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)}
    assert momenta == {0.1}


def test_what_was_kept_before_does_not_count() -> None:
    fresh, used = model_of("vsPAIR"), model_of("vsPAIR")
    with torch.no_grad():
        for _ in range(3):
            used.train().x_decoder(used.latent(9 * observations(20)).mean)
    for model in (fresh, used):
        refresh_norms(model, observations(40), batch=16)
    a, b = dict(fresh.named_buffers()), dict(used.named_buffers())
    assert all(torch.equal(a[k], b[k]) for k in a)


def _config(norms: str) -> Config:
    changes = {"epochs": 2, "batch_size": 16, "norms": norms}
    return configs.override(configs.preset("paper"), {"model": SIZES, "training": changes})


@pytest.mark.parametrize("norms", ["training", "answer"])
def test_image_models_reload_bitwise_with_the_averages_they_were_given(
    norms: str, tmp_path: Path
) -> None:
    y = observations(60)
    model = vspair.fit(0.5 * y, y, config=_config(norms), out=tmp_path / "run", progress=False)
    again = vspair.load(tmp_path / "run")
    first, second = (
        m.posterior(y).sample(2, torch.Generator().manual_seed(5)) for m in (model, again)
    )
    assert torch.equal(first, second)


def test_averages_are_measured_where_they_are_asked_for() -> None:
    y = observations(60)
    kept, measured = (
        vspair.fit(0.5 * y, y, config=_config(norms), progress=False)
        for norms in ("training", "answer")
    )
    assert all(
        torch.equal(a, b) for a, b in zip(kept.parameters(), measured.parameters(), strict=True)
    )
    a, b = (dict(m.named_buffers()) for m in (kept, measured))
    assert any(not torch.equal(a[k], b[k]) for k in a)


def test_averages_are_put_back_after_a_look() -> None:
    model, y = model_of("vsPAIR"), observations(40)
    before = {k: (v.data_ptr(), v.clone()) for k, v in model.named_buffers()}
    with torch.no_grad(), answering_norms(model, y):
        again = model_of("vsPAIR")
        refresh_norms(again, y)
        a, b = dict(model.named_buffers()), dict(again.named_buffers())
        assert all(torch.equal(a[k], b[k]) for k in a)
    for name, value in model.named_buffers():
        place, old = before[name]
        assert value.data_ptr() == place, name
        assert torch.equal(value, old), name


@pytest.mark.parametrize("norms", ["training", "answer"])
def test_epochs_are_compared_by_the_averages_that_will_answer(norms: str) -> None:
    more = {"validation": 0.25, "norms": norms, "epochs": 1}
    c = configs.override(configs.preset("paper"), {"model": SIZES, "training": more})
    pairs = Pairs(observations(64), observations(64).flip(-1))
    trainer = start_training(*split_pairs(pairs, c), c)
    for _ in trainer._epoch(trainer._step):
        pass
    score = trainer.validate()["val_score"]
    refresh_norms(trainer.model, trainer.y)
    refreshed = trainer.validate()["val_score"]
    assert (score == pytest.approx(refreshed, rel=1e-6)) == (norms == "answer")


def test_a_finished_run_keeps_no_moments(tmp_path: Path) -> None:
    more = {"epochs": 1, "norms": "answer", "keep": "best"}
    c = configs.override(configs.preset("paper"), {"model": SIZES, "training": more})
    pairs = Pairs(observations(64), observations(64).flip(-1))
    trainer = start_training(*split_pairs(pairs, c), c, out=tmp_path / "run")
    path = tmp_path / "run" / "checkpoint.safetensors"
    trainer.save()
    for _ in trainer._epoch(trainer._step):
        pass
    trainer.save()
    assert any(name.startswith("adam.") for name in read_tensors(path)[0])
    trainer.train(show=False)
    tensors, _ = read_tensors(path)
    assert not any(name.startswith("adam.") for name in tensors)
    saved, _ = read_tensors(tmp_path / "run" / "weights.safetensors")
    state = trainer.model.state_dict()
    assert all(torch.equal(state[k], v) for k, v in saved.items() if k in state)
