"""Crafted graphs and archives: what stands in a file beside its description."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper

from foldloom import blocks as fb
from foldloom.exporting.files import export_to
from foldloom.runtime import Model
from tests.security.attacks import Attack, Attacks


def graph_attack(name: str, change: Callable[[onnx.ModelProto], None]) -> Attack:
    def craft(path: Path, target: Path) -> None:
        model = onnx.load(path)
        change(model)
        target.write_bytes(model.SerializeToString())

    return Attack(name, craft)


def bytes_attack(name: str, change: Callable[[bytes], bytes], suffix: str = ".onnx") -> Attack:
    return Attack(name, lambda path, target: _written(target, change(path.read_bytes())), suffix)


def _written(target: Path, data: bytes) -> None:
    target.write_bytes(data)


def computed_before(*nodes: onnx.NodeProto, constants: dict[str, Any]) -> Callable[[onnx.ModelProto], None]:
    """Adds the value ``extra`` of these nodes to the first output."""

    def change(model: onnx.ModelProto) -> None:
        graph = model.graph
        output = graph.output[0].name
        for node in graph.node:
            for place, name in enumerate(node.output):
                if name == output:
                    node.output[place] = "result before"
        for name, value in constants.items():
            graph.initializer.append(onnx.numpy_helper.from_array(np.array(value), name))
        graph.node.extend([*nodes, helper.make_node("Add", ["result before", "extra"], [output])])

    return change


def _endless(model: onnx.ModelProto) -> None:
    scalar = [
        helper.make_tensor_value_info(name, kind, [])
        for name, kind in (("i", TensorProto.INT64), ("go", TensorProto.BOOL))
    ]
    state = [helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in ("state", "next")]
    still = helper.make_tensor_value_info("still", TensorProto.BOOL, [])
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["still"]), helper.make_node("Mul", ["state", "state"], ["next"])],
        "body",
        [*scalar, state[0]],
        [still, state[1]],
    )
    loop = helper.make_node("Loop", ["rounds", "always", "zero"], ["extra"], body=body)
    constants = {"rounds": np.int64(10**15), "always": True, "zero": np.float32(0)}
    computed_before(loop, constants=constants)(model)


def _external(location: str) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        tensor = TensorProto(name="extra", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
        for key, value in (("location", location), ("length", "4")):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, value
        model.graph.initializer.append(tensor)
        computed_before(constants={})(model)

    return change


def _large(*shape: int) -> Callable[[onnx.ModelProto], None]:
    make = helper.make_node("ConstantOfShape", ["shape"], ["many"])
    total = helper.make_node("ReduceSum", ["many"], ["extra"], keepdims=0)
    return computed_before(make, total, constants={"shape": np.array(shape, np.int64)})


def _broadcast(model: onnx.ModelProto) -> None:
    nodes = [
        helper.make_node("ConstantOfShape", ["column shape"], ["column"]),
        helper.make_node("ConstantOfShape", ["row shape"], ["row"]),
        helper.make_node("Add", ["column", "row"], ["many"]),
        helper.make_node("ReduceSum", ["many"], ["extra"], keepdims=0),
    ]
    shapes = {"column shape": np.array([60_000, 1]), "row shape": np.array([1, 60_000])}
    computed_before(*nodes, constants=shapes)(model)


def _unknown_operator(model: onnx.ModelProto) -> None:
    model.opset_import.append(helper.make_opsetid("evil", 1))
    computed_before(helper.make_node("System", [], ["extra"], domain="evil"), constants={})(model)


def _doubling(model: onnx.ModelProto) -> None:
    """Functions each of which calls the next one twice."""
    inside = [helper.make_opsetid("", model.opset_import[0].version), helper.make_opsetid("doubling", 1)]
    for number in range(40):
        calls = [helper.make_node(f"F{number - 1}", ["x"], [name], domain="doubling") for name in ("one", "other")]
        nodes = [*calls, helper.make_node("Add", ["one", "other"], ["y"])]
        last = [helper.make_node("Abs", ["x"], ["y"])]
        model.functions.append(
            helper.make_function("doubling", f"F{number}", ["x"], ["y"], nodes if number else last, inside)
        )
    model.opset_import.append(inside[1])
    computed_before(helper.make_node("F39", ["zero"], ["extra"], domain="doubling"), constants={"zero": np.float32(0)})(
        model
    )


def _strings(model: onnx.ModelProto) -> None:
    """They are not in the arena."""
    grow = [helper.make_node("StringConcat", [f"text{n}", f"text{n}"], [f"text{n + 1}"]) for n in range(40)]
    nodes = [
        *grow,
        helper.make_node("Equal", ["text40", "text0"], ["same"]),
        helper.make_node("Cast", ["same"], ["extra"], to=1),
    ]
    computed_before(*nodes, constants={})(model)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array("x" * 1000, object), "text0"))


def _cast_to_strings(model: onnx.ModelProto) -> None:
    nodes = [helper.make_node("Cast", ["zero"], ["text"], to=8), helper.make_node("Cast", ["text"], ["extra"], to=1)]
    computed_before(*nodes, constants={"zero": np.float32(0)})(model)


def _constant_strings(model: onnx.ModelProto) -> None:
    nodes = [
        helper.make_node("Constant", [], ["text"], value_string=b"1"),
        helper.make_node("Cast", ["text"], ["extra"], to=1),
    ]
    computed_before(*nodes, constants={})(model)


def _sequences(model: onnx.ModelProto) -> None:
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["many"]),
        helper.make_node("SplitToSequence", ["many"], ["parts"], axis=0, keepdims=0),
        helper.make_node("SequenceLength", ["parts"], ["count"]),
        helper.make_node("Cast", ["count"], ["extra"], to=1),
    ]
    computed_before(*nodes, constants={"shape": np.array([50_000_000])})(model)


def _long(model: onnx.ModelProto) -> None:
    nodes = [helper.make_node("Abs", [f"a{n}"], [f"a{n + 1}"]) for n in range(100_000)]
    computed_before(*nodes, helper.make_node("Abs", ["a100000"], ["extra"]), constants={"a0": np.float32(0)})(model)


def _sparse(model: onnx.ModelProto) -> None:
    values, places = helper.make_tensor("sparse", 1, [1], [1.0]), helper.make_tensor("places", 7, [1], [5])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [2**31]))
    computed_before(helper.make_node("ReduceSum", ["sparse"], ["extra"], keepdims=0), constants={})(model)


def _of_the_runtime(model: onnx.ModelProto) -> None:
    """An operator of ONNX Runtime's own, which may name a file."""
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    node = helper.make_node(
        "EPContext",
        [],
        ["extra"],
        domain="com.microsoft",
        embed_mode=0,
        ep_cache_context="/etc/hostname",
        source="x",
        main_context=1,
    )
    computed_before(node, constants={})(model)


