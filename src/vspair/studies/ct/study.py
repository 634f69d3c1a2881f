"""Computed tomography, section 4.3 and appendix D.3, with every baseline on the same sinograms.

The stages: four trainings, the answers of all methods to all test slices, those of DPS to a few,
stages that train and ask the default of ``fit`` and what stands beside it
(:mod:`vspair.studies.ct.anchored`), and the time that an answer takes. ``simple`` asks only the
methods that nothing is trained or chosen for. The report is made from the answers alone. The paper
trains on 3,000 slices; here some patients of these are held out, and the weights that are best on
them are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from vspair import runs
from vspair.anchored import AnchoredModel
from vspair.data import Pairs
from vspair.evaluation import answer_seconds, score_method
from vspair.methods import Dps
from vspair.model import InverseModel, PairedAutoencoder
from vspair.posterior import LatentPosterior, Method
from vspair.runs import Groups
from vspair.studies.answers import Question, digest
from vspair.studies.ct import drawing
from vspair.studies.ct.anchored import ADDED, added_methods, train_fbp_unet, train_fit, train_ridge
from vspair.studies.ct.data import SMOKE, CtData, Scale, load, spread_out
from vspair.studies.ct.methods import (
    Asked,
    Bench,
    KeptSamples,
    all_methods,
    dps_samples,
    load_prior,
    simple_methods,
    train_preset,
    train_unet,
)
from vspair.studies.ct.tables import WORDS, report
from vspair.studies.study import Stage, Study
from vspair.uncertainty import DEVIATIONS, posterior_in_parts, summarise_codes, traversal

__all__ = ["ALWAYS", "SMOKE", "STUDY", "Scale"]

PERTURBED = 2
"""Test slices whose factors are perturbed."""

MOST_OMEGA = 50_000
"""Values of omega that a histogram is made from."""

TIMED_STEPS = 30
"""Steps that a DPS trajectory is timed over; all its steps cost the same."""


# -- answers --------------------------------------------------------------------------------


def _shown(bench: Bench) -> Tensor:
    """Return the test slices that DPS answers and figures show, by rising noise, (n,)."""
    return spread_out(bench.data.test.level, bench.scale.dps_images)


def _question(bench: Bench) -> Question:
    """Return what every method but DPS is asked; keep what is seen of the test slices."""
    rows, test = _shown(bench), bench.data.test
    key = digest(test.x, test.y, rows)
    if not bench.answers.has("test", key):
        seen = {"index": rows, "truth": test.x[rows], "sinogram": test.y[rows]}
        bench.answers.write("test", key, {"test": {"level": test.level}, "shown": seen})
    pairs = test.to(bench.device)
    return Question(pairs, rows, bench.scale.samples, image_quality=True)


def _ask(bench: Bench, asked: Mapping[str, Asked]) -> bool:
    """Keep the answers of some methods; return whether that is done."""
    question = _question(bench)
    return all(
        bench.answers.ask(
            name, method_for, question, settings, partial(_more, bench, name, method_for)
        )
        for name, (settings, method_for) in asked.items()
    )


def _answer_all(bench: Bench) -> bool:
    """Keep the answers of every method that the paper compares, but of DPS."""
    asked = all_methods(bench)
    return asked is not None and _ask(bench, asked)


def _answer_simple(bench: Bench) -> bool:
    """Keep the answers of methods that nothing is trained or chosen for."""
    return _ask(bench, simple_methods(bench.data))


def _add(bench: Bench, train: Callable[[Bench], bool], names: Sequence[str]) -> bool:
    """Train and ask some of the methods of :mod:`vspair.studies.ct.anchored`."""
    if not train(bench):
        return False
    asked = added_methods(bench)
    return _ask(bench, {name: asked[name] for name in names})


def _more(bench: Bench, name: str, method_for: Callable[[Tensor], Any]) -> Groups:
    """Return what is kept of a method beside its answers."""
    method = method_for(_shown(bench))
    groups: Groups = {"row": {"parameters": method.n_parameters}}
    if isinstance(method, AnchoredModel):
        groups["row"] |= _errors_by_part(bench, method)
        groups["row"]["epochs"] = runs.Run(bench.folder / ADDED[name]).config.training.epochs
    if isinstance(method, PairedAutoencoder):
        groups["row"] |= _overfitting(method, _parts(bench), bench.scale.samples)
        groups["row"]["decoder_noise_normalised"] = float(method.noise_std)
        groups["row"]["decoder_noise"] = float((method.noise_std * method.x_normaliser.std).mean())
        own = _of_training(bench, name.removeprefix("vspair_"))
        groups["row"] |= own.pop("row")
        groups |= own
    if isinstance(method, InverseModel):
        own = _of_codes(bench, method)
        groups["row"] |= own.pop("row")
        groups |= own
    return groups


def _answer_dps(bench: Bench) -> bool:
    """Keep the answers of DPS to the slices that are shown; return whether that is done."""
    rows = _shown(bench)
    found = dps_samples(bench, rows)
    if found is None:
        return False
    key, samples, parameters = found
    pairs, shown = bench.data.test[rows].to(bench.device), torch.arange(len(rows))
    question = Question(pairs, shown, len(samples), len(rows), image_quality=True)
    more = {"row": {"parameters": parameters}}
    return bench.answers.ask(
        "dps", lambda part: KeptSamples(samples[:, part]), question, key, lambda: more
    )


# -- of vsPAIR alone ------------------------------------------------------------------------


class _OwnCode:
    """Decodes x from its own code: what the autoencoder of x can do at best."""

    def __init__(self, model: PairedAutoencoder) -> None:
        self.model = model

    @torch.no_grad()
    def posterior(self, x: Tensor) -> LatentPosterior:
        model = self.model
        return LatentPosterior(model, model.x_encoder(model.x_normaliser(x.to(model.device))))


def _parts(bench: Bench) -> dict[str, Pairs]:
    """Return the slices that models were trained on, chosen by and are tested on, by name."""
    return {"train": bench.data.plain, "validation": bench.data.held, "test": bench.data.test}


def _overfitting(
    model: PairedAutoencoder, parts: Mapping[str, Pairs], samples: int
) -> dict[str, float]:
    """Return the errors of autoencoder and inversion on parts of the data, by name."""
    row = {}
    for name, part in parts.items():
        own = score_method(_OwnCode(model), part.x, part.x, samples=1)
        row[f"mse_autoencoder_sample_{name}"] = float(own["mse_sample"].mean())
        given = score_method(model, part.x, part.y, samples=samples)
        row[f"mse_mean_{name}"] = float(given["mse_mean"].mean())
    return row


def _errors_by_part(bench: Bench, model: AnchoredModel) -> dict[str, float]:
    """Return the errors of answers on parts of the data, by name."""
    row = {}
    for name, part in _parts(bench).items():
        pairs = zip(part.x.split(128), part.y.split(128), strict=True)
        wrong = [(model.posterior(y).mean().cpu() - x).double().square() for x, y in pairs]
        row[f"mse_mean_{name}"] = float(torch.cat(wrong).mean())
    return row


def _of_codes(bench: Bench, model: InverseModel) -> Groups:
    """Return what is known of a model's codes, and what moving its factors does."""
    data, rows = bench.data, _shown(bench)
    post = posterior_in_parts(model, data.test.y)
    row = summarise_codes(post, Generator(bench.device).manual_seed(0))
    rows = rows[torch.linspace(0, len(rows) - 1, PERTURBED).round().long()]
    few = model.posterior(data.test.y[rows])
    dims, centre = few.factors(4).index, few.approximate_mean()
    change = traversal(few, dims, DEVIATIONS) - centre[:, None, None]
    moved = {"index": dims, "steps": torch.tensor(DEVIATIONS), "centre": centre}
    moved |= {"difference": change, "truth": data.test.x[rows]}
    omega = post.parameters()["omega"].flatten()
    # At random: equal steps would miss whole factors.
    some = torch.randperm(len(omega), generator=Generator().manual_seed(0))[:MOST_OMEGA]
    values = omega[some.to(omega.device)]
    return {"row": dict(row), "perturbation": moved, "omega": {"values": values}}


