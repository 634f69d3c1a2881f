"""The training of the anchored model, in stages, each on what the one before has not seen.

1. *Ridge*, in closed form; penalty and answers out of fold (:mod:`vspair.training.prepared`).
2. *Networks*, one without each fold, by squared error of what ridge leaves.
3. *Code* and 4. *grain* of what is left in doubt (:mod:`vspair.training.doubt`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from vspair.anchored import DROPOUT, AnchoredModel
from vspair.anchors.folds import hold_out
from vspair.config import Config, TrainingConfig
from vspair.data import Pairs
from vspair.networks import evaluating
from vspair.runs.files import make_folder, write_text
from vspair.training.corrections import Corrections, left_in_doubt, maps_of
from vspair.training.doubt import FALL_UNTIL, CodeStage, Doubt, GrainStage, in_parts
from vspair.training.loop import Row
from vspair.training.mirrors import mirror
from vspair.training.prepared import Prepared, Say, help_of, prepare
from vspair.training.stage import Stage

__all__ = ["AnchoredTraining", "doubt_again"]

NETWORK_CLIP = 0.1
"""The largest norm of the gradient of the anchor's networks: a few pairs with large residuals
would rule them otherwise."""


class _Networks:
    """Trains the networks of the anchor, one without each fold, by the error that is left.

    Attributes:
        mirrored: Whether networks learn from mirrored pairs too.
    """

    def __init__(self, model: AnchoredModel, data: Prepared, settings: TrainingConfig) -> None:
        self.model, self.data, self.settings = model, data, settings
        self.target = model.frame.maps(data.residual)
        self.mirrored = False

    def stage(self, k: int, folder: Path | None) -> Stage:
        """Return the training of network k."""
        net = self.model.networks[k]
        rows = (self.data.fold != k).nonzero().squeeze(1)
        judges = hold_tenth(self.data.groups[rows], k)
        judged, rows = rows[judges], rows[~judges]
        vectors = not self.model.frame.size

        def loss(batch: Tensor, noise: Generator, _: float) -> tuple[Tensor, dict[str, Tensor]]:
            read, target = self.data.features[batch], self.target[batch]
            if self.mirrored:
                read, target = mirror((read, target), noise)
            with _chance_from(noise) if vectors else nullcontext():  # for dropout
                error = net(read)[0] - target
            return error.square().mean(), {}

        def score(_: float) -> dict[str, float]:
            return {"score": self.error(k, judged)}

        return Stage(net, loss, score, rows, self.settings, folder=folder)

    def help(self, name: str, helped: bool) -> None:
        """Let all networks be trained with a help of :func:`help_of`, or without."""
        self.mirrored = helped and name == "mirrors"
        for module in self.model.networks.modules():
            if isinstance(module, nn.Dropout):
                module.p = DROPOUT * (helped and name == "dropout")

    def error(self, k: int, rows: Tensor) -> float:
        """Return the mean squared error of network k on some pairs."""
        said = in_parts(partial(maps_of, self.model.networks[k]), self.data.features[rows])
        return float((said - self.target[rows]).square().mean())


def hold_tenth(groups: Tensor, seed: int) -> Tensor:
    """Return which pairs judge the epochs of a network, bool (N,): about a tenth of them.

    Whole groups, unless these are so few that one of them is more than a fifth: what networks lose
    by not having learned from it is more than a better epoch is worth.
    """
    own = torch.unique(groups.cpu(), return_inverse=True)[1]
    held = hold_out(own, 0.1, seed)
    if 5 * int(held.sum()) > len(own):
        held = hold_out(torch.arange(len(own)), 0.1, seed)
    return held.to(groups.device)


@contextmanager
def _chance_from(generator: Generator) -> Iterator[None]:
    """Let torch's own chance come from a generator, and leave it as it was."""
    seed = torch.randint(2**31, (), device=generator.device, generator=generator)
    devices = [generator.device] if generator.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(int(seed))
        yield


def doubt_again(
    model: AnchoredModel, train: Pairs, groups: Tensor, config: Config, first: Tensor | None = None
) -> Doubt:
    """Return what a trained model's code was learned from: residuals that are out of fold.

    Ridge regression is fitted again without each fold; networks are those of the model, each of
    which has not seen one fold. Others may learn from what they leave as the code did.

    Arguments:
        model: The trained model.
        train: The pairs that it was trained on, in their order.
        groups: The group of each, numbered from 0 on, with shape (N,).
        config: The settings that it was trained with.
        first: First guesses, where the model was trained with them.
    """
    device = model.x_scale.mean.device
    _, data = prepare(train, first, groups, config, lambda _: None, device)
    with evaluating(model):
        return left_in_doubt(model, data.to(device))


