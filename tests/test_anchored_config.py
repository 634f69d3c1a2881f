"""Configurations of the anchored model: what ``fit`` plans beside them, and what it refuses."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor
from typer.testing import CliRunner

import vspair
from vspair import config as configs
from vspair.anchored_fit import MINUTES, AnchoredFit, planned, suggest_kinds
from vspair.cli import app
from vspair.config import Config
from vspair.data import Pairs
from vspair.errors import VspairError
from vspair.fitting import _complete_config
from vspair.networks.spatial import Domain
from vspair.training.prepared import tell_domain

QUIET: dict[str, Any] = {"progress": False, "device": "cpu"}


def _pairs(count: int = 60) -> tuple[Tensor, Tensor]:
    g = Generator().manual_seed(0)
    x = torch.randn(count, 5, generator=g)
    return x, x[:, :3] + 0.1 * torch.randn(count, 3, generator=g)


def _file(folder: Path, text: str) -> Config:
    path = folder / "c.toml"
    path.write_text(f'preset = "anchored"\n{text}')
    return configs.load(path)


class _PlannedError(Exception):
    pass


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a fit is about to train with: nothing is trained."""
    seen: dict[str, Any] = {}

    def note(self: AnchoredFit, *how: Any) -> None:
        seen["config"], seen["detailed"] = self.config, how[-1]
        raise _PlannedError

    monkeypatch.setattr(AnchoredFit, "run", note)
    return seen


def _ask(asked: dict[str, Any], config: Config, x: Tensor, **how: Any) -> Config:
    with pytest.raises(_PlannedError):
        vspair.fit(x, torch.randn(len(x), 3), config=config, **how, **QUIET)
    found: Config = asked["config"]
    return found


# -- what is planned ----------------------------------------------------------------------------


def test_a_configuration_remembers_what_was_named(tmp_path: Path) -> None:
    config = _file(tmp_path, "[anchored]\nkinds = 16\n[training]\nepochs = 100\n")
    assert config.named == {"anchored.kinds", "training.epochs"}
    assert config == configs.preset("anchored")  # whose values they are
    later = configs.override(config, {"training": {"seed": 3}})
    assert later.named == config.named | {"training.seed"}
    assert not configs.preset("anchored").named
    nested = configs.override(Config(), {"model": {"x_network": {"width": 3}}})
    assert nested.named == {"model.x_network.width"}


@pytest.mark.parametrize("shape", [(5,), (64,), (16, 16)])
def test_kinds_of_a_file_are_planned_unless_named(
    shape: tuple[int, ...], asked: dict[str, Any], tmp_path: Path
) -> None:
    x = torch.randn(60, *shape)
    found = _ask(asked, _file(tmp_path, "[anchored]\nactive = 40\n"), x)
    kind: Domain = {5: "vector", 64: "vector", 16: "image"}[shape[0]]  # type: ignore[assignment]
    assert (found.anchored.domain, found.anchored.kinds) == (kind, suggest_kinds(shape, kind, 40))
    named = _file(tmp_path, "[anchored]\nactive = 10\nkinds = 16\n")
    assert _ask(asked, named, x).anchored.kinds == 16


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ('active = 40\ndomain = "vector"', 160),
        ("active = 40", 16),
        ("active = 40\nspatial = false", 160),
    ],
)
def test_kinds_are_planned_for_what_the_file_says_x_is(
    text: str, kinds: int, asked: dict[str, Any], tmp_path: Path
) -> None:
    """Smooth vectors look like signals, whose factors have places."""
    x = torch.randn(60, 65, generator=Generator().manual_seed(0)).cumsum(1)
    assert tell_domain(x, "auto") == "signal"
    assert _ask(asked, _file(tmp_path, f"[anchored]\n{text}\n"), x).anchored.kinds == kinds


@pytest.mark.parametrize(
    ("text", "how", "named"),
    [
        ("", {}, False),
        ("epochs = 100", {}, True),
        ("epochs = 7", {}, True),
        ("", {"epochs": 2}, True),
    ],
)
def test_epochs_of_a_file_are_planned_unless_named(
    text: str, how: dict[str, Any], named: bool, asked: dict[str, Any], tmp_path: Path
) -> None:
    _ask(asked, _file(tmp_path, f"[training]\n{text}\n"), _pairs()[0], **how)
    assert asked["detailed"] == named


