"""A study: stages of work that leave records, then a report of what they kept.

Every study of the paper is one :class:`Study`. Its stages train and answer; each can be run alone,
stops in time and goes on where it stopped. What was done, with which settings, by which command,
commit and machine, stands in ``records.json`` of the study's folder: a record decides whether a
stage has run, never a file's time stamp. The report is made from what the stages kept, and leaves
``summary.json`` (every number), ``README.md`` (tables, words, figures) and ``figures.npz``, from
which ``--draw`` draws the figures again. A study whose stages were run in part may join what they
made to the results that stand (:mod:`vspair.studies.standing`).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from vspair import runs
from vspair.errors import VspairError
from vspair.report.figures import captioned
from vspair.runs import Groups
from vspair.studies.answers import Answers
from vspair.studies.results import Row, summary
from vspair.studies.standing import FIGURES, SUMMARY, Standing, joined, made_by

__all__ = ["Report", "Stage", "Study", "Workspace"]

S = TypeVar("S")
"""A study's scale: a frozen dataclass of how much is computed."""
D = TypeVar("D")
"""A study's data."""

Text = Callable[[Sequence[Row], Mapping[str, Any]], str]
"""From all rows, and what ``summary.json`` says of the scale, to tables and words."""

_ADVICE = "Restore it, or remove it: the same command makes it again from what else is there."


@dataclass
class Workspace(Generic[S, D]):
    """What every stage works with.

    Arguments:
        scale: How much to do.
        load: Makes or reads the data; called when they are first asked for.
        folder: Where trainings, answers and records are kept.
        device: Where to compute.
        deadline: Save and stop at this time of ``time.monotonic``.
        jobs: Processes to work in.
        compile: Whether to compile networks on a GPU.
        fast: Whether networks run in bfloat16.
        show: Whether to say what is done, and show progress.
        standing: The results that new rows will stand beside.
    """

    scale: S
    load: Callable[[], D]
    folder: Path
    device: torch.device
    deadline: float | None = None
    jobs: int = 1
    compile: bool = False
    fast: bool = False
    show: bool = False
    standing: Standing = field(default_factory=Standing)
    worked: bool = field(default=False, init=False)

    @cached_property
    def data(self) -> D:
        """The data, the same each time."""
        return self.load()

    @cached_property
    def answers(self) -> Answers:
        """What methods answered, and all else that tables and figures are made from."""
        return Answers(self.folder / "answers", self.late, self.note_work)

    def note_work(self) -> None:
        """Note that the running stage has made something new."""
        self.worked = True

    def say(self, text: str) -> None:
        """Say what is done, if that is wanted."""
        if self.show:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def late(self, needed: float = 0.0) -> bool:
        """Return whether there are fewer seconds left than needed."""
        return self.deadline is not None and time.monotonic() + needed > self.deadline


@dataclass(frozen=True)
class Stage(Generic[S, D]):
    """One part of a study's work, which ``--only`` can run alone.

    Arguments:
        work: Does it as far as time allows; returns whether it is finished.
        uses: The fields of the scale that its result depends on.
        grows: Those of them that may be larger than in an earlier record: a training goes on.
        renews: Those of them that may be changed: the stage then makes its answers anew.
        reads: The stages whose results it reads; where one of them works again, so must it.
    """

    work: Callable[[Workspace[S, D]], bool]
    uses: Sequence[str] = ()
    grows: Sequence[str] = ()
    renews: Sequence[str] = ()
    reads: Sequence[str] = ()

    def may_change(self, name: str, there: Any, here: Any) -> bool:
        """Return whether a field may differ from what was recorded of this stage."""
        return name in self.renews or (name in self.grows and here > there)


@dataclass(frozen=True)
class Report:
    """What is published of a study.

    Arguments:
        rows: Every number.
        text: Tables and words as Markdown, without the title and how they were made; or what
            makes them, where other rows may stand beside these.
        numbers: The arrays behind the figures.
        scale: What ``summary.json`` says of the scale.
    """

    rows: list[Row]
    text: str | Text
    numbers: Groups
    scale: Mapping[str, Any]


