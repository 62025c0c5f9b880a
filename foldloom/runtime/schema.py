"""The description in a file, looked at whole before anything of it is used.

`msgspec` checks the shape of it: which fields there are, of which types and within which bounds. What a schema cannot say is checked here:
that numbers refer to something, and that columns fit each other.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Annotated, Any, Literal

import msgspec

from foldloom.errors import ExportedFileError
from foldloom.pytrees.messages import shown

FORMAT = 2
"""The version of the description format. Files of other versions are refused."""

MOST_TEXT = 1 << 26
"""Characters of a description. Vocabularies are most of it."""

MOST_LEVELS = 60
"""The deepest nesting of anything in it."""

Dtype = Literal[
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip
Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Extent = Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]
Shape = Annotated[list[Extent], msgspec.Meta(max_length=32)]
Name = Annotated[str, msgspec.Meta(max_length=1000)]


class _TypeOf(msgspec.Struct, forbid_unknown_fields=True):
    shape: Shape
    dtype: Dtype


class _OpOf(msgspec.Struct, forbid_unknown_fields=True):
    cell: Name
    label: Name
    identity: Name
    inputs: list[Number]
    outputs: Annotated[list[Number], msgspec.Meta(min_length=1)]
    nesting: Any
    settings: list[tuple[Name, Annotated[str, msgspec.Meta(max_length=10_000)]]]
    returns: Any
    ragged_inputs: list[Number]
    ragged_outputs: list[Number]


class _Stage(msgspec.Struct, forbid_unknown_fields=True):
    ops: Annotated[list[Number], msgspec.Meta(min_length=1)]
    loop: bool
    parts: Annotated[int, msgspec.Meta(ge=1, le=64)]


class _Program(msgspec.Struct, forbid_unknown_fields=True):
    blocks: list[dict[str, Any]]
    root: Number
    gives: Any
    metrics: dict[Name, bool]


class _Content(msgspec.Struct, forbid_unknown_fields=True):
    types: Annotated[list[_TypeOf], msgspec.Meta(min_length=1)]
    ops: Annotated[list[_OpOf], msgspec.Meta(min_length=1)]
    stages: list[_Stage]
    program: _Program | None
    why: str
    given: str
    version: str
    format: int


def checked_content(text: str, path: str) -> dict[str, Any]:
    """The description as JSON. What is in it refers to what there is, and is no deeper and no longer than it may be."""
    content = _read(text, path)
    if not isinstance(content, dict) or content.get("format") != FORMAT or isinstance(content["format"], bool):
        version, number = (content.get("version", "?"), content.get("format")) if isinstance(content, dict) else "??"
        raise ExportedFileError(
            f"{path} was written by Foldloom {shown(version, 20).strip(_QUOTES)} in format {shown(number, 20)}, but this is a "
            f"Foldloom that reads format {FORMAT}. Export the model again with this version, or install that one"
        )
    try:
        found = msgspec.convert(content, _Content)
        _check_references(found)
    except (msgspec.ValidationError, _MisfitError) as error:
        raise ExportedFileError(f"{path} has a description that no export writes: {error}") from error
    return content


_QUOTES = "'\""


def _read(text: str, path: str) -> Any:
    if len(text) > MOST_TEXT:
        raise ExportedFileError(f"{path} has a description of {len(text):,} characters, more than {MOST_TEXT:,}")
    try:
        content = json.loads(text)
        json.dumps(content, ensure_ascii=False).encode()  # refuses half characters, which no file can hold
    except (ValueError, RecursionError) as error:
        raise ExportedFileError(f"{path} has a description that is no JSON: {error}") from error
    waiting = [(content, 0)]
    while waiting:
        value, level = waiting.pop()
        if level > MOST_LEVELS:
            raise ExportedFileError(f"{path} has a description nested more than {MOST_LEVELS} levels deep")
        if isinstance(value, (dict, list)):
            parts = value.values() if isinstance(value, dict) else value
            waiting += [(part, level + 1) for part in parts if isinstance(part, (dict, list))]
    return content


class _MisfitError(ValueError):
    """Parts of a description that do not fit each other."""


def _check_references(content: _Content) -> None:
    for number, op in enumerate(content.ops):
        where = f"op {number}"
        for type in (*op.inputs, *op.outputs):
            if type >= len(content.types):
                raise _MisfitError(f"{where} has values of type {type}, but there are {len(content.types)}")
        _check_slots(f"{where}, ragged_inputs", op.ragged_inputs, len(op.inputs))
        _check_slots(f"{where}, ragged_outputs", op.ragged_outputs, len(op.outputs))
        if op.ragged_outputs and not op.ragged_inputs:
            raise _MisfitError(f"{where} makes any number of rows of nothing")
        _leaves_of(op.nesting, f"{where}, nesting")
        if op.returns is not None and _leaves_of(op.returns, f"{where}, returns") != len(op.outputs):
            raise _MisfitError(f"{where} returns another number of values than it has outputs")
    in_stages = Counter([op for stage in content.stages for op in stage.ops])
    if in_stages != Counter(range(len(content.ops))):
        raise _MisfitError("an op is in no stage, or in several")
    for stage in content.stages:
        if not stage.loop and stage.parts != 1:
            raise _MisfitError("a stage that is no loop has several parts")


def _check_slots(where: str, slots: list[int], count: int) -> None:
    if slots != sorted(set(slots)) or any(slot >= count for slot in slots):
        raise _MisfitError(f"{where} are {shown(slots)}, of {count} slots")


def _leaves_of(nesting: Any, where: str) -> int:
    """How many values a nesting has: None for one, or a container with its kind, its keys and its parts."""
    if nesting is None:
        return 1
    if not (isinstance(nesting, list) and len(nesting) == 3 and isinstance(nesting[2], list)):
        raise _MisfitError(f"{where} is {shown(nesting)}")
    kind, keys, parts = nesting
    if kind == "dict":
        fits = isinstance(keys, list) and len(keys) == len(parts) and all(type(key) in (str, int, bool) for key in keys)
        fits = fits and len(set(keys)) == len(keys)
    else:
        fits = kind in ("list", "tuple") and type(keys) is int and keys == len(parts)
    if not fits:
        raise _MisfitError(f"{where} is {shown(nesting)}")
    return sum([_leaves_of(part, where) for part in parts])
