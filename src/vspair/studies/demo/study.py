"""The demonstration: learn to undo the spreading of heat, and say how sure the answer is.

Pairs are generated, a small vsPAIR is trained on them, and everything is measured on pairs that
it never saw. It takes less than two minutes on two CPU cores and ends in one HTML page.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from vspair import config as configs
from vspair.config import Config
from vspair.errors import VspairError
from vspair.fitting import fit
from vspair.methods.ridge import Ridge
from vspair.metrics import central_interval, coverage
from vspair.model import InverseModel
from vspair.posterior import LatentPosterior
from vspair.problems.heat import HeatProblem
from vspair.studies.demo.drawing import NOISY, PLAIN, Answers, Factors, Pairs, write_report
from vspair.studies.results import Row, write_summary

__all__ = ["demo"]

PROBLEM = HeatProblem(
    time=8.0, noise=0.05, modes=2, decay=1.0, series=0.5, source_width=(0.4, 0.6)
)
SAMPLES = 100
TEST = 200
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
SHOWN = 3
FILES = ("run", "figures", "metrics.json", "index.html")


def demo(
    out: Path, *, epochs: int | None = None, pairs: int = 10000, progress: bool = True
) -> dict[str, Any]:
    """Train, measure and write a page; return what ``metrics.json`` holds.

    Where it fails or is stopped, it takes away what it has written and leaves nothing.

    Arguments:
        out: A new folder to fill: ``run/``, ``metrics.json``, ``figures/`` and ``index.html``.
        epochs: Passes over the pairs; from the configuration ``demo`` where not given.
        pairs: How many pairs to learn from.
        progress: Whether to show a progress bar.
    """
    config = configs.shipped("demo")
    if epochs is not None:
        config = configs.override(config, {"training": {"epochs": epochs}})
    with _new_folder(Path(out)) as folder:
        train, test = Pairs(*PROBLEM.pairs(pairs, seed=0)), Pairs(*PROBLEM.pairs(TEST, seed=1))
        start = time.perf_counter()
        model = fit(
            train.x, train.y, config=config, out=folder / "run", device="cpu", progress=progress
        )
        rows = _rows(model, train, test, time.perf_counter() - start)
        summary = _save(folder / "metrics.json", config, len(train.x), rows)
        few = Pairs(test.x[:SHOWN], test.y[:SHOWN])
        write_report(
            folder,
            summary,
            Pairs(train.x[:SHOWN], train.y[:SHOWN]),
            _answers(model, few),
            _factors(model.posterior(few.y[:1]), SHOWN),
        )
    return summary


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


def _rows(model: InverseModel, train: Pairs, test: Pairs, seconds: float) -> list[Row]:
    posterior = model.posterior(test.y)
    plain, noisy = (_draw(model.posterior(test.y, noise=noise)) for noise in (False, True))
    answers = {"vsPAIR": plain.mean(0)} | _rivals(train, test)
    return [
        *(_row("mse", _mse(x, test.x), "field^2", name) for name, x in answers.items()),
        *_coverage_rows(plain, test.x, PLAIN),
        *_coverage_rows(noisy, test.x, NOISY),
        _row("beyond_4_std", _far(noisy, test.x), "share", condition=NOISY),
        _row("active", float(posterior.active().double().sum(1).mean()), "factors"),
        _row("parameters", model.n_parameters, "numbers"),
        _row("seconds_per_sample", _seconds_per_sample(model, test.y[0]), "s"),
        _row("training_seconds", seconds, "s"),
    ]


def _row(metric: str, value: float, unit: str, model: str = "vsPAIR", condition: str = "") -> Row:
    preset = "calibrated" if model == "vsPAIR" else ""
    return Row(model, preset, metric, value, unit=unit, condition=condition)


def _coverage_rows(samples: Tensor, x: Tensor, condition: str) -> list[Row]:
    return [
        _row(f"coverage_{round(100 * level)}", share, "share", condition=condition)
        for level, share in _coverage(samples, x).items()
    ]


def _save(path: Path, config: Config, train: int, rows: list[Row]) -> dict[str, Any]:
    """Write the numbers and return what was written."""
    scale = {
        "epochs": config.training.epochs,
        "train": train,
        "test": TEST,
        "samples": SAMPLES,
        "factors": config.model.x_size,
        "asked": config.objective.active,
        "paper_scale": False,
    }
    write_summary(path, "demo", "vspair demo", scale, rows)
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _mse(answer: Tensor, x: Tensor) -> float:
    return float((answer - x).square().mean())


def _draw(posterior: LatentPosterior) -> Tensor:
    return posterior.sample(SAMPLES, Generator().manual_seed(0))


def _rivals(train: Pairs, test: Pairs) -> dict[str, Tensor]:
    """Return the other methods' answers for the test pairs, each with shape (B, H, W)."""
    return {
        "ridge": Ridge(train.x, train.y)(test.y),
        "trivial-y": test.y,
        "trivial-mean": train.x.mean(0).expand_as(test.x),
        "wiener": PROBLEM.wiener(test.y, train.x),
    }


def _coverage(samples: Tensor, x: Tensor) -> dict[float, float]:
    """Return the share of pixels inside the central interval of each level."""
    return {v: float(coverage(*central_interval(samples, v), x).mean()) for v in LEVELS}


def _far(samples: Tensor, x: Tensor) -> float:
    """Return the share of pixels whose error exceeds four standard deviations."""
    std, mean = torch.std_mean(samples, dim=0)
    return float(((x - mean).abs() > 4 * std).double().mean())


def _seconds_per_sample(model: InverseModel, y: Tensor, n: int = 256) -> float:
    """Return the time of one posterior sample, encoding of y included, among n of them."""
    model.posterior(y).sample(10)
    start = time.perf_counter()
    model.posterior(y).sample(n)
    return (time.perf_counter() - start) / n


# -- what the page shows --------------------------------------------------------------------


def _answers(model: InverseModel, pairs: Pairs) -> Answers:
    """Return what the model says about a few pairs."""
    posterior = model.posterior(pairs.y)
    mean, std = posterior.moments(SAMPLES, Generator().manual_seed(0))
    return Answers(pairs, mean, std, posterior.sample(2, Generator().manual_seed(2)))


def _factors(posterior: LatentPosterior, count: int) -> Factors:
    """Return the factors that carry most pixel variance for one observation.

    The variance of a factor is that of the decoded image along it: a quarter of the squared
    difference between one deviation up and one down, all other factors at their means.
    """
    mean, sigma = posterior.code.mean[0], posterior.code.variance[0].sqrt()
    steps = torch.diag(sigma)
    slope = posterior.decode(mean + steps) - posterior.decode(mean - steps)
    carried = 0.25 * slope.square().mean((1, 2))
    index = carried.argsort(descending=True)[:count]
    centre = posterior.decode(mean)
    return Factors(
        index,
        carried[index] / carried.sum(),
        posterior.decode(mean - 2 * steps[index]) - centre,
        posterior.decode(mean + 2 * steps[index]) - centre,
    )
