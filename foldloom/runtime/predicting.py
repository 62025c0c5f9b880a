"""``foldloom predict --model FILE``: examples as lines of JSON in, results as lines of JSON out."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from foldloom.errors import FoldloomError
from foldloom.runtime.model import Model
from foldloom.runtime.portable import imported

Commands = Any
"""What argparse returns from ``add_subparsers``; it has no public name."""


def add_command(commands: Commands) -> None:
    command = commands.add_parser("predict", help="the results of an exported model, without torch")
    command.add_argument("--model", type=Path, required=True, metavar="FILE", help="what fl.export wrote")
    command.add_argument(
        "--batch", type=int, default=1, metavar="N", help="how many lines to answer together (1: each as it comes)"
    )
    command.add_argument(
        "--program", metavar="MODULE:FUNCTION", help="a function of the model and one example, for models of code"
    )
    command.add_argument(
        "--allow", action="append", default=[], metavar="MODULE", help="a module whose functions the file may call"
    )
    command.add_argument("--threads", type=int, metavar="N", help="how many of them ONNX Runtime may use")
    command.add_argument(
        "examples",
        nargs="?",
        type=Path,
        metavar="EXAMPLES",
        help="a file with one example a line, in JSON (standard input)",
    )
    command.set_defaults(run=predict)


def predict(options: argparse.Namespace) -> None:
    try:
        program = None if options.program is None else imported(options.program, [options.program.partition(":")[0]])
        model = Model(options.model, program, modules=options.allow, threads=options.threads)
    except FoldloomError as error:
        sys.exit(f"foldloom predict: {error}")
    if options.examples is None:
        _answer_all(model, sys.stdin, options.batch)
        return
    with options.examples.open(encoding="utf-8") as lines:
        _answer_all(model, lines, options.batch)


def _answer_all(model: Model, lines: Iterable[str], batch: int) -> None:
    numbered = enumerate(lines, 1)
    while together := list(islice(numbered, max(1, batch))):
        for answer in answers(model, together):
            print(answer, flush=True)


def answers(model: Model, lines: Sequence[tuple[int, str]]) -> Iterator[str]:
    """A line for each of several numbered lines: ``{"result": ...}``, or ``{"error": ..., "line": ...}``."""
    examples: list[Any] = []
    errors: dict[int, str] = {}
    for place, (_, line) in enumerate(lines):
        try:
            examples.append(json.loads(line))
        except (json.JSONDecodeError, RecursionError) as error:
            errors[place] = f"not a line of JSON: {error}"
    results = iter(_results(model, examples))
    for place, (number, _) in enumerate(lines):
        found = errors[place] if place in errors else next(results)
        yield _written(found, number)


class _Result:
    def __init__(self, value: Any) -> None:
        self.value = value


def _results(model: Model, examples: Sequence[Any]) -> list[_Result | str]:
    """What each example gives, or what is wrong with it."""
    if not examples:
        return []
    try:
        return [_Result(result) for result in model(examples)]
    except Exception as error:  # whatever one example does, the next one is answered
        if len(examples) == 1:
            return [f"{type(error).__name__}: {error}"]
    return [result for example in examples for result in _results(model, [example])]


def _written(found: _Result | str, number: int) -> str:
    if isinstance(found, _Result):
        try:
            return json.dumps({"result": _plain(found.value)}, allow_nan=False)
        except ValueError:
            found = "the result has numbers in it that are infinite or none, which JSON does not have"
    return json.dumps({"error": found, "line": number})


def _plain(value: Any) -> Any:
    """Arrays as lists."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
