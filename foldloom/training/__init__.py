"""Trainings of tasks, which can be stopped and go on, in one process or several; needs ``pip install 'foldloom[train]'``."""

from foldloom.training.run import Run
from foldloom.training.trainer import train

__all__ = ["Run", "train"]
