"""The answers of every method of the CT study to the same noisy sinograms.

Answers are made block by block, each kept in a file, so that a stage can be stopped in time. What
tables and figures need is small and lies in one folder, ``answers``; neither slices nor weights
are read again to make them. A file of other test pairs or of another training is made anew.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from vspair import runs
from vspair.errors import VspairError
from vspair.methods.dps import Prior, deviation, dps
from vspair.methods.fbp import Fbp
from vspair.methods.tv_admm import TvResult, tv_admm
from vspair.model import InverseModel
from vspair.runs.files import read_groups
from vspair.studies.ct.data import GEOMETRY, bin_of, edges, spread_out
from vspair.studies.ct.measures import (
    codes,
    history,
    judge,
    judge_samples,
    overfitting,
    wider,
)
from vspair.studies.ct.training import (
    PRESETS,
    Bench,
    load_prior,
    load_regression,
    load_vspair,
)
from vspair.studies.factors import STEPS, code_row, leading, perturbed
from vspair.training.acceleration import compiled

__all__ = [
    "WEIGHTS",
    "answer_all",
    "answer_dps",
    "choose_weights",
    "digest",
    "in_layout",
    "keep",
    "known",
    "methods",
    "read",
    "sampled",
    "shown",
    "simple_methods",
    "solve",
    "zeta_here",
]

WEIGHTS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""The paper's list for TV-ADMM, in the unit of :data:`vspair.studies.ct.data.GEOMETRY`."""

BLOCK = 200
"""Test slices of a block."""

DPS_BLOCK = 16
"""Test slices that DPS answers at once, each with all its trajectories."""

WALKED = 2
"""Test slices whose factors are perturbed."""

MOST_OMEGA = 50_000
"""Values of omega that a histogram is made from."""

Groups = dict[str, dict[str, Any]]
Block = Callable[[], Mapping[str, Tensor]]
Simple = Callable[[Tensor], Tensor]
"""From the numbers (k,) of test slices to estimates (k, R, C)."""

Method = Callable[[Tensor], Tensor | TvResult]
"""The same, or with what is known about the solution."""


def digest(*parts: object) -> str:
    """Return a short name for some settings."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def _print_of(values: Tensor) -> str:
    """Return a short digest of a tensor."""
    return hashlib.blake2b(values.contiguous().numpy().tobytes(), digest_size=8).hexdigest()


def _training(folder: Path) -> str:
    """Return what a training is known again by: all that it logged."""
    path = folder / "metrics.jsonl"
    return digest(path.read_bytes() if path.is_file() else b"")


def shown(bench: Bench) -> Tensor:
    """Return the test slices that DPS answers and figures show, by rising noise, (n,)."""
    return spread_out(bench.data.test_level, bench.scale.dps_images)


# -- files ----------------------------------------------------------------------------------


def _array(values: Any) -> Any:
    if not isinstance(values, Tensor):
        return np.asarray(values)
    values = values.detach().cpu()
    return values.float().numpy() if values.is_floating_point() else values.numpy()


def _write(path: Path, key: str, test: str, groups: Mapping[str, Mapping[str, Any]]) -> None:
    runs.make_folder(path.parent)
    flat = {f"{g}.{name}": _array(v) for g, part in groups.items() for name, v in part.items()}
    runs.write_arrays(path, flat | {"key.own": np.array(key), "key.test": np.array(test)})


def read(path: Path) -> Groups:
    """Return an answer's arrays by group and name."""
    return read_groups(path, "Run the study first, without --draw.")


def known(path: Path, key: str) -> bool:
    """Return whether a file holds the answer of a key; one that is damaged does not."""
    with suppress(VspairError):
        return path.is_file() and str(read(path).get("key", {}).get("own")) == key
    return False


def _blocks(
    bench: Bench, name: str, key: str, work: Sequence[Block]
) -> list[dict[str, Any]] | None:
    """Return the arrays of each block, made now or before; nothing where time runs out."""
    found, needed = [], 0.0
    for i, block in enumerate(work):
        path, own = bench.answers / "blocks" / f"{name}-{i:03d}.npz", digest(key, i)
        if not known(path, own):
            if bench.late(needed):
                return None
            start = time.monotonic()
            _write(path, own, "", {"block": block()})
            needed = time.monotonic() - start
        found.append(read(path).get("block", {}))
    return found


