"""Everything Foldloom raises on its own account.

    FoldloomError
    ├── RecordingError          a call that cannot be recorded
    │   ├── ArgumentError       an argument that cannot be batched
    │   ├── ForeignValueError   a value of another batch, or of one that is over
    │   ├── SharedStateError    examples change what others see, and their order would show
    │   └── ValueNotReadyError  a value was needed before the batch had run
    ├── CellError               a cell that failed or broke its contract
    │   ├── CellOutputError     it returned something other than tensors with the batch first
    │   └── NestedCellError     it called itself
    ├── PlanError               a plan or schedule that is not well formed
    │   └── CellMismatchError   a plan met other cells than it was made for
    ├── StackError              results of different structure cannot be stacked
    ├── BlockError              a block that cannot be what it was made to be
    │   ├── BlockTypeError      two blocks that do not fit: one gives what the other does not take
    │   ├── WiringError         a composition, declaration or dispatch that is not complete
    │   └── BlockInputError     an example that is not what the blocks expect
    │       └── MissingKeyError     it lacks a field, or has a key that no case is for
    ├── DataError               a file that is not what its reader expects, with its name and line
    ├── ExportError             a model that cannot leave Python
    │   └── ExportedFileError   an exported file that is not what it should be, or is asked for what it does not have
    ├── ServingError            a request that is not answered
    │   ├── ServerBusyError     too many are waiting
    │   ├── ServerClosedError   the server takes no more
    │   └── DeadlineError       it took too long, or was cancelled
    └── RunError                a folder that is not that of a training, or not of this one

What the user's own function raises is raised as it is, with a note that says which example it was; what a cell raises
while it runs becomes a CellError that names the cell, the shapes and the example, and can be caught as what was raised, too.

>>> import foldloom as fl
>>> try:
...     fl.batch(lambda x: x)(3)
... except fl.errors.FoldloomError as error:
...     print(type(error).__name__)
ArgumentError
"""

from __future__ import annotations

from typing import Any


class FoldloomError(Exception):
    pass


class RecordingError(FoldloomError):
    pass


class ArgumentError(RecordingError, TypeError):
    pass


class ForeignValueError(RecordingError):
    pass


class SharedStateError(RecordingError):
    pass


class ValueNotReadyError(RecordingError, TypeError):
    pass


class CellError(FoldloomError):
    op: Any = None
    """The operation that failed, if it did while it ran."""
    example: int | None = None
    """The example whose call it was, if it is known."""


class CellOutputError(CellError):
    pass


class NestedCellError(CellError):
    pass


class PlanError(FoldloomError):
    pass


class CellMismatchError(PlanError):
    pass


class StackError(FoldloomError):
    pass


class BlockError(FoldloomError):
    """What is wrong with a block, or with what it was given: the errors below.

    >>> from foldloom import blocks as fb
    >>> issubclass(fb.WiringError, fb.BlockError)
    True
    """


class BlockTypeError(BlockError, TypeError):
    """A block gets another type than it takes.

    >>> from foldloom import blocks as fb
    >>> fb.Scalar() >> fb.Map(fb.Scalar())  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    foldloom.errors.BlockTypeError: Scalar() gives TensorType([], 'float32'), but Map(Scalar()) takes PyObjectType()...
    """


class WiringError(BlockError, ValueError):
    """Blocks are put together in a way that has no meaning.

    >>> from foldloom import blocks as fb
    >>> fb.NGrams(0)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    foldloom.errors.WiringError: fb.NGrams(0) would be runs of 0 elements: there is none...
    """


class BlockInputError(BlockError, ValueError):
    """An example is not what a block takes.

    >>> from foldloom import blocks as fb
    >>> fb.Scalar().eval("three")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    foldloom.errors.BlockInputError: Scalar() was given 'three' (str), of which it cannot make TensorType([], 'float32')...
    """


class MissingKeyError(BlockInputError, KeyError):
    """An example lacks what a block looks for.

    >>> from foldloom import blocks as fb
    >>> (fb.GetItem("age") >> fb.Scalar()).eval({})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    foldloom.errors.MissingKeyError: a record of the example has no field 'age' (it has none), which GetItem('age') asks for...
    """

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError would print it quoted, on one line


class DataError(FoldloomError, ValueError):
    """Where (``source``, ``line``) what was expected (``problem``) is not what stands there.

    >>> from foldloom import data
    >>> list(data.SentimentReader(["(4 good"]))
    Traceback (most recent call last):
        ...
    foldloom.errors.DataError: input, line 1: expected brackets, but the bracket that opens in line 1 is not closed
    """

    def __init__(self, problem: str, source: str | None = None, line: int | None = None) -> None:
        super().__init__(problem, source, line)
        self.problem, self.source, self.line = problem, source, line

    def __str__(self) -> str:
        where = [self.source] if self.source is not None else []
        where += [f"line {self.line}"] if self.line is not None else []
        return f"{', '.join(where)}: {self.problem}" if where else self.problem


class ExportError(FoldloomError):
    pass


class ExportedFileError(ExportError):
    pass


class ServingError(FoldloomError):
    pass


class ServerBusyError(ServingError):
    pass


class ServerClosedError(ServingError):
    pass


class DeadlineError(ServingError, TimeoutError):
    pass


class RunError(FoldloomError):
    pass
