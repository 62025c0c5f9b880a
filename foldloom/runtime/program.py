"""How an example becomes calls of cells: the blocks of a model, as the file describes them.

Each kind of block is one function here, from its description to a Python function of a value. What a value is, is said in `blocks.lowering`:
a tensor is a `Value`, or a number or array that was given; a tuple is a tuple, a sequence a list.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from foldloom.errors import BlockInputError, ExportedFileError, MissingKeyError
from foldloom.runtime.description import Array, Description, unpacked_array
from foldloom.runtime.portable import unpacked
from foldloom.runtime.recorder import Cell, Recorder, Value

Run = Callable[[Recorder, Any], Any]
Blocks = Callable[[int], Run]
"""From the number of a block to its function."""

_MAKERS: dict[str, Callable[[dict[str, Any], Blocks], Run]] = {}


def _makes(kind: str) -> Callable[[Callable[[dict[str, Any], Blocks], Run]], Callable[[dict[str, Any], Blocks], Run]]:
    def register(make: Callable[[dict[str, Any], Blocks], Run]) -> Callable[[dict[str, Any], Blocks], Run]:
        _MAKERS[kind] = make
        return make

    return register


class BlockProgram:
    """The described blocks as a function of one example, which leaves its calls in a recorder."""

    def __init__(self, described: dict[str, Any], description: Description, modules: Sequence[str]) -> None:
        self._described = [{**block, "modules": modules} for block in described["blocks"]]
        self._description = description
        self._runs: list[Run | None] = [None] * len(self._described)
        self._metrics: dict[str, bool] = described["metrics"]
        for number in range(len(self._described)):
            self._run_of(number)
        self._root = self._run_of(described["root"])
        self._finish = _finished(described["gives"])

    def _run_of(self, number: int) -> Run:
        known = self._runs[number]
        if known is not None:
            return known
        block = self._described[number]
        if block["kind"] == "reference":
            return self._later(block["block"])
        if "cell" in block:
            block = {**block, "cell": Cell(block["cell"], self._description)}
        maker = _MAKERS.get(block["kind"])
        if maker is None:
            raise ExportedFileError(
                f"the program of this file has a block of kind {block['kind']!r}, which is not known here"
            )
        made = self._runs[number] = maker(block, self._run_of)
        return made

    def _later(self, number: int) -> Run:
        """A block that may contain the one that asks for it."""
        runs = self._runs

        def run(recorder: Recorder, value: Any) -> Any:
            return runs[number](recorder, value)  # type: ignore[misc]

        return run

    def __call__(self, recorder: Recorder, example: Any) -> Any:
        """The result with a `Value` in place of every tensor; with metrics, the pair of the output and a dict of their rows."""
        recorder.metrics = {name: [] for name in self._metrics}
        output = self._finish(recorder, self._root(recorder, example))
        return (output, recorder.metrics) if self._metrics else output


def _finished(gives: Any) -> Run:
    """Numbers and constants that reach the end without having met a cell become values like any other."""
    if gives == "tensor":
        return lambda recorder, value: recorder.value_of(value, "the output")
    if gives == "nothing":
        return lambda recorder, value: None
    kind, parts = gives
    finishes = [_finished(part) for part in parts]
    if kind == "tuple":
        return lambda recorder, values: tuple(
            [finish(recorder, value) for finish, value in zip(finishes, values, strict=True)]
        )
    (finish,) = finishes
    return lambda recorder, values: [finish(recorder, value) for value in values]


@_makes("identity")
def _identity(block: dict[str, Any], blocks: Blocks) -> Run:
    return lambda recorder, value: value


@_makes("pipe")
def _pipe(block: dict[str, Any], blocks: Blocks) -> Run:
    runs = [blocks(number) for number in block["stages"]]
    if len(runs) == 2:
        first, second = runs
        return lambda recorder, value: second(recorder, first(recorder, value))

    def run(recorder: Recorder, value: Any) -> Any:
        for stage in runs:
            value = stage(recorder, value)
        return value

    return run


@_makes("record")
def _record(block: dict[str, Any], blocks: Blocks) -> Run:
    fields = [(_getter(block, unpacked(key, block["modules"])), blocks(number)) for key, number in block["fields"]]
    return lambda recorder, value: tuple([run(recorder, get(value)) for get, run in fields])


@_makes("all_of")
def _all_of(block: dict[str, Any], blocks: Blocks) -> Run:
    runs = [blocks(number) for number in block["blocks"]]
    return lambda recorder, value: tuple([run(recorder, value) for run in runs]) if runs else None


@_makes("composition")
def _composition(block: dict[str, Any], blocks: Blocks) -> Run:
    """``steps`` has, for each block in order, its number and which values it reads: 0 is the input, n the n-th step's output."""
    steps = [(blocks(number), _reader(sources)) for number, sources in block["steps"]]
    result = _reader(block["output"])

    def run(recorder: Recorder, value: Any) -> Any:
        values = [value]
        for compute, read in steps:
            values.append(compute(recorder, read(values)))
        return result(values)

    return run