class AnchoredTraining:
    """Trains an anchored model on pairs, stage by stage, in memory or into a folder.

    Arguments:
        train: Pairs to train on.
        held: Pairs that no weight is fitted to: they say how far corrections are trusted, and
            choose epochs, the number of factors, the threshold of gates and the size of the doubt.
        config: The settings.
        groups: The group of each training pair, numbered from 0 on, with shape (N,).
        held_groups: How many groups the held-out pairs are of; each its own if not given.
        first: First guesses of the training and of the held-out unknowns.
        folder: Where stages are saved and resumed from; nothing is saved without it.
        device: Where to train.
        say: Called with a line on each step of the way.
    """

    def __init__(
        self,
        train: Pairs,
        held: Pairs,
        config: Config,
        *,
        groups: Tensor,
        held_groups: int | None = None,
        first: tuple[Tensor, Tensor] | None = None,
        folder: Path | None = None,
        device: torch.device | str = "cpu",
        say: Say = lambda _: None,
    ) -> None:
        self.config, self.folder, self.device, self.say = config, folder, device, say
        self.train_pairs, self.held_pairs, self.groups, self.first = train, held, groups, first
        self.held_groups = len(held) if held_groups is None else held_groups
        self.epochs = config.training.epochs
        self.rows: list[Row] = []

    def run(self, show: bool = True) -> AnchoredModel:
        """Train to the end and return the model."""
        first = None if self.first is None else self.first[0]
        known = self.train_pairs, first, self.groups
        model, data = prepare(*known, self.config, self.say, self.device)
        # Convolutions are faster so; in the end weights lie as those of a reloaded model do.
        model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        data = data.to(self.device)
        doubt = self._anchor(model, data, show)
        del data  # what is seen of it is in doubt already
        held = self._held(model)
        code = CodeStage(model, doubt, held, self.held_groups)
        every = torch.arange(len(doubt.residual), device=self.device)
        how = {"learning_rate": 2e-3, "clip": 1.0}
        epochs = self.config.anchored.code_epochs or self.epochs
        stage = Stage(
            code.parts, code.loss, code.score, every, self._settings(epochs, **how),
            settled=FALL_UNTIL, folder=self._folder("code"),
        )  # fmt: skip
        self._run(stage, "code", show)
        code.settle()
        if not model.anchored.active and float(model.thresholds.active) < model.n_factors:
            self.say(
                f"code: {float(model.thresholds.active):.0f} factors, chosen on held-out pairs"
            )
        self.say(code.health())
        if model.anchored.grain == "predicted":
            grain = GrainStage(model, doubt, held)
            grain.start()
            settings = self._settings(max(2, self.epochs // 3), learning_rate=1e-3)
            stage = Stage(
                model.grain_reader, grain.loss, grain.score, every, settings,
                folder=self._folder("grain"),
            )  # fmt: skip
            self._run(stage, "grain", show)
            grain.settle(self.held_groups)
        return model.eval().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]

    def _anchor(self, model: AnchoredModel, data: Prepared, show: bool) -> Doubt:
        """Train the networks, keep what helps, and return what is left in doubt."""
        if not model.corrects:
            return Doubt(data.features, data.residual)
        networks = _Networks(
            model, data, self._settings(self.epochs, learning_rate=3e-3, clip=NETWORK_CLIP)
        )
        for k in range(self._choose_help(networks, show), len(model.networks)):
            self._run(networks.stage(k, self._folder(f"network-{k}")), f"network {k}", show)
        model.made = replace(model.made, mirrored=networks.mirrored)
        Corrections(model, data, self._held(model), self.held_groups).trust(self.say)
        if float(model.trust) == 0:
            self.say("networks: no better than what they correct; left out")
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.config.training.seed)
                model.leave_out_networks()
            model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        return left_in_doubt(model, data)

    def _choose_help(self, networks: _Networks, show: bool) -> int:
        """Train the first network with a help against overfitting, and without; keep the better.

        Wide networks of few noisy vectors need dropout; a smooth relation without noise is blurred
        by it. Mirrored images stand for more pairs where left and right are alike, or up and down.

        Returns:
            How many networks are trained.
        """
        name = help_of(networks.model.frame.domain, self.config, len(networks.target))
        if not name:
            return 0
        net, found = networks.model.networks[0], {}
        fresh = (networks.data.fold == 0).nonzero().squeeze(1)
        start = deepcopy(net.state_dict())
        for helped in (False, True):
            networks.help(name, helped)
            net.load_state_dict(start)
            folder = self._folder(f"network-0-{'with' if helped else 'without'}-{name}")
            self._run(networks.stage(0, folder), "network 0", show)
            found[helped] = networks.error(0, fresh), deepcopy(net.state_dict())
        better = min(found, key=lambda helped: found[helped][0])
        networks.help(name, better)
        net.load_state_dict(found[better][1])
        self.say(f"networks: {'with' if better else 'without'} {name}, by the first fold")
        return 1

    @torch.no_grad()
    def _held(self, model: AnchoredModel) -> Doubt:
        """Return what answers to held-out pairs leave in doubt."""
        guesses = None if self.first is None else self.first[1]
        seen, residual = [], []
        for rows in torch.arange(len(self.held_pairs)).split(256):
            x, y = (t[rows].to(self.device) for t in (self.held_pairs.x, self.held_pairs.y))
            y = model.normalise_y(y)
            guess = None if guesses is None else model.x_scale(guesses[rows].to(self.device))
            answer, part = model.answer(y, guess)
            seen.append(part)
            left = model.x_scale(x) - answer
            residual.append(left * model.x_scale.std / model.x_normaliser.std)
        return Doubt(torch.cat(seen), torch.cat(residual))

    def _settings(self, epochs: int, **how: Any) -> TrainingConfig:
        fixed: dict[str, Any] = {"epochs": epochs, "keep": "best"}
        return replace(self.config.training, weight_decay=0.01, **fixed, **how)

    def _folder(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / "stages" / name

    def _run(self, stage: Stage, name: str, show: bool) -> None:
        """Train a stage to its end, from where it was stopped, and log it."""
        stage.identity = {"stage": name, "epochs": stage.settings.epochs}
        if stage.folder is not None:
            make_folder(stage.folder)
            if (stage.folder / "checkpoint.safetensors").exists():
                stage.resume()
        for row in stage.train(show):
            self.rows.append({"epoch": len(self.rows) + 1, "stage": name, **_but_epoch(row)})
        if self.folder is not None:
            lines = "".join(json.dumps(row) + "\n" for row in self.rows)
            write_text(self.folder / "metrics.jsonl", lines)


def _but_epoch(row: Row) -> Row:
    return {k: v for k, v in row.items() if k != "epoch"}
