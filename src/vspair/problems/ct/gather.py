"""Sparse matrices whose rows follow a rule, kept in memory or made anew at each product.

A row is a list of columns and weights, and a product gathers what the columns hold: no two rows
write to one place, so that the result is the same each time, on a GPU too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Gather"]

Rule = Callable[[Tensor], tuple[Tensor, Tensor]]

_ENTRIES = {"cpu": 2**17}
"""How many entries are made at a time: on a processor, as many as stay in its cache."""

_ENTRIES_ELSEWHERE = 2**24


class _Rows(NamedTuple):
    """Rows laid end to end: where each starts, its columns and weights."""

    start: Tensor
    column: Tensor
    weight: Tensor


class Gather:
    """A sparse matrix given by a rule for the entries of its rows.

    Arguments:
        rows: The number of rows m.
        width: The number w of entries in a row, unused ones included.
        rule: Takes row numbers, int64 with shape (k,), on the device to compute on, and returns
            columns, int64, and weights, float64, each with shape (k, w). An unused entry has
            weight 0 and a column that exists.
    """

    def __init__(self, rows: int, width: int, rule: Rule) -> None:
        self.rows, self.width, self.rule = rows, width, rule
        self._kept: dict[tuple[torch.device, torch.dtype], _Rows] = {}

    def nbytes(self, dtype: torch.dtype) -> int:
        """Return the most memory that the matrix can need, in bytes."""
        return self.rows * self.width * (torch.int32.itemsize + dtype.itemsize)

    def __call__(self, x: Tensor, *, keep: bool) -> Tensor:
        """Multiply by x of shape (n, B); return a tensor of shape (m, B).

        Arguments:
            x: float32 or float64.
            keep: Whether the matrix is held in memory for the next product. If not, its rows are
                made in parts, each used and dropped.
        """
        x = x.contiguous()
        if not keep:
            return torch.cat([_bag(x, *self._part(rows, x.dtype)) for rows in self._parts(x)])
        key = x.device, x.dtype
        if key not in self._kept:
            self._kept[key] = self._matrix(x)
        start, column, weight = self._kept[key]
        return _bag(x, column, weight, start)

    def _parts(self, x: Tensor) -> tuple[Tensor, ...]:
        entries = _ENTRIES.get(x.device.type, _ENTRIES_ELSEWHERE)
        return torch.arange(self.rows, device=x.device).split(max(1, entries // self.width))

    def _part(self, rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        column, weight = self.rule(rows)
        return column, weight.to(dtype)

    def _matrix(self, x: Tensor) -> _Rows:
        """Return the matrix on the device and in the dtype of x, without unused entries."""
        counts, columns, weights = [], [], []
        for rows in self._parts(x):
            column, weight = self._part(rows, x.dtype)
            used = weight != 0
            counts.append(used.sum(1))
            columns.append(column[used].int())
            weights.append(weight[used])
        ends = torch.cat(counts).cumsum(0)
        start = torch.cat((ends.new_zeros(1), ends))
        # The columns' type, as embedding_bag asks for, unless it is too short.
        column = torch.cat(columns)
        if int(start[-1]) > torch.iinfo(torch.int32).max:
            return _Rows(start, column.long(), torch.cat(weights))
        return _Rows(start.int(), column, torch.cat(weights))


def _bag(x: Tensor, column: Tensor, weight: Tensor, start: Tensor | None = None) -> Tensor:
    """Return the weighted sums of rows of x, with shape (m, B)."""
    return F.embedding_bag(
        column,
        x,
        start,
        mode="sum",
        per_sample_weights=weight,
        include_last_offset=start is not None,
    )
