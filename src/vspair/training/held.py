"""What other methods hold out of their pairs: rows by chance, or whole groups where there are."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from vspair.anchors.folds import as_groups, hold_out
from vspair.data import split
from vspair.errors import VspairError

__all__ = ["apart", "held_rows"]


def held_rows(
    n: int, share: float, seed: int, groups: Any = None, kept: int = 1
) -> tuple[Tensor, Tensor]:
    """Return the indices of the pairs to learn from and of those that are held out.

    Arguments:
        n: The number of pairs.
        share: About which share of them is held out.
        seed: Fixes which.
        groups: Labels (n,) of pairs that belong together, such as patients: groups are never
            divided. Each pair is alone where None.
        kept: How many groups are left to learn from, at least, if there are more.
    """
    if groups is None:
        return split(n, share, seed)
    held = hold_out(as_groups(groups, n), share, seed, kept)
    if bool(held.all()):
        raise VspairError(
            "groups has one label for all pairs: expected at least 2, one of them to hold out. "
            "Leave groups out."
        )
    return (~held).nonzero().flatten(), held.nonzero().flatten()


def apart(
    data: tuple[Tensor, ...], groups: Any, seed: int, share: float = 0.1
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return data to train on and data that choose the best epoch; see :func:`held_rows`.

    Arguments:
        data: Tensors with the same first dimension N.
        groups: Labels (N,), or None.
        seed: Fixes what is held out.
        share: About which share of it.
    """
    parts = held_rows(len(data[0]), share, seed, groups)
    train, held = (tuple(t[rows.to(t.device)] for t in data) for rows in parts)
    return train, held
