import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import vspair
from vspair import runs
from vspair.errors import VspairError
from vspair.problems.gaussian import GaussianProblem
from vspair.runs import Run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    x, y = GaussianProblem.random(0).pairs(32, 2, seed=1)
    path = tmp_path_factory.mktemp("runs") / "run"
    vspair.fit(x, y, preset="calibrated", active=2, epochs=1, out=path, progress=False)
    return path


@pytest.fixture
def run(folder: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    copy = tmp_path / "run"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def test_a_folder_that_cannot_be_written_to_is_noticed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is root may write everywhere, so that permissions are only pretended."""
    runs.make_folder(tmp_path / "a" / "b")
    monkeypatch.setattr("os.access", lambda path, mode: Path(path).name != "b")
    runs.make_folder(tmp_path / "a")
    with pytest.raises(VspairError, match=r"b cannot be written to. Name another"):
        runs.make_folder(tmp_path / "a" / "b")


def test_the_folder_holds_what_it_promises(run: Path) -> None:
    names = {file.name for file in run.iterdir()}
    assert names == {
        "config.toml",
        "weights.safetensors",
        "checkpoint.safetensors",
        "metrics.jsonl",
        "versions.json",
    }
    kept = json.loads((run / "versions.json").read_text())
    assert kept["torch"] == torch.__version__
    assert {"python", "numpy", "vspair", "commit"} <= set(kept)


def test_normalisation_is_part_of_the_model(run: Path) -> None:
    model = vspair.load(run)
    assert model.x_normaliser.std.ne(1).all()
    assert model.y_normaliser.mean.ne(0).all()


def test_loading_in_another_process_gives_the_same_bits(run: Path) -> None:
    y = GaussianProblem.random(0).observe(4, torch.Generator().manual_seed(3)).float()
    here = vspair.load(run).posterior(y).sample(3, torch.Generator().manual_seed(1))
    script = f"""
import torch, vspair
torch.set_num_threads(1)
y = torch.tensor({y.tolist()!r})
x = vspair.load({str(run)!r}).posterior(y).sample(3, torch.Generator().manual_seed(1))
torch.save(x, {str(run / "there.pt")!r})
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert torch.equal(torch.load(run / "there.pt", weights_only=True), here)


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("epochs = 1", "epoch = 1", r"Unknown key training\.epoch. Did you mean training\.epochs"),
        ("epochs = 1", 'epochs = "one"', r"training\.epochs = 'one': expected int"),
        ("epochs = 1", "epochs = -1", "above 0"),
        ('kind = "vsPAIR"', 'kind = "vsPear"', r"model\.kind.*Did you mean 'vsPAIR'"),
        ("[training]", "[trainings]", "Did you mean training"),
        ("format = 1", "format = 99", "Upgrade"),
        ("format = 1", "", "not written by vspair"),
        ("[model]", "[model", "not valid TOML"),
        ("x_size = 64", "x_size = 63", "does not fit"),
    ],
)
def test_a_damaged_configuration_is_explained(run: Path, old: str, new: str, message: str) -> None:
    _edit(run / "config.toml", old, new)
    with pytest.raises(VspairError, match=message):
        vspair.load(run)


@pytest.mark.parametrize("name", ["weights.safetensors", "checkpoint.safetensors"])
@pytest.mark.parametrize("keep", [0, 5, 300])
def test_truncated_tensors_are_explained(run: Path, name: str, keep: int) -> None:
    file = run / name
    file.write_bytes(file.read_bytes()[:keep])
    x, y = GaussianProblem.random(0).pairs(32, 2, seed=1)
    ask = {
        "weights.safetensors": lambda: vspair.load(run),
        "checkpoint.safetensors": lambda: vspair.fit(x, y, out=run, resume=True, progress=False),
    }[name]
    with pytest.raises(VspairError, match="damaged"):
        ask()


def test_missing_weights_and_foreign_folders(run: Path, tmp_path: Path) -> None:
    (run / "weights.safetensors").unlink()
    with pytest.raises(VspairError, match="no file"):
        vspair.load(run)
    with pytest.raises(VspairError, match="not a run folder"):
        vspair.load(tmp_path)
    (tmp_path / "config.toml").write_text("[tool]\na = 1\n")
    with pytest.raises(VspairError, match="not written by vspair"):
        vspair.load(tmp_path)


def test_a_pickle_is_not_unpickled(run: Path) -> None:
    torch.save({"weights": torch.zeros(1)}, run / "weights.safetensors")
    with pytest.raises(VspairError, match="damaged"):
        vspair.load(run)


def test_metrics_cut_short_by_a_kill_are_read(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 2, "lo')
    assert [row["epoch"] for row in Run(run).metrics()] == [1]


def test_resuming_a_finished_run_changes_nothing(run: Path) -> None:
    x, y = GaussianProblem.random(0).pairs(32, 2, seed=1)
    before = vspair.load(run).state_dict()
    after = vspair.fit(x, y, out=run, resume=True, progress=False).state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before)


