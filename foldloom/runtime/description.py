"""The description in an exported file: its types, its ops, the order in which they run, and the program that calls
them.

It is JSON in the metadata of the file. With the graph itself it is all that is needed to run examples.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from foldloom.errors import ExportedFileError
from foldloom.pytrees.messages import shown
from foldloom.runtime.schema import FORMAT as FORMAT
from foldloom.runtime.schema import Dtype, checked_content

KEY = "foldloom"
"""The key of the description in the metadata of a file."""
TASK = "foldloom.task"
"""The key of what a training says of itself, if one wrote the file."""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class TypeOf:
    """The shape and dtype of a value of one example. All values of a type live in one arena."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class OpOf:
    """A cell with arguments of given types: the unit of batching. Types are numbers in the description's list.

    A ragged operand or output has any number of rows, each of its type. ``nesting`` and ``settings`` distinguish calls
    of a cell with arguments of equal types. ``identity`` identifies the op in recordings. ``returns`` is the nesting of
    the result.
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
    """Ops that run together: once, or in a loop because they feed each other. The parts of a loop run one after the
    other."""

    ops: tuple[int, ...]
    loop: bool
    parts: int = 1


@dataclass(frozen=True)
class Description:
    """``program`` has the blocks that turn examples into calls of cells; if they need torch, it is None and ``why``
    says the reason. ``given`` is a cell that returns its input: it occurs in recordings and is not in the file."""

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
        content = checked_content(text, path)
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
        """The inputs with the rows that an op reads and writes. In a loop there is one set for each part, with the
        number of the part as suffix.

        ``index`` has the rows of each dense operand and then of each dense output. For ragged ones, ``rows`` and
        ``lengths`` have what is read and ``made`` what is written.
        """
        op = self.ops[number]
        names = [f"index_{number}"] if op.dense_inputs or op.dense_outputs else []
        for slot in op.ragged_inputs:
            names += [f"rows_{number}_{slot}", f"lengths_{number}_{slot}"]
        return names + [f"made_{number}_{slot}" for slot in op.ragged_outputs]


_DERIVED = ("stage_of_op", "number_of_identity")


def hashable(value: Any) -> Any:
    """Lists, which JSON has in place of tuples, as tuples."""
    return tuple([hashable(item) for item in value]) if isinstance(value, list) else value


def packed_array(array: Array) -> dict[str, Any]:
    """An array as JSON. Its bytes are base64, which is several times smaller than decimal numbers."""
    return {"shape": list(array.shape), "dtype": array.dtype.name, "data": base64.b64encode(array.tobytes()).decode()}


def unpacked_array(packed: Any) -> Array:
    if isinstance(packed, dict) and set(packed) == {"shape", "dtype", "data"} and packed["dtype"] in get_args(Dtype):
        shape, dtype = packed["shape"], np.dtype(packed["dtype"])
        is_shape = (
            isinstance(shape, list) and len(shape) <= 32 and all(type(size) is int and size >= 0 for size in shape)
        )
        try:
            data = base64.b64decode(packed["data"], validate=True)
        except (TypeError, ValueError, binascii.Error):
            is_shape = False
        if is_shape and math.prod(shape) * dtype.itemsize == len(data):
            return np.frombuffer(data, dtype).reshape(shape)
    raise ExportedFileError(f"its program has an array that no export writes: {shown(packed)}")


def rebuilt(nesting: Any, leaves: Sequence[Any]) -> Any:
    """The result of a cell from its outputs. A ``nesting`` of None is one output; a container has its kind, its keys
    and its parts."""
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