def _reader(sources: Sequence[int]) -> Callable[[Sequence[Any]], Any]:
    if not sources:
        return lambda values: None
    return operator.itemgetter(*sources)


@_makes("get_item")
def _get_item(block: dict[str, Any], blocks: Blocks) -> Run:
    get = _getter(block, unpacked(block["key"], block["modules"]))
    return lambda recorder, value: get(value)


def _getter(block: dict[str, Any], key: Any) -> Callable[[Any], Any]:
    def get(value: Any) -> Any:
        try:
            return value[key]
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise MissingKeyError(
                f"{value!r:.60} ({type(value).__name__}) has no item {key!r}, which {block['says']} asks for"
            ) from error

    return get


@_makes("nth")
def _nth(block: dict[str, Any], blocks: Blocks) -> Run:
    def run(recorder: Recorder, pair: Any) -> Any:
        sequence, position = pair
        return _getter(block, position)(sequence)

    return run


@_makes("first")
def _first(block: dict[str, Any], blocks: Blocks) -> Run:
    return lambda recorder, pair: pair[0]


@_makes("length")
def _length(block: dict[str, Any], blocks: Blocks) -> Run:
    make = _number_maker(block["dtype"])
    return lambda recorder, value: make(len(value))


@_makes("map")
def _map(block: dict[str, Any], blocks: Blocks) -> Run:
    each = blocks(block["element"])
    return lambda recorder, values: [each(recorder, value) for value in values]


@_makes("zip")
def _zip(block: dict[str, Any], blocks: Blocks) -> Run:
    endless = block["endless"]
    if endless and all(endless):
        return lambda recorder, values: tuple(values)

    def run(recorder: Recorder, values: Any) -> Any:
        # A Python object that is zipped has as many sequences as it has; only typed ones can be endless.
        sequences = (
            values
            if not any(endless)
            else [itertools.repeat(value) if ends else value for value, ends in zip(values, endless, strict=True)]
        )
        return list(zip(*sequences, strict=False))

    return run


@_makes("ngrams")
def _ngrams(block: dict[str, Any], blocks: Blocks) -> Run:
    return lambda recorder, values: list(zip(*[values[start:] for start in range(block["n"])], strict=False))


@_makes("fold")
def _fold(block: dict[str, Any], blocks: Blocks) -> Run:
    combine, start = blocks(block["combine"]), blocks(block["start"])

    def run(recorder: Recorder, values: Any) -> Any:
        state = start(recorder, None)
        for value in values:
            state = combine(recorder, (state, value))
        return state

    return run


@_makes("reduce")
def _reduce(block: dict[str, Any], blocks: Blocks) -> Run:
    combine, default = blocks(block["combine"]), _or_zeros(block, "default", blocks)

    def run(recorder: Recorder, values: Any) -> Any:
        if not values:
            return default(recorder, None)
        level = values
        while len(level) > 1:
            pairs = [combine(recorder, pair) for pair in zip(level[::2], level[1::2], strict=False)]
            level = [*pairs, level[-1]] if len(level) % 2 else pairs
        return level[0]

    return run


@_makes("rnn")
def _rnn(block: dict[str, Any], blocks: Blocks) -> Run:
    cell = blocks(block["rnn_cell"])
    initial = None if block["from_input"] else _or_zeros(block, "initial", blocks)

    def run(recorder: Recorder, value: Any) -> Any:
        values, state = value if initial is None else (value, initial(recorder, None))
        outputs = []
        for element in values:
            output, state = cell(recorder, (element, state))
            outputs.append(output)
        return outputs, state

    return run


@_makes("function")
def _function(block: dict[str, Any], blocks: Blocks) -> Run:
    """``takes`` is None for one tensor, and else the nesting of a tuple of them."""
    cell: Cell = block["cell"]
    takes = block["takes"]
    if block["nested"]:
        return lambda recorder, values: cell.called_with(recorder, values if takes else (values,), {})
    if takes is None:
        return lambda recorder, value: cell.called(recorder, (value,))
    if all(part is None for part in takes):
        return lambda recorder, values: cell.called(recorder, values)
    return lambda recorder, values: cell.called(recorder, _flat(takes, values))


def _flat(takes: Any, values: Any) -> list[Any]:
    parts: list[Any] = []
    for inner, value in zip(takes, values, strict=True):
        if inner is None:
            parts.append(value)
        else:
            parts += _flat(inner, value)
    return parts


@_makes("stack")
def _stack(block: dict[str, Any], blocks: Blocks) -> Run:
    cell: Cell = block["cell"]
    none = _shared_constant(block["none"], block["says"])
    return lambda recorder, values: cell.called(recorder, values) if values else none(recorder, None)


