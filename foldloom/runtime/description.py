"""What an exported file says of itself: its types, its cells, the order in which they run, the program that calls them.

It travels as JSON in the metadata of the file, and is all that is needed, beside the weights, to turn an example into the file's
inputs.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from foldloom.errors import ExportedFileError

FORMAT = 2
"""Counts the changes of what a file says of itself. Files of another format are refused."""

KEY = "foldloom"
"""Where in the metadata of a file its description stands."""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class TypeOf:
    """The shape and dtype of one value of one example. All values of a type live in one arena."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class OpOf:
    """A cell with arguments of given types: the unit of batching. Types are numbers in the description's list.

    An operand or output that is ``ragged`` has any number of rows, each of its type. ``nesting`` and ``settings`` tell calls of one cell apart
    that have arguments of the same types; ``identity`` tells them apart in recordings; ``returns`` is the nesting of what it gives.
    """

    cell: str
    label: str
    identity: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    nesting: Hashable = None
    settings: tuple[Any, ...] = ()
    returns: Any = None
    ragged_inputs: tuple[int, ...] = ()
    ragged_outputs: tuple[int, ...] = ()

    @property
    def dense_inputs(self) -> tuple[int, ...]:
        return tuple([slot for slot in range(len(self.inputs)) if slot not in self.ragged_inputs])

    @property
    def dense_outputs(self) -> tuple[int, ...]:
        return tuple([slot for slot in range(len(self.outputs)) if slot not in self.ragged_outputs])


@dataclass(frozen=True)
class Stage:
    """Ops that run together: once, or in a loop because they feed each other. A loop has parts, which run one after the other."""

    ops: tuple[int, ...]
    loop: bool
    parts: int = 1


@dataclass(frozen=True)
class Description:
    """``program`` is how examples become calls of cells; where it cannot be told without torch, ``why`` says the reason. ``given`` is the cell
    that recordings have where an example gives back what it was given, which the file need not compute."""

    types: tuple[TypeOf, ...]
    ops: tuple[OpOf, ...]
    stages: tuple[Stage, ...]
    program: dict[str, Any] | None = None
    why: str = ""
    given: str = ""
    version: str = ""
    format: int = FORMAT
    stage_of_op: dict[int, int] = field(init=False, repr=False, compare=False)
    number_of_identity: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found = {op: number for number, stage in enumerate(self.stages) for op in stage.ops}
        object.__setattr__(self, "stage_of_op", found)
        object.__setattr__(self, "number_of_identity", {op.identity: number for number, op in enumerate(self.ops)})

    def to_json(self) -> str:
        content = asdict(self)
        return json.dumps({name: content[name] for name in content if name not in _DERIVED})

    @classmethod
    def from_json(cls, text: str, path: str) -> Description:
        content = json.loads(text)
        if content.get("format") != FORMAT:
            raise ExportedFileError(
                f"{path} was written by Foldloom {content.get('version', '?')} in format {content.get('format')}, but this is a "
                f"Foldloom that reads format {FORMAT}. Export the model again with this version, or install that one"
            )
        return cls(
            types=tuple([TypeOf(tuple(type["shape"]), type["dtype"]) for type in content["types"]]),
            ops=tuple([OpOf(**{name: hashable(value) for name, value in op.items()}) for op in content["ops"]]),
            stages=tuple([Stage(tuple(stage["ops"]), stage["loop"], stage["parts"]) for stage in content["stages"]]),
            program=content["program"],
            why=content["why"],
            given=content["given"],
            version=content["version"],
        )

    def input_names(self) -> list[str]:
        """The inputs of the file, in order."""
        names = [f"arena_{number}" for number in range(len(self.types))]
        for number, stage in enumerate(self.stages):
            for suffix in [f"_{part}" for part in range(stage.parts)] if stage.loop else [""]:
                if stage.loop:
                    names.append(f"rounds_{number}{suffix}")
                names += [name + suffix for op in stage.ops for name in self.index_names(op)]
        return names + [f"output_{number}" for number in range(len(self.types))]

    def index_names(self, number: int) -> list[str]:
        """The inputs that say which rows an op reads and writes; in a loop, each part of it has its own, with the part's number at the end.

        ``index`` has a row of them for each operand and then for each output that is not ragged; for ragged ones ``rows`` and ``lengths`` say
        what is read, and ``made`` where it is written.
        """
        op = self.ops[number]
        names = [f"index_{number}"] if op.dense_inputs or op.dense_outputs else []
        for slot in op.ragged_inputs:
            names += [f"rows_{number}_{slot}", f"lengths_{number}_{slot}"]
        return names + [f"made_{number}_{slot}" for slot in op.ragged_outputs]


_DERIVED = ("stage_of_op", "number_of_identity")


def hashable(value: Any) -> Any:
    """JSON has lists where descriptions have tuples."""
    return tuple([hashable(item) for item in value]) if isinstance(value, list) else value


def packed_array(array: Array) -> dict[str, Any]:
    """An array as JSON. Its bytes as they are: a number written in decimal would take several times the room."""
    return {"shape": list(array.shape), "dtype": array.dtype.name, "data": base64.b64encode(array.tobytes()).decode()}


def unpacked_array(packed: dict[str, Any]) -> Array:
    flat = np.frombuffer(base64.b64decode(packed["data"]), packed["dtype"])
    return flat.reshape(packed["shape"])


def rebuilt(nesting: Any, leaves: Sequence[Any]) -> Any:
    """What a cell gives, from its outputs: ``None`` is one output, and a container says its kind, its keys and its parts."""
    remaining = iter(leaves)

    def build(nesting: Any) -> Any:
        if nesting is None:
            return next(remaining)
        kind, keys, parts = nesting
        items = [build(part) for part in parts]
        if kind == "dict":
            return dict(zip(keys, items, strict=True))
        return items if kind == "list" else tuple(items)

    return build(nesting)