def _joined(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: np.concatenate([b[name] for b in blocks]) for name in blocks[0]}


def keep(bench: Bench, name: str, key: str, groups: Mapping[str, Mapping[str, Any]]) -> None:
    """Write an answer's arrays by group and name, to be known again by its key."""
    _write(bench.answers / f"{name}.npz", key, bench.data.key, groups)


# -- point estimates ------------------------------------------------------------------------


def _estimates(method: Method, rows: Tensor) -> dict[str, Tensor]:
    found = method(rows)
    return {"estimate": found.x if isinstance(found, TvResult) else found}


def _judged(bench: Bench, method: Method, rows: Tensor) -> dict[str, Tensor]:
    found, x = method(rows), bench.data.test.x[rows].to(bench.device)
    if isinstance(found, TvResult):
        return judge(found.x, x) | {"converged": found.converged.float()}
    return judge(found, x)


def _answer(bench: Bench, name: str, how: object, method: Method, parameters: int = 0) -> bool:
    """Keep a method's point estimates of all test slices; return whether that is done."""
    rows = shown(bench)
    own = digest(bench.data.key, name, how)
    key = digest(own, rows.tolist())
    if known(bench.answers / f"{name}.npz", key):
        return True
    parts = torch.arange(len(bench.data.test.x)).split(BLOCK)
    seen = _blocks(bench, f"{name}-shown", key, [partial(_estimates, method, rows)])
    blocks = _blocks(bench, name, own, [partial(_judged, bench, method, p) for p in parts])
    if seen is None or blocks is None:
        return False
    row = {"parameters": parameters}
    keep(bench, name, key, {"image": _joined(blocks), "shown": seen[0], "row": row})
    return True


def solve(bench: Bench, y: Tensor, weight: float | Tensor) -> TvResult:
    """Return TV-ADMM's answers to sinograms (k, A, D), with a weight for all or one for each."""
    transform, most = bench.data.problem.transform, bench.scale.tv_iterations
    return tv_admm(transform, y.to(bench.device), weight, max_iterations=most)


def _tv(bench: Bench, y: Tensor, weight: float) -> Tensor:
    return solve(bench, y, weight).x


def _tried(bench: Bench, rows: Tensor, weight: float) -> dict[str, Tensor]:
    part = bench.data.validation
    x = part.x[rows].to(bench.device)
    return {"mse": (_tv(bench, part.y[rows], weight) - x).square().mean((1, 2))}


def choose_weights(bench: Bench, listed: Sequence[float] = WEIGHTS) -> Tensor | None:
    """Return the weight of a list that is best in each bin of the noise, with shape (bins,).

    Chosen by the squared error on validation slices; the paper took the best for each test slice,
    which needs the truth. Nothing is returned where time runs out.
    """
    data, scale = bench.data, bench.scale
    rows = spread_out(data.validation_level, scale.tv_images)
    own = _print_of(data.validation.y[rows])
    key = digest(own, "tv-choice", tuple(listed), scale.tv_iterations)
    work: list[Block] = [partial(_tried, bench, rows, weight) for weight in listed]
    blocks = _blocks(bench, "tv-choice", key, work)
    if blocks is None:
        return None
    errors = np.stack([b["mse"] for b in blocks])
    bins = bin_of(data.validation_level[rows], scale.noise).numpy()
    # A bin that no validation slice falls into takes the weight that is best for all.
    places = range(len(edges(scale.noise)) - 1)
    inside = [bins == b if (bins == b).any() else bins >= 0 for b in places]
    best = [int(errors[:, mask].mean(1).argmin()) for mask in inside]
    weights = torch.tensor([listed[i] for i in best])
    table = np.stack([errors[:, mask].mean(1) for mask in inside])
    keep(bench, "tv-choice", key, {"choice": {"weight": weights, "mse": table}})
    return weights


