"""The demonstration: learn to undo the spreading of heat, and say how sure the answer is.

Pairs are generated, ``fit`` is called as a user calls it, and everything is measured on pairs that
the model never saw. It takes about two minutes on two CPU cores and ends in one HTML page.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Generator

from vspair import runs
from vspair.anchored import AnchoredModel
from vspair.data import Pairs
from vspair.errors import VspairError
from vspair.evaluation import answer_seconds, score_method
from vspair.fitting import fit
from vspair.methods import AnswerMean, AnswerY, Ridge, Wiener
from vspair.posterior import Method
from vspair.problems.heat import HeatProblem
from vspair.studies.demo.drawing import Answers, NamedFactors, write_report
from vspair.studies.results import Row, summary
from vspair.verdict import Verdict

__all__ = ["demo"]

PROBLEM = HeatProblem(
    time=8.0, noise=0.05, modes=2, decay=1.0, series=0.5, source_width=(0.4, 0.6)
)
SAMPLES = 100
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
SHOWN = 3
FILES = ("run", "figures", "metrics.json", "index.html")


def demo(
    out: Path,
    *,
    pairs: int = 4000,
    test: int = 200,
    minutes: float = 1.0,
    progress: bool = True,
) -> dict[str, Any]:
    """Train, measure and write a page; return what ``metrics.json`` holds.

    Where it fails or is stopped, it takes away what it has written and leaves nothing.

    Arguments:
        out: A new folder to fill: ``run/``, ``metrics.json``, ``figures/`` and ``index.html``.
        pairs: How many pairs to learn from.
        test: How many other pairs to measure on.
        minutes: How long to train on two CPU cores, about.
        progress: Whether to show a progress bar.
    """
    with _new_folder(Path(out)) as folder:
        train, unseen = (Pairs(*PROBLEM.pairs(n, seed=i)) for i, n in enumerate((pairs, test)))
        run, start = folder / "run", time.perf_counter()
        model = fit(train.x, train.y, minutes=minutes, out=run, device="cpu", progress=progress)
        seconds = _row("training_seconds", time.perf_counter() - start)
        assert isinstance(model, AnchoredModel)
        rows = [*_rows(model, train, unseen), seconds]
        sizes = {"train": pairs, "test": test, "epochs": runs.Run(run).config.training.epochs}
        metrics = _save(folder / "metrics.json", model, sizes, rows)
        shown = unseen[:SHOWN]
        answers, factors = _answers(model, shown), _factors(model, shown)
        write_report(folder, metrics, train[:SHOWN], answers, factors)
    return metrics


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """Make a folder; where what follows fails or is stopped, take away what it wrote."""
    existed = out.exists()
    if existed and (not out.is_dir() or any(out.iterdir())):
        raise VspairError(f"{out} exists and is not empty. Name another folder or remove it.")
    try:
        (out / "figures").mkdir(parents=True)
    except OSError as error:
        raise VspairError(f"Could not make the folder {out}: {error}.") from None
    try:
        yield out
    except BaseException:
        _remove(out, keep=existed)
        raise


def _remove(out: Path, keep: bool) -> None:
    """Remove the demonstration's own files, and the folder where it holds nothing else."""
    for name in FILES:
        for path in (out / name, out / f".{name}.part"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
    if not keep and not any(out.iterdir()):
        out.rmdir()


# -- numbers --------------------------------------------------------------------------------


def _rows(model: AnchoredModel, train: Pairs, test: Pairs) -> list[Row]:
    """Return the scores of the model and of methods without a network, all in the same way."""
    methods: dict[str, Method] = {
        "vsPAIR": model,
        "ridge": Ridge(train.x, train.y),
        "wiener": Wiener(PROBLEM, train.x),
        "trivial-y": AnswerY(),
        "trivial-mean": AnswerMean(train.x),
    }
    rows = [
        _row(metric, float(values.mean()), name)
        for name, method in methods.items()
        for metric, values in score_method(
            method, test.x, test.y, samples=SAMPLES, chunk=len(test), levels=LEVELS
        ).items()
    ]
    seconds = answer_seconds(model, test.y[:1], samples=SAMPLES) / SAMPLES
    mean = {row.metric: row.value for row in rows if row.model == "vsPAIR"}
    return [
        *rows,
        _row("share_in_factors", mean["variance_factors"] / mean["variance"]),
        _row("parameters", model.n_parameters),
        _row("seconds_per_sample", seconds),
    ]


def _row(metric: str, value: float, model: str = "vsPAIR") -> Row:
    return Row(model, "anchored" if model == "vsPAIR" else "", metric, value)


def _save(
    path: Path, model: AnchoredModel, sizes: dict[str, int], rows: list[Row]
) -> dict[str, Any]:
    """Write the numbers and the verdict, and return what was written."""
    assert isinstance(model.verdict, Verdict)
    scale = {**sizes, "samples": SAMPLES, "kinds": model.kinds}
    scale |= {"factors": model.n_factors, "paper_scale": False}
    made = {"command": runs.command_line() or "vspair demo", "commit": runs.commit()}
    made["machine"] = runs.machine()
    found = summary("demo", made, scale, rows) | {"verdict": model.verdict.as_dict()}
    text = json.dumps(found, indent=1) + "\n"
    runs.write_text(path, text)
    return dict(json.loads(text))


# -- what the page shows --------------------------------------------------------------------


def _answers(model: AnchoredModel, pairs: Pairs) -> Answers:
    """Return what the model says about a few pairs."""
    posterior = model.posterior(pairs.y)
    split = posterior.split(1000, generator=Generator().manual_seed(0))
    return Answers(pairs, posterior.mean(), posterior.sample(2, Generator().manual_seed(2)), split)


def _factors(model: AnchoredModel, pairs: Pairs) -> NamedFactors:
    """Return the factors that carry most of the doubt about each of a few pairs."""
    found = model.posterior(pairs.y).factors(SHOWN)
    names = [[model.factor_name(index) for index in row] for row in found.index.tolist()]
    return NamedFactors(names, found)
