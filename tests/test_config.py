"""Configurations: a strict reader, helpful refusals and a lossless writer."""

import dataclasses
import math
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vspair.config import (
    Config,
    ModelConfig,
    PresetName,
    from_dict,
    load,
    override,
    preset,
    shipped,
    to_toml,
)
from vspair.errors import VspairError
from vspair.networks import NetworkConfig

PRESETS: tuple[PresetName, ...] = ("paper", "calibrated")
presets = pytest.mark.parametrize("name", PRESETS)
SHIPPED = sorted(p.stem for p in (Path(__file__).parents[1] / "src/vspair/configs").glob("*.toml"))


def round_trip(values: dict[str, Any]) -> dict[str, Any]:
    return tomllib.loads(to_toml(values))


# -- writing and reading back -----------------------------------------------------------------


@presets
@pytest.mark.parametrize("active", [0, 7])
def test_presets_round_trip(name: PresetName, active: int) -> None:
    config = preset(name, active)
    assert from_dict(Config, round_trip(asdict(config))) == config


def test_every_changed_value_round_trips() -> None:
    """Change every key, so that one that is dropped or read as its default is seen."""

    def change(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: change(v) for k, v in value.items()}
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return value + 3
        if isinstance(value, float):
            return 0.25 * value + 0.123456789012345
        return [-7.5, 1.25] if isinstance(value, tuple) else value

    changed = change(asdict(Config()))
    config = from_dict(Config, round_trip(changed))
    assert asdict(config) == {
        **changed,
        "model": {**changed["model"], "logvar_range": (-7.5, 1.25)},
    }
    assert config != Config()


numbers = st.floats(0, 1e300, allow_subnormal=True)


@given(gamma=numbers, seed=st.integers(0, 2**32 - 1), low=st.floats(-1e300, 0), half=st.booleans())
def test_numbers_round_trip(gamma: float, seed: int, low: float, half: bool) -> None:
    changes = {
        "model": {"logvar_range": [low, 1.0]},
        "objective": {"gamma_x": gamma, "half": half},
        "training": {"seed": seed},
    }
    config = override(Config(), changes)
    assert from_dict(Config, round_trip(asdict(config))) == config
    assert config.objective.gamma_x == gamma


@given(text=st.text(), numbers=st.lists(st.floats(allow_nan=False)), flag=st.booleans())
def test_any_value_round_trips(text: str, numbers: list[float], flag: bool) -> None:
    values = {"text": text, "deep": {"numbers": numbers, "er": {"flag": flag, "text": [text]}}}
    assert round_trip(values) == values


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e16, 1e-5, 5e-324, -0.0, 10**18])
def test_odd_numbers_are_valid_toml(value: float) -> None:
    back = round_trip({"v": value})["v"]
    assert (back, type(back)) == (value, type(value))
    assert math.copysign(1, back) == math.copysign(1, value)


