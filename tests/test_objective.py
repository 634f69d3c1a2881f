"""The loss: eq. (14) against a second implementation, and every option of it."""

import math
from dataclasses import asdict, replace
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from vspair.codes import Factorised, Normal, Point, SpikeSlab
from vspair.config import ModelConfig, ObjectiveConfig, PresetName, preset
from vspair.errors import VspairError
from vspair.model import InverseModel, PairedAutoencoder, build
from vspair.networks import NetworkConfig
from vspair.objective import Objective, Stage

Kind = Literal["PAIR", "vPAIR", "sVAE", "vsPAIR"]
KINDS: tuple[Kind, ...] = ("PAIR", "vPAIR", "sVAE", "vsPAIR")
PAIRED: tuple[Kind, ...] = ("PAIR", "vPAIR", "vsPAIR")
SHAPES = {"vectors": ((3,), (4,)), "images": ((6, 5), (2, 4, 4))}
UNEVEN = ObjectiveConfig(
    lambda_x=1.3, lambda_y=0.3, lambda_map=0.7, lambda_forward=0.9, lambda_rho=1.4,
    lambda_binary=0.05, alpha0=1.5, beta0=12.0, gamma_x=0.2, gamma_y=0.1,
)  # fmt: skip

kinds = pytest.mark.parametrize("kind", KINDS)
paired = pytest.mark.parametrize("kind", PAIRED)
sparse = pytest.mark.parametrize("kind", ["sVAE", "vsPAIR"])
shapes = pytest.mark.parametrize("shape", SHAPES)


def make(
    kind: Kind, shape: str = "vectors", **changes: Any
) -> tuple[InverseModel, Tensor, Tensor]:
    """Return a small model in float64 and a batch of pairs."""
    network = NetworkConfig(width=4)
    config = ModelConfig(kind, 6, 5, network, network, **changes)
    x_shape, y_shape = SHAPES[shape]
    x, y = torch.randn(7, *x_shape).double(), torch.randn(7, *y_shape).double()
    return build(config, x_shape, y_shape).double(), x, y


def make_paired(kind: Kind, **changes: Any) -> tuple[PairedAutoencoder, Tensor, Tensor]:
    model, x, y = make(kind, **changes)
    assert isinstance(model, PairedAutoencoder)
    return model, x, y


def seeded() -> Generator:
    return Generator().manual_seed(5)


def number(t: Tensor) -> float:
    return float(t.detach())


def total(t: Tensor) -> Tensor:
    return t.reshape(len(t), -1).sum(1).mean()


def gradients(model: InverseModel, value: Tensor) -> dict[str, Tensor]:
    """Return the gradients that are not zero, by the parameter's name."""
    model.zero_grad()
    value.backward()
    named = {k: p.grad for k, p in model.named_parameters()}
    return {k: g for k, g in named.items() if g is not None and bool(g.any())}


# -- every model, both presets ----------------------------------------------------------------


@kinds
@shapes
@pytest.mark.parametrize(("name", "active"), [("paper", 0), ("calibrated", 0), ("calibrated", 2)])
def test_contract(kind: Kind, shape: str, name: PresetName, active: int) -> None:
    config = preset(name, active)
    c = replace(config.objective, lambda_y=0.3, lambda_map=0.7, gamma_y=0.1)
    model, x, y = make(kind, shape, gate=config.model.gate)
    objective = Objective(c)
    objective.prepare(model)
    loss, terms = objective(model, x, y, seeded())
    assert loss.shape == ()
    assert all(t.isfinite() and t.shape == () for t in (loss, *terms.values()))
    assert gradients(model, loss).keys() == {
        k for k, p in model.named_parameters() if p.requires_grad
    }


@kinds
@pytest.mark.parametrize("gate_prior", ["kl", "price"])
def test_loss_is_the_weighted_sum_of_its_terms(
    kind: Kind, gate_prior: Literal["kl", "price"]
) -> None:
    c = replace(UNEVEN, gate_prior=gate_prior, rho="closed" if gate_prior == "kl" else "fixed")
    model, x, y = make(kind, forward_map=kind != "sVAE")
    loss, terms = Objective(c)(model, x, y)
    weights = {
        "x_fit": c.lambda_x, "x_prior": c.lambda_x * c.gamma_x, "gates": c.lambda_x,
        "y_fit": c.lambda_y, "y_prior": c.lambda_y * c.gamma_y, "map": c.lambda_map,
        "binary": c.lambda_map * c.lambda_binary, "forward": c.lambda_forward,
        "beta": c.lambda_rho,
    }  # fmt: skip
    torch.testing.assert_close(loss, sum(weights[k] * v for k, v in terms.items()))
    gated = {"kl": {"beta"}, "price": {"gates"}}[gate_prior] if "s" in kind else set()
    pairs = {"y_fit", "map", "forward"} if kind != "sVAE" else set()
    prior = {"x_prior"} if kind != "PAIR" else set()
    prior |= {"y_prior"} if kind.startswith("v") else set()
    binary = {"binary"} if kind == "vsPAIR" else set()
    assert terms.keys() == {"x_fit"} | gated | pairs | prior | binary


