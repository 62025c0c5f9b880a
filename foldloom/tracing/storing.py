"""`fl.save` and `fl.load`: recordings and plans on disk, as arrays and JSON.

A file is an archive of arrays as numpy writes them, uncompressed and without pickles. One of them holds JSON: what the arrays are, the ops, and
the nesting of results. Another is a checksum of all. What is loaded is looked through as if a stranger had written it: operations
are those of torch that take tensors, or cells by their names; classes are Python's own containers.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import tokenize
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from foldloom.data.opening import open_regular
from foldloom.errors import ArgumentError, FoldloomError, RecordingError
from foldloom.execution.engine import Planned
from foldloom.graph import CONSTANT, Graph, Op, Type
from foldloom.graph.checking import check_recording
from foldloom.graph.recording import Column, Recording, refuse_tracked
from foldloom.planning.plans import Access, Arena, Plan, Read, Step, Write
from foldloom.pytrees import Constant, Node, Output, OutputRun, Template, unflatten
from foldloom.pytrees.messages import shown
from foldloom.tracing.functions.calls import OPERAND, SHARED, Mark, call_of_template, function_named

FORMAT = 1
"""The version of the format. Files of other versions are refused."""

MOST_LEVELS = 100

_CLASSES: dict[str, type] = {
    "tuple": tuple, "list": list, "dict": dict, "slice": slice, "int": int, "float": float, "bool": bool, "str": str, "complex": complex,
    "NoneType": type(None), "dtype": torch.dtype, "device": torch.device, "layout": torch.layout, "memory_format": torch.memory_format,
}  # fmt: skip
_NAMES = {cls: name for name, cls in _CLASSES.items()}
_OPERATORS = frozenset(
    (
        "abs", "add", "and_", "eq", "floordiv", "ge", "getitem", "gt", "invert", "le", "lshift", "lt", "matmul", "mod", "mul", "ne", "neg", "or_",
        "pos", "pow", "rshift", "sub", "truediv", "xor",
    )
)  # fmt: skip
_MARKS = {"OPERAND": OPERAND, "SHARED": SHARED}
_OF_TORCH = (torch.dtype, torch.layout, torch.memory_format)


def save(what: Recording | Sequence[Recording] | Planned, path: str | Path) -> None:
    """Write recordings, or a plan, to a file, to be read by `load`: by another process, or another time.

    The file holds arrays and JSON, no code. Recordings and plans are for the version of Foldloom that made them.

    >>> import tempfile, torch, foldloom as fl
    >>> model = torch.nn.Linear(2, 1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fl.save(fl.record_each(model, [torch.ones(2), torch.zeros(2)]), f"{folder}/examples")
    ...     recordings = fl.load(f"{folder}/examples")
    >>> len(fl.batch(model).run(fl.plan(recordings)))
    2
    """
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    if isinstance(what, Planned):
        content: dict[str, Any] = {"kind": "plan", "plan": _stored_planned(what, arrays)}
    else:
        recordings = [what] if isinstance(what, Recording) else list(what)
        if not all(isinstance(recording, Recording) for recording in recordings):
            raise ArgumentError("fl.save takes recordings of `fl.record`, or a plan of `fl.plan`")
        stored = [_stored(recording, f"{number}.", arrays) for number, recording in enumerate(recordings)]
        content = {"kind": "recording" if isinstance(what, Recording) else "recordings", "recordings": stored}
    text = json.dumps({"format": FORMAT, **content})
    arrays["json"] = np.frombuffer(text.encode(), np.uint8)
    arrays["checksum"] = np.frombuffer(checksum_of(arrays), np.uint8)
    stream = io.BytesIO()
    np.savez(stream, allow_pickle=False, **arrays)
    unfinished = Path(f"{path}.unfinished")
    unfinished.write_bytes(stream.getvalue())
    os.replace(unfinished, path)


def load(path: str | Path) -> Any:
    """What `save` wrote: a recording, a list of recordings, or a plan. A file that is damaged, or that nobody but a stranger could have written, is
    refused.

    >>> import tempfile, torch, foldloom as fl
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fl.save(fl.plan([fl.record(lambda x: x * 2, torch.ones(2))]), f"{folder}/batch")
    ...     planned = fl.load(f"{folder}/batch")
    >>> len(planned)
    1
    """
    try:
        content, arrays = _read(Path(path))
        if content["kind"] == "plan":
            return _planned(content["plan"], arrays)
        recordings = [_recording(stored, f"{n}.", arrays) for n, stored in enumerate(content["recordings"])]
        return recordings[0] if content["kind"] == "recording" else recordings
    except FoldloomError as error:
        raise RecordingError(f"{path} cannot be loaded: {' '.join(str(error).split())}") from error
    except OSError as error:
        raise RecordingError(f"{path} cannot be loaded: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError, StopIteration, RuntimeError, RecursionError, OverflowError, zipfile.BadZipFile, tokenize.TokenError, SyntaxError, EOFError, MemoryError) as error:  # fmt: skip
        told = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise RecordingError(f"{path} cannot be loaded, because it is damaged or of another kind: {told}") from error


def checksum_of(arrays: dict[str, np.ndarray[Any, Any]]) -> bytes:
    found = hashlib.sha256()
    for name in sorted(set(arrays) - {"checksum"}):
        array = arrays[name]
        found.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.digest()


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    with open_regular(path) as file:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
                    raise RecordingError("it is compressed, which fl.save never does")
        file.seek(0)
        with np.load(file, allow_pickle=False) as loaded:
            arrays = {name: loaded[name] for name in loaded.files}
    if "json" not in arrays or "checksum" not in arrays:
        raise RecordingError("it is no file of fl.save")
    if arrays["checksum"].tobytes() != checksum_of(arrays):
        raise RecordingError("its checksum is not that of its content: it was cut off or changed")
    content = json.loads(arrays["json"].tobytes().decode())
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        number = content.get("format") if isinstance(content, dict) else None
        raise RecordingError(
            f"it is of format {shown(number)}, but this is a Foldloom that reads format {FORMAT}. Record anew"
        )
    return content, arrays


# ---- Recordings and plans.

_GRAPH_COLUMNS = ("op_of_node", "operands", "depth_of_node", "nodes_of_example", "outputs", "lengths")
_PLAN_COLUMNS = ("input_order", "nodes", "indices", "lengths", "block_of_output", "row_of_output", "nodes_of_example")


def _stored(recording: Recording, prefix: str, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    graph = recording.graph
    refuse_tracked(graph.ops)
    arrays.update({prefix + name: getattr(graph, name) for name in _GRAPH_COLUMNS})
    return {
        "ops": [_stored_op(op) for op in graph.ops],
        "values": graph.value_count,
        "inputs": _stored_columns(recording.inputs, prefix, arrays),
        "results": [_stored_template(template) for template in recording.results],
    }


def _recording(stored: Any, prefix: str, arrays: dict[str, np.ndarray[Any, Any]]) -> Recording:
    graph = Graph(
        ops=tuple([_op(op) for op in stored["ops"]]),
        value_count=int(stored["values"]),
        **{name: _integers(arrays[prefix + name]) for name in _GRAPH_COLUMNS},
    )
    results = tuple([_template(template) for template in stored["results"]])
    recording = Recording(graph, _columns(stored["inputs"], prefix, arrays), results)
    check_recording(recording)
    return recording


def _stored_planned(planned: Planned, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    plan = planned.plan
    refuse_tracked(plan.ops)
    if plan.example_of_node is not None:
        raise RecordingError("a plan whose examples took turns cannot be saved: make it with `fl.plan`")
    arrays.update({name: getattr(plan, name) for name in _PLAN_COLUMNS})
    return {
        "ops": [_stored_op(op) for op in plan.ops],
        "arenas": [[_stored_type(arena.type), arena.rows, arena.constant, arena.kept] for arena in plan.arenas],
        "writes": [list(write) for write in plan.inputs],
        "steps": [[s.op, s.first, s.size, [_stored_read(r) for r in s.reads], [list(w) for w in s.writes]] for s in plan.steps],
        "outputs": [_stored_read(read) for read in plan.outputs],
        "inputs": _stored_columns(planned.inputs, "", arrays),
        "results": [_stored_template(template) for template in planned.results],
        "shared": sorted(planned.shared_ops),
    }  # fmt: skip


def _planned(stored: Any, arrays: dict[str, np.ndarray[Any, Any]]) -> Planned:
    plan = Plan(
        ops=tuple([_op(op) for op in stored["ops"]]),
        arenas=tuple([Arena(_type(t), _int(rows), constant=c is True, kept=_int(kept)) for t, rows, c, kept in stored["arenas"]]),
        inputs=tuple([Write(*map(_int, write)) for write in stored["writes"]]),
        steps=tuple([
            Step(_int(op), _int(first), _int(size), tuple(map(_read_of, reads)), tuple([Write(*map(_int, write)) for write in writes]))
            for op, first, size, reads, writes in stored["steps"]
        ]),
        outputs=tuple(map(_read_of, stored["outputs"])),
        **{name: _integers(arrays[name]) for name in _PLAN_COLUMNS},
    )  # fmt: skip
    if any(op.is_input and op.key != CONSTANT for op in plan.ops):
        raise RecordingError("an op is an input from another batch")
    shared = frozenset([_int(number) for number in stored["shared"]])
    if any(number >= len(plan.ops) for number in shared):
        raise RecordingError("an op is not there")
    results = tuple([_template(template) for template in stored["results"]])
    planned = Planned(plan, _columns(stored["inputs"], "", arrays), results, shared)
    planned.check()
    return planned


_ACCESSES = list(Access)


def _stored_read(read: Read) -> list[Any]:
    return [read.arena, _ACCESSES.index(read.access), read.start, read.size, read.slots, read.lengths]


def _read_of(stored: Any) -> Read:
    arena, access, start, size, slots, lengths = map(_int, stored)
    return Read(arena, _ACCESSES[access], start, size, slots, lengths)


def _int(value: Any) -> int:
    if type(value) is not int or not -1 <= value < 1 << 62:
        raise RecordingError(f"{shown(value)} is no count")
    return value


def _integers(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype.kind not in "iu":
        raise RecordingError(f"a column has {array.dtype} in the place of whole numbers")
    return array


# ---- Columns of given values.


def _stored_columns(columns: Sequence[Column], prefix: str, arrays: dict[str, np.ndarray[Any, Any]]) -> list[Any]:
    stored: list[Any] = []
    for number, column in enumerate(columns):
        if isinstance(column, np.ndarray):
            arrays[f"{prefix}input.{number}"] = column
            stored.append("array")
            continue
        tensors = [tensor.detach().cpu().contiguous() for tensor in column]
        for place, tensor in enumerate(tensors):
            arrays[f"{prefix}input.{number}.{place}"] = tensor.view(torch.uint8).numpy() if tensor.ndim and tensor.numel() else np.frombuffer(tensor.reshape(-1).view(torch.uint8).numpy().tobytes(), np.uint8)  # fmt: skip
        stored.append([[list(tensor.shape), str(tensor.dtype).removeprefix("torch.")] for tensor in tensors])
    return stored


def _columns(stored: Any, prefix: str, arrays: dict[str, np.ndarray[Any, Any]]) -> tuple[Column, ...]:
    columns: list[Column] = []
    for number, kind in enumerate(stored):
        if kind == "array":
            columns.append(arrays[f"{prefix}input.{number}"])
            continue
        tensors = []
        for place, (shape, dtype) in enumerate(kind):
            data = torch.from_numpy(arrays[f"{prefix}input.{number}.{place}"].reshape(-1).copy())
            found = _of_torch(torch.dtype, dtype)
            tensors.append(data.view(found).reshape([_int(size) for size in shape]))
        columns.append(tuple(tensors))
    return tuple(columns)


# ---- Ops.


def _stored_type(type: Type) -> list[Any]:
    return [list(type.shape), type.dtype]


def _type(stored: Any) -> Type:
    shape, dtype = stored
    _of_torch(torch.dtype, dtype)
    if not isinstance(shape, list) or any(_int(size) < 0 for size in shape[1:]):
        raise RecordingError(f"{shown(stored)} is no type")
    return Type([_int(size) for size in shape], dtype)


def _stored_op(op: Op) -> dict[str, Any]:
    stored: dict[str, Any] = {field.name: getattr(op, field.name) for field in fields(Op)}
    if ":" in op.key and not _is_of_torch(op.key):
        raise RecordingError(
            f"{op} calls {op.key}, which is no function of torch's: make it a cell, or keep the recording by `pickle`"
        )
    for name in ("inputs", "outputs"):
        stored[name] = [_stored_type(type) for type in stored[name]]
    if op.mode is not None:
        raise RecordingError(
            f"{op} was called in a mode (autocast, say) that a file cannot hold: keep the recording by `pickle`"
        )
    for name in ("settings", "shared", "mode", "training"):
        stored[name] = _encoded(stored[name], op)
    return stored


def _op(stored: Any) -> Op:
    key, label = stored["key"], stored["label"]
    if set(stored) != {field.name for field in fields(Op)} or not isinstance(key, str) or not isinstance(label, str):
        raise RecordingError(f"{shown(stored)} is no operation")
    if ":" in key and not _is_of_torch(key):
        raise RecordingError(f"it calls {shown(key)}, which is no function of torch's")
    found = Op(
        key,
        tuple([_type(type) for type in stored["inputs"]]),
        tuple([_type(type) for type in stored["outputs"]]),
        settings=_decoded(stored["settings"]),
        shared=_decoded(stored["shared"]),
        mode=_decoded(stored["mode"]),
        repeatable=stored["repeatable"] is True,
        training=_decoded(stored["training"]),
        label=label[:200],
    )
    _check_call(found)
    return found


def _check_call(op: Op) -> None:
    """What an operation was called with has the form that its kind has: for functions the nesting of arguments and what is in it."""
    is_of_modes = isinstance(op.training, tuple) and all(
        isinstance(mode, tuple) and len(mode) == 2 and isinstance(mode[0], str) and isinstance(mode[1], bool)
        for mode in op.training
    )
    if not is_of_modes or not isinstance(op.shared, tuple) or op.mode is not None or not op.outputs:
        raise RecordingError(f"{shown(op.key)} is called in no mode that there is")
    if op.is_input:
        return
    if not (isinstance(op.settings, tuple) and len(op.settings) == 2):
        raise RecordingError(f"{shown(op.key)} is called with {shown(op.settings)}")
    nesting, given = op.settings
    if ":" in op.key:
        weights = [torch.empty(0)] * len(op.shared)
        call_of_template(function_named(op.key), op.settings, op.inputs, weights, op.outputs)
        return
    unflatten(nesting, iter([None] * len(op.inputs)))
    if not all(isinstance(setting, tuple) and len(setting) == 3 and isinstance(setting[0], str) for setting in given):
        raise RecordingError(f"{shown(op.key)} is called with {shown(op.settings)}")


@cache
def _functions_of_torch() -> frozenset[Any]:
    """Those that take tensors, and that torch lets others override: none of them reads or writes a file."""
    overridable: dict[Any, list[Callable[..., Any]]] = torch.overrides.get_overridable_functions()
    return frozenset([function for functions in overridable.values() for function in functions])


def _is_of_torch(key: str) -> bool:
    """Whether the key of an op names a function of torch's that takes tensors. Nothing is imported to find out."""
    module, _, name = key.partition(":")
    if module == "_operator":
        return name in _OPERATORS
    if module.partition(".")[0] != "torch" or (module != "torch.Tensor" and module not in sys.modules):
        return False
    try:
        return function_named(key) in _functions_of_torch()
    except (FoldloomError, AttributeError, TypeError, ImportError):
        return False


# ---- Settings: what is hashable and plain.


def _encoded(value: Any, op: Op) -> Any:
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is tuple:
        return [_encoded(item, op) for item in value]
    if type(value) is float:
        return {"float": value.hex()}
    if isinstance(value, type) and value in _NAMES:
        return {"class": _NAMES[value]}
    if isinstance(value, _OF_TORCH):
        return {_NAMES[type(value)]: str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, Mark):
        return {"mark": repr(value)}
    if isinstance(value, Constant):
        return {"constant": _encoded(value.value, op)}
    if isinstance(value, Type):
        return {"type": _stored_type(value)}
    raise RecordingError(
        f"{op} was called with {shown(value)} ({type(value).__name__}), which a file cannot hold: keep the recording by `pickle`"
    )


def _decoded(stored: Any, level: int = 0) -> Any:
    if level > MOST_LEVELS:
        raise RecordingError("it is nested too deeply")
    if stored is None or type(stored) in (bool, int, str):
        return stored
    if isinstance(stored, list):
        return tuple([_decoded(item, level + 1) for item in stored])
    ((kind, content),) = stored.items()
    if kind == "float":
        return float.fromhex(content)
    if kind == "class":
        return _CLASSES[content]
    if kind in ("dtype", "layout", "memory_format"):
        return _of_torch(_CLASSES[kind], content)
    if kind == "device":
        return torch.device(content)
    if kind == "mark":
        return _MARKS[content]
    if kind == "constant":
        return Constant(_decoded(content, level + 1))
    if kind == "type":
        return _type(content)
    raise RecordingError(f"{shown(stored)} is nothing that fl.save writes")


def _of_torch(cls: type, name: Any) -> Any:
    found = vars(torch).get(name) if isinstance(name, str) else None
    if not isinstance(found, cls):
        raise RecordingError(f"{shown(name)} is no {cls.__name__} of torch's")
    return found


# ---- Results: Python's own containers, with outputs in them.

_CONTAINERS = {"list": list, "tuple": tuple, "dict": dict}


def _stored_template(template: Any) -> Any:
    if not isinstance(template, Template) or template._is_shared:
        raise RecordingError(
            "results in which one container stands twice cannot be saved: keep the recording by `pickle`"
        )
    same = None if template._same is None else [[key, value] for key, value in template._same.items()]
    return [_stored_part(template.root), template.count, same]


def _stored_part(part: Any) -> Any:
    if part is None or type(part) in (bool, int, str):
        return part
    if type(part) is float:
        return {"float": part.hex()}
    if isinstance(part, Output):
        return {"output": part.number}
    if type(part) is tuple:
        return {"plain": [_stored_part(item) for item in part]}
    if isinstance(part, OutputRun) and part.cls in _CONTAINERS.values():
        return {"run": [part.cls.__name__, part.first, part.length]}
    if isinstance(part, Node) and part.cls in _CONTAINERS.values() and part.extra is None:
        keys = None if part.keys is None else [_stored_part(key) for key in part.keys]
        return {"node": [part.cls.__name__, keys, [_stored_part(item) for item in part.items], part.has_outputs]}
    raise RecordingError(
        f"a result holds {shown(part)} ({type(part).__name__}), which a file cannot hold: return tensors, numbers and texts in tuples, lists and dicts"
    )


def _template(stored: Any) -> Template:
    root, count, same = stored
    found = _part(root, _int(count), 0)
    alike = None if same is None else {_int(key): _int(value) for key, value in same}
    if alike is not None and not all(0 <= number < count for pair in alike.items() for number in pair):
        raise RecordingError("a result has other tensors than it says")
    return Template(found, count, alike, False)


def _part(stored: Any, count: int, level: int) -> Any:
    if level > MOST_LEVELS:
        raise RecordingError("a result is nested too deeply")
    if stored is None or type(stored) in (bool, int, str):
        return stored
    ((kind, content),) = stored.items()
    if kind == "float":
        return float.fromhex(content)
    if kind == "plain":
        return tuple([_part(item, count, level + 1) for item in content])
    if kind == "output" and 0 <= _int(content) < count:
        return Output(content)
    if kind == "run" and _int(content[1]) >= 0 and _int(content[2]) >= 0 and content[1] + content[2] <= count:
        return OutputRun(_CONTAINERS[content[0]], content[1], content[2])
    if kind == "node":
        cls, keys, items, has_outputs = content
        parts = [_part(item, count, level + 1) for item in items]
        if keys is not None and len(keys) != len(parts):
            raise RecordingError("a result has another number of keys than of items")
        names = None if keys is None else [_part(key, 0, level + 1) for key in keys]
        node = Node(_CONTAINERS[cls], None, names, parts)
        node.has_outputs = has_outputs is True
        return node
    raise RecordingError(f"{shown(stored)} is no part of a result")
