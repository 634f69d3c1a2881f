"""Training: the loop, what makes it fast, and several trainings side by side."""

from vspair.training.trainer import Trainer as Trainer