# -- eq. (14) ---------------------------------------------------------------------------------


def equation_14(
    model: PairedAutoencoder, x: Tensor, y: Tensor, c: ObjectiveConfig, noise: Generator
) -> Tensor:
    """Compute the paper's objective for vsPAIR from the raw heads, without the library's codes."""

    def heads(encoder: Any, data: Tensor) -> Tensor:
        return encoder.head(encoder.trunk(data))

    def uniform(t: Tensor) -> Tensor:
        return torch.rand(t.shape, dtype=t.dtype, generator=noise)

    def normal(t: Tensor) -> Tensor:
        return torch.randn(t.shape, dtype=t.dtype, generator=noise)

    assert model.rho_logit is not None
    rho = 1 / (1 + torch.exp(-model.rho_logit))
    mu, logvar, g = heads(model.x_encoder, x).chunk(3, dim=-1)
    w = torch.exp(-F.relu(-g))
    s = torch.sigmoid(model.config.temperature * (uniform(w) - 1 + w))
    gate = s + ((s > 0.5).double() - s).detach()
    z = gate * (mu + torch.exp(logvar / 2) * normal(mu))
    kl = w / 2 * (logvar.exp() + mu**2 - 1 - logvar)
    kl = kl + (1 - w) * ((1 - w) / (1 - rho)).log() + w * (w / rho).log()
    x_elbo = 0.5 * total((x - model.x_decoder(z)) ** 2) + c.gamma_x * total(kl)

    mu_y, logvar_y = heads(model.y_encoder, y).chunk(2, dim=-1)
    z_y = mu_y + torch.exp(logvar_y / 2) * normal(mu_y)
    kl_y = 0.5 * (logvar_y.exp() + mu_y**2 - 1 - logvar_y)
    y_elbo = 0.5 * total((y - model.y_decoder(z_y)) ** 2) + c.gamma_y * total(kl_y)

    hat = model.inverse_map.layers(torch.cat((mu_y, logvar_y), dim=-1))
    mu_m, logvar_m, g_m = hat.chunk(3, dim=-1)
    w_m = torch.exp(-F.relu(-g_m))
    match = total((mu_m - mu) ** 2) + total((logvar_m - logvar) ** 2) + total((w_m - w) ** 2)
    match = match + c.lambda_binary * total(w_m * (1 - w_m))
    beta = -((c.alpha0 - 1) * rho.log() + (c.beta0 - 1) * (1 - rho).log())
    return c.lambda_x * x_elbo + c.lambda_y * y_elbo + c.lambda_map * match + c.lambda_rho * beta


@shapes
def test_paper_preset_is_equation_14(shape: str) -> None:
    model, x, y = make("vsPAIR", shape, gate="exponential", logvar_range=(-30.0, 20.0))
    assert isinstance(model, PairedAutoencoder)
    assert asdict(preset("paper").objective) == asdict(ObjectiveConfig())
    Objective(UNEVEN).prepare(model)
    with torch.no_grad():  # eq. (9) in plain numbers needs gates below 1; rho off its start
        model.x_encoder.head.bias[12:] -= 4
        assert model.rho_logit is not None
        model.rho_logit.fill_(-0.7)
    loss, _ = Objective(UNEVEN)(model, x, y, seeded())
    expected = equation_14(model, x, y, UNEVEN, seeded())
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=0)
    got, wanted = gradients(model, loss), {}
    got = {k: v.clone() for k, v in got.items()}
    wanted = gradients(model, expected)
    torch.testing.assert_close(got, wanted, rtol=1e-7, atol=1e-10)


