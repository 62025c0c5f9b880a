"""Mutations of exported files: of the description in them, and of their bytes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn

from benchmarks.mutations.changing import changed_json
from benchmarks.mutations.kinds import Kind
from foldloom import blocks as fb
from foldloom.exporting.files import export_to
from foldloom.runtime import Model
from foldloom.runtime.description import KEY


def _words() -> tuple[fb.Model, list[Any]]:
    """Strings, dicts, transforms and one-hot vectors."""
    vocabulary = {"good": 1, "bad": 2}
    word = fb.InputTransform(lambda word: vocabulary.get(word.lower(), 0)) >> fb.Scalar("int64") >> nn.Embedding(3, 4)
    length = fb.InputTransform(len) >> fb.Scalar() >> fb.Function(torch.neg)
    kind = fb.OneHotFromList(["a", "b"])
    pairs = fb.Map(word) >> fb.NGrams(2) >> fb.Map(fb.Concat()) >> fb.Map(nn.Linear(8, 4)) >> fb.Sum()
    record = fb.Record({"words": fb.InputTransform(str.split) >> fb.AllOf(pairs, length), "kind": kind})
    examples = [{"words": text, "kind": "a"} for text in ("Good not bad", "good", "")]
    return fb.compile(record), examples


def _trees() -> tuple[fb.Model, list[Any]]:
    """Recursion, dispatch, metrics, sequences and constants."""
    tree = fb.ForwardDeclaration(fb.PyObjectType(), 3)
    leaf = fb.GetItem(0) >> fb.Scalar("int64") >> nn.Embedding(9, 3)
    children = fb.Map(tree()) >> fb.Reduce(fb.Function(torch.add))
    node = fb.OneOf(lambda tree: len(tree) > 1, {False: leaf, True: children})
    tree.resolve_to(node)
    optional = fb.Optional(fb.Vector(3), fb.Zeros(3))
    folded = fb.Map(fb.Vector(3)) >> fb.Fold(fb.Function(torch.mul), torch.ones(3))
    whole = fb.Record((node, optional, folded)) >> fb.Concat() >> nn.Linear(9, 2)
    examples: list[Any] = [[[1], None, []], [[[1], [2, [3], [4]][1:], [5]], [1, 2, 3], [[1, 2, 3]] * 3]]
    return fb.compile(whole), examples


class _Exported(Kind):
    def make_originals(self, folder: Path) -> None:
        for name, make in (("words", _words), ("trees", _trees)):
            torch.manual_seed(0)
            model, examples = make()
            export_to(model, [folder / f"{name}.onnx"], examples, parts=1)

    def use(self, path: Path) -> None:
        _, examples = {"words": _words, "trees": _trees}[path.stem]()
        model = Model(path, threads=1)
        model(examples)


class Descriptions(_Exported):
    """The description, part by part."""

    STRINGS = (
        "x.__class__", "().__class__.__bases__", "sum(range(10**15))", "x.ctypes", "[x] * 10**9", "'a' * 10**10", "x * x", "x + x",
        "((((x))))", "not " * 300 + "x", "(" * 300 + "x" + ")" * 300, "range(10**12)", "list(range(10**8))", "str(x) * 10**8",
        "x.format(x)", "open('f', 'w')", "9" * 5000, "x if x else x", "lambda: x", "x[0]", "max(x)", "int('9' * 4000)", "x % x",
        "map", "fold", "reference", "ngrams", "float64", "complex128", "object", "U8", "M8[ns]", "V4", "attrgetter", "methodcaller", "partial",
        "builtins:open", "json:codecs.builtins.exec", "tensor", "nothing", "arena_0",
    )  # fmt: skip

    def mutate(self, original: Path, source: random.Random, target: Path) -> None:
        model = onnx.load(original)
        (entry,) = [entry for entry in model.metadata_props if entry.key == KEY]
        content = changed_json(json.loads(entry.value), source, self.STRINGS)
        entry.value = json.dumps(content).encode("utf-8", "replace").decode()
        target.write_bytes(model.SerializeToString())


class OnnxFiles(_Exported):
    """The bytes of the file."""