class Records:
    """What the stages of a study have done, in ``records.json`` of a folder."""

    def __init__(self, folder: Path, study: str) -> None:
        self.path, self.study = folder / "records.json", study
        found = runs.read_json(self.path, _ADVICE) if self.path.is_file() else {}
        if (other := found.get("study", study)) != study:
            raise VspairError(
                f"{folder} belongs to the study {other}, not to {study}. Name another folder by "
                "--runs."
            )
        self.data: dict[str, Any] = found.get("data", {})
        self.stages: dict[str, dict[str, Any]] = found.get("stages", {})

    @property
    def scale(self) -> dict[str, Any]:
        """The fields of the scale that stages were run with."""
        return {k: v for stage in self.stages.values() for k, v in stage["scale"].items()}

    def joined(self, kind: str) -> str:
        """Return the ``commits``, ``machines`` or ``commands`` of all stages, in their order."""
        named = [name for stage in self.stages.values() for name in stage[kind] if name]
        return (", " if kind != "commands" else "; ").join(dict.fromkeys(named))

    def check(
        self, work: Sequence[str], stages: Mapping[str, Stage[Any, Any]], scale: Any, data: Any
    ) -> None:
        """Refuse stages whose data or scale are not those of what the folder holds."""
        wrong = {k: (v, data[k]) for k, v in self.data.items() if self.stages and data[k] != v}
        for name in work:
            stage = stages[name]
            for other, record in self.stages.items():
                for key, there in record["scale"].items():
                    here = getattr(scale, key) if key in stage.uses else there
                    # What grows may be ahead of stages that are yet to follow; what is renewed is
                    # so in all that were asked of it, now or before the next report.
                    own = other == name or key in stage.grows
                    follows = other in work or name in stages[other].reads
                    own |= follows and key in stages[other].renews
                    if here != there and not (own and stage.may_change(key, there, here)):
                        wrong[key] = there, here
        if wrong:
            words = "; ".join(f"{k} is {a} there and {b} here" for k, (a, b) in wrong.items())
            raise VspairError(
                f"{self.path.parent} was made with other settings: {words}. Give the same "
                "options, or name another folder by --runs."
            )

    def stale(self, stages: Mapping[str, Stage[Any, Any]]) -> list[str]:
        """Return the stages that were stopped, or are older than what they read.

        Their answers would be of two kinds, some of them not of what the records say.
        """
        last = {name: record.get("last", 0) for name, record in self.stages.items()}
        return [
            name
            for name, record in self.stages.items()
            if not record.get("finished")
            or not all(last.get(r, 0) <= last[name] for r in stages[name].reads)
        ]

    def note(
        self,
        name: str,
        workspace: Workspace[Any, Any],
        stage: Stage[Any, Any],
        finished: bool,
    ) -> None:
        """Record that a stage has done something, with this commit, machine and command.

        A stage that found its work done, by whom no record says, is recorded as such.
        """
        empty: dict[str, Any] = {"commits": [], "machines": [], "commands": []}
        earlier = self.stages.get(name, empty)
        new = {"commits": "unknown", "machines": "unknown", "commands": runs.command_line()}
        if workspace.worked:
            new |= {"commits": runs.commit(), "machines": runs.machine(workspace.device)}
        elif earlier["commits"]:
            new = {}
        record: dict[str, Any] = earlier | {
            k: [*dict.fromkeys([*earlier[k], v])] for k, v in new.items()
        }
        record["scale"] = {key: getattr(workspace.scale, key) for key in stage.uses}
        record["finished"] = finished
        if workspace.worked:
            record["versions"] = runs.versions()
        record["last"] = 1 + max((r.get("last", 0) for r in self.stages.values()), default=0)
        self.stages[name] = record
        runs.make_folder(self.path.parent)
        document = {"study": self.study, "data": self.data, "stages": self.stages}
        runs.write_text(self.path, json.dumps(document, indent=1) + "\n")


