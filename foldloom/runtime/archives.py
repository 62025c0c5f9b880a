"""What a ``.pt2`` holds, looked at before torch loads it.

A ``.pt2`` is an archive of torch's. It can hold pickles, libraries and names of Python functions, and `torch.export.load` runs whatever
they say. `fl.export` writes none of that: a graph of torch's own operators, weights as plain bytes, and one pickle of example inputs, which
are zeros. An archive with anything else is refused, unless whoever loads it says that it is trusted.

Torch reads archives with a program of its own, which may find other members in the same bytes. So it is never given the file, but an archive
that is written anew from what was looked at.
"""

from __future__ import annotations

import ast
import io
import json
import os
import pickletools
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foldloom.data.opening import open_regular
from foldloom.errors import ExportedFileError
from foldloom.pytrees.messages import shown

_MEMBERS = re.compile(
    r"[^/]+/(data/weights/(weight_\d+|model_weights_config\.json)|data/constants/(tensor_\d+|model_constants_config\.json)|models/model\.json"
    r"|data/sample_inputs/model\.pt|extra/foldloom|archive_format|archive_version|version|byteorder|\.data/(version|serialization_id))"
)
_OF_INPUTS = re.compile(
    r"[^/]+/(data\.pkl|data/\d+|byteorder|version|\.format_version|\.storage_alignment|\.data/serialization_id)"
)
_OPERATORS = re.compile(
    r"torch\.ops\.aten\.(?!from_file\b)[a-z_0-9]+\.[A-Za-z_0-9]+|torch\.ops\.higher_order\.(while_loop|cond)"
    r"|_operator\.(add|sub|mul|floordiv|truediv|mod|neg|pow|getitem|eq|ne|lt|le|gt|ge|and_|or_)|torch\.sym_(int|float|max|min|not|ite|sum)"
)
_OF_SYMBOLS = frozenset(
    (
        "Symbol", "Integer", "Float", "Rational", "Add", "Mul", "Pow", "Max", "Min", "Mod", "PythonMod", "FloorDiv", "CeilDiv", "IntTrueDiv",
        "CleanDiv", "Eq", "Ne", "Lt", "Le", "Gt", "Ge", "And", "Or", "Not", "Equality", "Unequality", "StrictLessThan", "LessThan",
        "StrictGreaterThan", "GreaterThan", "TruncToInt", "ToFloat",
    )
)  # fmt: skip
_OF_TENSORS = re.compile(
    r"torch\._utils _rebuild_tensor_v2|torch\._tensor _rebuild_from_type_v2|torch (Tensor|[A-Z][A-Za-z0-9]*Storage)|collections OrderedDict"
)
_UNPICKLED = frozenset(
    (
        "PROTO", "GLOBAL", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET", "MARK", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_TUPLE",
        "EMPTY_LIST", "EMPTY_DICT", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1",
        "NEWTRUE", "NEWFALSE", "NONE", "BINFLOAT", "BINPERSID", "REDUCE", "STOP",
    )
)  # fmt: skip
_ARITHMETIC = (ast.Load, ast.UnaryOp, ast.USub, ast.Not, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
MOST_MEMBERS = 100_000
MOST_TEXT = 1 << 28


class _CodeError(ValueError):
    """What is in an archive that could run."""


def looked_at(path: str, key: str, *, trusted: bool) -> tuple[str, str | io.BytesIO]:
    """What stands under a key in an archive, and what torch is to load. One that is not trusted must hold nothing but what `fl.export`
    writes."""
    try:
        with open_regular(Path(path)) as file, zipfile.ZipFile(file) as archive:
            loaded: str | io.BytesIO = path
            if not trusted:
                members = _members(archive, _MEMBERS, os.fstat(file.fileno()).st_size)
                _look_at(members)
                loaded = io.BytesIO(_written(members))
            found = [name for name in archive.namelist() if name.endswith(f"/extra/{key}")]
            if len(found) == 1 and archive.getinfo(found[0]).file_size <= MOST_TEXT:
                return archive.read(found[0]).decode(), loaded
    except _CodeError as error:
        raise ExportedFileError(
            f"{path} may run code when it is loaded, because {error}. If it comes from a place that you trust: "
            f"`Model(path, trusted=True)`, or `foldloom predict --trusted`. Files that run no code end in .onnx"
        ) from error
    except (zipfile.BadZipFile, OSError, ValueError, KeyError, RecursionError, EOFError, NotImplementedError) as error:
        problem = " ".join(str(error).split())[:200] or type(error).__name__
        raise ExportedFileError(f"{path} is no file that torch.export can load: {problem}") from error
    raise ExportedFileError(
        f"{path} was written by torch.export, but not by `fl.export`: it does not say which cells it has"
    )


def _members(archive: zipfile.ZipFile, names: re.Pattern[str], size: int) -> dict[str, bytes]:
    """All members of an archive of so many bytes, under their names without the folder that all are in."""
    members = archive.infolist()
    if len(members) > MOST_MEMBERS or len({member.filename for member in members}) != len(members):
        raise ValueError("it has too many parts, or two of one name")
    if len({member.filename.partition("/")[0] for member in members}) > 1:
        raise ValueError("its parts are not all in one folder")
    for member in members:
        if not names.fullmatch(member.filename):
            raise _CodeError(f"it holds {shown(member.filename)}")
        if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
            raise ValueError(f"{shown(member.filename)} is compressed, which torch does not do")
    if sum(member.file_size for member in members) > size:
        raise ValueError("its parts are larger than itself: the same bytes stand for several")
    return {member.filename.partition("/")[2]: archive.read(member) for member in members}


def _written(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(f"model/{name}"), data)
    return stream.getvalue()


def _look_at(members: dict[str, bytes]) -> None:
    """The example inputs, which are an archive themselves, are written anew, too."""
    for name in ("weights", "constants"):
        _look_at_payload(_json(members, f"data/{name}/model_{name}_config.json"))
    for key, value in _fields(_json(members, "models/model.json")):
        _look_at_field(key, value)
    data = members["data/sample_inputs/model.pt"]
    if data:
        with zipfile.ZipFile(io.BytesIO(data)) as saved:
            inputs = _members(saved, _OF_INPUTS, len(data))
        _look_at_opcodes(inputs["data.pkl"])
        members["data/sample_inputs/model.pt"] = _written(inputs)


def _json(members: dict[str, bytes], name: str) -> Any:
    if len(members[name]) > MOST_TEXT:
        raise ValueError(f"{name} is too long")
    return json.loads(members[name])


def _look_at_payload(config: Any) -> None:
    for key, value in _fields(config):
        if key == "use_pickle" and value is not False:
            raise _CodeError("a weight in it is a pickle")
        if key == "path_name" and not re.fullmatch(r"(weight|tensor)_\d+", str(value)):
            raise _CodeError(f"a weight in it is read from {shown(value)}")


def _fields(content: Any) -> Iterator[tuple[str, Any]]:
    """Every key of every dict, with its value."""
    waiting = [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield from value.items()
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _look_at_field(key: str, value: Any) -> None:
    if key in ("target", "as_operator") and isinstance(value, str) and not _OPERATORS.fullmatch(value):
        raise _CodeError(f"its graph calls {shown(value)}")
    if key == "expr_str" and not _is_of_symbols(value):
        raise _CodeError(f"it computes {shown(value)}")
    if key == "guards_code" and not (isinstance(value, list) and all(map(_is_guard, value))):
        raise _CodeError("it has guards that are more than comparisons of sizes")
    if key == "as_custom_obj":
        raise _CodeError("it has an object of a class of somebody's own")
    if key in ("in_spec", "out_spec") and isinstance(value, str) and ("__enum__" in value or "fqn" in value):
        raise _CodeError("it names a module to import")


def _nodes_of(text: Any) -> list[ast.AST]:
    """The parts of an expression; none if it is not one."""
    if not isinstance(text, str) or len(text) > 10_000:
        return []
    try:
        return list(ast.walk(ast.parse(text, mode="eval").body))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return []


def _is_guard(text: Any) -> bool:
    """Whether a text compares sizes of inputs: ``L['flat_args'][0].size()[1] >= 2``."""
    nodes = _nodes_of(text)
    for node in nodes:
        if isinstance(node, ast.Call):
            is_size = isinstance(node.func, ast.Attribute) and node.func.attr == "size"
            if not is_size or node.args or node.keywords:
                return False
        elif isinstance(node, ast.Attribute):
            if node.attr != "size":
                return False
        elif isinstance(node, ast.Name):
            if node.id != "L":
                return False
        elif isinstance(node, ast.Constant):
            if not (isinstance(node.value, int) or re.fullmatch(r"\w+", str(node.value))):
                return False
        elif not isinstance(node, (ast.Compare, ast.cmpop, ast.BoolOp, ast.boolop, ast.Subscript, *_ARITHMETIC)):
            return False
    return bool(nodes)


def _is_of_symbols(text: Any) -> bool:
    """Whether a text that torch evaluates is arithmetic of symbols."""
    nodes = _nodes_of(text)
    for node in nodes:
        if isinstance(node, ast.Call):
            if not (isinstance(node.func, ast.Name) and node.func.id in _OF_SYMBOLS):
                return False
        elif isinstance(node, ast.Constant):
            if not (isinstance(node.value, (int, float)) or re.fullmatch(r"[a-z_]+\d*", str(node.value))):
                return False
        elif isinstance(node, ast.Name):
            if not (node.id in _OF_SYMBOLS or re.fullmatch(r"[suzf]+\d+|true|false", node.id)):
                return False
        elif not isinstance(node, (ast.keyword, *_ARITHMETIC)):
            return False
    return bool(nodes)


def _look_at_opcodes(pickled: bytes) -> None:
    """Of the example inputs, which `torch.save` wrote: tensors, and lists and dicts of them."""
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name not in _UNPICKLED:
            raise _CodeError(f"it holds a pickle with {opcode.name}")
        if opcode.name == "GLOBAL" and not _OF_TENSORS.fullmatch(str(argument)):
            raise _CodeError(f"it holds a pickle that calls {shown(argument)}")
