"""The methods of the CT study: how each is trained, found again, and asked.

Trainings stop in time and go on when they are called again. All keep the weights that are best on
the held-out patients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from vspair import config as configs
from vspair import runs
from vspair.config import Config
from vspair.errors import VspairError
from vspair.evaluation import score_method
from vspair.fitting import start_or_resume_training
from vspair.methods import AnswerMean, Dps, Fbp, RegressionAfter, TvAdmm
from vspair.methods.dps import Prior, train_prior
from vspair.methods.regression import Regression, train_regression
from vspair.model import InverseModel, build
from vspair.networks.unet import WIDTHS
from vspair.posterior import Method, SamplePosterior
from vspair.problems.ct import CtPairs
from vspair.studies.answers import digest, made_once
from vspair.studies.ct.data import CtData, Scale, bin_edges, bin_of, spread_out
from vspair.studies.study import Workspace
from vspair.training.acceleration import compiled
from vspair.training.batch_norms import refresh_norms
from vspair.training.networks import Plan, Trainable
from vspair.training.side_by_side import train_side_by_side
from vspair.training.trainer import Trainer

__all__ = [
    "PRESETS", "WEIGHTS", "Asked", "Bench", "KeptSamples", "all_methods", "back_projected",
    "choose_weights", "config_of", "dps_samples", "is_trained", "load_prior", "simple_methods",
    "start_preset", "train_preset", "train_unet",
]  # fmt: skip

Bench = Workspace[Scale, CtData]
T = TypeVar("T", bound=Trainable)

PRESETS = ("paper", "calibrated")

WEIGHTS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""The paper's list for TV-ADMM, in the unit of :data:`vspair.studies.ct.data.GEOMETRY`."""

DPS_BLOCK = 16
"""Test slices that DPS answers at once, each with all its trajectories."""

_TINY = {"x_size": 16, "y_size": 8, "x_network": {"width": 2}, "y_network": {"width": 2}}
_TINY_WIDTHS = (4, 8)