def _of_training(bench: Bench, preset: str) -> Groups:
    """Return the losses of each epoch, and the epoch of the weights.

    That is not the epoch of the least loss: a training keeps the weights of the least score.
    """
    run = runs.Run(bench.folder / preset)
    _, header = runs.read_tensors(run.path / "weights.safetensors")
    logged, best = run.metrics(), header.get("epoch", 0)
    names = {"epoch": "epoch", "train": "loss", "validation": "val_loss"}
    history = {
        k: np.array([line.get(v, np.nan) for line in logged], np.float32) for k, v in names.items()
    }
    planned = run.config.training.epochs
    row = {"epochs": logged[-1]["epoch"], "epochs_planned": planned, "best_epoch": best}
    return {"row": row, "history": history | {"best": np.array([best], np.float32)}}


# -- seconds --------------------------------------------------------------------------------


def _measure_seconds(bench: Bench) -> bool:
    """Keep the seconds that each method takes for one slice, alone on the device.

    Networks of the paper that are not trained are timed as they were built, which takes as long;
    the default of ``fit`` and what stands beside it are timed where they are trained. Of DPS the
    seconds of one step are kept: of one trajectory, and of as many as there are samples.
    """
    scale, test = bench.scale, bench.data.test
    added = added_methods(bench)
    key = digest("seconds", scale.samples, scale.small, runs.machine(bench.device), *added)
    if bench.answers.has("seconds", key):
        return True
    asked = all_methods(bench, untrained=True)
    if asked is None:
        return False
    asked |= added
    row = spread_out(test.level, 1)
    y = test.y[row].to(bench.device)
    one: dict[str, float] = {}
    many: dict[str, float] = {}
    for name, (_, method_for) in asked.items():
        method = method_for(row)
        one[name] = answer_seconds(method, y)
        if isinstance(method, InverseModel):
            many[name] = answer_seconds(method, y, samples=scale.samples)
    prior, steps = load_prior(bench), min(TIMED_STEPS, scale.steps)
    for trajectories, kept in ((1, one), (scale.samples, many)):
        operator = bench.data.problem.transform
        sampler: Method = Dps(prior, operator, trajectories=trajectories, steps=steps, zeta=0.0)
        kept["dps"] = answer_seconds(sampler, y, repeats=1) / steps
    bench.answers.write("seconds", key, {"one": one, "many": many})
    return True


