"""Computed tomography, section 4.3: geometry, ray transform, noisy observations."""

from vspair.problems.ct.geometry import LODOPAB_PIXEL, Geometry
from vspair.problems.ct.problem import CtPairs, CtProblem, coarsen, moved_copies
from vspair.problems.ct.ray import RayTransform

__all__ = [
    "LODOPAB_PIXEL",
    "CtPairs",
    "CtProblem",
    "Geometry",
    "RayTransform",
    "coarsen",
    "moved_copies",
]
