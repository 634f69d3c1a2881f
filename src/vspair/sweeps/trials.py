"""Trainings that optuna shares out among processes and machines, and remembers.

What was asked for, who works on it and what came of it is in optuna's storage alone: a SQLite
file in the folder or, for several machines, a database with a URL. The trial of a worker whose
heartbeat stops is queued again by optuna, finds its run folder by its settings, and goes on.

A grid is a queue of points. optuna's ``GridSampler`` is not used: it gives the last points to
several workers at once, and knows neither a union of grids nor a grid that grows.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from vspair import runs
from vspair.errors import VspairError
from vspair.training.interrupts import Interrupted

__all__ = ["Settings", "Trial", "Trials", "load_optuna"]

Settings = dict[str, Any]

HEARTBEAT, GRACE = 10, 60
"""Seconds between two signs of life, and until a trial without one goes to another worker."""

POLL = 0.5
"""Seconds between two reads of what other workers have finished."""


class Trial(NamedTuple):
    """A point to train: its settings, its run folder, and the ``time.monotonic`` to stop at."""

    settings: Settings
    folder: Path
    deadline: float


TrainAndScore = Callable[[Trial], dict[str, float] | None]
"""Returns the scores of a trial; nothing where time ran out, and it is to be continued later."""


class _TimeIsUp(Exception):  # noqa: N818
    pass


@dataclass(frozen=True)
class Trials:
    """Points to train and score, by any number of workers.

    Arguments:
        folder: Where run folders and, without a storage, optuna's file are kept.
        shared: What all trials have in common; other settings are refused in the same folder.
        metric: The score that optuna is given.
        points: The settings of each point.
        propose: Returns the settings that a search proposes, by the methods of an optuna trial.
        proposals: How many points a search proposes.
        seed: Fixes what it proposes.
        storage: The URL of a database that optuna can use.
    """

    folder: Path
    shared: Settings
    metric: str
    points: Sequence[Settings] = ()
    propose: Callable[[Any], Settings] | None = None
    proposals: int = 0
    seed: int = 0
    storage: str = ""

    def run(
        self,
        train_and_score: TrainAndScore,
        *,
        jobs: int = 1,
        threads: int = 1,
        deadline: float = math.inf,
        notice: Callable[[Settings], object] = lambda _: None,
    ) -> list[Settings]:
        """Train and score what is not finished, and return a row for each finished point.

        Arguments:
            train_and_score: Called with each trial; for several jobs it must be picklable.
            jobs: Processes to work in; one is this process itself.
            threads: Threads of each of several processes.
            deadline: The ``time.monotonic`` to stop at.
            notice: Called with each new row, whichever worker has made it.

        Returns:
            Rows of all that is in the folder: the name of the run folder in ``trials/``
            (``trial``), ``settings``, ``scores`` or ``error``, ``seconds``, ``attempts``.
        """
        study = self._study()
        _agree(study, self.shared)
        queued = [t.user_attrs.get("settings") for t in study.get_trials(deepcopy=False)]
        for point in json.loads(json.dumps(self.points)):
            if point not in queued:
                study.enqueue_trial({}, user_attrs={"settings": point})
        seen = [row["trial"] for row in _rows(study)]

        def report() -> None:
            for row in _rows(study):
                if row["trial"] not in seen:
                    seen.append(row["trial"])
                    notice(row)

        if jobs > 1:
            _share(jobs, (self, train_and_score, threads, deadline), report)
        else:
            self.work(train_and_score, deadline, report)
        return _rows(study)

    def _study(self) -> Any:
        """Open optuna's study of the folder; make it where there is none."""
        optuna, path = load_optuna(), self.folder.resolve()
        runs.make_folder(path)
        url = self.storage or f"sqlite:///{path / 'sweep.db'}"
        options: Settings = {"heartbeat_interval": HEARTBEAT, "grace_period": GRACE}
        options["heartbeat_stale_trial_callback"] = _retry()
        if url.startswith("sqlite"):
            connect = {"timeout": GRACE, "isolation_level": None}
            options["engine_kwargs"] = {"connect_args": connect}
        for left in reversed(range(8)):
            try:
                storage = optuna.storages.RDBStorage(url, **options)
                _lock_at_begin(storage.engine)
                return optuna.create_study(
                    storage=storage,
                    sampler=optuna.samplers.RandomSampler(),
                    study_name=path.name,
                    load_if_exists=True,
                )
            except Exception as error:  # another process may be making the tables right now
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                time.sleep(POLL / 2 if left else 0)
        raise VspairError(f"optuna cannot open the storage of {self.folder}: {reason}")

    def work(self, call: TrainAndScore, deadline: float, report: Callable[[], None]) -> None:
        """Work on what is free until every trial is finished, by any worker, or time is up."""
        optuna, study = load_optuna(), self._study()
        states = optuna.trial.TrialState
        while time.monotonic() < deadline:
            optuna.storages.fail_stale_trials(study)
            _retry_unheard(study)
            trials = study.get_trials(deepcopy=False)
            found = {trial.state for trial in trials}
            if states.WAITING in found or _proposed(trials) < self.proposals:
                try:
                    study.optimize(lambda t: self._finish(study, t, call, deadline), n_trials=1)
                except _TimeIsUp:
                    return
                except ValueError as error:  # while this machine slept, another took the trial
                    if "Cannot tell" not in str(error):
                        raise
            elif states.RUNNING in found:
                time.sleep(POLL)
            else:
                return
            report()

    def _finish(self, study: Any, asked: Any, call: TrainAndScore, deadline: float) -> Any:
        """Train and score a trial of optuna's; return its score, or nothing where it failed."""
        asked.storage.record_heartbeat(asked._trial_id)  # now, not when its thread has begun
        asked.set_user_attr("begun", asked.number)
        trials = study.get_trials(deepcopy=False)
        trial = trials[asked.number]
        try:
            if (settings := self._settings(study, asked, trial, trials)) is None:
                return None
            asked.set_user_attr("settings", settings)
            known = [row for t in trials if (row := t.user_attrs.get("row"))]
            same = [row for row in known if row["settings"] == settings]
            row = same[0] if same else self._row(settings, trial, call, deadline)
            asked.set_user_attr("row", row)
        except (Exception, KeyboardInterrupt):
            if (now := study.trials[asked.number]).state == trial.state:  # nobody took it over
                _retry()(study, now)
            raise
        return row.get("scores", {}).get(self.metric)

    def _settings(self, study: Any, asked: Any, trial: Any, trials: list[Any]) -> Any:
        """Return the settings of a trial; nothing where others have taken the last."""
        settings = trial.user_attrs.get("settings")
        before = [t for t in trials if _first(t) < _first(trial)]
        if not self.propose:  # several commands may have queued the same point
            queued = [t.user_attrs.get("settings") for t in before]
            return None if settings in queued else settings
        if (rank := _proposed(before)) >= self.proposals:
            return None
        # Seeded by its rank, so that a search that was stopped goes on as it would have. TPE of
        # several variates would sample before the rank is known.
        seed = (self.seed + 100_003 * rank) % 2**32
        study.sampler = load_optuna().samplers.TPESampler(multivariate=False, seed=seed)
        return self.propose(asked)

    def _row(self, settings: Settings, trial: Any, call: TrainAndScore, end: float) -> Settings:
        """Return the row of a point; a training that diverges is a result too."""
        # Two workers may propose the same at the same time: each needs a folder of its own.
        name = _folder_name(settings, f"{_first(trial)}" if self.propose else "")
        row: Settings = {"trial": name, "settings": settings}
        start = time.monotonic()
        try:
            row["scores"] = call(Trial(settings, self.folder / "trials" / name, end))
            if row["scores"] is None:
                raise _TimeIsUp
        except (VspairError, torch.OutOfMemoryError) as error:
            if isinstance(error.__context__, OSError):
                raise
            row["error"] = str(error).splitlines()[0]
        attempts = 1 + len(trial.system_attrs.get("retry_history", []))
        return row | {"seconds": round(time.monotonic() - start, 3), "attempts": attempts}