@_makes("learned")
def _learned(block: dict[str, Any], blocks: Blocks) -> Run:
    cell: Cell = block["cell"]
    return lambda recorder, _: cell.called(recorder, (0,))


@_makes("constant")
def _constant(block: dict[str, Any], blocks: Blocks) -> Run:
    return _shared_constant(block["value"], block["says"])


def _or_zeros(block: dict[str, Any], part: str, blocks: Blocks) -> Run:
    """A part that takes nothing, or zeros where it is not given."""
    return _shared_constant(block["zeros"], block["says"]) if block[part] is None else blocks(block[part])


def _shared_constant(described: Any, says: str) -> Run:
    value = _constants(described)
    return lambda recorder, _: _shared(recorder, value, says)


def _constants(described: Any) -> Any:
    """Arrays in tuples and empty sequences."""
    if described is None:
        return None
    if isinstance(described, list):
        return []
    return (
        tuple([_constants(part) for part in described["tuple"]]) if "tuple" in described else unpacked_array(described)
    )


def _shared(recorder: Recorder, value: Any, says: str) -> Any:
    if isinstance(value, np.ndarray):
        return recorder.shared_value(value, says)
    if isinstance(value, tuple):
        return tuple([_shared(recorder, part, says) for part in value])
    return value


@_makes("tensor")
def _tensor(block: dict[str, Any], blocks: Blocks) -> Run:
    shape, dtype = tuple(block["shape"]), block["dtype"]
    make = _number_maker(dtype) if not shape else lambda value: _array(value, shape, dtype)

    def run(recorder: Recorder, value: Any) -> Any:
        try:
            return make(value)
        except (TypeError, ValueError, OverflowError) as error:
            wanted = f"{dtype}{list(shape)}"
            raise BlockInputError(
                f"{block['says']} was given {value!r:.60} ({type(value).__name__}), of which it cannot make {wanted}"
            ) from error

    return run


def _number_maker(dtype: str) -> Callable[[Any], Any]:
    if dtype == "int64":
        return operator.index
    kind = np.dtype(dtype).type
    return lambda value: kind(float(value) if dtype.startswith("float") else value)


def _array(value: Any, shape: tuple[int, ...], dtype: str) -> Array:
    array = np.asarray(value)
    if array.dtype.kind not in "biufc" or array.shape != shape:
        raise ValueError(f"shape {list(array.shape)}")
    return array.astype(dtype)


@_makes("transform")
def _transform(block: dict[str, Any], blocks: Blocks) -> Run:
    function = unpacked(block["function"], block["modules"])
    return lambda recorder, value: function(value)


@_makes("one_hot")
def _one_hot(block: dict[str, Any], blocks: Blocks) -> Run:
    elements = unpacked(block["elements"], block["modules"])
    rows = dict(zip(elements, np.eye(len(elements), dtype=block["dtype"]), strict=True))
    zeros = None if block["strict"] else np.zeros(len(elements), block["dtype"])

    def run(recorder: Recorder, value: Any) -> Any:
        row = rows.get(value, zeros)
        if row is None:
            raise MissingKeyError(f"{block['says']} was given {value!r:.60}, which is none of its {len(rows)} elements")
        return recorder.shared_value(row, block["says"])

    return run


@_makes("one_of")
def _one_of(block: dict[str, Any], blocks: Blocks) -> Run:
    key_of = blocks(block["key"])
    pre = None if block["pre"] is None else blocks(block["pre"])
    cases = {unpacked(key, block["modules"]): blocks(number) for key, number in block["cases"]}

    def run(recorder: Recorder, value: Any) -> Any:
        key = key_of(recorder, value)
        try:
            case = cases[key]
        except (KeyError, TypeError) as error:
            raise MissingKeyError(
                f"{block['says']} has no case for the key {key!r:.60}; it has {', '.join(map(repr, cases))}"
            ) from error
        return case(recorder, value if pre is None else pre(recorder, value))

    return run


@_makes("optional")
def _optional(block: dict[str, Any], blocks: Blocks) -> Run:
    some, none = blocks(block["some"]), _or_zeros(block, "none", blocks)
    return lambda recorder, value: none(recorder, None) if value is None else some(recorder, value)


@_makes("metric")
def _metric(block: dict[str, Any], blocks: Blocks) -> Run:
    name, labelled = block["name"], block["labelled"]

    def run(recorder: Recorder, value: Any) -> None:
        row, label = value if labelled else (value, None)
        made: Value = recorder.value_of(row, block["says"])
        recorder.metrics[name].append((made, label) if labelled else made)

    return run


@_makes("void")
def _void(block: dict[str, Any], blocks: Blocks) -> Run:
    return lambda recorder, _: None