# -- reading strictly -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"modle": {}}, "Unknown key modle. Did you mean model?"),
        ({"model": {"x_sise": 3}}, "Unknown key model.x_sise. Did you mean model.x_size?"),
        ({"objective": {"lamda_map": 1}}, "Did you mean objective.lambda_map?"),
        ({"training": {"learning-rate": 1}}, "Did you mean training.learning_rate?"),
        ({"model": {"x_network": {"widht": 3}}}, "Did you mean model.x_network.width?"),
        ({"model": 3}, "model = 3: expected a section"),
        ({"model": {"x_network": [1]}}, "model.x_network = [1]: expected a section"),
        ({"model": {"x_size": 3.0}}, "model.x_size = 3.0: expected int, got float"),
        ({"model": {"x_size": True}}, "model.x_size = True: expected int, got bool"),
        ({"model": {"x_size": "3"}}, "model.x_size = '3': expected int, got str"),
        ({"objective": {"gamma_x": True}}, "objective.gamma_x = True: expected float, got bool"),
        ({"objective": {"half": 1}}, "objective.half = 1: expected bool, got int"),
        ({"model": {"kind": "vspair"}}, "Did you mean 'vsPAIR'?"),
        ({"model": {"kind": 3}}, "expected one of PAIR, vPAIR, sVAE, vsPAIR"),
        ({"model": {"kind": ["PAIR"]}}, "expected one of PAIR"),
        ({"objective": {"width": "learnt"}}, "Did you mean 'learned'?"),
        ({"model": {"logvar_range": [1.0]}}, "model.logvar_range = [1.0]: expected"),
        ({"model": {"logvar_range": ["a", 1.0]}}, "model.logvar_range = 'a': expected float"),
        ({"model": {"logvar_range": [4.0, -12.0]}}, "model.logvar_range"),
        ({"model": {"logvar_range": [math.nan, 1.0]}}, "model.logvar_range"),
        ({"model": {"x_size": 0}}, "model.x_size = 0: expected a number above 0"),
        ({"model": {"y_network": {"depth": 0}}}, "model.y_network.depth = 0: expected"),
        ({"training": {"epochs": -1}}, "training.epochs = -1: expected"),
        ({"training": {"validation": 1.0}}, "training.validation = 1.0: expected a share"),
        ({"training": {"validation": -0.1}}, "training.validation = -0.1: expected a share"),
        ({"objective": {"gamma_x": -1}}, "objective.gamma_x = -1.0: expected 0 or more"),
        ({"objective": {"gamma_x": math.nan}}, "objective.gamma_x = nan: expected"),
        ({"objective": {"price": math.nan}}, "objective.price = nan: expected"),
        ({"training": {"learning_rate": math.inf}}, "training.learning_rate = inf: expected"),
    ],
    ids=lambda v: str(v)[:60] if isinstance(v, dict) else "",
)
def test_refusals_name_the_key_and_the_way_out(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(VspairError) as error:
        override(Config(), changes)
    assert message in str(error.value)


def test_whole_numbers_are_read_as_floats() -> None:
    config = override(Config(), {"objective": {"gamma_x": 2}, "model": {"logvar_range": [-3, 1]}})
    assert isinstance(config.objective.gamma_x, float)
    assert config.model.logvar_range == (-3.0, 1.0)
    assert all(isinstance(v, float) for v in config.model.logvar_range)


def test_override_changes_nothing_else() -> None:
    base = preset("calibrated", 5)
    changed = override(base, {"model": {"x_network": {"depth": 4}}, "training": {"epochs": 3}})
    network = dataclasses.replace(base.model.x_network, depth=4)
    expected = dataclasses.replace(
        base,
        model=dataclasses.replace(base.model, x_network=network),
        training=dataclasses.replace(base.training, epochs=3),
    )
    assert changed == expected
    assert base == preset("calibrated", 5)
    assert override(base, {}) == base


# -- files ------------------------------------------------------------------------------------


@presets
def test_a_file_starts_from_its_preset(name: PresetName, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    text = '[model]\nx_size = 9\n[model.y_network]\nkind = "mlp"\nwidth = 3\n'
    path.write_text(f'preset = "{name}"\n{text}')
    base = preset(name).model
    expected = dataclasses.replace(base, x_size=9, y_network=NetworkConfig("mlp", width=3))
    assert load(path) == dataclasses.replace(preset(name), model=expected)
    path.write_text(text)
    assert load(str(path)).objective == preset("calibrated").objective


def test_presets_say_what_they_are() -> None:
    paper, calibrated, steered = preset("paper"), preset(), preset("calibrated", 39)
    assert (paper.model.gate, calibrated.model.gate) == ("exponential", "sigmoid")
    assert (paper.objective.map, calibrated.objective.map) == ("parameters", "kl")
    assert (calibrated.objective.rho, calibrated.objective.active) == ("fixed", 0)
    assert (steered.objective.rho, steered.objective.active) == ("dual", 39)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('preset = "papre"', "papre"),
        ("preset = 3", "preset = 3"),
        ("[model]\nx_sise = 3", "model.x_size"),
        ("[model\n", "not valid TOML"),
        ("x = \xff", "not valid TOML"),
    ],
)
def test_faults_in_a_file_name_the_file(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(VspairError) as error:
        load(path)
    assert str(path) in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize("name", ["missing.toml", "."])
def test_what_is_not_a_file_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(VspairError, match="file"):
        load(tmp_path / name)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_configurations_load(name: str) -> None:
    assert isinstance(shipped(name).model, ModelConfig)


def test_configurations_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().model.x_size = 3  # type: ignore[misc]
