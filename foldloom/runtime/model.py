"""An exported file as a function of examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from foldloom.errors import BlockInputError, ExportedFileError, FoldloomError
from foldloom.graph.recording import Recording
from foldloom.runtime.description import Array, Description
from foldloom.runtime.feeds import feeds_of
from foldloom.runtime.limits import Limits, Meter, metered
from foldloom.runtime.program import BlockProgram
from foldloom.runtime.recorder import Cell, Recorder
from foldloom.runtime.recordings import replayed
from foldloom.runtime.results import Requested, requested
from foldloom.runtime.sessions import session_of

Program = Callable[[Any, Any], Any]
"""Takes the model, whose attributes are its cells, and one example; returns the result."""


class Batch(NamedTuple):
    """A batch of examples as inputs of a file, and the places of its results in the outputs."""

    feeds: dict[str, Array]
    """The inputs of the file by name, in order."""
    places: list[Requested]
    calls: int = 0
    """How many calls of cells it takes."""

    def results(self, outputs: Sequence[Any]) -> list[Any]:
        """The result of each example, from the outputs of the file in order: arrays or tensors."""
        return [place.filled(outputs) for place in self.places]


class Model:
    """``Model(path)(examples)`` is a list with the result of each example, as arrays.

    A file of blocks contains the program that turns examples into calls of cells. For a model that was code, pass
    ``program``: a function of the model and one example, such as its ``forward``, that calls cells as attributes
    (``model.merge(left, right)``) and may call the model itself. ``modules`` are those whose functions and block kinds
    the file may use. ``threads`` is for ONNX Runtime, by default all cores.

    A file may come from anywhere: it computes, and can do nothing else. ``limits`` say how much it may take. A ``.pt2`` is an archive of torch's
    that can hold code; one that holds anything but what `fl.export` writes is refused, unless it is ``trusted``.

    >>> import tempfile
    >>> import foldloom as fl
    >>> from foldloom import blocks as fb
    >>> from foldloom.runtime import Model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = fl.export(fb.compile(fb.Map(fb.Scalar()) >> fb.Sum()), f"{folder}/sum.onnx")
    ...     Model(f"{folder}/sum.onnx")([[1, 2], [3], []])
    [np.float32(3.0), np.float32(3.0), np.float32(0.0)]
    """

    def __init__(
        self,
        path: str | Path,
        program: Program | None = None,
        *,
        modules: Sequence[str] = (),
        threads: int | None = None,
        limits: Limits | None = None,
        trusted: bool = False,
    ) -> None:
        self.path = str(path)
        self.limits = Limits() if limits is None else limits
        self._modules = modules
        self._is_own_program = program is None
        try:
            self._session = session_of(path, threads, self.limits, trusted=trusted)
            self.description: Description = self._session.description
            self._program = self._own_program() if program is None else self._given_program(program)
        except ExportedFileError as error:
            raise self._named(error) from error

    @property
    def task(self) -> str | None:
        """The task of the training that wrote the file, as JSON; None if ``fl.export`` wrote it."""
        return self._session.task

    def __call__(self, examples: Sequence[Any]) -> list[Any]:
        """The result of each example, or of each recording of one (`fl.record`). With metrics, a result is a pair of
        the output and a dict from metric names to lists of rows, each paired with its label if it has one."""
        batch = self.batch(examples)
        return batch.results(self._session.run(batch.feeds, batch.calls)) if batch.places else []

    def batch(self, examples: Sequence[Any]) -> Batch:
        """The inputs of the file for a batch of examples, to run it by other means."""
        recorder = Recorder(self.description, self.limits)
        results = []
        for number, example in enumerate(examples):
            recorder.meter = Meter(self.limits)
            try:
                if isinstance(example, Recording):
                    results += replayed(example, recorder)
                else:
                    with metered(recorder.meter):
                        results.append(self._program(recorder, example))
            except Exception as error:
                raised = self._told(error)
                raised.add_note(f"in example {number} of the batch, given to {self.path}")
                if raised is error:
                    raise
                raise raised from error
        try:
            places = [requested(recorder, result) for result in results]
            return Batch(feeds_of(recorder), places, sum([len(calls.rounds) for calls in recorder.calls]))
        except ExportedFileError as error:
            raise self._named(error) from error

    def _named(self, error: ExportedFileError) -> ExportedFileError:
        """An error of the file, in one line that names it."""
        told = " ".join(str(error).split())
        return ExportedFileError(told if self.path in told else f"{self.path}: {told}")

    def _told(self, error: Exception) -> Exception:
        """What is raised for an error in an example. What functions raise that the file was allowed to call, is theirs."""
        if isinstance(error, ExportedFileError):
            return self._named(error)
        if isinstance(error, RecursionError):
            return BlockInputError("the example is nested more deeply than Python can follow, or contains itself")
        if not self._is_own_program or isinstance(error, FoldloomError) or not _is_raised_here(error):
            return error
        problem = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return BlockInputError(f"the program of {self.path} cannot take this example: {problem}")

    def _own_program(self) -> Callable[[Recorder, Any], Any]:
        described = self.description.program
        if described is not None:
            return BlockProgram(described, self.description, self._modules)
        why = self.description.why

        def refuse(recorder: Recorder, example: Any) -> Any:
            raise ExportedFileError(f"{self.path} does not say how examples become calls of its cells: {why}")

        return refuse

    def _given_program(self, program: Program) -> Callable[[Recorder, Any], Any]:
        paths = {op.cell for op in self.description.ops}

        def run(recorder: Recorder, example: Any) -> Any:
            model = _Part("", paths, recorder, program, self.description)
            return program(model, example)

        return run

    def __repr__(self) -> str:
        cells = sorted({op.label for op in self.description.ops})
        return f"Model({self.path!r}: {', '.join(cells)})"


class _Part:
    """A cell of the model, or a submodule that contains cells, as a program sees it."""

    def __init__(
        self, path: str, paths: set[str], recorder: Recorder, program: Program, description: Description
    ) -> None:
        self._path, self._paths, self._recorder = path, paths, recorder
        self._program, self._description = program, description

    def __getattr__(self, name: str) -> _Part:
        path = f"{self._path}.{name}" if self._path else name
        if not any(known == path or known.startswith(f"{path}.") for known in self._paths):
            raise ExportedFileError(f"the file has no cell {path!r}; it has {', '.join(sorted(self._paths))}")
        found = _Part(path, self._paths, self._recorder, self._program, self._description)
        self.__dict__[name] = found
        return found

    def __call__(self, *args: Any, **settings: Any) -> Any:
        if not self._path:
            return self._recorder.deeper(lambda recorder, _: self._program(self, *args, **settings), None)
        cell = self.__dict__.get("_cell")
        if cell is None:
            cell = self.__dict__["_cell"] = Cell(self._path, self._description)
        return cell.called_with(self._recorder, args, settings)


def _is_raised_here(error: Exception) -> bool:
    """Whether the code that raised an error is ours, or numpy's, called by ours."""
    traceback = error.__traceback__
    name = ""
    while traceback is not None:
        name = traceback.tb_frame.f_globals.get("__name__", "")
        traceback = traceback.tb_next
    return name.startswith(("foldloom.", "numpy."))