def test_passes_of_the_code_may_be_named(tmp_path: Path) -> None:
    config = planned(_file(tmp_path, "[anchored]\ncode_epochs = 200\n"), _pairs()[0])
    assert config.anchored.code_epochs == 200
    assert planned(configs.preset("anchored"), _pairs()[0]).anchored.code_epochs != 200


def test_dense_codes_of_images_are_planned_as_vectors(tmp_path: Path) -> None:
    x = torch.randn(3000, 24, 24)
    config = _file(tmp_path, "[anchored]\nspatial = false\n")
    flat = configs.override(configs.preset("anchored"), {"anchored": {"domain": "vector"}})
    assert planned(config, x).training == planned(flat, x.flatten(1)).training


def test_a_file_without_epochs_trains_as_long_as_the_plain_command(tmp_path: Path) -> None:
    x, y = _pairs()
    config = _file(tmp_path, '[anchored]\nanchor = "ridge"\nactive = 40\n')
    vspair.fit(x, y, config=config, minutes=1e-6, out=tmp_path / "short", **QUIET)
    run = vspair.runs.Run(tmp_path / "short")
    assert run.config.training.epochs == 3
    assert run.config.anchored.kinds == 40


# -- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ("training", 'precision = "bfloat16"'),
        ("training", "capture = true"),
        ("training", "compile = true"),
        ("training", "patience = 20"),
        ("training", 'schedule = "cosine"'),
        ("training", 'schedule = "constant"'),
        ("training", 'augment = "shift"'),
        ("training", "learning_rate = 1e-3"),
        ("objective", "gamma_x = 0.5"),
        ("model", "x_size = 256"),
    ],
)
def test_what_its_stages_do_not_read_is_refused(section: str, text: str, tmp_path: Path) -> None:
    config = _file(tmp_path, f"[{section}]\n{text}\n")
    key = text.partition(" ")[0]
    message = rf"{section}\.{key} was given, but the stages.*would be ignored.*expected epochs, "
    with pytest.raises(VspairError, match=message + ".*Leave it out"):
        vspair.fit(*_pairs(), config=config, **QUIET)


def test_what_holds_anyway_may_be_named(tmp_path: Path) -> None:
    text = '[training]\ncapture = false\nprecision = "float32"\npatience = 0\nseed = 3\n'
    text += "[model]\ntemperature = 40.0\n"
    x, y = _pairs()
    config = _complete_config(_file(tmp_path, text), None, 0, Pairs(x, y), {})
    assert (config.training.seed, config.model.temperature) == (3, 40.0)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"minutes": float("inf")}, "minutes = inf: expected a finite number above 0"),
        (
            {"held": (*_pairs(9), _pairs(9)[0])},
            r"held has first guesses.*give first = guesses too",
        ),
        ({"validation": 0.0}, "training.validation = 0: expected a share above 0"),
        ({"held": (_pairs(9)[0],)}, r"held has 1 parts: expected \(x, y\), or \(x, y, first\)"),
        (
            {"held": (*_pairs(9), _pairs(9)[0]), "preset": "calibrated"},
            r"held has first guesses.*or held = \(x, y\)",
        ),
    ],
)
def test_bad_input_is_explained(how: dict[str, Any], message: str) -> None:
    x, y = _pairs()
    with pytest.raises(VspairError, match=message):
        vspair.fit(x, y, **how, **QUIET)


def test_the_same_pairs_again_and_again_are_too_few() -> None:
    x, y = (t[:2].repeat(50, 1) for t in _pairs())
    with pytest.raises(VspairError, match="only 2 different pairs: expected at least 3"):
        vspair.fit(x, y, **QUIET)
    with pytest.raises(VspairError, match="groups has 2 different labels"):
        vspair.fit(x, y, groups=torch.arange(100) % 2, **QUIET)


def test_an_anchored_model_is_not_built_without_pairs() -> None:
    with pytest.raises(VspairError, match=r"kind = 'anchored'.*Call vspair.fit\(x, y\)"):
        vspair.build(vspair.preset("anchored").model, (5,), (3,))


# -- the command line ---------------------------------------------------------------------------


def test_help_says_how_long_a_fit_takes() -> None:
    shown = CliRunner().invoke(app, ["fit", "--help"], env={"COLUMNS": "200"}).output
    assert f"two cores, about: {MINUTES:g}." in shown
