"""``foldloom predict``: one example per line in, one JSON result per line out.

``--model FILE`` runs a file of `fl.export` on examples in JSON and needs no torch. ``--run FOLDER`` runs a model that
``foldloom train`` saved, on lines in the format of its task.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np

from foldloom.data import opening
from foldloom.data.opening import check_text, opened
from foldloom.errors import ArgumentError, DataError, FoldloomError
from foldloom.runtime.limits import Limits
from foldloom.runtime.model import Model
from foldloom.runtime.portable import imported

MISTAKEN = 2
"""What a shell says of a command that was given what it cannot take."""

_ENDLESS = opening.Limits(line=256 * opening.MIB, file=sys.maxsize)
"""Lines are forgotten when they are answered, so there may be any number of them."""

Commands = Any
"""What argparse returns from ``add_subparsers``; it has no public name."""


class Predictor(Protocol):
    """Parses lines and predicts results."""

    def parse(self, line: str, /) -> Any:
        """The example on a line. Raises `DataError` if it is malformed."""

    def __call__(self, examples: Sequence[Any], /) -> Sequence[Any]:
        """The result of each example."""


class ExportedModel:
    """A file of `fl.export` as a predictor."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def parse(self, line: str) -> Any:
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"not a line of JSON: {error}") from error

    def __call__(self, examples: Sequence[Any]) -> Sequence[Any]:
        return self._model(examples)


OpenRun = Callable[[Path, int], Predictor]
"""From the folder of a training run and a number of threads. Passed in, because it needs torch."""
OpenTask = Callable[[Model, str, Path], Predictor | None]
"""From a file that a training wrote, which says its task; None where there is no torch, which tasks need."""


def add_command(commands: Commands, open_run: OpenRun, open_task: OpenTask) -> None:
    command = commands.add_parser("predict", help="the answers of a trained or exported model")
    model = command.add_mutually_exclusive_group(required=True)
    model.add_argument(
        "--run", type=Path, metavar="FOLDER", help="what foldloom train kept: lines as its task has them"
    )
    model.add_argument(
        "--model",
        type=Path,
        metavar="FILE",
        help="what foldloom export wrote: lines as its task has them; or fl.export: lines of JSON, and no torch needed",
    )
    command.add_argument(
        "--batch",
        type=_from_one,
        default=1,
        metavar="N",
        help="how many lines to answer together (1: each as it comes)",
    )
    command.add_argument(
        "--program",
        metavar="MODULE:FUNCTION",
        help="with --model, a function of the model and one example, for models of code",
    )
    command.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="MODULE",
        help="with --model, a module: the file may call functions that it defines itself",
    )
    command.add_argument(
        "--trusted",
        action="store_true",
        help="with --model, load a .pt2 that may run code, because you know where it is from",
    )
    command.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="NAME=NUMBER",
        help="with --model, how much the file may take: steps and depth of an example, bytes of memory, nodes of the graph, seconds of a batch",
    )
    command.add_argument(
        "--threads", type=_from_one, metavar="N", help="how many of them may be used (1; with --model, all there are)"
    )
    command.add_argument(
        "examples", nargs="?", type=Path, metavar="EXAMPLES", help="a file with one example a line (standard input)"
    )
    command.set_defaults(command=partial(_predict, open_run, open_task))


def _from_one(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,8}", text):
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, not {text!r:.60}")
    return int(text)


def _predict(open_run: OpenRun, open_task: OpenTask, options: argparse.Namespace) -> None:
    try:
        predictor = _exported(open_task, options) if options.run is None else _of_run(open_run, options)
        given = getattr(sys.stdin, "buffer", sys.stdin) if options.examples is None else options.examples
        with opened(given, _ENDLESS) as (_, lines):
            _answer_all(predictor, lines, options.batch)
    except (FoldloomError, ImportError) as error:
        _refuse(str(error))
    except OSError as error:
        _refuse(f"{error.filename or options.examples}: {error.strerror}")


def _refuse(problem: str) -> NoReturn:
    print(f"foldloom predict: {' '.join(problem.split())}", file=sys.stderr)
    sys.exit(MISTAKEN)


def _of_run(open_run: OpenRun, options: argparse.Namespace) -> Predictor:
    if options.program or options.allow or options.trusted or options.limit:
        raise ArgumentError(
            "--program, --allow, --trusted and --limit are for models that were exported; leave them out with --run"
        )
    return open_run(options.run, options.threads or 1)


def _exported(open_task: OpenTask, options: argparse.Namespace) -> Predictor:
    program = None if options.program is None else imported(options.program, [options.program.partition(":")[0]])
    limits = Limits(**dict([_limit(text) for text in options.limit]))
    model = Model(
        options.model, program, modules=options.allow, threads=options.threads, limits=limits, trusted=options.trusted
    )
    of_task = None if model.task is None or program is not None else open_task(model, model.task, options.model)
    return ExportedModel(model) if of_task is None else of_task


def _limit(text: str) -> tuple[str, Any]:
    name, _, number = text.partition("=")
    if name in [field.name for field in fields(Limits)] and re.fullmatch(r"\d+(\.\d+)?", number):
        return name, float(number) if name == "seconds" else int(float(number))
    raise ArgumentError(
        f"expected a limit such as steps=10000000 after --limit, or one of depth, memory, nodes or seconds, not {text!r:.60}"
    )


def _answer_all(predictor: Predictor, lines: Iterable[str], batch: int) -> None:
    numbered = enumerate(lines, 1)
    while together := list(islice(numbered, max(1, batch))):
        for answer in answers(predictor, together):
            print(answer, flush=True)


def answers(predictor: Predictor, lines: Sequence[tuple[int, str]]) -> Iterator[str]:
    """One line for each of several numbered lines: ``{"result": ...}``, or ``{"error": ..., "line": ...}``."""
    examples: list[Any] = []
    errors: dict[int, str] = {}
    for place, (_, line) in enumerate(lines):
        try:
            check_text(line)
            examples.append(predictor.parse(line))
        except DataError as error:
            errors[place] = error.problem
    results = iter(_results(predictor, examples))
    for place, (number, _) in enumerate(lines):
        found = errors[place] if place in errors else next(results)
        yield _written(found, number)


class _Result:
    def __init__(self, value: Any) -> None:
        self.value = value


def _results(predictor: Predictor, examples: Sequence[Any]) -> list[_Result | str]:
    """The result of each example, or an error message."""
    if not examples:
        return []
    try:
        return [_Result(result) for result in predictor(examples)]
    except Exception as error:  # an error in one example must not affect others
        if len(examples) == 1:
            return [" ".join(f"{type(error).__name__}: {error}".split())]
    return [result for example in examples for result in _results(predictor, [example])]


def _written(found: _Result | str, number: int) -> str:
    if isinstance(found, _Result):
        try:
            return json.dumps({"result": _plain(found.value)}, allow_nan=False)
        except ValueError:
            found = "the result has numbers in it that are infinite or none, which JSON does not have"
    return json.dumps({"error": found, "line": number})


def _plain(value: Any) -> Any:
    """Converts arrays to lists."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