def _folder_name(settings: Settings, salt: str) -> str:
    """Return the name of a run folder: readable, and unique by a digest."""
    text = json.dumps(settings) + salt
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    short = {key.rpartition(".")[2]: value for key, value in settings.items()}
    words = ",".join(f"{k}={v:.4g}" if type(v) is float else f"{k}={v}" for k, v in short.items())
    return re.sub(r"[^\w.=,+-]", "", words or "base")[:80] + f"-{digest}"


# -- optuna ---------------------------------------------------------------------------------


def load_optuna() -> Any:
    """Import optuna, which is optional, and silence what it says of each trial."""
    try:
        import optuna
    except ImportError:
        raise VspairError("A sweep needs optuna: pip install 'vspair[sweep]'.") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


def _agree(study: Any, shared: Settings) -> None:
    """Keep what all trials share, or refuse what contradicts it."""
    if "shared" not in study.user_attrs:
        study.set_user_attr("shared", shared)
    kept, given = study.user_attrs["shared"], json.loads(json.dumps(shared))
    wrong = [key for key in kept if kept[key] != given.get(key, kept[key])]
    if wrong:
        words = "; ".join(f"{k} is {kept[k]} there and {given[k]} here" for k in wrong[:4])
        raise VspairError(
            f"{study.study_name} was made with other settings: {words}. Name another folder, or "
            "give the same settings."
        )


