"""Functions of one argument that are a single expression, as text. Most functions of Python objects in blocks are such.

The text is Python's, the language is not: an expression is parsed, looked through whole, and computed by the functions of `plain`, node
by node. No code is made of it. It may use its argument, constants, operators, and those builtin functions and methods that only read data.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping
from typing import Any

from foldloom.errors import BlockInputError, ExportedFileError, MissingKeyError
from foldloom.pytrees.messages import shown
from foldloom.runtime import plain
from foldloom.runtime.limits import Meter, current_meter

MOST_TEXT = 10_000
MOST_NODES = 1_000
MOST_LEVELS = 50

Computed = Callable[[Any, Meter], Any]
"""From the argument and the meter of its example."""

_SAFE_CONSTANTS = (type(None), bool, int, float, complex, str, bytes)


class NotAllowedError(ValueError):
    """What an expression contains that none may."""


def function_of(text: Any, argument: Any, constants: Mapping[str, Any]) -> Callable[[Any], Any]:
    """The function with this expression as its body."""
    try:
        if not (isinstance(argument, str) and argument.isidentifier()):
            raise NotAllowedError("its argument has no name")
        compiler = Compiler(argument, constants)
        compute = compiler.compiled(parsed(text))
    except NotAllowedError as error:
        raise ExportedFileError(
            f"the program of this file has an expression that is not allowed, because {error}: {shown(text)}"
        ) from error
    return called(compute, text, compiler.steps)


def called(compute: Computed, says: str, steps: int = 1) -> Callable[[Any], Any]:
    """A function of one argument that counts its steps, and whose errors say what was computed of what."""

    def function(value: Any) -> Any:
        meter = current_meter()
        meter.spend(steps)
        try:
            return compute(value, meter)
        except (LookupError, TypeError, ValueError, ArithmeticError, MemoryError, RecursionError) as error:
            kind = MissingKeyError if isinstance(error, LookupError) else BlockInputError
            problem = f"{type(error).__name__}: {error}".replace("\n", " ")
            raise kind(
                f"`{says:.80}` cannot be computed of {shown(value)} ({type(value).__name__}): {problem:.200}"
            ) from error

    return function


def parsed(text: Any) -> ast.expr:
    """The expression in a text. Raises `NotAllowedError` if there is none."""
    if not isinstance(text, str) or len(text) > MOST_TEXT:
        raise NotAllowedError(f"it is no text of at most {MOST_TEXT:,} characters")
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise NotAllowedError(f"Python cannot read it ({type(error).__name__})") from error


def problem_with(expression: ast.expr, argument: str, constants: Collection[str]) -> str | None:
    """What an expression contains that is not allowed, if anything."""
    try:
        Compiler(argument, dict.fromkeys(constants)).compiled(expression)
    except NotAllowedError as error:
        return str(error)
    return None


def free_names(expression: ast.AST, argument: str) -> list[str]:
    """The names in an expression besides its argument and the functions that it may call."""
    names = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
    return sorted(names - set(plain.FUNCTIONS) - set(plain.TYPES) - {argument})


class Compiler:
    """Turns an expression into a function. All that it may contain is looked at while doing so, before anything is computed."""

    def __init__(self, argument: str, constants: Mapping[str, Any]) -> None:
        self._argument, self._constants = argument, constants
        self._nodes = 0

    def compiled(self, node: ast.expr, level: int = 0) -> Computed:
        self._nodes += 1
        if self._nodes > MOST_NODES or level > MOST_LEVELS:
            raise NotAllowedError(f"it has more than {MOST_NODES:,} parts or {MOST_LEVELS} levels")
        compile_node = _COMPILERS.get(type(node))
        if compile_node is None:
            raise NotAllowedError(f"it has {type(node).__name__} in it")
        return compile_node(self, node, level + 1)

    @property
    def steps(self) -> int:
        """How many parts were compiled: as many steps as the expression may take, besides what its functions count."""
        return self._nodes

    def _constant(self, node: ast.Constant, level: int) -> Computed:
        value = node.value
        if type(value) not in _SAFE_CONSTANTS:
            raise NotAllowedError(f"it has {value!r} in it")
        return lambda _, meter: value

    def _name(self, node: ast.Name, level: int) -> Computed:
        if node.id == self._argument:
            return lambda value, meter: value
        if node.id not in self._constants:
            raise NotAllowedError(f"it asks for {node.id}")
        constant = self._constants[node.id]
        return lambda _, meter: constant

    def _choice(self, node: ast.IfExp, level: int) -> Computed:
        test, yes, no = (self.compiled(part, level) for part in (node.test, node.body, node.orelse))
        return lambda value, meter: yes(value, meter) if plain.truth(test(value, meter)) else no(value, meter)

    def _junction(self, node: ast.BoolOp, level: int) -> Computed:
        parts = [self.compiled(part, level) for part in node.values]
        until = isinstance(node.op, ast.Or)

        def compute(value: Any, meter: Meter) -> Any:
            for part in parts:
                found = part(value, meter)
                if plain.truth(found) is until:
                    break
            return found

        return compute

    def _comparison(self, node: ast.Compare, level: int) -> Computed:
        parts = [self.compiled(part, level) for part in (node.left, *node.comparators)]
        names = [type(sign).__name__ for sign in node.ops]

        def compute(value: Any, meter: Meter) -> Any:
            left = parts[0](value, meter)
            for name, part in zip(names, parts[1:], strict=True):
                right = part(value, meter)
                found = plain.compare(meter, name, left, right)
                if len(names) > 1 and not plain.truth(found):
                    break
                left = right
            return found

        return compute

    def _sign(self, node: ast.UnaryOp, level: int) -> Computed:
        name, operand = type(node.op).__name__, self.compiled(node.operand, level)
        return lambda value, meter: plain.unary(name, operand(value, meter))

    def _operator(self, node: ast.BinOp, level: int) -> Computed:
        operate = plain.BINARY.get(type(node.op).__name__)
        if operate is None:
            raise NotAllowedError(f"it has {type(node.op).__name__} in it")
        left, right = self.compiled(node.left, level), self.compiled(node.right, level)
        return lambda value, meter: operate(meter, left(value, meter), right(value, meter))

    def _item(self, node: ast.Subscript, level: int) -> Computed:
        of, key = self.compiled(node.value, level), self.compiled(node.slice, level)
        return lambda value, meter: plain.item(meter, of(value, meter), key(value, meter))

    def _slice(self, node: ast.Slice, level: int) -> Computed:
        bounds = [ast.Constant(None) if part is None else part for part in (node.lower, node.upper, node.step)]
        lower, upper, step = (self.compiled(part, level) for part in bounds)
        return lambda value, meter: slice(lower(value, meter), upper(value, meter), step(value, meter))

    def _collected(self, node: ast.Tuple | ast.List | ast.Set, level: int) -> Computed:
        parts = [self.compiled(part, level) for part in node.elts]
        make: Any = {ast.Tuple: tuple, ast.List: list, ast.Set: set}[type(node)]

        def compute(value: Any, meter: Meter) -> Any:
            found = [part(value, meter) for part in parts]
            if make is set:
                plain.look_through(meter, found)
            return make(found)

        return compute

    def _mapping(self, node: ast.Dict, level: int) -> Computed:
        if None in node.keys:
            raise NotAllowedError("it has ** in it")
        keys = [self.compiled(key, level) for key in node.keys if key is not None]
        parts = [self.compiled(part, level) for part in node.values]

        def compute(value: Any, meter: Meter) -> Any:
            found = [key(value, meter) for key in keys]
            plain.look_through(meter, found)
            return dict(zip(found, [part(value, meter) for part in parts], strict=True))

        return compute

    def _call(self, node: ast.Call, level: int) -> Computed:
        if node.keywords:
            raise NotAllowedError("it has a keyword in it")
        if isinstance(node.func, ast.Attribute):
            return self._method(node.func, node.args, level)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in plain.FUNCTIONS or name == self._argument or name in self._constants:
            raise NotAllowedError(f"it calls {name or 'what it makes itself'}")
        if name == "isinstance":
            return self._isinstance(node.args, level)
        function, args = plain.FUNCTIONS[name], [self.compiled(arg, level) for arg in node.args]
        if len(args) == 1:
            (arg,) = args
            return lambda value, meter: function(meter, arg(value, meter))
        return lambda value, meter: function(meter, *[arg(value, meter) for arg in args])

    def _method(self, node: ast.Attribute, args: list[ast.expr], level: int) -> Computed:
        if node.attr not in plain.METHODS:
            raise NotAllowedError(f"it asks for .{node.attr}")
        name, of, given = node.attr, self.compiled(node.value, level), [self.compiled(arg, level) for arg in args]
        return lambda value, meter: plain.method(meter, name, of(value, meter), *[arg(value, meter) for arg in given])

    def _isinstance(self, args: list[ast.expr], level: int) -> Computed:
        if len(args) != 2:
            raise NotAllowedError("isinstance takes a value and types")
        of, kinds = self.compiled(args[0], level), tuple(self._types(args[1], level))
        return lambda value, meter: isinstance(of(value, meter), kinds)

    def _types(self, node: ast.expr, level: int) -> list[type]:
        if level > MOST_LEVELS:
            raise NotAllowedError(f"it has more than {MOST_LEVELS} levels")
        if isinstance(node, ast.Name) and node.id in plain.TYPES:
            return [plain.TYPES[node.id]]
        if isinstance(node, ast.Tuple):
            return [kind for part in node.elts for kind in self._types(part, level + 1)]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return self._types(node.left, level + 1) + self._types(node.right, level + 1)
        raise NotAllowedError(f"isinstance takes {', '.join(plain.TYPES)}")


_COMPILERS: dict[type[ast.expr], Callable[[Compiler, Any, int], Computed]] = {
    ast.Constant: Compiler._constant,
    ast.Name: Compiler._name,
    ast.IfExp: Compiler._choice,
    ast.BoolOp: Compiler._junction,
    ast.Compare: Compiler._comparison,
    ast.UnaryOp: Compiler._sign,
    ast.BinOp: Compiler._operator,
    ast.Subscript: Compiler._item,
    ast.Slice: Compiler._slice,
    ast.Tuple: Compiler._collected,
    ast.List: Compiler._collected,
    ast.Set: Compiler._collected,
    ast.Dict: Compiler._mapping,
    ast.Call: Compiler._call,
}