@kinds
def test_half_is_an_option(kind: Kind) -> None:
    model, x, y = make(kind)
    with_half, without = (
        Objective(replace(UNEVEN, half=half))(model, x, y, seeded())[1] for half in (True, False)
    )
    for name, value in with_half.items():
        factor = 2 if name in {"x_fit", "y_fit"} else 1
        torch.testing.assert_close(without[name], factor * value)


# -- the map ----------------------------------------------------------------------------------


def map_term(model: PairedAutoencoder, x: Tensor, y: Tensor, **changes: Any) -> Tensor:
    objective = Objective(replace(UNEVEN, **changes))
    return objective(model, x, y, seeded(), "map")[1]["map"]


def codes(model: PairedAutoencoder, x: Tensor, y: Tensor) -> tuple[Factorised, Factorised]:
    """Return the mapped code and the x code that it should be."""
    return model.inverse_map(model.y_encoder(y)), model.x_encoder(x)


@paired
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("sigma", ["logvar", "sigma", "variance"])
def test_parameter_match(kind: Kind, sigma: str, reduction: str) -> None:
    model, x, y = make_paired(kind)

    def compared(code: Factorised) -> list[Tensor]:
        if isinstance(code, Point):
            return [code.z]
        assert isinstance(code, Normal | SpikeSlab)
        spread = {"logvar": code.logvar, "sigma": code.logvar.exp() ** 0.5,
                  "variance": code.logvar.exp()}[sigma]  # fmt: skip
        return [code.mu, spread] + ([code.omega] if isinstance(code, SpikeSlab) else [])

    pairs = zip(*map(compared, codes(model, x, y)), strict=True)
    squares = torch.cat([(a - b) ** 2 for a, b in pairs], dim=-1)
    expected = squares.mean() if reduction == "mean" else squares.sum() / len(x)
    got = map_term(model, x, y, sigma=sigma, reduction=reduction)
    torch.testing.assert_close(got, expected)


@paired
def test_other_map_objectives(kind: Kind) -> None:
    model, x, y = make_paired(kind)
    mapped, target = codes(model, x, y)
    torch.testing.assert_close(map_term(model, x, y, map="kl"), total(target.kl(mapped)))
    decoded = model.x_decoder(mapped.rsample(seeded()))
    torch.testing.assert_close(
        map_term(model, x, y, map="decoded"), 0.5 * total((x - decoded) ** 2)
    )
    noise = seeded()
    difference = mapped.rsample(noise) - target.rsample(noise)
    torch.testing.assert_close(map_term(model, x, y, map="samples"), total(difference**2))


@paired
@pytest.mark.parametrize("how", ["parameters", "samples", "kl"])
def test_detached_targets_do_not_move_the_x_encoder(kind: Kind, how: str) -> None:
    model, x, y = make_paired(kind)
    for target, moved in (("joint", True), ("detached", False)):
        reached = gradients(model, map_term(model, x, y, map=how, target=target))
        assert any(k.startswith("x_encoder") for k in reached) == moved
        assert any(k.startswith("y_encoder") for k in reached)
        assert any(k.startswith("inverse_map") for k in reached)


def test_binary_penalty() -> None:
    model, x, y = make_paired("vsPAIR")
    mapped, _ = codes(model, x, y)
    assert isinstance(mapped, SpikeSlab)
    _, terms = Objective(UNEVEN)(model, x, y)
    torch.testing.assert_close(terms["binary"], total(mapped.omega * (1 - mapped.omega)))
    assert "binary" not in Objective(replace(UNEVEN, lambda_binary=0.0))(model, x, y)[1]


@paired
@pytest.mark.parametrize("how", ["parameters", "samples", "kl", "decoded"])
def test_forward_map(kind: Kind, how: Literal["parameters", "samples", "kl", "decoded"]) -> None:
    objective = Objective(replace(UNEVEN, map=how))
    model, x, y = make_paired(kind)
    assert "forward" not in objective(model, x, y)[1]
    model, x, y = make_paired(kind, forward_map=True)
    assert model.forward_map is not None
    _, terms = objective(model, x, y, seeded())
    reached = gradients(model, terms["forward"])
    own = {f"forward_map.{k}" for k, _ in model.forward_map.named_parameters()}
    assert own <= reached.keys()
    assert any(k.startswith("x_encoder") for k in reached)
    assert not any(k.startswith("inverse_map") for k in reached)
    if how == "kl":
        ahead = model.forward_map(model.x_encoder(x))
        torch.testing.assert_close(terms["forward"], total(model.y_encoder(y).kl(ahead)))


# -- rho and the price ------------------------------------------------------------------------


