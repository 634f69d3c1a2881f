"""What section 4.2 leaves open, tried: a sweep of the study, to see what gives the paper's tables.

A convention sets keys of one model's configuration; all are trained and asked as in
:mod:`vspair.studies.mnist.study`. Some are also asked for the localisation ratio with factors of
the mean code or of a sample moved by several steps: the paper says neither how far nor from
where.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from vspair import config as configs
from vspair.config import Config
from vspair.errors import VspairError
from vspair.studies.mnist import study
from vspair.studies.mnist.measures import InpaintingQuestion
from vspair.studies.study import Records, Report, Stage

__all__ = ["CONVENTIONS", "MOVED", "SMOKE", "STUDY", "Scale"]


def _vspair(sigma: str, rho: str = "gradient", lambda_binary: float = 0.05, **more: Any) -> Any:
    """Return a convention of vsPAIR, by default with the printed penalty on undecided gates."""
    return "vsPAIR", {"objective": dict(sigma=sigma, rho=rho, lambda_binary=lambda_binary, **more)}


_COMPARED = {"sigma": "sigma", "variance": "variance", "log variance": "logvar"}
"""What eq. (16) may compare, with the key of a configuration."""

CONVENTIONS: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    **{f"vsPAIR: {k}": _vspair(s) for k, s in _COMPARED.items()},
    **{f"vsPAIR: {k}, no penalty": _vspair(s, "gradient", 0.0) for k, s in _COMPARED.items()},
    **{f"vsPAIR: {k}, rho closed": _vspair(s, "closed") for k, s in _COMPARED.items()},
    "vsPAIR: log variance, rho closed, mean": _vspair("logvar", "closed", reduction="mean"),
    "vsPAIR: sigma, rho closed, with 1/2": _vspair("sigma", "closed", half=True),
    "vsPAIR: sigma, rho closed, targets detached": _vspair("sigma", "closed", target="detached"),
    **{f"vPAIR: {k}": ("vPAIR", {"objective": {"sigma": s}}) for k, s in _COMPARED.items()},
    "sVAE": ("sVAE", {"objective": {"rho": "gradient"}}),
    "sVAE: rho closed": ("sVAE", {"objective": {"rho": "closed"}}),
    "PAIR: map fitted by decoded x": ("PAIR", {"objective": {"map": "decoded"}}),
    "PAIR: map fitted by codes": ("PAIR", {"objective": {"map": "samples"}}),
    "calibrated": ("calibrated", {"model": {"map_depth": 2}}),
    "calibrated: linear map": ("calibrated", {"model": {"map_depth": 0}}),
}
"""Each convention by name: the model, and what its configuration is set to."""

MOVED: dict[str, dict[str, Any]] = {
    f"{name} ({base} moved by {100 * step:g} %)": {"base": base, "step": step}
    for name in ("vPAIR: log variance", "sVAE", "vsPAIR: log variance, no penalty", "calibrated")
    for base in ("mean", "sample")
    for step in (0.25, 0.5, 0.75, 1.0, 4.0)
}
"""What is moved for the localisation ratio, and how far, in the conventions of the study."""


@dataclass(frozen=True)
class Scale(study.Scale):
    """How much is trained and tested; ``names`` says which conventions, all if there are none."""

    epochs: int = 14
    test: int = 500
    names: tuple[str, ...] = ()

    def chosen(self) -> list[str]:
        """Return the names of the conventions to try."""
        every = [*CONVENTIONS, *MOVED]
        if unknown := [name for name in self.names if name not in every]:
            raise VspairError(
                f"There is no convention {unknown[0]!r}. There are: {'; '.join(every)}."
            )
        return list(self.names) or every

    def trainings(self) -> dict[str, Config]:
        """Return the configuration of every training by the name of its run folder."""
        trained = {_run(name): CONVENTIONS[_trained(name)] for name in self.chosen()}
        return {run: configs.override(self.config(m), keys) for run, (m, keys) in trained.items()}


SMOKE = Scale(epochs=1, test=16, small=True, names=("sVAE", "sVAE (mean moved by 25 %)"))


def _trained(name: str) -> str:
    """Return the convention whose training is asked: moving factors takes none of its own."""
    return name.partition(" (")[0]


def _answer(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name)


def _run(name: str) -> str:
    return _answer(_trained(name))


def ask_all(work: study.Work) -> bool:
    """Ask the floors and the model of every convention."""
    assert isinstance(work.scale, Scale)
    test, names = work.data.test, work.scale.chosen()
    return study.ask_floors(work) and all(
        study.ask_model(
            work, _run(name), InpaintingQuestion(test, **MOVED.get(name, {})), _answer(name)
        )
        for name in names
    )


def report(work: study.Work, records: Records) -> Report:
    """Return the study's tables, one line for each convention that was asked so far."""
    rows = study.floor_rows(work)
    for name in [*CONVENTIONS, *MOVED]:
        if work.answers.has(_answer(name)):
            paper = study.PAPER.get(CONVENTIONS[_trained(name)][0])
            found = study.rows_of(work, [_answer(name)], model=name, preset="", paper=paper)
            rows += [r for r in found if name not in MOVED or r.metric.startswith("localization")]
    scale = study.sizes(work, records)
    text = study.WORDS.text["conventions"].format(**scale, tables=study.tables(rows, True))
    return Report(rows, text, {}, scale)


STUDY = replace(
    study.STUDY,
    name="mnist-conventions",
    title=study.WORDS.text["conventions_title"],
    stages={
        "train": Stage(study.train, study.TRAINED),
        "answers": Stage(ask_all, study.ASKED, renews=("test",), reads=("train",)),
    },
    report=report,
    draw=lambda *_: [],
    joins=False,
)
"""The sweep over conventions."""
