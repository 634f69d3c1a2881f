"""Folds: parts of the pairs that are answered by what was fitted to the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from vspair.errors import VspairError

__all__ = ["as_groups", "assign_folds", "hold_out"]


def as_groups(groups: Any, count: int) -> Tensor:
    """Return the group of each pair as a number from 0 on, with shape (N,).

    Arguments:
        groups: Labels of any kind, pair by pair, such as patients; each pair alone where None.
        count: The number N of pairs.
    """
    if groups is None:
        return torch.arange(count)
    labels = np.asarray(groups.numpy(force=True) if isinstance(groups, Tensor) else groups)
    if labels.shape != (count,):
        raise VspairError(
            f"groups has shape {labels.shape}: expected ({count},), one label for each pair, such "
            "as the number of its patient."
        )
    # As they were given: numpy makes text of numbers that stand beside text.
    given = groups if isinstance(groups, list | tuple) else labels.tolist()
    plain = [label.item() if isinstance(label, np.generic) else label for label in given]
    if missing := sum(label is None or bool(label != label) for label in plain):
        raise VspairError(
            f"groups has {missing} labels that are None or not a number: expected a label for "
            "every pair. Give pairs whose source is unknown labels of their own."
        )
    kinds = sorted({type(label).__name__ for label in plain})
    if len(kinds) > 1:
        raise VspairError(
            f"groups has labels of several kinds ({', '.join(kinds)}): expected one kind, such as "
            "text or whole numbers."
        )
    return torch.from_numpy(np.unique(labels, return_inverse=True)[1].reshape(-1))


def assign_folds(groups: Tensor, folds: int, seed: int) -> Tensor:
    """Return the fold of each pair, from 0 to folds - 1, with shape (N,).

    Groups are never divided. They are shuffled and go one by one, the largest first, to the fold
    that is smallest so far, so that folds are of nearly the same size.

    Arguments:
        groups: The group of each pair, numbered from 0 on, with shape (N,).
        folds: How many folds.
        seed: Fixes the order of groups of the same size.
    """
    sizes = torch.bincount(groups)
    if len(sizes) < folds:
        raise VspairError(
            f"{len(sizes)} groups of pairs are too few for {folds} folds: expected at least one "
            "for each fold. Give more pairs or groups"
            + (", or fewer folds (anchored.folds)." if folds > 2 else ".")
        )
    order = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(seed))
    order = order[sizes[order].argsort(descending=True, stable=True)]
    if bool((sizes == sizes[0]).all()):
        fold = torch.empty_like(sizes)
        fold[order] = torch.arange(len(sizes)) % folds
        return fold[groups]
    load, fold = [0] * folds, torch.empty_like(sizes)
    for group in order.tolist():
        least = load.index(min(load))
        fold[group] = least
        load[least] += int(sizes[group])
    return fold[groups]


def hold_out(groups: Tensor, share: float, seed: int, kept: int = 1) -> Tensor:
    """Return which pairs are held out, bool (N,): whole groups with about a share of them.

    One group is in any case; more only while ``kept`` are left, and never twice the share, unless
    the smallest group alone has more.

    Arguments:
        groups: The group of each pair, numbered from 0 on, with shape (N,).
        share: The share of the pairs that is to be held out.
        seed: Fixes which groups.
        kept: How many groups are left, if there are more than so many.
    """
    sizes = torch.bincount(groups)
    order = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(seed))
    chosen, count = list[int](), 0
    for group in order.tolist():
        size = int(sizes[group])
        fits = count < share * len(groups) and count + size <= 2 * share * len(groups)
        if fits and len(sizes) - len(chosen) > kept:
            chosen.append(group)
            count += size
    return torch.isin(groups, torch.tensor(chosen or [int(sizes.argmin())]))
