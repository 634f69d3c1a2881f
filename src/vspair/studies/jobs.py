"""Jobs of a study side by side, each in a process of its own and on one core."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import Any, Protocol, TypeVar

import torch

from vspair.runs import Groups
from vspair.studies.study import Workspace

__all__ = ["Job", "do_missing", "each_done", "on_one_core_each"]


class Job(Protocol):
    """What is done at once: it can be sent to another process, and leaves one answer."""

    @property
    def name(self) -> str:
        """What its answer is called."""

    @property
    def key(self) -> str:
        """What its answer is known again by."""


J = TypeVar("J", bound=Job)
C = TypeVar("C")
W = TypeVar("W", bound=Workspace[Any, Any])


@contextmanager
def on_one_core_each(processes: int) -> Iterator[Callable[..., Iterable[Any]]]:
    """Yield a map that works in so many processes, or in this one, each on one core."""
    if processes > 1:
        how: dict[str, Any] = {"initializer": torch.set_num_threads, "initargs": (1,)}
        with ProcessPoolExecutor(processes, get_context("spawn"), **how) as pool:
            yield pool.map
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield map
    finally:
        torch.set_num_threads(threads)


def do_missing(
    work: Workspace[Any, Any], jobs: Sequence[J], do: Callable[[J], Groups | None]
) -> bool:
    """Do the jobs whose answers are missing, and keep these; return whether all are there.

    Arguments:
        work: Where answers are kept, how many processes there are and when to stop.
        jobs: All jobs.
        do: Does one, in any process; returns its answer, or nothing where time ran out.
    """
    left = [job for job in jobs if not work.answers.has(job.name, job.key)]
    if not left or work.late():
        return not left
    work.note_work()
    with on_one_core_each(min(work.jobs, len(left))) as each:
        for job, groups in zip(left, each(do, left), strict=True):
            if groups is not None:
                work.answers.write(job.name, job.key, groups)
                work.say(f"{job.name}: done")
    return all(work.answers.has(job.name, job.key) for job in left)


def each_done(
    work: W, cases: Sequence[C], do: Callable[[W, C], bool], load: Callable[[], Any]
) -> bool:
    """Do cases in one process or more, each of which keeps what it makes; return whether all are.

    Arguments:
        work: Where answers are kept, how many processes there are and when to stop.
        cases: What is done one by one.
        do: Does one, in any process; returns whether it is done.
        load: Makes or reads the data that it needs, in any process.
    """
    alone = replace(work, load=load, jobs=1)
    with on_one_core_each(min(work.jobs, len(cases))) as each:
        for done, worked in each(partial(_noted, do, alone), cases):
            if worked:
                work.note_work()
            if not done:
                return False
    return True


def _noted(do: Callable[[W, C], bool], work: W, case: C) -> tuple[bool, bool]:
    """Do one case; return whether it is done, and whether there was anything to do."""
    return do(work, case), work.worked
