"""An exported file as a function of examples."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from foldloom.errors import BlockInputError, ExportedFileError
from foldloom.graph.recording import Recording
from foldloom.runtime.description import Array, Description
from foldloom.runtime.feeds import feeds_of
from foldloom.runtime.program import BlockProgram
from foldloom.runtime.recorder import Cell, Recorder
from foldloom.runtime.recordings import replayed
from foldloom.runtime.results import Requested, requested
from foldloom.runtime.sessions import session_of

_RECURSION_LIMIT = 200_000
"""Programs recurse as deep as the data, with several calls per level. Python's default would limit trees to a few hundred levels."""

Program = Callable[[Any, Any], Any]
"""Takes the model, whose attributes are its cells, and one example; returns the result."""


class Batch(NamedTuple):
    """A batch of examples as inputs of a file, and the places of its results in the outputs."""

    feeds: dict[str, Array]
    """The inputs of the file by name, in order."""
    places: list[Requested]

    def results(self, outputs: Sequence[Any]) -> list[Any]:
        """The result of each example, from the outputs of the file in order: arrays or tensors."""
        return [place.filled(outputs) for place in self.places]


class Model:
    """``Model(path)(examples)`` is a list with the result of each example, as arrays.

    A file of blocks contains the program that turns examples into calls of cells. For a model that was code, pass
    ``program``: a function of the model and one example, such as its ``forward``, that calls cells as attributes
    (``model.merge(left, right)``) and may call the model itself. ``modules`` are those whose functions and block kinds
    the file may use. ``threads`` is for ONNX Runtime, by default all cores.
    """

    def __init__(
        self,
        path: str | Path,
        program: Program | None = None,
        *,
        modules: Sequence[str] = (),
        threads: int | None = None,
    ) -> None:
        self.path = str(path)
        self._modules = modules
        self._session = session_of(path, threads)
        self.description: Description = self._session.description
        self._program = self._own_program() if program is None else self._given_program(program)

    def __call__(self, examples: Sequence[Any]) -> list[Any]:
        """The result of each example, or of each recording of one (`fl.record`). With metrics, a result is a pair of
        the output and a dict from metric names to lists of rows, each paired with its label if it has one."""
        batch = self.batch(examples)
        return batch.results(self._session.run(batch.feeds)) if batch.places else []

    def batch(self, examples: Sequence[Any]) -> Batch:
        """The inputs of the file for a batch of examples, to run it by other means."""
        recorder = Recorder(self.description)
        results = []
        with _deep_recursion():
            for number, example in enumerate(examples):
                try:
                    if isinstance(example, Recording):
                        results += replayed(example, recorder)
                    else:
                        results.append(self._program(recorder, example))
                except Exception as error:
                    error.add_note(f"in example {number} of the batch")
                    raise
        places = [requested(recorder, result) for result in results]
        return Batch(feeds_of(recorder), places)

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
            return self._program(self, *args, **settings)
        cell = self.__dict__.get("_cell")
        if cell is None:
            cell = self.__dict__["_cell"] = Cell(self._path, self._description)
        return cell.called_with(self._recorder, args, settings)


@contextmanager
def _deep_recursion() -> Iterator[None]:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _RECURSION_LIMIT))
    try:
        yield
    except RecursionError as error:
        raise BlockInputError("the example is nested more deeply than Python can follow, or contains itself") from error
    finally:
        sys.setrecursionlimit(limit)
