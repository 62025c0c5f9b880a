"""Crafted recordings and plans."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import foldloom as fl
from benchmarks.mutations.recordings import SENTENCES, Scorer, forged
from tests.security.attacks import Attack, Attacks

Arrays = dict[str, np.ndarray[Any, Any]]


def _crafted(change: Callable[[Arrays, Any], Any]) -> Callable[[Path, Path], None]:
    def craft(path: Path, target: Path) -> None:
        with np.load(path) as loaded:
            arrays = {name: loaded[name] for name in loaded.files}
        content = json.loads(arrays["json"].tobytes())
        made = change(arrays, content)
        text = made if isinstance(made, str) else json.dumps(content)
        arrays["json"] = np.frombuffer(text.encode(), np.uint8)
        target.write_bytes(forged(arrays))

    return craft


def recording(name: str, change: Callable[[Arrays, Any], Any]) -> Attack:
    return Attack(name, _crafted(change), ".recording")


def plan(name: str, change: Callable[[Arrays, Any], Any]) -> Attack:
    return Attack(name, _crafted(change), ".plan")


def raw(name: str, make: Callable[[bytes], bytes]) -> Attack:
    return Attack(name, lambda path, target: _write(target, make(path.read_bytes())), ".recording")


def _write(target: Path, data: bytes) -> None:
    target.write_bytes(data)


class Runs:
    def __reduce__(self) -> Any:
        return os.system, ("touch written",)


def op(content: Any) -> Any:
    """An operation that is a function of torch's."""
    return next(op for op in content["recordings"][0]["ops"] if ":" in op["key"])


def weight_made_by(function: str, sources: list[int]) -> Callable[[Arrays, Any], None]:
    """An operation is given a weight that a function makes of a text and of other weights."""

    def change(_: Arrays, content: Any) -> None:
        arguments = [{"class": "tuple"}, 1, [None]]
        nesting = [{"class": "tuple"}, 2, [arguments, [{"class": "dict"}, [], []]]]
        template = [nesting, [[{"class": "str"}, "touch written"]]]
        op(content).update(shared={"entries": [[function, template, sources]], "given": [0]})

    return change


def weight_changed_by(
    function: str, *settings: Any, weights: int = 1, named: tuple[str, ...] = ()
) -> Callable[[Arrays, Any], None]:
    """A weight of the model, and values after it, are what a function is called with that makes another weight."""

    def change(_: Arrays, content: Any) -> None:
        count = weights + len(settings) - len(named)
        arguments = [[{"class": "tuple"}, count, [None] * count], [{"class": "dict"}, list(named), [None] * len(named)]]
        nesting = [{"class": "tuple"}, 2, arguments]
        made = [
            function,
            [nesting, [{"mark": "SHARED"}] * weights + [_setting(value) for value in settings]],
            [0] * weights,
        ]
        operation = next(op for op in content["recordings"][0]["ops"] if op["shared"]["entries"])
        operation["shared"] = {"entries": ["score.bias", made], "given": [1]}

    return change


def _setting(value: Any) -> Any:
    return value if isinstance(value, dict) else [{"class": type(value).__name__}, value]


def call_with(nesting: Any, settings: Any) -> Callable[[Arrays, Any], None]:
    """A product is called in another form."""

    def change(_: Arrays, content: Any) -> None:
        next(op for op in content["recordings"][0]["ops"] if op["key"] == "_operator:mul")["settings"] = [
            nesting,
            settings,
        ]

    return change


def _overlapping(_: bytes) -> bytes:
    """Many arrays that are the same bytes: each header stands in what the one before says is to be skipped."""
    stream = io.BytesIO()
    np.save(stream, np.zeros(20_000_000, np.uint8))
    data, headers, directory = stream.getvalue(), b"", b""
    names = [b"input.%05d.npy" % number for number in range(100)]
    sizes = struct.pack("<III", zlib.crc32(data), len(data), len(data))
    place = len(names) * (30 + len(names[0]) + 4) - 4
    end = place
    for name in reversed(names):
        skipped = struct.pack("<HH", 0x9999, len(headers)) + headers if headers else b""
        headers = (
            struct.pack("<IHHHHH", 0x04034B50, 20, 0, 0, 0, 0)
            + sizes
            + struct.pack("<HH", len(name), len(skipped))
            + name
            + skipped
        )
        start = end - len(headers)
        directory += (
            struct.pack("<IHHHHHH", 0x02014B50, 20, 20, 0, 0, 0, 0)
            + sizes
            + struct.pack("<HHHHHII", len(name), 0, 0, 0, 0, 0, start)
            + name
        )
    last = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, len(names), len(names), len(directory), end + len(data), 0)
    return headers + data + directory + last