def _over_copies(epochs: int, copies: int) -> int:
    """Return the passes over so many copies of each slice that have the steps of epochs."""
    return max(1, epochs // copies)


# -- vsPAIR ---------------------------------------------------------------------------------


def config_of(preset: str, scale: Scale) -> Config:
    """Return the configuration of a preset at a scale.

    Arguments:
        preset: ``paper``, ``calibrated``, or another name of a shipped configuration.
        scale: How much to train.
    """
    config = configs.shipped(f"ct-{preset}")
    copies = scale.copies if preset == "calibrated" else 1
    epochs = _over_copies(scale.epochs or config.training.epochs, copies)
    changes: dict[str, Any] = {"training": {"epochs": epochs}}
    if scale.small:
        changes["model"] = _TINY
        changes["objective"] = {"active": 6} if preset == "calibrated" else {}
    return configs.override(config, changes)


def _pairs(data: CtData, preset: str) -> CtPairs:
    """Return what a preset is trained on: moved copies too, but for the paper's."""
    return data.train if preset == "calibrated" else data.plain


def start_preset(
    bench: Bench, preset: str, out: Path, changes: Mapping[str, Any] | None = None
) -> Trainer:
    """Return the training of a preset, new or where its run folder was left.

    Arguments:
        bench: The pairs, how much to train and where.
        preset: ``paper``, ``calibrated``, or another name of a shipped configuration.
        out: The run folder.
        changes: Other values for some keys of the configuration, by section.
    """
    on_gpu = bench.device.type == "cuda"
    how: dict[str, Any] = {"capture": on_gpu, "compile": bench.compile and on_gpu}
    how["precision"] = "bfloat16" if on_gpu else "float32"
    config = configs.override(config_of(preset, bench.scale), {"training": how})
    config, train = configs.override(config, changes or {}), _pairs(bench.data, preset)
    return start_or_resume_training(train, bench.data.held, config, out, bench.device)


def train_preset(bench: Bench, preset: str) -> bool:
    """Train a preset into its run folder; return whether it is trained to its end."""
    trainer = start_preset(bench, preset, bench.folder / preset)
    if trainer.finished:
        return True
    bench.note_work()
    return train_side_by_side([trainer], bench.deadline, bench.show)


def _load_preset(bench: Bench, preset: str) -> InverseModel:
    """Return a preset as far as it is trained; untrained where it is not.

    The averages of batch norm are measured at the end of a training; of one that was stopped
    before, they are measured here.
    """
    if not is_trained(bench.folder / preset):
        config, geometry = config_of(preset, bench.scale), bench.scale.geometry
        model = build(config.model, geometry.shape, geometry.sinogram_shape)
        return model.to(bench.device).eval()
    run = runs.Run(bench.folder / preset)
    model, training = run.load(bench.device), run.config.training
    if training.norms == "answer" and run.metrics()[-1]["epoch"] < training.epochs:
        y = _pairs(bench.data, preset).y.to(bench.device)
        refresh_norms(model, model.y_normaliser(y))
    return model


# -- U-Nets ---------------------------------------------------------------------------------


def is_trained(folder: Path) -> bool:
    """Return whether a training has come to the end of an epoch and left weights."""
    return all((folder / name).is_file() for name in ("weights.safetensors", "metrics.jsonl"))


def _widths(scale: Scale) -> Sequence[int]:
    return _TINY_WIDTHS if scale.small else WIDTHS


def train_unet(bench: Bench, name: str) -> bool:
    """Train the ``regression`` or the ``prior``; return whether all its epochs are done."""
    folder = bench.folder / name
    planned = getattr(bench.scale, f"{name}_epochs")
    epochs = _over_copies(planned, bench.scale.copies)
    if is_trained(folder):
        _, header = runs.read_tensors(folder / "weights.safetensors")
        if header["epoch"] >= epochs:
            return True
    if bench.late():
        return False
    bench.note_work()
    on_gpu = bench.device.type == "cuda"
    plan = Plan(epochs=epochs, keep="best", precision="bfloat16" if on_gpu else "float32")
    how: dict[str, Any] = {
        "widths": _widths(bench.scale), "folder": folder, "device": str(bench.device),
        "deadline": bench.deadline, "compile": bench.compile and on_gpu, "show": bench.show,
    }  # fmt: skip
    train, held = bench.data.train, bench.data.held
    network: Trainable
    if name == "prior":
        network = train_prior(train.x, plan, held=held.x, **how)
    else:
        first, held_first = (back_projected(bench, part.y) for part in (train, held))
        network = train_regression(first, train.x, plan, held=(held_first, held.x), **how)
    return network.epochs == epochs


def back_projected(bench: Bench, y: Tensor) -> Tensor:
    """Return FBP of sinograms, which networks are trained to improve, on the CPU, (N, R, C)."""
    fbp = Fbp(bench.scale.geometry)
    return torch.cat([fbp(part.to(bench.device)).cpu() for part in y.split(256)])


def _load_unet(bench: Bench, kind: type[T]) -> T:
    """Return a U-Net as far as it is trained; untrained where it is not."""
    folder = bench.folder / kind.__name__.lower()
    if is_trained(folder):
        return kind.load(folder, str(bench.device))
    network = kind(bench.scale.geometry.shape, _widths(bench.scale))  # type: ignore[call-arg, arg-type]
    return network.to(bench.device).eval()


def load_prior(bench: Bench) -> Prior:
    """Return DPS's prior as far as it is trained; untrained where it is not."""
    prior = _load_unet(bench, Prior).requires_grad_(False)
    # As it was trained, channels last: its convolutions then need no copies.
    return prior.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


# -- methods that answer all test slices ----------------------------------------------------


class Asked(NamedTuple):
    """A method that is asked.

    Arguments:
        settings: What its answers depend on beside the question.
        method_for: From the rows of test pairs to the method that answers them.
    """

    settings: object
    method_for: Callable[[Tensor], Method]


def simple_methods(data: CtData) -> dict[str, Asked]:
    """Return the methods that nothing is learned or chosen for, by name."""
    geometry, mean = data.problem.geometry, AnswerMean(data.plain.x)
    return {
        "mean": Asked(digest(mean.mean), lambda _: mean),
        "fbp": Asked("none", made_once(lambda: Fbp(geometry))),
        "fbp_hann": Asked("hann", made_once(lambda: Fbp(geometry, window="hann"))),
    }


def all_methods(bench: Bench, untrained: bool = False) -> dict[str, Asked] | None:
    """Return the methods that answer all test slices, by name; see :data:`tables.NAMES`.

    Arguments:
        bench: Data and trainings.
        untrained: Whether to return networks that are not trained too, as they were built.

    Returns:
        Nothing where time runs out before TV-ADMM's weights are chosen.
    """
    weights = choose_weights(bench)
    if weights is None:
        return None
    data, scale = bench.data, bench.scale
    own = weights[bin_of(data.test.level, scale.noise)].to(bench.device)
    found = simple_methods(data)
    found["tv"] = Asked((weights.tolist(), scale.tv_iterations), lambda r: _tv(bench, own[r]))
    networks: dict[str, Callable[[], Method]] = {
        "regression": lambda: RegressionAfter(Fbp(scale.geometry), _load_unet(bench, Regression)),
        "vspair_paper": partial(_load_preset, bench, "paper"),
        "vspair_calibrated": partial(_load_preset, bench, "calibrated"),
    }
    for name, load in networks.items():
        folder = bench.folder / name.removeprefix("vspair_")
        if untrained or is_trained(folder):
            found[name] = Asked(_logged(folder), made_once(load))
    return found


def _logged(folder: Path) -> str:
    """Return what a training is known again by: all that it logged."""
    path = folder / "metrics.jsonl"
    return digest(path.read_bytes() if path.is_file() else b"")


def _tv(bench: Bench, weight: float | Tensor) -> TvAdmm:
    most = bench.scale.tv_iterations
    return TvAdmm(bench.data.problem.transform, weight, max_iterations=most)


def _try_weight(bench: Bench, rows: Tensor, weight: float) -> dict[str, Tensor]:
    """Return the error of a weight on each of some held-out slices, with shape (n,)."""
    pairs = bench.data.held[rows]
    method, y = _tv(bench, weight), pairs.y.to(bench.device)
    return {"mse_mean": score_method(method, pairs.x, y, chunk=len(rows))["mse_mean"]}


def choose_weights(bench: Bench, listed: Sequence[float] = WEIGHTS) -> Tensor | None:
    """Return the weight of a list that is best in each bin of the noise, with shape (bins,).

    Chosen by the squared error on held-out slices; the paper took the best for each test slice,
    which needs the truth. Nothing is returned where time runs out.
    """
    held, scale = bench.data.held, bench.scale
    rows = spread_out(held.level, scale.tv_images)
    key = digest(held.y[rows], "tv-choice", tuple(listed), scale.tv_iterations)
    work = [partial(_try_weight, bench, rows, weight) for weight in listed]
    blocks = bench.answers.blocks("tv-choice", key, work)
    if blocks is None:
        return None
    errors = np.stack([block["mse_mean"] for block in blocks])
    bins = bin_of(held.level[rows], scale.noise).numpy()
    # A bin that no held-out slice falls into takes the weight that is best for all.
    places = range(len(bin_edges(scale.noise)) - 1)
    inside = [bins == b if (bins == b).any() else bins >= 0 for b in places]
    table = np.stack([errors[:, mask].mean(1) for mask in inside])
    weights = torch.tensor([listed[i] for i in table.argmin(1)])
    if not bench.answers.has("tv-choice", key):
        groups = {"choice": {"weight": weights, "mse_mean": table}}
        bench.answers.write("tv-choice", key, groups)
    return weights


# -- DPS ------------------------------------------------------------------------------------


class KeptSamples:
    """Answers with samples (K, B, R, C) that were made before: making them takes hours."""

    def __init__(self, samples: Tensor) -> None:
        self.samples = samples

    def posterior(self, y: Tensor) -> SamplePosterior:
        """Return the samples."""
        return SamplePosterior(self.samples.to(y.device))


def dps_samples(bench: Bench, rows: Tensor) -> tuple[str, Tensor, int] | None:
    """Sample by DPS, or find what was sampled before.

    Arguments:
        bench: The trained prior, test pairs and scale.
        rows: The test slices to answer, with shape (n,).

    Returns:
        What the samples are known again by, the samples with shape (K, n, R, C), and the number
        of the prior's parameters; nothing where time runs out.
    """
    folder, scale, test = bench.folder / "prior", bench.scale, bench.data.test
    if not is_trained(folder):
        raise VspairError(f"There is no prior in {folder}. Train it first: --only prior.")
    prior = load_prior(bench)
    how: dict[str, Any] = {"trajectories": scale.trajectories, "steps": scale.steps}
    how["zeta"] = scale.zeta / scale.geometry.pixel  # from lengths in pixels to those here
    key = digest(_logged(folder), sorted(how.items()), test.y[rows])

    def sample(part: Tensor) -> dict[str, Tensor]:
        method = Dps(prior, bench.data.problem.transform, seed=int(part[0]), **how)
        return {"samples": method.posterior(test.y[part]).sample(scale.trajectories)}

    work = [partial(sample, part) for part in rows.split(DPS_BLOCK)]
    fast = bench.compile and bench.device.type == "cuda"
    with compiled(prior.network) if fast else nullcontext():
        blocks = bench.answers.blocks("dps-samples", key, work)
    if blocks is None:
        return None
    joined = torch.cat([torch.from_numpy(block["samples"]) for block in blocks], 1)
    return key, joined, sum(p.numel() for p in prior.parameters())