def simple_methods(bench: Bench) -> Iterator[tuple[str, object, Simple, int]]:
    """Yield the methods that nothing is learned or chosen for, as :func:`methods` does."""
    data, device, geometry = bench.data, bench.device, bench.data.problem.geometry
    average = data.plain.x.mean(0)
    mean = average.to(device)
    yield "mean", _print_of(average), lambda rows: mean.expand(len(rows), *mean.shape), 0
    yield "fbp", "none", partial(_back, bench, Fbp(geometry)), 0
    yield "fbp_hann", "hann", partial(_back, bench, Fbp(geometry, window="hann")), 0


def _back(bench: Bench, fbp: Fbp, rows: Tensor) -> Tensor:
    return fbp(bench.data.test.y[rows].to(bench.device))


def methods(bench: Bench) -> Iterator[tuple[str, object, Method, int] | None]:
    """Yield name, settings, function and parameters of each point estimate.

    The regression is left out where it is not trained; nothing is yielded in place of TV-ADMM
    where time runs out before its weights are chosen.
    """
    data, device = bench.data, bench.device
    yield from simple_methods(bench)
    model = load_regression(bench)
    if model is not None:
        network, fbp = model, Fbp(data.problem.geometry)

        @torch.no_grad()
        def regression(rows: Tensor) -> Tensor:
            return network(_back(bench, fbp, rows))

        how = _training(bench.folder / "regression")
        yield "regression", how, regression, sum(p.numel() for p in model.parameters())
    weights = choose_weights(bench)
    if weights is None:
        yield None
        return
    own = weights[bin_of(data.test_level, bench.scale.noise)].to(device)
    settings = weights.tolist(), bench.scale.tv_iterations, "converged"
    yield "tv", settings, lambda rows: solve(bench, data.test.y[rows], own[rows.to(device)]), 0


# -- vsPAIR ---------------------------------------------------------------------------------


def sampled(bench: Bench, model: InverseModel, rows: Tensor, keep: bool) -> dict[str, Tensor]:
    """Return the measures of posterior samples, or the mean and deviation to be shown.

    Arguments:
        bench: The pairs, and how many samples.
        model: A model.
        rows: The numbers of test slices, with shape (k,).
        keep: Whether to return images, with shape (k, R, C), instead of measures, (k,).
    """
    generator = Generator(bench.device).manual_seed(int(rows[0]))
    x = bench.data.test.x[rows].to(bench.device)
    post = model.posterior(bench.data.test.y[rows])
    with torch.no_grad():
        drawn = post.sample(bench.scale.samples, generator)
        if keep:
            return {"estimate": drawn.mean(0), "std": drawn.std(0)}
        row = judge_samples(drawn, x) | wider(model, drawn, x, generator)
        row["mse_code"] = (post.approximate_mean() - x).square().mean((1, 2))
        return row


def _whole(bench: Bench, model: InverseModel) -> dict[str, Tensor]:
    """Return what is not told by single slices, under names with their group in front."""
    generator = Generator(bench.device).manual_seed(0)
    data = bench.data
    parts = {"train": data.plain, "validation": data.validation, "test": data.test}
    post = codes(model, data.test.y)
    row = code_row(post, generator) | overfitting(model, parts, bench.scale.samples)
    row |= {"parameters": model.n_parameters, "width": float(model.noise_std)}
    row["noise"] = float((model.noise_std * model.x_normaliser.std).mean())
    rows = shown(bench)
    rows = rows[torch.linspace(0, len(rows) - 1, WALKED).round().long()]
    dims = leading(post, rows)
    centre, change = perturbed(post, rows, dims)
    found: dict[str, Tensor] = {f"row.{k}": torch.tensor(v) for k, v in row.items()}
    found["omega.values"] = _some(post.parameters()["omega"].flatten(), MOST_OMEGA)
    found |= {
        "perturbation.index": dims,
        "perturbation.steps": torch.tensor(STEPS),
        "perturbation.centre": centre,
        "perturbation.difference": change,
        "perturbation.truth": data.test.x[rows],
    }
    return found


def _some(values: Tensor, most: int) -> Tensor:
    """Return up to so many values (n,), chosen at random: equal steps would miss whole factors."""
    order = torch.randperm(len(values), generator=Generator().manual_seed(0))
    return values[order[:most].to(values.device)]


