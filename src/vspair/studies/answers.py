"""Answers of methods to test observations, kept in a folder so that nothing is computed twice.

An answer is a file of arrays by group and name: ``scores`` has one number a test pair for each
metric, ``shown`` the images of a few pairs, ``row`` numbers about the whole. It is known again by
a key, a digest of all that it depends on. Answers are made block by block, each kept, so that a
stage can be stopped in time; what is damaged, or has another key, is made anew.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Generator, Tensor

from vspair.data import Pairs
from vspair.errors import VspairError
from vspair.evaluation import score_method
from vspair.posterior import LatentPosterior, Method
from vspair.runs.files import Groups, make_folder, read_groups, write_groups

__all__ = ["Answers", "Question", "as_array", "digest", "library_digest", "made_once"]

M = TypeVar("M", bound=Method)
_REMADE = "The study's stages make it; where it is damaged, remove it first."


def digest(*parts: object) -> str:
    """Return a short name for settings; tensors and bytes count by their contents."""
    found = hashlib.blake2b(digest_size=8)
    for part in parts:
        if isinstance(part, Tensor):
            found.update(f"{tuple(part.shape)} {part.dtype}".encode())
            part = part.detach().cpu().contiguous().numpy().tobytes()
        found.update(part if isinstance(part, bytes) else repr(part).encode())
        found.update(b";")
    return found.hexdigest()


@cache
def library_digest() -> str:
    """Return a digest of the source that learns: with another, answers are made anew."""
    package = Path(__file__).parents[1]
    others = ("cli", "datasets", "problems", "report", "studies", "sweeps")
    files = sorted(
        p for p in package.rglob("*.py") if p.relative_to(package).parts[0] not in others
    )
    return digest(*(file.read_bytes() for file in files))


def as_array(values: Any) -> Any:
    """Return a tensor, number or array as an array in main memory, in single precision."""
    if not isinstance(values, Tensor):
        return np.asarray(values)
    values = values.detach().cpu()
    return values.float().numpy() if values.is_floating_point() else values.numpy()


def made_once(make: Callable[[], M]) -> Callable[[Tensor], M]:
    """Return the same method for all rows of the test pairs, made when it is first asked."""
    method = cache(make)
    return lambda _: method()


@dataclass(frozen=True)
class Question:
    """What every method of a study is asked: test pairs, and which of them are shown.

    Arguments:
        pairs: The test pairs.
        shown: The rows whose images are kept, with shape (n,); none where not given.
        samples: Posterior samples for each observation.
        block: Observations that are answered at once.
        image_quality: Whether to add PSNR and SSIM.
        region: Entries whose share of error and variance is asked for, bool (N, *x_shape).
    """

    pairs: Pairs
    shown: Tensor = field(default_factory=lambda: torch.arange(0))
    samples: int = 50
    block: int = 200
    image_quality: bool = False
    region: Tensor | None = None

    @property
    def key(self) -> str:
        """What the question is known again by."""
        return digest(
            self.pairs.x, self.pairs.y, self.samples, self.region, self.block, self.image_quality
        )

    def scores(self, method: Method, rows: Tensor) -> dict[str, Tensor]:
        """Return a method's scores on some rows, each with shape (k,)."""
        x, y = self.pairs.x[rows], self.pairs.y[rows]
        how: dict[str, Any] = {"samples": self.samples, "seed": int(rows[0]), "chunk": self.block}
        how |= {"region": None if self.region is None else self.region[rows]}
        return score_method(method, x, y, image_quality=self.image_quality, **how)

    @torch.no_grad()
    def images(self, method: Method, rows: Tensor) -> dict[str, Tensor]:
        """Return a method's estimates and, where they have spread, deviations and a sample."""
        post = method.posterior(self.pairs.y[rows])
        generator = Generator(post.device).manual_seed(int(rows[0]))
        if not post.has_spread:
            return {"estimate": post.mean()}
        mean, std = post.moments(self.samples, generator)
        if isinstance(post, LatentPosterior) and post.answer is not None:
            mean = post.mean()
        return {"estimate": mean, "std": std, "sample": post.sample(1, generator)[0]}


def _scored(
    question: Question, method_for: Callable[[Tensor], Method], rows: Tensor
) -> dict[str, Tensor]:
    return question.scores(method_for(rows), rows)


class Answers:
    """A folder of answers.

    Arguments:
        folder: Where they are kept.
        late: Returns whether fewer seconds are left than needed.
        note_work: Called whenever an answer is written.
    """

    def __init__(
        self,
        folder: Path,
        late: Callable[[float], bool] = lambda _: False,
        note_work: Callable[[], None] = lambda: None,
    ) -> None:
        self.folder, self.late, self.note_work = folder, late, note_work

    def path(self, name: str) -> Path:
        """Return the file of an answer."""
        return self.folder / f"{name}.npz"

    def read(self, name: str) -> Groups:
        """Return an answer's arrays by group and name."""
        return read_groups(self.path(name), _REMADE)

    def has(self, name: str, key: str | None = None) -> bool:
        """Return whether there is an answer, of a key where one is given; damaged ones are not."""
        with suppress(VspairError):
            return self.path(name).is_file() and key in (None, str(self.read(name)["key"]["own"]))
        return False

    def write(self, name: str, key: str, groups: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep an answer's arrays, to be known again by its key."""
        make_folder(self.path(name).parent)
        arrays = {g: {k: as_array(v) for k, v in part.items()} for g, part in groups.items()}
        write_groups(self.path(name), arrays | {"key": {"own": np.array(key)}})
        self.note_work()

    def blocks(
        self, name: str, key: str, work: Sequence[Callable[[], Mapping[str, Any]]]
    ) -> list[dict[str, Any]] | None:
        """Return the arrays of each block, made now or before; nothing where time runs out."""
        found, needed = [], 0.0
        for i, block in enumerate(work):
            place, own = f"blocks/{name}-{i:03d}", digest(key, i)
            if not self.has(place, own):
                if self.late(needed):
                    return None
                start = time.monotonic()
                self.write(place, own, {"block": block()})
                needed = time.monotonic() - start
            found.append(self.read(place).get("block", {}))
        return found

    def ask(
        self,
        name: str,
        method_for: Callable[[Tensor], Method],
        question: Question,
        settings: object,
        more: Callable[[], Groups] = dict,
    ) -> bool:
        """Keep a method's answer to a question; return whether that is done.

        Arguments:
            name: The method's name.
            method_for: From rows of the test pairs to the method that answers them; called only
                where the answer is not there.
            question: What it is asked.
            settings: All else that the answer depends on, such as the digest of a training.
            more: Returns further groups of arrays to keep.
        """
        own = digest(question.key, name, settings)
        key = digest(own, question.shown)
        if self.has(name, key):
            return True
        rows, seen = torch.arange(len(question.pairs.x)).split(question.block), question.shown
        pictures = [partial(question.images, method_for(seen), seen)] if len(seen) else []
        shown = self.blocks(f"{name}-shown", key, pictures)
        parts = self.blocks(name, own, [partial(_scored, question, method_for, r) for r in rows])
        if shown is None or parts is None or self.late(0.0):
            return False
        joined = {k: np.concatenate([part[k] for part in parts]) for k in parts[0]}
        self.write(name, key, {"scores": joined, "shown": shown[0] if shown else {}, **more()})
        return True
