"""Every test starts from the same seed and leaves torch's global state as it found it."""

import json
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from torch import Tensor

from vspair import config as configs
from vspair.problems.gaussian import GaussianProblem

# The same examples in every run, and no time limit for an example on a busy machine.
settings.register_profile("vspair", deadline=None, derandomize=True, database=None)
settings.load_profile("vspair")

# Small networks gain nothing from threads, and test processes side by side lose by them; so do the
# programs that tests start.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

_GLOBAL_STATE: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    (torch.get_num_threads, torch.set_num_threads),
]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the contracts of models and methods run elsewhere: ``--device cuda --dtype float64``."""
    parser.addoption("--device", default="cpu", help="Where contracts compute.")
    parser.addoption("--dtype", default="float32", help="What contracts compute in.")


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> torch.device:
    """Where contracts compute."""
    return torch.device(request.config.getoption("--device"))


@pytest.fixture(scope="session")
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """What contracts compute in."""
    return getattr(torch, request.config.getoption("--dtype"))


@pytest.fixture(autouse=True)
def guard() -> Iterator[None]:
    """Seed torch; fail a test that changes what every other test relies on."""
    torch.manual_seed(0)
    before = [get() for get, _ in _GLOBAL_STATE]
    yield
    after = [get() for get, _ in _GLOBAL_STATE]
    for (_, put), value in zip(_GLOBAL_STATE, before, strict=True):
        put(value)
    assert after == before, "dtype, grad mode, deterministic flag or threads changed"


@pytest.fixture(scope="module")
def no_data_folder() -> Iterator[None]:
    """Phantoms and made digits, also where real data is at hand."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("VSPAIR_DATA", raising=False)
        yield


@pytest.fixture(scope="session")
def pairs() -> tuple[Tensor, Tensor]:
    """A few pairs of two dimensions, for sweeps."""
    return GaussianProblem.random(0).pairs(24, 2, seed=1)


@pytest.fixture(scope="session")
def base() -> configs.Config:
    """A model that is trained in no time, for sweeps."""
    network = {"kind": "mlp", "width": 8, "depth": 1}
    model = {"x_size": 8, "y_size": 8, "x_network": network, "y_network": network, "map_hidden": 8}
    training = {"epochs": 1, "batch_size": 16, "checkpoint_seconds": 0.02}
    return configs.override(configs.preset("paper"), {"model": model, "training": training})


@pytest.fixture
def expect_kept() -> Callable[..., None]:
    """Check that results hold all that others hold, to the digit, but for some arrays.

    What was made anew, which may have stood there before, may be another.
    """

    def method(row: dict[str, Any]) -> str:
        return row["model"] + (f" ({row['preset']})" if row.get("preset") else "")

    def check(before: Path, after: Path, but: Collection[str] = ()) -> None:
        old, new = (json.loads((f / "summary.json").read_text()) for f in (before, after))
        new_methods = {name for made in new["made"][1:] for name in made["methods"]}
        stays = [row for row in old["rows"] if method(row) not in new_methods]
        assert all(row in new["rows"] for row in stays)
        added = [row for row in new["rows"] if row not in stays]
        assert added
        assert {row.get("preset", "") for row in added} <= {"anchored", ""}
        first = old.get("made", [old])[0]
        for known in ("command", "commit", "machine"):
            assert new["made"][0][known] == first[known]
        assert new_methods.isdisjoint(new["made"][0]["methods"])
        with np.load(before / "figures.npz") as a, np.load(after / "figures.npz") as b:
            again = ("anchored", "vspair_fbp")
            kept = (k for k in a.files if k not in but and not any(w in k for w in again))
            for key in kept:
                assert a[key].dtype == b[key].dtype, key
                np.testing.assert_array_equal(a[key], b[key], err_msg=key)

    return check
