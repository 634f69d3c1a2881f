"""Sweeps: trainings that differ in a few settings, shared out and remembered by optuna.

:class:`Trials` trains and scores any list of points, or lets optuna search for the best; a
:class:`Sweep` does so with the settings of a configuration on pairs, as ``vspair sweep`` does.
"""

from vspair.sweeps.sweep import METRICS as METRICS
from vspair.sweeps.sweep import Axis as Axis
from vspair.sweeps.sweep import Sweep as Sweep
from vspair.sweeps.sweep import flat as flat
from vspair.sweeps.sweep import run as run
from vspair.sweeps.trials import Trial as Trial
from vspair.sweeps.trials import Trials as Trials