@dataclass(frozen=True)
class Study(Generic[S, D]):
    """Data, stages, tables, figures and words of one section of the paper.

    Arguments:
        name: What the command line and ``summary.json`` call it.
        title: The heading of its results.
        load: From the scale and a data folder to the data.
        describe: From the data to what is recorded of them, and published.
        stages: The stages by name, in their order.
        report: Makes the report from what the stages kept, without the data.
        draw: Draws every figure from saved numbers into a folder, and returns the paths.
        captions: What each figure shows, by the name of its file.
        joins: Whether rows whose stages were not run are taken from the results that stand.
    """

    name: str
    title: str
    load: Callable[[S, Path | None], D]
    describe: Callable[[D], dict[str, Any]]
    stages: Mapping[str, Stage[S, D]]
    report: Callable[[Workspace[S, D], Records], Report]
    draw: Callable[[Groups, Path], list[Path]]
    captions: Mapping[str, str]
    joins: bool = False

    def reproduce(
        self,
        scale: S,
        *,
        out: Path,
        folder: Path,
        data_dir: Path | None = None,
        only: str = "",
        device: str = "auto",
        minutes: float = 0.0,
        jobs: int = 1,
        compile: bool = False,
        fast: bool = False,
        show: bool = False,
    ) -> str | None:
        """Run the study, or some of its stages.

        Arguments:
            scale: How much to do.
            out: The folder of the results; what is made anew takes the place of what is there.
            folder: The folder of trainings, answers and records; what is there is not made again.
            data_dir: Where real data are.
            only: Some of the stages and ``report``, with commas between them; all if not given.
            device: Where to compute.
            minutes: Save and stop after so many minutes; 0 goes on to the end.
            jobs: Processes to work in.
            compile: Whether to compile networks on a GPU.
            fast: Whether networks run in bfloat16.
            show: Whether to say what is done, with progress bars.

        Returns:
            The results as Markdown, or what was done; nothing where time ran out: call again to
            continue.
        """
        names = self._named(only)
        runs.commit()  # of the source that is running, whatever is committed meanwhile
        deadline = time.monotonic() + 60 * minutes if minutes else None
        workspace: Workspace[S, D] = Workspace(
            scale, lambda: self.load(scale, data_dir), folder, runs.pick_device(device), deadline,
            jobs, compile, fast, show,
        )  # fmt: skip
        work = [name for name in names if name in self.stages]
        if work:  # refused now rather than after hours, and no empty results folder is left
            data = self.describe(workspace.data)
            Records(folder, self.name).check(work, self.stages, scale, data)
            workspace.standing = self._standing(workspace, out, work)
        if work and "report" in names:
            runs.make_folder(out)
        if not all(self._run(workspace, name) for name in work):
            return None
        if "report" not in names:
            return f"Done: {', '.join(names)}."
        return self.publish(workspace, out)

    def _named(self, only: str) -> list[str]:
        """Return the stages that are asked for."""
        every = [*self.stages, "report"]
        names = only.split(",") if only else every
        if unknown := [name for name in names if name not in every]:
            raise VspairError(f"only = {unknown[0]!r}: expected some of {', '.join(every)}.")
        return names

    def _run(self, workspace: Workspace[S, D], name: str) -> bool:
        """Run a stage and record it, unless it had nothing to do; return whether it ended."""
        stage = self.stages[name]
        workspace.say(f"{name}:")
        workspace.worked, done = False, False
        try:
            done = stage.work(workspace)
            return done
        finally:
            records = Records(workspace.folder, self.name)  # other stages may have ended elsewhere
            stale = name not in records.stages or name in records.stale(self.stages)
            if workspace.worked or (done and stale):
                records.data = self.describe(workspace.data)
                records.note(name, workspace, stage, done)

    def publish(self, workspace: Workspace[S, D], out: Path) -> str:
        """Write tables, figures and ``summary.json`` from what the stages kept."""
        records = Records(workspace.folder, self.name)
        if not records.stages:
            stages = ", ".join(self.stages)
            raise VspairError(
                f"There is nothing in {workspace.folder} to report on. Run the stages first: "
                f"--only {stages.replace(', ', ',')}."
            )
        if stale := records.stale(self.stages):
            raise VspairError(
                f"In {workspace.folder}, {' and '.join(stale)} did not come to an end, or is "
                f"older than what it reads. Run it again: --only {','.join(stale)},report."
            )
        recorded = replace(workspace.scale, **records.scale)  # type: ignore[type-var]
        workspace.scale = recorded
        standing, report = self._standing(workspace, out), self.report(workspace, records)
        if not report.rows:
            raise VspairError(f"There are no answers in {workspace.folder} to report on.")
        runs.make_folder(out)
        rows = standing.join_rows(report.rows)
        made = standing.join_made(report.rows, self._origin(records))
        fields = asdict(recorded)  # type: ignore[call-overload]
        scale = standing.join_scale(report.scale, records.scale, fields)
        scale |= {"data": records.data}
        about = {**joined(made), "versions": made[-1]["versions"], "made": made}
        document = summary(self.name, about, scale, rows)
        runs.write_text(out / SUMMARY, json.dumps(document, indent=1) + "\n")
        runs.write_groups(out / FIGURES, standing.join_numbers(report.numbers))
        figures = captioned(self.redraw(out), self.captions)
        words = report.text if isinstance(report.text, str) else report.text(rows, scale)
        text = f"# {self.title}\n\n{made_by(made, self.name)} {words}\n"
        text += "\nMore in the [notes](notes.md).\n" if (out / "notes.md").is_file() else ""
        text += f"\n## Figures\n\n{figures}\n" if figures else ""
        runs.write_text(out / "README.md", text)
        return text

    def _standing(
        self, workspace: Workspace[S, D], out: Path, adding: Sequence[str] = ()
    ) -> Standing:
        """Return the results that rows of the stages that were run, or are to be, stand beside.

        There are none where every stage is among them. All must agree in the settings that they
        share with the others.
        """
        records = Records(workspace.folder, self.name)
        present = {*records.stages, *adding}
        missing = [stage for name, stage in self.stages.items() if name not in present]
        if not self.joins or not missing:
            return Standing()
        used = {k for stage in missing for k in stage.uses if k not in stage.grows}
        here = records.scale | {
            k: getattr(workspace.scale, k) for name in adding for k in self.stages[name].uses
        }
        data = self.describe(workspace.data) if adding else records.data
        standing = Standing.read(out)
        standing.check({k: v for k, v in here.items() if k in used} | data, out)
        return standing

    def _origin(self, records: Records) -> dict[str, Any]:
        """Return the command, commit, machine and versions that made what the records are of."""
        latest = max(records.stages.values(), key=lambda record: record.get("last", 0))
        kinds = {"command": "commands", "commit": "commits", "machine": "machines"}
        stages = {
            name: {kind: record[kind] for kind in ("commits", "machines")}
            for name, record in records.stages.items()
        }
        made = {name: records.joined(kind) for name, kind in kinds.items()}
        return {**made, "versions": latest.get("versions", runs.versions()), "stages": stages}

    def redraw(self, out: Path) -> list[Path]:
        """Draw every figure again from the saved numbers of a results folder."""
        advice = "Figures are drawn from it: run the study first, without --draw."
        return self.draw(runs.read_groups(out / FIGURES, advice), out)
