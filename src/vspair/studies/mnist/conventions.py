"""What section 4.2 leaves open, tried: a sweep of the study, to see what gives the paper's tables.

A convention sets keys of one model's configuration; all are trained and asked as in
:mod:`.study`. Some are also asked for the localisation ratio with factors of the mean code or of a
sample moved by several steps: the paper says neither how far nor from where.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from vspair import config as configs
from vspair.config import Config
from vspair.errors import VspairError
from vspair.studies.mnist import study
from vspair.studies.mnist.measures import InpaintingQuestion
from vspair.studies.study import Records, Report, Stage, Study

__all__ = ["CONVENTIONS", "SMOKE", "STUDY", "Scale"]


def _vspair(sigma: str, rho: str = "gradient", lambda_binary: float = 0.05, **more: Any) -> Any:
    """Return a convention of vsPAIR, by default with the printed penalty on undecided gates."""
    return "vsPAIR", {"objective": dict(sigma=sigma, rho=rho, lambda_binary=lambda_binary, **more)}


CONVENTIONS: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "vsPAIR: sigma": _vspair("sigma"),
    "vsPAIR: variance": _vspair("variance"),
    "vsPAIR: log variance": _vspair("logvar"),
    "vsPAIR: sigma, no binary penalty": _vspair("sigma", lambda_binary=0.0),
    "vsPAIR: variance, no binary penalty": _vspair("variance", lambda_binary=0.0),
    "vsPAIR: log variance, no binary penalty": _vspair("logvar", lambda_binary=0.0),
    "vsPAIR: sigma, rho closed": _vspair("sigma", "closed"),
    "vsPAIR: variance, rho closed": _vspair("variance", "closed"),
    "vsPAIR: log variance, rho closed": _vspair("logvar", "closed"),
    "vsPAIR: log variance, rho closed, mean": _vspair("logvar", "closed", reduction="mean"),
    "vsPAIR: sigma, rho closed, with 1/2": _vspair("sigma", "closed", half=True),
    "vsPAIR: sigma, rho closed, targets detached": _vspair("sigma", "closed", target="detached"),
    "vPAIR: sigma": ("vPAIR", {"objective": {"sigma": "sigma"}}),
    "vPAIR: variance": ("vPAIR", {"objective": {"sigma": "variance"}}),
    "vPAIR: log variance": ("vPAIR", {"objective": {"sigma": "logvar"}}),
    "sVAE": ("sVAE", {"objective": {"rho": "gradient"}}),
    "sVAE: rho closed": ("sVAE", {"objective": {"rho": "closed"}}),
    "PAIR: map fitted by decoded x": ("PAIR", {"objective": {"map": "decoded"}}),
    "PAIR: map fitted by codes": ("PAIR", {"objective": {"map": "samples"}}),
    "calibrated": ("calibrated", {"model": {"map_depth": 2}}),
    "calibrated: linear map": ("calibrated", {"model": {"map_depth": 0}}),
}
"""Each convention by name: the model, and what its configuration is set to.

Sigma, variance or log variance is what eq. (16) compares; rho is learned by gradient unless it is
set by its closed form."""

MOVED = ("vPAIR: log variance", "sVAE", "vsPAIR: log variance, no binary penalty", "calibrated")
"""The conventions of the study itself: their factors are moved in each of :data:`MOVES`."""
BASES: tuple[Literal["mean", "sample"], ...] = ("mean", "sample")
MOVES = [(base, step) for base in BASES for step in (0.25, 0.5, 0.75, 1.0, 4.0)]


@dataclass(frozen=True)
class Scale(study.Scale):
    """How much is trained and tested; ``names`` says which conventions, all if there are none."""

    epochs: int = 14
    test: int = 500
    names: tuple[str, ...] = ()

    def trainings(self) -> dict[str, Config]:
        """Return the configuration of every training by the name of its run folder."""
        if unknown := set(self.names) - set(CONVENTIONS):
            raise VspairError(
                f"There is no convention {min(unknown)!r}. There are: {'; '.join(CONVENTIONS)}."
            )
        chosen = {name: CONVENTIONS[name] for name in self.names or CONVENTIONS}
        return {
            run_of(name): configs.override(self.config(model), settings)
            for name, (model, settings) in chosen.items()
        }


SMOKE = Scale(epochs=1, test=16, small=True, names=("sVAE", "PAIR: map fitted by codes"))


def run_of(name: str) -> str:
    """Return the run folder of a convention."""
    return "".join(c if c.isalnum() else "-" for c in name)


def ask_all(work: study.Work) -> bool:
    """Ask every method; then some of them with factors moved in other ways."""
    moved = [run_of(name) for name in MOVED if run_of(name) in work.scale.trainings()]
    return study.ask_all(work) and all(
        study.ask_model(work, run, InpaintingQuestion(work.data.test, base=base, step=step), name)
        for run in moved
        for base, step in MOVES
        for name in [f"moved/{run}-{base}-{100 * step:g}"]
    )


def report(work: study.Work, records: Records) -> Report:
    """Return the study's tables, one line for each convention that was asked so far."""
    rows = study.floor_rows(work)
    for name, (model, _) in CONVENTIONS.items():
        run, paper = run_of(name), study.PAPER.get(model)
        answers = {f"moved/{run}-{b}-{100 * s:g}": f"{b} moved by {100 * s:g} %" for b, s in MOVES}
        for answer, condition in ({run: ""} | answers).items():
            if work.answers.has(answer):
                named = {"model": name, "preset": "", "condition": condition, "paper": paper}
                found = study.rows_of(work, [answer], **named)
                rows += [r for r in found if not condition or r.metric.startswith("localization")]
    scale = study.sizes(work, records)
    return Report(rows, "\n\n".join([HEAD.format(**scale), *study.tables(rows, True)]), {}, scale)


HEAD = (
    "One training of each for {epochs} epochs, {test:,} test images, pixels on {pixels}. The name "
    "says what eq. (16) compares (sigma, variance or its logarithm) and how rho is set, by "
    "gradient where nothing is said; for the localisation ratio also from where and how far "
    "factors are moved. The paper's variance ratios are 5.2 to 5.5, its correlations 0.55 to 0.67."
)

STUDY = Study(
    name="mnist-conventions",
    title="What the paper leaves open about its MNIST models, and what gives its tables",
    load=study.load,
    describe=study.describe,
    stages={
        "train": Stage(study.train, study.TRAINED),
        "answers": Stage(ask_all, study.ASKED, renews=("test",)),
    },
    report=report,
    draw=lambda *_: [],
    captions={},
)
"""The sweep over conventions."""
