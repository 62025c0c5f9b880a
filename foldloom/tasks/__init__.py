"""Tasks by name, for the command line. One file a task; `task` says what they share."""

from foldloom.tasks.molecule import MoleculeTask
from foldloom.tasks.parser import ParserTask
from foldloom.tasks.tagger import TaggerTask
from foldloom.tasks.task import Task
from foldloom.tasks.tree_lstm import TreeLSTMTask

TASKS: dict[str, Task] = {task.name: task for task in (TreeLSTMTask(), TaggerTask(), ParserTask(), MoleculeTask())}

__all__ = ["TASKS", "Task"]