def test_describe(run: Path) -> None:
    found = runs.describe(run)
    assert found["model"]["kind"] == "vsPAIR"
    assert found["training"]["epochs"] == "1 of 1"
    assert found["last epoch"]["epoch"] == 1


def test_describe_survives_damaged_notes(run: Path) -> None:
    (run / "versions.json").write_bytes(b"\xff\xfe{")
    (run / "metrics.jsonl").write_bytes(b"\xff\x00\n[1]\n")
    found = runs.describe(run)
    assert found["versions"] == {"versions.json": "missing or damaged"}
    assert found["training"]["epochs"] == "0 of 1"


def test_weights_that_are_not_finite_are_refused(run: Path) -> None:
    model = vspair.load(run)
    with torch.no_grad():
        next(model.x_decoder.parameters()).fill_(float("nan"))
    Run(run).save_weights(model, 1)
    with pytest.raises(VspairError, match="not finite"):
        vspair.load(run)


def test_a_foreign_checkpoint_is_explained(run: Path) -> None:
    x, y = GaussianProblem.random(0).pairs(32, 2, seed=1)
    (run / "checkpoint.safetensors").write_bytes((run / "weights.safetensors").read_bytes())
    with pytest.raises(VspairError, match="does not fit"):
        vspair.fit(x, y, out=run, resume=True, progress=False)


def test_a_checkpoint_of_another_device_is_explained(run: Path) -> None:
    x, y = GaussianProblem.random(0).pairs(32, 2, seed=1)
    tensors, header = runs.read_tensors(run / "checkpoint.safetensors")
    tensors["generator"] = torch.zeros(16, dtype=torch.uint8)
    runs.write_tensors(run / "checkpoint.safetensors", tensors, header)
    with pytest.raises(VspairError, match="another kind of device than cpu"):
        vspair.fit(x, y, out=run, resume=True, progress=False)


def test_an_impossible_model_is_explained(run: Path) -> None:
    _edit(run / "config.toml", "x_size = 64", "x_size = 100000000000")
    with pytest.raises(VspairError, match="cannot be made"):
        vspair.load(run)


@pytest.mark.parametrize("text", ["[1]", '"abc"', "3"])
def test_describe_survives_notes_of_another_kind(run: Path, text: str) -> None:
    (run / "versions.json").write_text(text)
    (run / "metrics.jsonl").write_text('{"epoch": "x"}\n')
    found = runs.describe(run)
    assert found["versions"] == {"versions.json": "missing or damaged"}
    assert found["training"]["epochs"] == "0 of 1"


def test_a_folder_in_place_of_the_metrics_is_explained(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()
    with pytest.raises(VspairError, match=r"metrics\.jsonl cannot be read"):
        runs.describe(run)


def test_headers_of_another_kind_are_explained(run: Path) -> None:
    x, y = GaussianProblem.random(0).pairs(32, 2, seed=1)
    tensors, header = runs.read_tensors(run / "checkpoint.safetensors")
    runs.write_tensors(run / "checkpoint.safetensors", tensors, header | {"epoch": "x"})
    with pytest.raises(VspairError, match="cannot be continued from"):
        vspair.fit(x, y, out=run, resume=True, progress=False)
    weights, _ = runs.read_tensors(run / "weights.safetensors")
    runs.write_tensors(run / "weights.safetensors", weights, [1])  # type: ignore[arg-type]
    with pytest.raises(VspairError, match="damaged"):
        runs.describe(run)


def test_all_files_can_be_read_by_those_who_may_read_one(folder: Path) -> None:
    assert len({file.stat().st_mode for file in folder.iterdir()}) == 1


def test_the_commit_can_be_given_where_there_is_no_checkout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs.commit.cache_clear()
    monkeypatch.setenv("VSPAIR_COMMIT", "abc123")
    assert runs.commit() == runs.versions()["commit"] == "abc123"
    runs.commit.cache_clear()


@pytest.mark.parametrize(
    ("typed", "recorded"),
    [
        (["vspair", "reproduce", "heat", "--smoke"], "vspair reproduce heat --smoke"),
        (
            ["/bin/vspair", "reproduce", "ct", "--data-dir", "/home/me/ct", "--runs=/tmp/r"],
            "vspair reproduce ct --data-dir D --runs R",
        ),
        (["/lib/vspair/__main__.py", "demo", "--out", "a b"], "vspair demo --out O"),
        (["/bin/pytest", "-q"], ""),
    ],
    ids=str,
)
def test_a_command_is_recorded_without_folders_of_this_machine(
    typed: list[str], recorded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", typed)
    assert runs.command_line() == recorded
