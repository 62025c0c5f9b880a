"""Private names of torch stand in `foldloom/torch_private` alone, each with a reason, and the installed torch has all of them.

Nothing here imports Foldloom, so that a torch which lacks one is told by name.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.hooks import BackwardHook

FOLDLOOM = Path(__file__).parents[2] / "foldloom"
HERE = FOLDLOOM / "torch_private"

OF_PYTHON = {
    "_replace",
    "_fields",
    "_getframe",
    "_at_fork_reinit",
    "_is_owned",
    "_filters_mutated",
    "_showwarnmsg_impl",
}
"""Private or undocumented attributes of Python's own objects."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def dotted(node: ast.expr) -> str:
    """``torch._C._nn`` for that expression, and nothing for what is more than names and dots."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := dotted(node.value)):
        return f"{owner}.{node.attr}"
    return ""


def documented(path: Path) -> Iterator[tuple[str, ast.expr, str]]:
    """Name, value and docstring of each name that a module binds."""
    body = ast.parse(path.read_text()).body
    for statement, following in zip(body, [*body[1:], ast.Pass()], strict=True):
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            doc = following.value if isinstance(following, ast.Expr) else None
            assert isinstance(target, ast.Name)
            assert statement.value is not None
            yield target.id, statement.value, str(doc.value) if isinstance(doc, ast.Constant) else ""


def rows(name: str) -> dict[str, Any]:
    (value,) = [value for found, value, _ in documented(HERE / "__init__.py") if found == name]
    assert isinstance(value, ast.Dict)
    return {
        ast.literal_eval(key): value for key, value in zip(value.keys, value.values, strict=True) if key is not None
    }


OF_OBJECTS = {
    name
    for thing in (torch.zeros(1), torch.nn.LSTM(1, 1), torch.nn.BatchNorm1d(1))
    for name in (*dir(thing), *vars(thing))
    if is_private(name)
}
"""Private attributes of tensors and modules."""

BOUND = [
    (dotted(value), doc)
    for path in sorted(HERE.glob("*.py"))
    for _, value, doc in documented(path)
    if isinstance(value, ast.Attribute)
]
TRANSFORMS = [
    (f"{dotted(module)}.{name}", "calls of it are watched")
    for name, modules in rows("TRANSFORMS").items()
    for module in modules.elts
]


def found(path: str) -> Any:
    """What stands at a dotted path; modules on the way are imported."""
    names = path.split(".")
    if names[0] in ("parametrize", "parametrizations"):
        names = ["torch", "nn", "utils", *names]
    thing: Any = importlib.import_module(names[0])
    for number, name in enumerate(names[1:], 1):
        if not hasattr(thing, name):
            try:
                importlib.import_module(".".join(names[: number + 1]))
            except ModuleNotFoundError:
                return None
        thing = getattr(thing, name)
    return thing


@pytest.mark.parametrize(("path", "doc"), [*BOUND, *TRANSFORMS], ids=[path for path, _ in [*BOUND, *TRANSFORMS]])
def test_torch_has_it(path: str, doc: str) -> None:
    if found(path) is None:
        pytest.fail(
            f"torch {torch.__version__} has no {path}, which foldloom/torch_private binds. {doc}", pytrace=False
        )


def test_torchs_objects_have_the_attributes() -> None:
    compiled = torch.compile(torch.nn.Linear(1, 1))
    storage = torch.zeros(1).untyped_storage()
    things = [torch.zeros(1), storage, torch.nn.LSTM(1, 1), compiled, torch.ops.aten.add.Tensor, BackwardHook]
    for name, doc in rows("ATTRIBUTES").items():
        if not any(hasattr(thing, name) for thing in things):
            pytest.fail(
                f"torch {torch.__version__} has no attribute {name} any more. {ast.literal_eval(doc)}", pytrace=False
            )
    eval_frame = importlib.import_module("torch._dynamo.eval_frame")
    assert isinstance(compiled, eval_frame.OptimizedModule), "what torch.compile makes of a module has another class"


def test_each_says_what_to_do_if_it_goes() -> None:
    named = [(name, doc) for path in HERE.glob("*.py") for name, _, doc in documented(path) if name != "ATTRIBUTES"]
    named += [(name, ast.literal_eval(doc)) for name, doc in rows("ATTRIBUTES").items()]
    assert [name for name, doc in named if not re.search(r"If (it|one) goes: [\w`]", doc)] == []


# ---- Elsewhere there are none.


def own_names(tree: ast.AST) -> Iterator[str]:
    """Names and attributes that a module of ours gives."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and dotted(node.value) in ("self", "cls")
        ):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and is_private(node.value):
            yield node.value  # slots, and attributes that are set by name


def private_uses(tree: ast.AST, allowed: set[str]) -> Iterator[str]:
    """Uses of private names that are not ``allowed``. One of `OF_OBJECTS` is torch's unless it is an attribute of ``self``; so is a method
    that overrides one."""
    of_torch = OF_OBJECTS - set(rows("ATTRIBUTES"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and re.fullmatch(r"torch(\.\w+)+", node.value)
        ):
            names = [node.value]
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            is_own = node.attr in allowed and (node.attr not in of_torch or dotted(node.value) == "self")
            if not is_own:
                yield f"line {node.lineno}: {ast.unparse(node)}"
            continue
        elif isinstance(node, ast.Constant) and node.value in of_torch:
            yield f"line {node.lineno}: {node.value!r}"
            continue
        else:
            continue
        for name in names:
            if name.startswith("torch.") and any(map(is_private, name.split("."))):
                yield f"line {node.lineno}: {name}"


def test_no_private_name_of_torch_elsewhere() -> None:
    trees = {path: ast.parse(path.read_text()) for path in FOLDLOOM.rglob("*.py") if HERE not in path.parents}
    allowed = {name for tree in trees.values() for name in own_names(tree)} | OF_PYTHON | set(rows("ATTRIBUTES"))
    used = [
        f"{path.relative_to(FOLDLOOM)}, {use}" for path, tree in trees.items() for use in private_uses(tree, allowed)
    ]
    assert used == [], "bind it in foldloom/torch_private, and say there why and what to do if it goes"


def test_no_private_attribute_of_torch_elsewhere_in_c() -> None:
    python = [ast.parse(path.read_text()) for path in FOLDLOOM.rglob("*.py")]
    allowed = {name for tree in python for name in own_names(tree)} | set(rows("ATTRIBUTES"))
    for path in FOLDLOOM.rglob("*.c"):
        assert set(re.findall(r'"(_[a-z]\w*)"', path.read_text())) - allowed == set(), path


@pytest.mark.parametrize(
    "code",
    ["import torch._x", "from torch._x import y", "from torch.z import _y", "torch._x.y()", "x = tensor._secret", "f('torch._x')",
     "module._get_name()", "getattr(module, '_get_name')"],
)  # fmt: skip
def test_a_private_name_is_noticed(code: str) -> None:
    assert list(private_uses(ast.parse(code), {"_get_name"}))
