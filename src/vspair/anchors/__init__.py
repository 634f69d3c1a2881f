"""Anchors: deterministic answers r(y), and what they see of y in the domain of x."""

from vspair.anchors.curves import CurvePath as CurvePath
from vspair.anchors.folds import assign_folds as assign_folds
from vspair.anchors.made import Made as Made
from vspair.anchors.ridge import RidgePath as RidgePath
from vspair.anchors.shifts import ShiftPath as ShiftPath
