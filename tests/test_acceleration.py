"""Every accelerated path against plain float32, on the CPU and on a GPU where there is one."""

from typing import Any

import pytest
import torch
from torch import Tensor

from vspair import config as configs
from vspair.config import Config
from vspair.data import Pairs
from vspair.fitting import split_pairs, start_training
from vspair.training.acceleration import precision, products
from vspair.training.trainer import Trainer

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
devices = pytest.mark.parametrize("device", DEVICES)
# torch's compiler looks at the gradients of tensors that have none, and warns of it itself
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


def config(kind: str, preset: Any = "calibrated", **training: Any) -> Config:
    network = {"kind": "conv", "width": 8, "depth": 2}
    sizes = {"kind": kind, "x_size": 12, "y_size": 6, "x_network": network, "y_network": network}
    changes = {"epochs": 2, "batch_size": 16, "validation": 0.0, "keep": "last"} | training
    return configs.override(configs.preset(preset), {"model": sizes, "training": changes})


def trainer(c: Config, device: str) -> Trainer:
    x = torch.randn(40, 12, 12, generator=torch.Generator().manual_seed(0))
    parts = split_pairs(Pairs(x, x + 0.3 * x.flip(-1)), c)
    return start_training(*parts, c, device=device)


def weights(t: Trainer) -> dict[str, Tensor]:
    return {k: v.detach().cpu().clone() for k, v in t.model.state_dict().items()}


@pytest.fixture
def exact_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a GPU from rounding inside convolutions: Adam turns roundings into whole steps."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


@devices
@pytest.mark.usefixtures("exact_convolutions")
@pytest.mark.parametrize(
    ("kind", "width"),
    [("PAIR", "learned"), ("sVAE", "learned"), ("vsPAIR", "learned"), ("vsPAIR", "closed")],
)
def test_fast_training_gives_the_plain_weights(kind: str, width: str, device: str) -> None:
    """Compiled networks, and on a GPU captured steps: five steps and a smaller last batch."""
    how = {"objective": {"width": width}}
    plain, fast = (
        trainer(
            configs.override(config(kind, compile=f, capture=f, learning_rate=1e-3), how), device
        )
        for f in (False, True)
    )
    rows = [t.train(show=False) for t in (plain, fast)]
    expected, found = weights(plain), weights(fast)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=2e-3, atol=2e-4, msg=name)
    for a, b in zip(*rows, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-3)


@pytest.mark.usefixtures("exact_convolutions")
@pytest.mark.parametrize("kind", ["vPAIR", "vsPAIR"])
@pytest.mark.parametrize(
    ("how", "device"),
    [(how, d) for d in DEVICES for how in ("compile", "capture")[: 1 + (d == "cuda")]],
)
def test_fast_training_in_bfloat16_is_near_plain_bfloat16(
    kind: str, how: str, device: str
) -> None:
    """One of both means at a time; captured and not compiled is how the studies train."""
    more: dict[str, Any] = {"precision": "bfloat16", "epochs": 1, "learning_rate": 1e-3}
    start = weights(trainer(config(kind), device))
    plain, fast = (trainer(config(kind, **{how: f}, **more), device) for f in (False, True))
    for t in (plain, fast):
        t.train(show=False)
    names = [name for name, _ in plain.model.named_parameters()]
    moved, again = (
        torch.cat([(weights(t)[name] - start[name]).flatten() for name in names])
        for t in (plain, fast)
    )
    # Adam turns a rounding in a gradient near zero into a whole step.
    assert torch.nn.functional.cosine_similarity(moved, again, dim=0) > 0.9
    assert float(again.norm()) == pytest.approx(float(moved.norm()), rel=0.05)


def gradients(t: Trainer, name: Any) -> dict[str, Tensor]:
    t.model.train()
    with precision(t.device, name):
        noise = torch.Generator(t.device).manual_seed(1)
        loss, _ = t.objective(t.model, t.x, t.y, noise)
    loss.backward()
    named = t.model.named_parameters()
    return {k: p.grad.clone() for k, p in named if p.grad is not None}


@devices
@pytest.mark.parametrize("preset", ["paper", "calibrated"])
@pytest.mark.parametrize("kind", ["PAIR", "vPAIR", "sVAE", "vsPAIR"])
def test_bfloat16_gradients_point_the_same_way(kind: str, preset: Any, device: str) -> None:
    c = config(kind, preset)
    exact, rough = (gradients(trainer(c, device), name) for name in ("float32", "bfloat16"))
    assert exact.keys() == rough.keys()
    a, b = (torch.cat([g.flatten() for g in found.values()]) for found in (exact, rough))
    # Not nearer to 1: a gate at its threshold opens or shuts by rounding.
    assert torch.nn.functional.cosine_similarity(a, b, dim=0) > 0.97
    for name, gradient in exact.items():
        assert rough[name].dtype == gradient.dtype == torch.float32
        assert (rough[name].norm() > 0) == (gradient.norm() > 0), name


def test_codes_and_losses_stay_in_float32_under_autocast() -> None:
    t = trainer(config("vsPAIR"), "cpu")
    with precision(t.device, "bfloat16"):
        code = t.model.latent(t.y)
        loss, terms = t.objective(t.model, t.x, t.y)
    assert code.mean.dtype == torch.float32
    assert {v.dtype for v in (loss, *terms.values())} == {torch.float32}


def test_models_are_plain_again_after_fast_training() -> None:
    t = trainer(config("vsPAIR", compile=True, epochs=1), "cpu")
    t.train(show=False)
    assert all(m._compiled_call_impl is None for m in t.model.modules())


@pytest.mark.parametrize("amx", [False, True])
def test_bfloat16_on_a_cpu_multiplies_float32_matrices_exactly(
    monkeypatch: pytest.MonkeyPatch, amx: bool
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    before, cpu = torch.get_float32_matmul_precision(), torch.device("cpu")
    with products(cpu, "bfloat16"):
        # On a CPU with AMX, the faster products would be those of bfloat16.
        assert torch.get_float32_matmul_precision() == (before if amx else "medium")
    assert torch.get_float32_matmul_precision() == before
    with products(cpu, "float32"):
        assert torch.get_float32_matmul_precision() == before


@devices
def test_the_products_of_a_bfloat16_training_round_less_than_bfloat16(device: str) -> None:
    a, b = torch.randn(2, 256, 256, generator=torch.Generator().manual_seed(0)).to(device)
    with products(torch.device(device), "bfloat16"):
        error = (a @ b - (a.double() @ b.double())).abs().max()
    # Rounded to bfloat16, factors give 0.1; a GPU rounds them to TF32.
    assert error < (1e-4 if device == "cpu" else 3e-2)


def test_a_step_in_bfloat16_has_fast_products_and_leaves_none_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trainings take turns, so that a setting of one must end with its step."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    rough, exact = (trainer(config("vsPAIR", precision=p), "cpu") for p in ("bfloat16", "float32"))
    seen: dict[str, set[str]] = {"rough": set(), "exact": set()}
    for name, t in (("rough", rough), ("exact", exact)):
        parameter = next(p for p in t.parameters if p.requires_grad)
        parameter.register_hook(
            lambda _, name=name: seen[name].add(torch.get_float32_matmul_precision())
        )
    before = torch.get_float32_matmul_precision()
    for _ in zip(rough.run_steps([]), exact.run_steps([]), strict=True):
        assert torch.get_float32_matmul_precision() == before
    assert seen == {"rough": {"medium"}, "exact": {before}}
