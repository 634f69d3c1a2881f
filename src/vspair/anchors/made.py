"""What pairs decide about an anchor: it fixes the shapes of weights and is saved with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vspair.networks.spatial import Domain

__all__ = ["BaseName", "Made", "RidgeKind"]

BaseName = Literal["none", "ridge", "first"]
RidgeKind = Literal["entries", "toward-y", "shifts"]


@dataclass(frozen=True)
class Made:
    """What was decided by the pairs, and fixes the shapes of all weights.

    Arguments:
        base: What answers, or is corrected by networks that do.
        domain: What x is.
        rank: The directions of the ridge path.
        penalties: Its penalties.
        best: Which of them answers best.
        networks: The networks of the anchor, one without each fold.
        modes: The codes of a y.
        first: Whether first guesses are given with y.
        ridge: What ridge regression learns: ``entries``, each from all others; ``toward-y``, the
            same of x - y, which where penalties are large answers with y instead of the mean; or
            ``shifts``, one filter for all places.
        curve: The directions of a smooth regression beside it, for vectors; 0 where there is none.
        mirrored: Whether networks, code and grain learn from mirrored images too.
        reach: Whether how far factors reach is read of y.
        whole: How many more networks learn from all folds, and answer instead of the others.
    """

    base: BaseName
    domain: Domain
    rank: int
    penalties: int
    best: int
    networks: int
    modes: int
    first: bool
    ridge: RidgeKind = "entries"
    curve: int = 0
    mirrored: bool = False
    whole: int = 0
    reach: bool = False