def step(content: Any) -> Any:
    return content["plan"]["steps"][0]


def column(name: str, value: int, place: int = 0) -> Callable[[Arrays, Any], None]:
    def change(arrays: Arrays, _: Any) -> None:
        made = arrays[name].copy()
        made[place] = value
        arrays[name] = made

    return change


def _objects(_: bytes) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, json=np.array([Runs()], dtype=object), checksum=np.zeros(32, np.uint8))
    return stream.getvalue()


def _compressed(data: bytes) -> bytes:
    with np.load(io.BytesIO(data)) as loaded:
        arrays = {name: loaded[name] for name in loaded.files}
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays, bomb=np.zeros(200_000_000, np.uint8))
    return stream.getvalue()


def _zip_of(name: str, data: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(name, data)
    return stream.getvalue()


HUGE_HEADER = (
    b"\x93NUMPY\x01\x00v\x00{'descr': '<i8', 'fortran_order': False, 'shape': (100000000000,), }" + b" " * 40 + b"\n"
)

ATTACKS = (
    raw("a pickle", lambda _: pickle.dumps(Runs())),
    raw("arrays of objects", _objects),
    raw("half a recording", lambda data: data[: len(data) // 2]),
    raw("a recording with a byte changed", lambda data: data[:1000] + bytes([data[1000] ^ 1]) + data[1001:]),
    raw("an empty recording", lambda _: b""),
    raw("a text for a recording", lambda _: b"hello"),
    raw("compressed arrays", _compressed),
    raw("an array that is not there", lambda _: _zip_of("json.npy", HUGE_HEADER)),
    raw("arrays that are the same bytes", _overlapping),
    raw("an archive of something else", lambda _: _zip_of("model/data.pkl", b"x")),
    Attack("a folder for a recording", lambda _, target: target.mkdir(), ".recording"),
    recording("no JSON in a recording", lambda arrays, content: "{"),
    recording("deep JSON in a recording", lambda arrays, content: "[" * 100_000),
    recording("another format of recordings", lambda arrays, content: content.update(format=99)),
    recording("no recordings", lambda arrays, content: content.pop("recordings")),
    recording("a function of os as an operation", lambda arrays, content: op(content).update(key="os:system")),
    recording("a function that torch imports", lambda arrays, content: op(content).update(key="torch.serialization:os.system")),
    recording("a function that loads", lambda arrays, content: op(content).update(key="torch:load")),
    recording("a module to be imported", lambda arrays, content: op(content).update(key="antigravity:x")),
    recording("an operator that maps files, by its name", lambda arrays, content: op(content).update(key="torch:from_file")),
    recording("a function of os that makes a weight", weight_made_by("posix:system", [])),
    recording("a function that loads, and makes a weight", weight_made_by("torch:load", [])),
    recording("a weight that is written over", weight_changed_by("torch.Tensor:TensorBase.mul_", weights=2)),
    recording("a weight that is written over by an operator", weight_changed_by("torch.Tensor:TensorBase.__imul__", weights=2)),
    recording("a weight whose items are set", weight_changed_by("torch.Tensor:TensorBase.__setitem__", 0, 1.5)),
    recording("a weight that is written over as the output", weight_changed_by("torch:_VariableFunctionsClass.add", {"mark": "SHARED"}, weights=2, named=("out",))),
    recording("a weight that is cut off in place", weight_changed_by("torch.nn.functional:relu", True)),
    recording("weights that are statistics", weight_changed_by("torch.nn.functional:batch_norm", None, None, True, weights=3)),
    recording("a weight that learns no more", weight_changed_by("torch.Tensor:TensorBase.requires_grad_", False)),
    recording("a weight with a hook", weight_changed_by("torch._tensor:Tensor.register_hook", 1)),
    recording("a weight in memory that others see", weight_changed_by("torch._tensor:Tensor.share_memory_")),
    recording("a weight that is differentiated", weight_changed_by("torch._tensor:Tensor.backward")),
    recording("a weight of another size", weight_changed_by("torch.Tensor:TensorBase.resize_", 10**9)),
    recording("weights that are packed for other kernels", weight_changed_by("torch:_VariableFunctionsClass.fbgemm_linear_fp16_weight", weights=3)),
    recording("arguments by names that are none", call_with([{"class": "tuple"}, 2, [[{"class": "tuple"}, 2, [None, None]], [{"class": "tuple"}, 0, []]]], [{"mark": "OPERAND"}, {"mark": "SHARED"}])),
    recording("arguments by names that are numbers", call_with([{"class": "tuple"}, 2, [[{"class": "tuple"}, 1, [None]], [{"class": "dict"}, [1], [None]]]], [{"mark": "OPERAND"}, {"mark": "SHARED"}])),
    recording("an operand that is not used", call_with([{"class": "tuple"}, 2, [[{"class": "tuple"}, 1, [None]], [{"class": "dict"}, [], []]]], [{"mark": "SHARED"}])),
    recording("a weight that is made of itself", weight_made_by("torch.Tensor:TensorBase.t", [0])),
    recording("a weight that is not there", lambda arrays, content: op(content).update(shared={"entries": [], "given": [7]})),
    recording("settings of a strange class", lambda arrays, content: op(content).update(settings={"class": "os.system"})),
    recording("settings nested deeply", lambda arrays, content: op(content).update(settings=json.loads("[" * 300 + "]" * 300))),
    recording("an attribute of torch for a dtype", lambda arrays, content: op(content).update(settings={"dtype": "load"})),
    recording("a result of a strange class", lambda arrays, content: content["recordings"][0].update(results=[[{"node": ["system", None, [], True]}, 0, None]])),
    recording("a result of many outputs", lambda arrays, content: content["recordings"][0].update(results=[[{"run": ["list", 0, 10**12]}, 10**12, None]])),
    recording("a type of a million dimensions", lambda arrays, content: content["recordings"][0]["ops"][0].update(outputs=[[[2] * 1000, "float32"]])),
    recording("an op that is not there", column("0.op_of_node", 99)),
    recording("an operand that comes later", column("0.operands", 10**6)),
    recording("an operand below zero", column("0.operands", -1)),
    recording("lengths without end", column("0.lengths", 2**62)),
    recording("another depth", column("0.depth_of_node", 2**31)),
    recording("an output that is not there", column("0.outputs", 2**40)),
    recording("examples without end", column("0.nodes_of_example", 2**62)),
    recording("no column of operands", lambda arrays, _: arrays.pop("0.operands")),
    recording("operands that are no integers", lambda arrays, _: arrays.update({"0.operands": arrays["0.operands"].astype(np.float32)})),
    plan("columns-of-floats", lambda arrays, _: arrays.update(block_of_output=arrays["block_of_output"].astype(np.float64))),
    plan("a step before what it reads", lambda arrays, content: content["plan"]["steps"].reverse()),
    plan("a step of an op that is not there", lambda arrays, content: step(content).__setitem__(0, 99)),
    plan("a step of the last op", lambda arrays, content: step(content).__setitem__(0, -1)),
    plan("a step of too many members", lambda arrays, content: step(content).__setitem__(2, 2**40)),
    plan("an arena without end", lambda arrays, content: content["plan"]["arenas"][0].__setitem__(1, 2**50)),
    plan("an arena of four gigabytes", lambda arrays, content: content["plan"]["arenas"][0].__setitem__(1, 2**32)),
    plan("reads without end", lambda arrays, content: content["plan"]["outputs"][0].__setitem__(4, 2**32)),
    plan("arenas that are all constants", lambda arrays, content: [arena.__setitem__(2, True) for arena in content["plan"]["arenas"]]),
    plan("rows that nobody has written", lambda arrays, content: content["plan"]["arenas"].append([[[2], "float32"], 9, False, 9])),
    plan("rows outside of an arena", lambda arrays, _: arrays.update(indices=arrays["indices"] + 10**9)),
    plan("rows below zero", lambda arrays, _: arrays.update(indices=arrays["indices"] - 10**9)),
    plan("outputs of no block", lambda arrays, _: arrays.update(block_of_output=arrays["block_of_output"] + 99)),
    plan("a node that runs twice", lambda arrays, _: arrays.update(nodes=np.zeros_like(arrays["nodes"]))),
    plan("a function of os in a plan", lambda arrays, content: next(op for op in content["plan"]["ops"] if ":" in op["key"]).update(key="os:system")),
    plan("lengths that go around", lambda arrays, _: arrays.update(lengths=np.full_like(arrays["lengths"], 2**62))),
    plan("an input of another type", lambda arrays, content: content["plan"]["ops"][0].update(outputs=[[[7], "float64"]])),
)  # fmt: skip


class Recordings(Attacks):
    attacks = ATTACKS

    def make_models(self, folder: Path) -> None:
        torch.manual_seed(0)
        recordings = fl.record_each(Scorer(), SENTENCES)
        fl.save(recordings, folder / "model.recording")
        fl.save(fl.plan(recordings), folder / "model.plan")

    def use_crafted(self, path: Path, attack: Attack) -> None:
        loaded = fl.load(path)
        fl.batch(Scorer()).run(loaded if path.suffix == ".plan" else fl.plan(loaded))
