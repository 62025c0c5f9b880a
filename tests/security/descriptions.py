"""Crafted descriptions in exported files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from foldloom import blocks as fb
from foldloom.exporting.files import export_to
from foldloom.runtime import Model
from tests.security.attacks import Attack, Attacks, with_description

Content = dict[str, Any]
NOTHING: Any = {"dict": []}


def attack(name: str, change: Callable[[Content], Any], **others: Any) -> Attack:
    return Attack(name, lambda model, target: with_description(model, target, change), **others)


def with_function(function: Any) -> Callable[[Content], Any]:
    """The description of a model whose one transform is another function."""

    def change(content: Content) -> None:
        (transform,) = [block for block in content["program"]["blocks"] if block["kind"] == "transform"]
        transform["function"] = function

    return change


def expression(name: str, text: str, **others: Any) -> Attack:
    return attack(name, with_function({"expression": text, "argument": "x", "constants": NOTHING}), **others)


def function(name: str, packed: Any, **others: Any) -> Attack:
    return attack(name, with_function(packed), **others)


def with_blocks(*blocks: Content, root: int = 0, gives: Any = "tensor") -> Callable[[Content], Any]:
    """The description of a model with another program."""

    def change(content: Content) -> None:
        described = [{**block, "says": "Block()"} for block in blocks]
        content["program"] = {"blocks": described, "root": root, "gives": gives, "metrics": {}}

    return change


def program(name: str, *blocks: Content, gives: Any = "tensor", **others: Any) -> Attack:
    return attack(name, with_blocks(*blocks, gives=gives), **others)


def setting(name: str, *path: Any, to: Any) -> Attack:
    """One field of the description with another value."""

    def change(content: Content) -> None:
        owner: Any = content
        for key in path[:-1]:
            owner = owner[key]
        owner[path[-1]] = to

    return attack(name, change)


def nested(levels: int, of: Callable[[Any], Any], inner: Any) -> Any:
    for _ in range(levels):
        inner = of(inner)
    return inner


def doubling(kind: str, field: str, levels: int) -> list[Content]:
    """Blocks each of which runs the next one twice."""
    return [{"kind": kind, field: [n + 1, n + 1]} for n in range(levels)] + [{"kind": "identity"}]


def arrays() -> list[Any]:
    return [np.ones((3, 3))]


def transform(text: str) -> Content:
    return {"kind": "transform", "function": {"expression": text, "argument": "x", "constants": NOTHING}}


EXPRESSIONS = (
    expression("class of an argument", "x.__class__"),
    expression("subclasses", "().__class__.__bases__[0].__subclasses__()"),
    expression("ctypes of an array", "x.ctypes", examples=arrays),
    expression("a file by an array", "x.tofile('written')", examples=arrays),
    expression("data of an array", "x.data.obj", examples=arrays),
    expression("getattr", "getattr(x, 'ctypes')", examples=arrays),
    expression("a name of Python's", "__import__('os').system('touch written')"),
    expression("open", "open('written', 'w')"),
    expression("a comprehension", "[exec(y) for y in x]"),
    expression("a lambda", "(lambda y: y)(x)"),
    expression("a walrus", "(y := x)"),
    expression("an f-string", "f'{x.__class__}'"),
    expression("format", "'{0.__class__}'.format(x)"),
    expression("a keyword", "sorted(x, key=eval)"),
    expression("a star", "max(*x)"),
    expression("a type for a value", "type(x).mro()"),
    expression("items of a type", "list[x]"),
    expression("a call of what was made", "[len][0](x)"),
    expression("a sum of a long range", "sum(range(10**15))"),
    expression("a power", "9**9**9"),
    expression("a product that grows", "*".join(["99999999999999999999"] * 400)),
    expression("a shift", "1 << 10**10"),
    expression("a list repeated", "[0] * 1000000000"),
    expression("a string repeated", "'a' * 10000000000"),
    expression("a string repeated in steps", "(x * 100000) * 100000"),
    expression("a wide format", "'%1000000000d' % 1"),
    expression("a format with a star", "'%*d' % (1000000000, 1)"),
    expression("a list of a long range", "len(list(range(1000000000)))"),
    expression("a search in a long range", "0.5 in range(10000000000000000)", is_answered=True),
    expression("an index in a long range", "range(10000000000000000).index(0.5)"),
    expression("a long integer", "int('9' * 1000000)"),
    expression("rounding to no digits", "round(10, -1000000000)"),
    expression("replacing nothing", "(x * 300000).replace('', 'a' * 100000)"),
    expression("deep parentheses", "(" * 400 + "x" + ")" * 400),
    expression("deep signs", "-" * 9000 + "1"),
    expression("deep brackets", "[" * 150 + "]" * 150),
    expression("a long text", "x + " * 100_000 + "x"),
    expression("no text", ""),
    expression("a statement", "import os"),
    expression("a zero byte", "x\0"),
    function("an argument that is no name", {"expression": "x", "argument": "x: exec(x)", "constants": NOTHING}),
    function("constants that are functions", {"expression": "f(x)", "argument": "x", "constants": {"dict": [["f", {"function": "os:system"}]]}}),
)  # fmt: skip

FUNCTIONS = (
    function("exec", {"function": "builtins:exec"}),
    function("a method of a builtin type", {"function": "builtins:str.format"}),
    function("attributes of a builtin type", {"function": "builtins:list.__class__"}),
    function("a function of os", {"function": "os:system"}),
    function("what an allowed module imports", {"function": "json:codecs.builtins.exec"}, options={"modules": ["json"]}),
    function("a class of another module", {"function": "json:JSONDecodeError.__init__"}, options={"modules": ["json"]}),
    function("a module by its attribute", {"function": "os:path.join"}, options={"modules": ["os"]}),
    function("nothing of an allowed module", {"function": "json:"}, options={"modules": ["json"]}),
    function("a double name", {"made_by": "attrgetter", "args": ["__class__"], "kwargs": NOTHING}),
    function("attrgetter of ctypes", {"made_by": "attrgetter", "args": ["ctypes"], "kwargs": NOTHING}, examples=arrays),
    function("attrgetter of a path", {"made_by": "attrgetter", "args": ["T.ctypes"], "kwargs": NOTHING}, examples=arrays),
    function("methodcaller", {"made_by": "methodcaller", "args": ["tofile", "written"], "kwargs": NOTHING}, examples=arrays),
    function("a method of a constant", {"method": "format", "of": "{0.__class__}"}),
    function("a partial of exec", {"made_by": "partial", "args": [{"function": "builtins:exec"}], "kwargs": NOTHING}),
    function("a partial of a function of os", {"made_by": "partial", "args": [{"function": "os:system"}, "touch written"], "kwargs": NOTHING}),
    function("a partial of nothing", {"made_by": "partial", "args": [], "kwargs": NOTHING}),
    function("another maker", {"made_by": "reduce", "args": [], "kwargs": NOTHING}),
    function("a number for a function", 7),
    function("a deep value", nested(200, lambda inner: {"tuple": [inner]}, 1)),
    function("a set of lists", {"set": [{"list": []}]}),
    function("a list for a dict", {"dict": [1, 2]}),
    function("a strange kind", {"exec": "import os"}),
    function("a name too many", {"function": "builtins:len", "of": "os"}),
)  # fmt: skip

PROGRAMS = (
    program("a block that contains itself", {"kind": "pipe", "stages": [0]}),
    program("two blocks that contain each other", {"kind": "pipe", "stages": [1]}, {"kind": "all_of", "blocks": [0]}),
    program("recursion without end", {"kind": "pipe", "stages": [1]}, {"kind": "reference", "block": 0}),
    program("recursion of growing strings", {"kind": "pipe", "stages": [1, 2]}, transform("x + x"), {"kind": "reference", "block": 0}),
    program("recursion that branches", {"kind": "all_of", "blocks": [1, 1]}, {"kind": "reference", "block": 0}),
    program("tuples that double", *doubling("all_of", "blocks", 60), gives="nothing"),
    program("pipes that double", *doubling("pipe", "stages", 60)),
    program("lists that double", {"kind": "pipe", "stages": [1] * 60}, transform("[x, x]")),
    program("lists that double and are compared", {"kind": "pipe", "stages": [1] * 60 + [2]}, transform("[x, x]"), transform("x == [x, x]")),
    program("a key that doubles", {"kind": "one_of", "key": 1, "pre": None, "cases": [[1, 3]]}, {"kind": "pipe", "stages": [2] * 60}, transform("(x, x)"), {"kind": "identity"}),
    program("too many blocks in each other", *[{"kind": "pipe", "stages": [n + 1]} for n in range(5000)], {"kind": "identity"}),
    program("n-grams of a thousand millions", {"kind": "ngrams", "n": 10**9}, gives=["list", ["tensor"]], is_answered=True),
    program("n-grams of half a text", {"kind": "pipe", "stages": [1, 2]}, transform("x * 100000"), {"kind": "ngrams", "n": 150_000}, gives=["list", ["tensor"]]),
    program("a block that is not there", {"kind": "pipe", "stages": [7]}),
    program("a block before the first", {"kind": "pipe", "stages": [-1]}),
    program("a block that is true", {"kind": "pipe", "stages": [True]}),
    program("a kind that is not there", {"kind": "exec"}),
    program("a kind that is a list", {"kind": ["map"]}),
    program("a field too many", {"kind": "identity", "function": "os:system"}),
    program("a field too few", {"kind": "map"}),
    program("a cell that is not there", {"kind": "function", "cell": "os.system", "takes": None, "nested": False}),
    program("a tensor of objects", {"kind": "tensor", "shape": [], "dtype": "object"}),
    program("a large tensor", {"kind": "tensor", "shape": [2] * 32, "dtype": "float32"}),
    program("a constant of another size", {"kind": "constant", "value": {"shape": [10**9], "dtype": "float32", "data": "AAAA"}}),
    program("a constant that is no base64", {"kind": "constant", "value": {"shape": [1], "dtype": "float32", "data": "§§§§"}}),
    program("a metric that is not there", {"kind": "metric", "name": "loss", "labelled": False}, gives="nothing"),
    program("a composition that reads ahead", {"kind": "composition", "steps": [[1, [5]]], "output": [1]}, {"kind": "identity"}),
    program("an output of no kind", {"kind": "identity"}, gives=["exec", []]),
    program("lines in a name", {"kind": "transform", "function": 3, "\n": "\n"}),
    program("one-hot of a number", {"kind": "one_hot", "elements": 7, "dtype": "float32", "strict": True}),
)  # fmt: skip

STRUCTURES = (
    attack("no JSON", lambda _: "{'a': 1}"),
    attack("an empty description", lambda _: "x"),
    attack("a list for a description", lambda _: [1, 2]),
    attack("a deep description", lambda _: "[" * 100_000),
    attack("half a character", lambda _: '{"format": 2, "version": "\\ud800"}'),
    attack("a description that lacks everything", lambda _: {"format": 2}),
    setting("a field that nobody knows", "__class__", to="os"),
    setting("another format", "format", to=1),
    setting("a format that is true", "format", to=True),
    setting("a version in lines", "version", to=7),
    setting("a shape of a thousand millions", "types", 0, "shape", to=[10**9]),
    setting("a shape whose product is large", "types", 0, "shape", to=[10**5, 10**5, 10**5]),
    setting("a shape below zero", "types", 0, "shape", to=[-1]),
    setting("a shape of text", "types", 0, "shape", to="1"),
    setting("a dtype that holds objects", "types", 0, "dtype", to="O"),
    setting("a dtype of the other kind", "types", 0, "dtype", to="float64"),
    setting("no ops", "ops", to=[]),
    setting("an op of no type", "ops", 0, "inputs", to=[99]),
    setting("an op without outputs", "ops", 0, "outputs", to=[]),
    setting("rows of nothing", "ops", 0, "ragged_outputs", to=[0]),
    setting("a ragged operand that is not there", "ops", 0, "ragged_inputs", to=[5]),
    setting("results that do not fit", "ops", 0, "returns", to=["tuple", 2, [None, None]]),
    setting("a nesting of text", "ops", 0, "nesting", to=["exec", 1, [None]]),
    setting("an op in no stage", "stages", to=[]),
    setting("an op in two stages", "stages", to=[{"ops": [0, 0], "loop": True, "parts": 1}]),
    setting("a loop of many parts", "stages", 0, "parts", to=10**9),
    setting("a loop that is none", "stages", 0, "loop", to=True),
)


class Descriptions(Attacks):
    attacks = EXPRESSIONS + FUNCTIONS + PROGRAMS + STRUCTURES

    def make_models(self, folder: Path) -> None:
        model = fb.compile(fb.InputTransform(len) >> fb.Scalar() >> fb.Function(torch.neg))
        export_to(model, [folder / "model.onnx"], parts=1)

    def use_crafted(self, path: Path, attack: Attack) -> None:
        Model(path, threads=1, **attack.options)(attack.examples())
