"""From pairs to an anchored model: what is held out, how long to train, and the verdict."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from vspair import config as configs
from vspair.anchored import MOST_READ, AnchoredModel, First, as_first, ask_first
from vspair.anchors.folds import as_groups, assign_folds, hold_out
from vspair.config import Config
from vspair.data import Pairs, fingerprint
from vspair.errors import VspairError
from vspair.networks.spatial import Domain, Frame
from vspair.runs import Run
from vspair.training.anchored import AnchoredTraining, doubt_again
from vspair.training.doubt import FEW_FACTORS, Doubt
from vspair.training.prepared import FOLDS, domain_of, help_of, whole_networks
from vspair.verdict import Verdict, judge

__all__ = [
    "AnchorChoice", "AnchoredFit", "doubt_of_fit", "plan_epochs", "planned", "suggest_kinds",
]  # fmt: skip

AnchorChoice = Literal["auto", "none", "ridge", "network"]

MINUTES = 8.0
"""How long a training may take where nothing is said, in nominal minutes."""

EPOCHS, VECTOR_EPOCHS = (3, 40), 150
"""The fewest and the most passes over the pairs; of few vectors, the most."""

CODE_STEPS, MOST_STEPS = (1500, 3000), 10_000
"""The fewest and the most steps in which a code is learned, where passes allow it: in fewer,
factors do not come to decide. Networks and codes of vectors, whose steps take little, get more."""

MOST_KINDS = 64
"""The most factors of vectors where no more were asked for."""

MOST_CODE = 60
"""The most passes of a code, if these are so many steps."""

FEW_FOLDS = 3
"""How many folds there are where time is too short for networks of more."""

FEW_PASSES = 5
"""Fewer passes over the pairs than this are too few for a network of each fold."""

KEYS = ("epochs", "batch_size", "seed", "validation", "checkpoint_seconds")
"""Keys of the training section that stages read; all others they set themselves."""

LEAST_HALVED = 40
"""Held-out pairs of which one half chooses and the other judges; fewer do both."""

MANY_HELD = 10
"""Held-out groups of which some choose and others judge; of fewer, half of the pairs of each."""

LEAST_PAIRS = 20
"""Fewer pairs cannot be divided into folds and held-out pairs."""


def suggest_kinds(x_shape: tuple[int, ...], domain: Domain, active: int) -> int:
    """Return how many kinds of factors there are at each place; of vectors, how many factors.

    So many that there are at least four times as many factors as are asked for. A vector of few
    entries has a factor for each, or as many as are asked for if that is more: all of them are
    present in every answer, as there is nothing to choose from.

    Arguments:
        x_shape: The shape of one unknown.
        domain: What unknowns are.
        active: How many factors answers have; 0 where that is to be chosen.
    """
    if domain != "vector":
        return max(16, 4 * math.ceil(active / math.prod(Frame(x_shape, domain).places)))
    entries = math.prod(x_shape)
    if entries <= FEW_FACTORS and not 0 < active < entries:
        return max(entries, active)
    return max(min(MOST_KINDS, 4 * entries), 4 * active)


def code_epochs(config: Config, pairs: int, epochs: int, domain: Domain) -> int:
    """Return how many passes a code gets beside so many of the networks."""
    least, most = CODE_STEPS if domain != "vector" else (CODE_STEPS[0], MOST_STEPS)
    few, many = (math.ceil(steps * config.training.batch_size / pairs) for steps in (least, most))
    return max(min(epochs, many, MOST_CODE), min(4 * epochs, few))


def nominal_seconds(
    config: Config, x: Tensor, epochs: int, observed: int = 0, groups: int | None = None
) -> float:
    """Return how long a training takes on two cores of a common CPU, from what was measured.

    It depends on sizes alone, so that the same pairs give the same epochs on every machine.

    Arguments:
        config: The settings.
        x: The unknowns to train on, with shape (N, *x_shape).
        epochs: How many passes over the pairs networks get.
        observed: The entries of an observation, which count where x is a vector.
        groups: How many groups the pairs are of; as many as pairs where not given.
    """
    a, domain = config.anchored, domain_of(config.anchored, x)
    folds = (a.folds or FOLDS) if a.anchor in ("auto", "network") else 0
    tried = folds + bool(folds and help_of(domain, config, len(x)))  # of one network, two
    if domain == "vector":
        wide = 3 * x[0].numel() + min(observed, MOST_READ)
        network, code, grain = 4.3e-5 + 4e-8 * wide, 8e-5 + 3e-8 * wide, 4e-5 + 1e-8 * wide
    else:
        entries = math.prod(x.shape[-2:]) if x.ndim > 2 else 2 * x.shape[-1]
        size = entries * (a.width / 32) ** 1.5
        network, code, grain = 0.5e-6 * size, 1.1e-6 * size, 0.7e-6 * size
    seen = tried * (folds - 1) / max(folds, 1) + whole_networks(folds, groups or len(x))
    passes = seen * network * epochs + code * code_epochs(config, len(x), epochs, domain)
    return len(x) * (passes + grain * max(2, epochs // 3))


def plan_epochs(config: Config, x: Tensor, minutes: float, **known: Any) -> int:
    """Return how many passes over the pairs fit the time, from 3 to 40, or 150 of few vectors.

    Arguments:
        config: The settings.
        x: The unknowns to train on, with shape (N, *x_shape).
        minutes: How long the training may take on two cores, about.
        known: The same as in :func:`nominal_seconds`.
    """
    if not minutes > 0:
        raise VspairError(f"minutes = {minutes:g}: expected a number above 0.")
    few, many = EPOCHS
    if domain_of(config.anchored, x) == "vector":
        steps = math.ceil(MOST_STEPS * config.training.batch_size / len(x))
        many = min(VECTOR_EPOCHS, max(many, steps))
    most = max(many, math.ceil(many * minutes / MINUTES)) if minutes > MINUTES else many

    def fits(n: int) -> bool:
        return nominal_seconds(config, x, n, **known) <= 60 * minutes

    return next((n for n in range(most, few, -1) if fits(n)), few)


def planned(config: Config, x: Tensor, minutes: float = MINUTES, **known: Any) -> Config:
    """Return settings whose stages, the code's too, have the passes that fit the time.

    Where networks of five folds would see the pairs but a few times, there are three.

    Arguments:
        config: The settings.
        x: The unknowns to train on, with shape (N, *x_shape).
        minutes: How long the training may take on two cores, about.
        known: The same as in :func:`nominal_seconds`.
    """
    epochs = plan_epochs(config, x, minutes, **known)
    if not config.anchored.folds:
        folds = FOLDS if epochs >= FEW_PASSES else FEW_FOLDS
        config = configs.override(config, {"anchored": {"folds": folds}})
        epochs = plan_epochs(config, x, minutes, **known)
    changes: dict[str, Any] = {"training": {"epochs": epochs}}
    if not config.names("anchored.code_epochs"):
        domain = domain_of(config.anchored, x)
        changes["anchored"] = {"code_epochs": code_epochs(config, len(x), epochs, domain)}
    return configs.override(config, changes)


class AnchoredFit:
    """One fit: pairs, what is known about them, and the settings.

    Arguments:
        config: The settings.
        pairs: All pairs, or those to train on where held-out ones are given.
        given: Held-out pairs.
        groups: Labels of the pairs, or None.
        anchor: The name of the anchor, or a function of the user's.
        first: First guesses for the pairs, or None.
        held_first: First guesses for given held-out pairs, as a tuple of one or none.
    """

    def __init__(
        self,
        config: Config,
        pairs: Pairs,
        given: Pairs | None,
        groups: Any,
        anchor: AnchorChoice | First,
        first: Any,
        held_first: tuple[Any, ...],
    ) -> None:
        if len(pairs) < LEAST_PAIRS:
            folds = config.anchored.folds or FOLDS
            raise VspairError(
                f"{len(pairs)} pairs are too few for {folds} folds and held-out "
                f"pairs: expected at least {LEAST_PAIRS}. Give more."
            )
        if not isinstance(anchor, str) and not callable(anchor):
            raise VspairError(
                f"anchor is a {type(anchor).__name__}: expected auto, none, ridge, network, or a "
                "function from observations to guesses of x, such as "
                "anchor = lambda y: fitted.predict(y.numpy())."
            )
        self.call = anchor if callable(anchor) else None
        if isinstance(anchor, str) and anchor != "auto":
            config = configs.override(config, {"anchored": {"anchor": anchor}})
        if config.training.batch_size < 2:
            raise VspairError(
                "training.batch_size = 1: expected at least 2, as batch norm has no variance of a "
                "single pair."
            )
        if config.anchored.folds == 1:
            raise VspairError("anchored.folds = 1: expected at least 2, or 0 to choose.")
        self.config = config
        self.labelled = groups is not None
        self.groups = as_groups(groups, len(pairs)) if self.labelled else _same_pairs(pairs)
        self._check_active(pairs.x)
        if self.call is not None and first is not None:
            raise VspairError("anchor is a function and first is given: give one of them.")
        guesses = ask_first(self.call, pairs.y) if self.call is not None else first
        known = None if guesses is None else as_first(guesses, len(pairs), pairs.shapes[0])
        self._divide(pairs, given, known, held_first)

    def _check_active(self, x: Tensor) -> None:
        a = self.config.anchored
        most = a.kinds * math.prod(Frame(tuple(x.shape[1:]), domain_of(a, x)).places)
        if a.active > most:
            raise VspairError(
                f"active = {a.active}, but there are only {most} factors. Ask for fewer, or raise "
                "anchored.kinds."
            )

    def _divide(
        self, pairs: Pairs, given: Pairs | None, first: Tensor | None, held_first: tuple[Any, ...]
    ) -> None:
        """Set training and held-out pairs, whole groups of them."""
        if given is not None:
            if given.shapes != pairs.shapes:
                raise VspairError(
                    f"held: x and y have shapes {given.shapes}: expected {pairs.shapes}, those of "
                    "the pairs to train on."
                )
            self.train, self.held, self.first = pairs, given, None
            self.held_groups = torch.arange(len(given))
            if first is not None:
                guesses = (*held_first, None)[0]
                if self.call is not None:
                    guesses = ask_first(self.call, given.y)
                if guesses is None:
                    raise VspairError(
                        "first was given, but not for held: give held = (x, y, first)."
                    )
                self.first = (first, as_first(guesses, len(given), pairs.shapes[0]))
            return
        self._expect_groups()
        t = self.config.training
        if not t.validation:
            raise VspairError(
                "training.validation = 0: expected a share above 0, as held-out pairs set "
                "thresholds. Leave it out, or give held = (x, y)."
            )
        held = hold_out(self.groups, t.validation, t.seed, kept=2)
        self.train, self.held = pairs[~held], pairs[held]
        self.groups, self.held_groups = _renumber(self.groups[~held]), _renumber(self.groups[held])
        self.first = None if first is None else (first[~held], first[held])

    def _expect_groups(self) -> None:
        count = int(self.groups.max()) + 1
        if count >= 3:
            return
        if self.labelled:
            raise VspairError(
                f"groups has {count} different labels: expected at least 3, one to hold out and "
                "two to answer each other. Leave groups out, or give held = (x, y)."
            )
        raise VspairError(
            f"x and y have only {count} different pairs: expected at least 3, as pairs that are "
            "the same stay together."
        )

    def run(
        self,
        out: str | Path | None,
        run: Run | None,
        minutes: float | None,
        changes: dict[str, Any],
        device: torch.device,
        progress: bool,
        detailed: bool = False,
    ) -> AnchoredModel:
        """Train, judge and save; epochs are planned unless a detailed configuration has them."""
        if run is None:
            if not detailed or minutes is not None:
                self._set_epochs(minutes, "epochs" in changes)
            if not self.config.anchored.folds:
                self.config = configs.override(self.config, {"anchored": {"folds": FOLDS}})
            if out is not None:
                run = Run.create(out, self.config, self.train.shapes, self._fingerprint())
        else:
            self._expect_same(run)
            if (ended := self._ended(run, device)) is not None:
                return ended
        say: Callable[[str], None] = _print if progress else (lambda _: None)
        chooses = self._half(0)
        training = AnchoredTraining(
            self.train, self.held[chooses], self.config, groups=self.groups,
            held_groups=len(self.held_groups[chooses].unique()), first=self._first(0),
            folder=None if run is None else run.path, device=device, say=say,
        )  # fmt: skip
        model = training.run(progress)
        model.first = self.call
        model.verdict = self._judge(model, say)
        if run is not None:
            run.save_weights(model, self.config.training.epochs)
            run.save_verdict(model.verdict.as_dict())
            shutil.rmtree(run.path / "stages", ignore_errors=True)
        return model

    def _ended(self, run: Run, device: torch.device) -> AnchoredModel | None:
        """Return the model of a run that has ended: its stages are gone, nothing is left to do."""
        kept = run.verdict()
        if kept is None:
            return None
        model = run.load(device)
        assert isinstance(model, AnchoredModel)
        model.first = self.call
        model.verdict = Verdict.of(kept)
        return model

    def _half(self, which: int) -> Tensor:
        """Return which held-out pairs choose (0) and which judge (1); all do both if few.

        Groups are divided only where they are so few that one half might be of another kind.
        """
        count, groups = len(self.held), self.held_groups
        if count < LEAST_HALVED:
            return torch.arange(count)
        if MANY_HELD <= int(groups.max()) + 1 < count:
            half = assign_folds(groups, 2, self.config.training.seed)
        else:
            half = torch.arange(count) % 2
        return (half == which).nonzero().squeeze(1)

    def _first(self, which: int) -> tuple[Tensor, Tensor] | None:
        """Return first guesses of training pairs and of a half of the held-out ones."""
        return None if self.first is None else (self.first[0], self.first[1][self._half(which)])

    def _set_epochs(self, minutes: float | None, given: bool) -> None:
        if given and minutes is not None:
            raise VspairError("minutes and epochs both say how long to train: give one of them.")
        if given:
            return
        minutes = MINUTES if minutes is None else minutes
        known = {"observed": self.train.y[0].numel(), "groups": int(self.groups.max()) + 1}
        self.config = planned(self.config, self.train.x, minutes, **known)

    def _judge(self, model: AnchoredModel, say: Callable[[str], None]) -> Verdict:
        first = self._first(1)
        judges = self._half(1)
        guesses, groups = first[1] if first else None, self.held_groups[judges]
        found = judge(model, self.train, self.held[judges], guesses, groups)
        for line in found.lines:
            say(line)
        return found

    def _fingerprint(self) -> str:
        more = () if self.first is None else self.first
        return fingerprint(
            self.train.x, self.train.y, self.held.x, self.held.y, self.groups, *more
        )

    def _expect_same(self, run: Run) -> None:
        if self.train.shapes != run.shapes or run.pairs != self._fingerprint():
            raise VspairError(
                f"These are not the pairs that {run.path} was started with: their number, values, "
                "groups or first guesses differ. Give the same files, in the same order."
            )


def doubt_of_fit(
    model: AnchoredModel, pairs: Pairs, groups: Any = None, seed: int = 0
) -> tuple[Doubt, Pairs]:
    """Return what a fit of pairs by its defaults has left in doubt, and the pairs held out of it.

    For other methods to learn from the same anchor: residuals are out of fold.

    Arguments:
        model: What ``fit`` returned.
        pairs: The pairs that it was given.
        groups: Their labels, where it was given them.
        seed: Its seed.
    """
    config = configs.override(configs.preset("anchored"), {"training": {"seed": seed}})
    config = replace(config, anchored=model.anchored)
    parts = AnchoredFit(config, pairs, None, groups, "auto", None, ())
    return doubt_again(model, parts.train, parts.groups, config), parts.held


def _renumber(groups: Tensor) -> Tensor:
    """Return groups numbered from 0 on."""
    return torch.unique(groups, return_inverse=True)[1]


def _same_pairs(pairs: Pairs) -> Tensor:
    """Return groups of pairs that are copies of each other: one would answer the other.

    Pairs that are the same to the bit are copies where their y was never seen with another x.
    Elsewhere they are draws of their own, of values that are few: held out together, they would
    take all of one answer with them.
    """
    rows = zip(pairs.x.flatten(1).numpy(), pairs.y.flatten(1).numpy(), strict=True)
    keys = [(hash(a.tobytes()), hash(b.tobytes())) for a, b in rows]
    answers: dict[int, set[int]] = {}
    for x, y in keys:
        answers.setdefault(y, set()).add(x)
    seen: dict[tuple[int, ...], int] = {}
    alone = (key if len(answers[key[1]]) == 1 else (*key, row) for row, key in enumerate(keys))
    return torch.tensor([seen.setdefault(key, len(seen)) for key in alone])


def _print(line: str) -> None:
    """Show a line where progress is shown: answers go to stdout."""
    sys.stderr.write(f"{line}\n")
