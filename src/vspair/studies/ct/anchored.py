"""The default of ``fit`` in the CT study, and simple methods that learn from the same pairs.

``fit`` is called as a user calls it, who knows which patient a slice is of; and once more with
FBP as first guesses, from which the regression of this study starts too. Beside it stand ridge
regression, and a plain network that reads the answer of ridge, or FBP, as an image. All of these
learn from slices as they are and moved copies, on a CPU too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from vspair import runs
from vspair.anchored import AnchoredModel
from vspair.methods import Fbp, LargeRidge, Plain
from vspair.methods.plain import PlainNetwork, train_plain
from vspair.posterior import Method
from vspair.problems.ct import CtPairs
from vspair.studies.answers import digest, made_once
from vspair.studies.ct.methods import Asked, Bench, back_projected, is_trained
from vspair.studies.trainings import has_ended, load_trained, train_anchored

__all__ = ["ADDED", "added_methods", "train_fbp_unet", "train_fit", "train_ridge"]

ADDED = {
    "vspair_anchored": "anchored",
    "vspair_fbp": "anchored_fbp",
    "ridge": "ridge",
    "ridge_unet": "ridge_unet",
    "fbp_unet": "fbp_unet",
}
"""The methods by their answers, with the folders that they are trained into."""


def _pairs(bench: Bench) -> CtPairs:
    """Return what all are trained on."""
    return bench.data.with_copies(bench.scale.anchored_copies)


def _patients(bench: Bench) -> Any:
    """Return the patient of each of these pairs."""
    return np.tile(bench.data.patients, bench.scale.anchored_copies)


def train_fit(bench: Bench, name: str) -> bool:
    """Train one of both by ``fit``, from y alone or with FBP; return whether that is done."""
    folder = ADDED[name]
    if has_ended(bench, folder):
        return True
    pairs, known = _pairs(bench), {"groups": _patients(bench)}
    if name == "vspair_fbp":
        known["first"] = back_projected(bench, pairs.y)
    return train_anchored(
        bench, folder, pairs, minutes=bench.scale.anchored_minutes, seed=0, **known
    )


def train_ridge(bench: Bench) -> bool:
    """Fit ridge, then train a network on its answers out of fold; return whether that is done.

    On answers in sample, which are better than those to new observations, it would learn to trust
    ridge too much.
    """
    folder = bench.folder / ADDED["ridge"]
    files = folder / "weights.safetensors", folder / "answers.safetensors"
    if not all(path.is_file() for path in files):
        if bench.late():
            return False
        bench.note_work()
        runs.make_folder(folder)
        pairs = _pairs(bench)
        ridge, answers = LargeRidge.fit(
            pairs.x, pairs.y, groups=_patients(bench), device=bench.device
        )
        ridge.save(files[0])
        runs.write_tensors(files[1], {"answers": answers}, {})
    return _train_unet(
        bench,
        "ridge_unet",
        lambda _: runs.read_tensors(files[1])[0]["answers"],
        lambda y: _ridge(bench)(y.to(bench.device)).cpu(),
    )


def train_fbp_unet(bench: Bench) -> bool:
    """Train a network on FBP; return whether that is done."""
    first = partial(back_projected, bench)
    return _train_unet(bench, "fbp_unet", first, first)


def _train_unet(
    bench: Bench,
    name: str,
    first: Callable[[Tensor], Tensor],
    held_first: Callable[[Tensor], Tensor],
) -> bool:
    """Train a plain network on first answers; held-out patients choose the best epoch.

    Arguments:
        bench: Data, and where to train.
        name: The name of its answers.
        first: From the observations of training pairs to first answers.
        held_first: The same of held-out pairs.
    """
    folder, epochs = bench.folder / ADDED[name], bench.scale.unet_epochs
    if is_trained(folder) and PlainNetwork.load(folder).epochs >= epochs:
        return True
    if bench.late():
        return False
    bench.note_work()
    pairs, held = _pairs(bench), bench.data.held
    how: dict[str, Any] = {"held": (held.x, held_first(held.y)), "device": str(bench.device)}
    how |= {"folder": folder, "deadline": bench.deadline, "show": bench.show}
    trained = train_plain(pairs.x, first(pairs.y), epochs=epochs, **how)
    return trained.network.epochs == epochs


# -- asked ----------------------------------------------------------------------------------


def _ridge(bench: Bench) -> LargeRidge:
    file = bench.folder / ADDED["ridge"] / "weights.safetensors"
    return LargeRidge.load(file).to(bench.device)


def _fbp_unet(bench: Bench) -> Method:
    return Plain(_network(bench, "fbp_unet"), Fbp(bench.scale.geometry))


def _ridge_unet(bench: Bench) -> Method:
    return Plain(_network(bench, "ridge_unet"), _ridge(bench))


def _network(bench: Bench, name: str) -> PlainNetwork:
    return PlainNetwork.load(bench.folder / ADDED[name], str(bench.device))


def _fitted(bench: Bench, name: str) -> Method:
    model = load_trained(bench, ADDED[name])
    assert isinstance(model, AnchoredModel)
    if name == "vspair_fbp":
        model.first = Fbp(bench.scale.geometry)
    return model


def added_methods(bench: Bench) -> dict[str, Asked]:
    """Return those of :data:`ADDED` that have weights, by name."""
    made: dict[str, Callable[[], Method]] = {
        "vspair_anchored": partial(_fitted, bench, "vspair_anchored"),
        "vspair_fbp": partial(_fitted, bench, "vspair_fbp"),
        "ridge": partial(_ridge, bench),
        "ridge_unet": partial(_ridge_unet, bench),
        "fbp_unet": partial(_fbp_unet, bench),
    }
    weights = {
        name: bench.folder / folder / "weights.safetensors" for name, folder in ADDED.items()
    }
    return {
        name: Asked(digest(path.read_bytes()), made_once(made[name]))
        for name, path in weights.items()
        if path.is_file()
    }
