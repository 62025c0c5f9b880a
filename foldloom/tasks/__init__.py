"""Tasks by name. One file a task; `task` says what they share.

>>> from foldloom.tasks import TASKS
>>> TASKS["tagging"].description
'a tag for every word, by BiLSTMs over words and characters'
"""

from typing import Any

from foldloom.tasks.adding import AddingTask
from foldloom.tasks.arithmetic import ArithmeticTask
from foldloom.tasks.code import CodeTask
from foldloom.tasks.molecules import MoleculesTask
from foldloom.tasks.parsing import ParsingTask
from foldloom.tasks.sentiment import SentimentTask
from foldloom.tasks.settings import Settings
from foldloom.tasks.tagging import TaggingTask
from foldloom.tasks.task import Data, Task

TASKS: dict[str, type[Task[Any]]] = {
    task.name: task
    for task in (SentimentTask, CodeTask, TaggingTask, ParsingTask, MoleculesTask, ArithmeticTask, AddingTask)
}

__all__ = ["TASKS", "Data", "Settings", "Task"]
