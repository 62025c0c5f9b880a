"""Recordings and plans on disk: reading and writing the archive."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tokenize
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from foldloom.data.opening import open_regular
from foldloom.errors import ArgumentError, FoldloomError, RecordingError
from foldloom.execution.engine import Planned
from foldloom.graph import CONSTANT, Graph
from foldloom.graph.checking import check_recording
from foldloom.graph.recording import Column, Recording, refuse_tracked
from foldloom.planning.plans import Access, Arena, Plan, Read, Step, Write
from foldloom.pytrees.messages import shown
from foldloom.tracing.storing.ops import count_of, of_torch, op_of, stored_op, stored_type, type_of
from foldloom.tracing.storing.results import stored_template, template_of

FORMAT = 2
"""The version of the format. Files of other versions are refused."""


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
            members = archive.infolist()
            for member in members:
                if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
                    raise RecordingError("it is compressed, which fl.save never does")
            if sum(member.file_size for member in members) > os.fstat(file.fileno()).st_size:
                raise RecordingError("its arrays are larger than itself: the same bytes stand for several")
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
        "ops": [stored_op(op) for op in graph.ops],
        "values": graph.value_count,
        "inputs": _stored_columns(recording.inputs, prefix, arrays),
        "results": [stored_template(template) for template in recording.results],
    }


def _recording(stored: Any, prefix: str, arrays: dict[str, np.ndarray[Any, Any]]) -> Recording:
    graph = Graph(
        ops=tuple([op_of(op) for op in stored["ops"]]),
        value_count=int(stored["values"]),
        **{name: _integers(arrays[prefix + name]) for name in _GRAPH_COLUMNS},
    )
    results = tuple([template_of(template) for template in stored["results"]])
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
        "ops": [stored_op(op) for op in plan.ops],
        "arenas": [[stored_type(arena.type), arena.rows, arena.constant, arena.kept] for arena in plan.arenas],
        "writes": [list(write) for write in plan.inputs],
        "steps": [[s.op, s.first, s.size, [_stored_read(r) for r in s.reads], [list(w) for w in s.writes]] for s in plan.steps],
        "outputs": [_stored_read(read) for read in plan.outputs],
        "inputs": _stored_columns(planned.inputs, "", arrays),
        "results": [stored_template(template) for template in planned.results],
        "shared": sorted(planned.shared_ops),
    }  # fmt: skip


def _planned(stored: Any, arrays: dict[str, np.ndarray[Any, Any]]) -> Planned:
    plan = Plan(
        ops=tuple([op_of(op) for op in stored["ops"]]),
        arenas=tuple([Arena(type_of(t), count_of(rows), constant=c is True, kept=count_of(kept)) for t, rows, c, kept in stored["arenas"]]),
        inputs=tuple([Write(*map(count_of, write)) for write in stored["writes"]]),
        steps=tuple([
            Step(count_of(op), count_of(first), count_of(size), tuple(map(_read_of, reads)), tuple([Write(*map(count_of, write)) for write in writes]))
            for op, first, size, reads, writes in stored["steps"]
        ]),
        outputs=tuple(map(_read_of, stored["outputs"])),
        **{name: _integers(arrays[name]) for name in _PLAN_COLUMNS},
    )  # fmt: skip
    if any(op.is_input and op.key != CONSTANT for op in plan.ops):
        raise RecordingError("an op is an input from another batch")
    if any(arena.kept for arena in plan.arenas):
        raise RecordingError("rows of another batch are kept")
    shared = frozenset([count_of(number) for number in stored["shared"]])
    if any(number >= len(plan.ops) for number in shared):
        raise RecordingError("an op is not there")
    results = tuple([template_of(template) for template in stored["results"]])
    planned = Planned(plan, _columns(stored["inputs"], "", arrays), results, shared)
    planned.check()
    return planned


_ACCESSES = list(Access)


def _stored_read(read: Read) -> list[Any]:
    return [read.arena, _ACCESSES.index(read.access), read.start, read.size, read.slots, read.lengths]


def _read_of(stored: Any) -> Read:
    arena, access, start, size, slots, lengths = map(count_of, stored)
    return Read(arena, _ACCESSES[access], start, size, slots, lengths)


# ---- Columns of given values.


def _integers(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype.kind not in "iu":
        raise RecordingError(f"a column has {array.dtype} in the place of whole numbers")
    return array


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
            found = of_torch(torch.dtype, dtype)
            tensors.append(data.view(found).reshape([count_of(size) for size in shape]))
        columns.append(tuple(tensors))
    return tuple(columns)