# -- the study ------------------------------------------------------------------------------

ALWAYS = ("train", "test", "copies", "noise", "half", "small")
"""What of a scale every stage depends on."""


def _trains(preset: str) -> Stage[Scale, CtData]:
    return Stage(partial(train_preset, preset=preset), (*ALWAYS, "epochs"))


def _trains_unet(name: str) -> Stage[Scale, CtData]:
    epochs = f"{name}_epochs"
    return Stage(partial(train_unet, name=name), (*ALWAYS, epochs), grows=(epochs,))


ADDS = ("train", "test", "noise", "half", "small", "samples", "dps_images", "anchored_copies")
"""What of a scale the stages depend on that train and ask at once."""


def _fits(name: str) -> Stage[Scale, CtData]:
    work = partial(_add, train=partial(train_fit, name=name), names=[name])
    return Stage(work, (*ADDS, "anchored_minutes"))


_UNETS = (*ADDS, "unet_epochs")
_OF_DPS = ("trajectories", "steps", "zeta")

STUDY: Study[Scale, CtData] = Study(
    name="ct",
    title=WORDS.text["title"],
    load=load,
    describe=lambda data: data.about,
    stages={
        "paper": _trains("paper"),
        "calibrated": _trains("calibrated"),
        "regression": _trains_unet("regression"),
        "prior": _trains_unet("prior"),
        "answers": Stage(
            _answer_all,
            (*ALWAYS, "samples", "dps_images", "tv_images", "tv_iterations"),
            reads=("paper", "calibrated", "regression"),
        ),
        "dps": Stage(
            _answer_dps, (*ALWAYS, "dps_images", *_OF_DPS), renews=_OF_DPS, reads=("prior",)
        ),
        "simple": Stage(_answer_simple, ADDS[:-1]),
        "anchored": _fits("vspair_anchored"),
        "anchored_fbp": _fits("vspair_fbp"),
        "ridge": Stage(partial(_add, train=train_ridge, names=["ridge", "ridge_unet"]), _UNETS),
        "fbp_unet": Stage(partial(_add, train=train_fbp_unet, names=["fbp_unet"]), _UNETS),
        "seconds": Stage(_measure_seconds, (*ALWAYS, "samples", "tv_images", "tv_iterations")),
    },
    report=report,
    draw=drawing.draw_all,
    captions=drawing.CAPTIONS,
    joins=True,
)
"""Section 4.3 as a study; ``--only`` names its stages."""