def _nested(levels: int) -> Callable[[onnx.ModelProto], None]:
    def branch(level: int) -> onnx.GraphProto:
        output = helper.make_tensor_value_info(f"y{level}", TensorProto.FLOAT, [])
        inner = {"then_branch": branch(level - 1), "else_branch": branch(0)} if level else {}
        node = (
            helper.make_node("If", ["yes"], [f"y{level}"], **inner)
            if level
            else helper.make_node("Identity", ["zero"], ["y0"])
        )
        return helper.make_graph([node], f"level {level}", [], [output])

    def change(model: onnx.ModelProto) -> None:
        node = helper.make_node("If", ["yes"], ["extra"], then_branch=branch(levels), else_branch=branch(0))
        computed_before(node, constants={"yes": True, "zero": np.float32(0)})(model)

    return change


def _without_description(model: onnx.ModelProto) -> None:
    del model.metadata_props[:]


def _other_input(model: onnx.ModelProto) -> None:
    model.graph.input.append(helper.make_tensor_value_info("extra", TensorProto.FLOAT, [1]))


GRAPHS = (
    graph_attack("a loop without end", _endless),
    graph_attack("weights from a file elsewhere", _external("../../../../../../../../etc/hostname")),
    graph_attack("weights from an absolute path", _external("/etc/hostname")),
    graph_attack("weights from a file beside it", _external("model.onnx")),
    graph_attack("a value of two gigabytes", _large(500_000_000)),
    graph_attack("a value of a gigabyte", _large(200_000_000)),
    graph_attack("a value of too many numbers", _large(2**40, 2**20)),
    graph_attack("values that are broadcast", _broadcast),
    graph_attack("an operator of somebody's own", _unknown_operator),
    graph_attack("functions that double", _doubling),
    graph_attack("strings that double", _strings),
    graph_attack("numbers made to strings", _cast_to_strings),
    graph_attack("constants that are strings", _constant_strings),
    graph_attack("a sequence of many", _sequences),
    graph_attack("a long graph", _long),
    graph_attack("sparse weights", _sparse),
    graph_attack("an operator of the runtime's own", _of_the_runtime),
    graph_attack("branches in branches", _nested(28)),
    graph_attack("no description", _without_description),
    graph_attack("an input too many", _other_input),
    bytes_attack("an empty file", lambda _: b""),
    bytes_attack("a field without end", lambda data: data + b"\x3a" + b"\xff" * 9 + b"\x7f"),
    bytes_attack("a graph that is a number", lambda data: data + b"\x38\x01"),
    bytes_attack("a group of fields", lambda data: data + b"\x3b\x3c"),
    bytes_attack("half a file", lambda data: data[: len(data) // 2]),
    bytes_attack("a text", lambda _: b"import os\n" * 1000),
    bytes_attack("a pickle", lambda _: pickle.dumps({"a": 1})),
    bytes_attack("zeros", lambda data: bytes(len(data))),
    bytes_attack("an archive", lambda _: _zip({"model/data.pkl": b"x"})),
    Attack("a folder", lambda _, target: target.mkdir()),
)


class Runs:
    """What a pickle may do when it is loaded."""

    def __reduce__(self) -> Any:
        return os.system, ("touch written",)


def _zip(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return stream.getvalue()


def _two_in_one(seen: bytes, hidden: bytes) -> bytes:
    """Two archives whose directories are of one size. Python looks for a directory just before the end, where the first one has its own; torch
    where the end says that it is, where the second one has its own."""
    ends = {data: data.rindex(b"PK\5\6") for data in (seen, hidden)}
    (count, size, start), (_, other_size, other_start) = (
        struct.unpack("<HII", data[end + 10 : end + 20]) for data, end in ends.items()
    )
    assert size == other_size
    before = hidden[: ends[hidden]]
    moved_by = size + other_start - ends[seen]  # what Python adds to all places, and should not
    directory, place = bytearray(seen[start : ends[seen]]), 0
    while place < size:
        lengths = struct.unpack("<HHH", directory[place + 28 : place + 34])
        (at,) = struct.unpack("<I", directory[place + 42 : place + 46])
        directory[place + 42 : place + 46] = struct.pack("<I", at + moved_by)
        place += 46 + sum(lengths)
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, count, count, size, other_start, 0)
    return before + seen[:start] + bytes(directory) + end


def archive_attack(
    name: str, change: Callable[[dict[str, bytes]], object], compression: int = zipfile.ZIP_STORED
) -> Attack:
    """An archive of torch's with other members."""

    def craft(path: Path, target: Path) -> None:
        members = _members_of(path.read_bytes())
        change(members)
        target.write_bytes(_zip({f"model/{name}": data for name, data in members.items()}, compression))

    return Attack(name, craft, ".pt2")


def json_attack(name: str, member: str, change: Callable[[Any], None]) -> Attack:
    def craft(members: dict[str, bytes]) -> None:
        content = json.loads(members[member])
        change(content)
        members[member] = json.dumps(content).encode()

    return archive_attack(name, craft)


def _pickled_weight(members: dict[str, bytes]) -> None:
    name = "data/weights/model_weights_config.json"
    config = json.loads(members[name])
    for payload in config["config"].values():
        payload["use_pickle"] = True
        members[f"data/weights/{payload['path_name']}"] = _saved(Runs())
    members[name] = json.dumps(config).encode()


def _hidden_archive(path: Path, target: Path) -> None:
    members = _members_of(path.read_bytes())
    harmful = dict(members)
    _pickled_weight(harmful)
    archives = [_zip({f"model/{name}": data for name, data in parts.items()}) for parts in (members, harmful)]
    target.write_bytes(_two_in_one(*archives))


def _hidden_inputs(members: dict[str, bytes]) -> None:
    harmless = _members_of(members[INPUTS])
    harmful = {**harmless, "data.pkl": _members_of(_saved(Runs()))["data.pkl"] + bytes(1000)}
    both = [_zip({f"archive/{name}": data for name, data in parts.items()}) for parts in (harmless, harmful)]
    members[INPUTS] = _two_in_one(*both)


def _members_of(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def _inputs_with_capitals(members: dict[str, bytes]) -> None:
    """Torch takes one letter for the other."""
    members[INPUTS] = _zip(
        {f"archive/{name}".replace("data.pkl", "DATA.PKL"): data for name, data in _members_of(_saved(Runs())).items()}
    )


def _saved(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def _first_node(model: Any) -> Any:
    return model["graph_module"]["graph"]["nodes"][0]


def _calls(target: str) -> Callable[[Any], None]:
    return lambda model: _first_node(model).update(target=target)


def _with_expression(model: Any) -> None:
    for value in model["graph_module"]["graph"]["tensor_values"].values():
        for size in value["sizes"]:
            size.clear()
            size["as_expr"] = {"expr_str": "__import__('os').system('touch written')", "hint": None}


def _with_import(model: Any) -> None:
    for entry in model["graph_module"]["module_call_graph"]:
        if entry["signature"]:
            entry["signature"]["in_spec"] = '[1, {"__enum__": true, "fqn": "antigravity:x", "name": "y"}]'


MODEL = "models/model.json"
INPUTS = "data/sample_inputs/model.pt"

HIDDEN = (
    Attack("an archive within an archive", _hidden_archive, ".pt2"),
    archive_attack("inputs within inputs", _hidden_inputs),
)
"""What Python reads is harmless, what torch would read is not. They are answered: torch is given what was looked at."""

ARCHIVES = (
    archive_attack("a weight that is a pickle", _pickled_weight),
    archive_attack("inputs that run code", lambda members: members.update({"data/sample_inputs/model.pt": _saved(Runs())})),
    archive_attack("inputs that are a bare pickle", lambda members: members.update({"data/sample_inputs/model.pt": pickle.dumps(Runs())})),
    archive_attack("weights as they were saved once", lambda members: members.update({"data/weights/model.pt": _saved(Runs())})),
    archive_attack("inputs in capitals", _inputs_with_capitals),
    archive_attack("a library", lambda members: members.update({"data/aotinductor/model/model.so": b"\x7fELF"})),
    archive_attack("a path that leaves", lambda members: members.update({"../../written": b"x"})),
    archive_attack("a compressed bomb", lambda members: members.update({"data/weights/weight_0": bytes(300_000_000)}), zipfile.ZIP_DEFLATED),
    archive_attack("no graph", lambda members: members.pop(MODEL)),
    archive_attack("a graph that is no JSON", lambda members: members.update({MODEL: b"{"})),
    archive_attack("a deep graph", lambda members: members.update({MODEL: b"[" * 200_000})),
    archive_attack("a description that is no JSON", lambda members: members.update({"extra/foldloom": b"{"})),
    archive_attack("no description in an archive", lambda members: members.pop("extra/foldloom")),
    json_attack("a function of os in a graph", MODEL, _calls("torch.serialization.os.system")),
    json_attack("a function that writes", MODEL, _calls("torch.save")),
    json_attack("an operator that maps files", MODEL, _calls("torch.ops.aten.from_file.default")),
    json_attack("an operator by a long way", MODEL, _calls("_operator.attrgetter")),
    json_attack("an expression of torch's", MODEL, _with_expression),
    json_attack("guards that are code", MODEL, lambda model: model.update(guards_code=["__import__('os').system('touch written')"])),
    json_attack("a module to import", MODEL, _with_import),
    json_attack("weights of another folder", "data/weights/model_weights_config.json", lambda config: next(iter(config["config"].values())).update(path_name="../../etc/hostname")),
    bytes_attack("half an archive", lambda data: data[: len(data) // 2], ".pt2"),
    bytes_attack("an archive that is a text", lambda _: b"hello", ".pt2"),
)  # fmt: skip


class Archives(Attacks):
    attacks = GRAPHS + ARCHIVES

    def make_models(self, folder: Path) -> None:
        model = fb.compile(fb.InputTransform(lambda text: [len(text)]) >> fb.Vector(1) >> torch.nn.Linear(1, 1))
        export_to(model, [folder / "model.onnx", folder / "model.pt2"], parts=1)

    def use_crafted(self, path: Path, attack: Attack) -> None:
        Model(path, threads=1, **attack.options)(["abc", "a"])