def _answer_vspair(bench: Bench, preset: str) -> bool:
    """Keep the answers of a preset as far as it is trained; return whether that is done."""
    name, folder, rows = f"vspair_{preset}", bench.folder / preset, shown(bench)
    own = digest(bench.data.key, name, _training(folder), bench.scale.samples)
    key = digest(own, rows.tolist(), "best")
    if known(bench.answers / f"{name}.npz", key):
        return True
    model = load_vspair(bench, preset)
    if model is None:
        return True
    parts = torch.arange(len(bench.data.test.x)).split(BLOCK)
    work: list[Block] = [
        partial(sampled, bench, model, rows, True),
        partial(_whole, bench, model),
    ]
    seen = _blocks(bench, f"{name}-shown", key, work)
    judged: list[Block] = [partial(sampled, bench, model, p, False) for p in parts]
    blocks = _blocks(bench, name, own, judged)
    if seen is None or blocks is None:
        return False
    _, header = runs.read_tensors(folder / "weights.safetensors")
    best = header.get("epoch", 0)
    groups: Groups = {"image": _joined(blocks), "shown": seen[0], "history": history(folder, best)}
    for full, values in seen[1].items():
        group, _, short = full.partition(".")
        groups.setdefault(group, {})[short] = values
    run = runs.Run(folder)
    groups["row"] |= {
        "epochs": run.metrics()[-1]["epoch"],
        "epochs_planned": run.config.training.epochs,
        "best_epoch": best,
    }
    keep(bench, name, key, groups)
    return True


def answer_all(bench: Bench) -> bool:
    """Keep the answers of every method but DPS; return whether that is done."""
    rows, test = shown(bench), bench.data.test
    seen = {"index": rows, "truth": test.x[rows], "sinogram": test.y[rows]}
    keep(bench, "test", bench.data.key, {"test": {"level": bench.data.test_level}, "shown": seen})
    for method in methods(bench):
        if method is None:
            return False
        name, how, work, parameters = method
        if not _answer(bench, name, how, work, parameters):
            return False
    return all(_answer_vspair(bench, preset) for preset in PRESETS)


# -- DPS ------------------------------------------------------------------------------------


def zeta_here(zeta: float) -> float:
    """Return DPS's step size for lengths in half sides, from that for lengths in pixels."""
    return zeta / GEOMETRY.pixel


def in_layout(prior: Prior) -> Prior:
    """Lay a prior out as it was trained, channels last: its convolutions then need no copies."""
    return prior.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def answer_dps(bench: Bench) -> bool:
    """Keep the answers of DPS to the slices that are shown; return whether that is done."""
    scale, rows = bench.scale, shown(bench)
    prior = load_prior(bench)
    if prior is None:
        raise VspairError(
            f"There is no prior in {bench.folder / 'prior'}. Train it first: --only prior."
        )
    how = _training(bench.folder / "prior"), scale.trajectories, scale.steps, scale.zeta
    key = digest(bench.data.key, "dps", how, rows.tolist())
    if known(bench.answers / "dps.npz", key):
        return True

    in_layout(prior)

    def block(part: Tensor) -> dict[str, Tensor]:
        drawn = dps(
            prior, prior.sde, bench.data.problem.transform,
            bench.data.test.y[part].to(bench.device), GEOMETRY.shape,
            generator=Generator(bench.device).manual_seed(int(part[0])),
            trajectories=scale.trajectories, steps=scale.steps, zeta=zeta_here(scale.zeta),
            inverse=prior.normaliser.inverse,
        )  # fmt: skip
        truth = bench.data.test.x[part].to(bench.device)
        kept = {"estimate": drawn.mean(0), "one": drawn[0], "std": deviation(drawn)}
        return kept | {f"image.{k}": v for k, v in judge_samples(drawn, truth).items()}

    with compiled(prior.network) if bench.compiles else nullcontext():
        blocks = _blocks(bench, "dps", key, [partial(block, p) for p in rows.split(DPS_BLOCK)])
    if blocks is None:
        return False
    joined = _joined(blocks)
    image = {k.removeprefix("image."): v for k, v in joined.items() if k.startswith("image.")}
    seen = {k: v for k, v in joined.items() if not k.startswith("image.")}
    row = {"parameters": sum(p.numel() for p in prior.parameters())}
    keep(bench, "dps", key, {"image": image | {"index": rows}, "shown": seen, "row": row})
    return True