def gate_sum(model: InverseModel, x: Tensor, y: Tensor) -> Tensor:
    code = model.x_encoder(x) if isinstance(model, PairedAutoencoder) else model.latent(y)
    assert isinstance(code, SpikeSlab)
    return code.omega.sum(-1).mean()


@sparse
def test_closed_form_of_rho_is_where_its_gradient_vanishes(kind: Kind) -> None:
    c = replace(UNEVEN, rho="closed")
    model, x, y = make(kind)
    assert model.rho_logit is not None
    loss, terms = Objective(c)(model, x, y)
    (slope,) = torch.autograd.grad(loss, model.rho_logit)
    assert abs(number(slope)) < 1e-10
    gamma, opened = c.lambda_x * c.gamma_x, gate_sum(model, x, y)
    rho = (gamma * opened + c.lambda_rho * (c.alpha0 - 1)) / (
        gamma * 6 + c.lambda_rho * (c.alpha0 + c.beta0 - 2)
    )
    torch.testing.assert_close(model.rho, rho)
    beta = torch.distributions.Beta(torch.tensor(c.alpha0), torch.tensor(c.beta0).double())
    constant = terms["beta"] + beta.log_prob(rho)  # eq. (20) drops what rho does not change
    with torch.no_grad():
        model.rho_logit.add_(0.1)
    loss, terms = Objective(c)(model.eval(), x, y)
    (slope,) = torch.autograd.grad(loss, model.rho_logit)
    assert number(slope) > 1e-3
    assert model.rho is not None
    torch.testing.assert_close(terms["beta"] + beta.log_prob(model.rho), constant)


@sparse
@pytest.mark.parametrize(("active", "sign"), [(1, 1), (5, -1)])
@pytest.mark.parametrize(
    ("dual_rate", "steps", "rate"), [(0.003, 1000, 0.003), (0.0, 1000, 20 / 1000)]
)
def test_dual_ascent_moves_the_price(
    kind: Kind, active: int, sign: int, dual_rate: float, steps: int, rate: float
) -> None:
    model, x, y = make(kind)
    assert model.rho_logit is not None
    opened = number(gate_sum(model, x, y))
    assert 1 < opened < 5
    c = replace(preset("calibrated", active).objective, dual_rate=dual_rate, price=0.3)
    objective = Objective(c, steps)
    objective.prepare(model)
    assert -number(model.rho_logit) == pytest.approx(0.3)
    _, terms = objective(model, x, y)
    step = max(-1.0, min(1.0, (opened - active) / active))
    assert math.copysign(1, step) == sign
    price = 0.3 * math.exp(rate * step)
    assert -number(model.rho_logit) == pytest.approx(price, rel=1e-9)
    assert number(terms["gates"]) == pytest.approx(price * opened, rel=1e-9)


@sparse
@pytest.mark.parametrize("rho", ["gradient", "closed", "fixed", "dual"])
def test_evaluation_never_moves_rho(
    kind: Kind, rho: Literal["gradient", "closed", "fixed", "dual"]
) -> None:
    model, x, y = make(kind)
    assert model.rho_logit is not None
    objective = Objective(replace(UNEVEN, rho=rho, active=1))
    objective.prepare(model)
    before = model.rho_logit.detach().clone()
    objective(model.eval(), x, y)
    assert torch.equal(model.rho_logit, before)
    objective(model.train(), x, y)
    assert torch.equal(model.rho_logit, before) == (rho in ("gradient", "fixed"))
    assert model.rho_logit.requires_grad == (rho == "gradient")


# -- the decoder's width ----------------------------------------------------------------------


@pytest.mark.parametrize("anneal", [0.0, 0.6])
def test_annealed_width(anneal: float) -> None:
    model, _, _ = make("vsPAIR")
    c = replace(UNEVEN, width="annealed", width_start=2.0, width_end=0.02, anneal=anneal)
    objective = Objective(c)
    objective.prepare(model)
    assert number(model.noise_std) == pytest.approx(2.0)
    half = math.sqrt(2.0 * 0.02) if anneal else 0.02
    start = 2.0 if anneal else 0.02
    for progress, width in ((0.0, start), (anneal / 2, half), (anneal, 0.02), (1.0, 0.02)):
        objective.at(model, progress)
        assert number(model.noise_std) == pytest.approx(width)
        assert objective.settled(progress) == (progress >= anneal)
    assert not model.log_width.requires_grad