def _retry() -> Callable[[Any, Any], None]:
    """Return what queues a trial again, with its settings."""
    return load_optuna().storages.RetryHeartbeatStaleTrialCallback()


def _lock_at_begin(engine: Any) -> None:
    """Let a transaction of SQLite wait for others before it reads, not only before it writes.

    optuna reads that a trial waits, then writes that it runs: two workers could get the same.
    """
    from sqlalchemy import event

    if engine.dialect.name == "sqlite":
        event.listen(engine, "begin", lambda link: link.exec_driver_sql("BEGIN IMMEDIATE"))


def _retry_unheard(study: Any) -> None:
    """Queue trials again whose worker died before its first heartbeat: optuna overlooks them."""
    optuna = load_optuna()
    states, limit = optuna.trial.TrialState, datetime.now() - timedelta(seconds=GRACE)
    for trial in study.get_trials(states=(states.RUNNING,)):
        if trial.user_attrs.get("begun") != trial.number and trial.datetime_start < limit:
            with suppress(ValueError, optuna.exceptions.UpdateFinishedTrialError):
                study.tell(trial.number, state=states.FAIL)
                _retry()(study, trial)


def _first(trial: Any) -> int:
    """Return the number that a trial had before it was queued again."""
    return [*trial.system_attrs.get("retry_history", []), trial.number][0]


def _proposed(trials: list[Any]) -> int:
    """Return how many points are proposed; a trial that ended without one does not count."""
    kept = (t for t in trials if "settings" in t.user_attrs or not t.state.is_finished())
    return len({_first(trial) for trial in kept})


def _rows(study: Any) -> list[Settings]:
    ended = [t for t in study.get_trials(deepcopy=False) if t.state.is_finished()]
    rows = [trial.user_attrs["row"] for trial in ended if "row" in trial.user_attrs]
    return list({row["trial"]: row for row in rows}.values())


# -- processes ------------------------------------------------------------------------------


def _worker(trials: Trials, call: TrainAndScore, threads: int, deadline: float) -> None:
    """Work in a process of its own, which ends with the one that started it."""
    parent = cast(Any, parent_process())
    threading.Thread(target=lambda: parent.join() or os._exit(1), daemon=True).start()
    torch.set_num_threads(threads)
    try:
        trials.work(call, deadline, lambda: None)
    except KeyboardInterrupt:
        sys.exit(130)
    except (VspairError, OSError) as error:
        sys.exit(f"Error: {error}")


def _share(jobs: int, arguments: tuple[Any, ...], report: Callable[[], None]) -> None:
    """Work in several processes; what one leaves behind that is killed, the others finish."""
    context = get_context("spawn")
    workers = [context.Process(target=_worker, args=arguments) for _ in range(jobs)]
    try:
        for worker in workers:
            worker.start()
        while alive := [worker.sentinel for worker in workers if worker.is_alive()]:
            connection.wait(alive, timeout=POLL)
            report()
    except KeyboardInterrupt:  # which a terminal sends to the workers too
        for worker in workers:
            worker.join(4 * POLL)
            worker.terminate()
        raise Interrupted from None
    if all(worker.exitcode for worker in workers):
        raise VspairError("Every worker has failed. The same command continues.")