@kinds
@shapes
def test_best_learned_width_is_the_root_mean_squared_error(kind: Kind, shape: str) -> None:
    model, x, y = make(kind, shape)
    objective = Objective(replace(UNEVEN, width="learned", width_start=0.5))
    objective.prepare(model)
    assert number(model.noise_std) == pytest.approx(0.5)
    code = model.x_encoder(x) if isinstance(model, PairedAutoencoder) else model.latent(y)
    decoded = model.x_decoder(code.rsample(seeded())).detach()
    fit = objective(model, x, y, seeded())[1]["x_fit"]
    likelihood = torch.distributions.Normal(decoded, model.noise_std).log_prob(x)
    constant = x[0].numel() * math.log(2 * math.pi) / 2
    torch.testing.assert_close(fit, -total(likelihood) - constant)
    with torch.no_grad():
        model.log_width.copy_(0.5 * (x - decoded).square().mean().log())
    fit = objective(model, x, y, seeded())[1]["x_fit"]
    (slope,) = torch.autograd.grad(fit, model.log_width)
    assert abs(number(slope)) < 1e-10


@paired
def test_closed_width_follows_the_root_mean_squared_error(kind: Kind) -> None:
    model, x, y = make_paired(kind)
    objective = Objective(replace(UNEVEN, width="closed", width_start=0.5))
    objective.prepare(model)
    assert not model.log_width.requires_grad
    decoded = model.x_decoder(model.x_encoder(x).rsample(seeded())).detach()
    best = 0.5 * math.log(float((x - decoded).square().mean()))
    step = 0.98 * math.log(0.5) + 0.02 * best
    fit = objective(model, x, y, seeded())[1]["x_fit"]
    assert number(model.log_width) == pytest.approx(step, rel=1e-5)
    likelihood = torch.distributions.Normal(decoded, model.noise_std).log_prob(x)
    torch.testing.assert_close(fit, -total(likelihood) - x[0].numel() * math.log(2 * math.pi) / 2)
    for _ in range(400):
        objective(model, x, y, seeded())
    assert number(model.log_width) == pytest.approx(best, abs=1e-3)
    model.eval()
    objective(model, 2 * x, y, seeded())
    assert number(model.log_width) == pytest.approx(best, abs=1e-3)


def test_unit_width_ignores_where_it_started() -> None:
    model, _, _ = make("vsPAIR")
    Objective(replace(UNEVEN, width="unit", width_start=0.1)).prepare(model)
    assert number(model.noise_std) == 1.0
    assert not model.log_width.requires_grad


# -- stages and refusals ----------------------------------------------------------------------


@paired
@pytest.mark.parametrize("gate_prior", ["kl", "price"])
def test_stages_split_the_terms(kind: Kind, gate_prior: Literal["kl", "price"]) -> None:
    rho: Any = "closed" if gate_prior == "kl" else "fixed"
    objective = Objective(replace(UNEVEN, gate_prior=gate_prior, rho=rho))
    model, x, y = make_paired(kind, forward_map=True)
    terms: dict[Stage, set[str]] = {}
    reached: dict[Stage, set[str]] = {}
    for stage in ("joint", "autoencoders", "map"):
        loss, named = objective(model, x, y, seeded(), stage)
        terms[stage] = set(named)
        reached[stage] = {k.split(".")[0] for k in gradients(model, loss)}
    maps = {"map", "forward", "binary"}
    assert terms["map"] == terms["joint"] & maps
    assert terms["autoencoders"] == terms["joint"] - maps
    assert not reached["autoencoders"] & {"inverse_map", "forward_map"}
    assert {"inverse_map", "forward_map"} <= reached["map"]
    assert not reached["map"] & {"x_decoder", "y_decoder", "rho_logit"}


def test_the_prior_stands_in_for_the_map_before_there_is_one() -> None:
    c = preset("calibrated").objective
    model, x, y = make_paired("vsPAIR")
    loss, terms = Objective(c)(model.eval(), x, y, seeded(), "autoencoders")
    expected = terms["x_fit"] + terms["x_prior"] + terms["gates"]
    expected = expected + c.lambda_y * (terms["y_fit"] + c.gamma_y * terms["y_prior"])
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rho": "dual", "active": 0}, "active"),
        ({"rho": "gradient", "gate_prior": "price"}, "rho"),
    ],
)
def test_combinations_without_a_meaning_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(VspairError, match=message):
        Objective(replace(UNEVEN, **changes))
