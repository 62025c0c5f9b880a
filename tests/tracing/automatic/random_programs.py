"""Random programs with functions, methods, loops, closures, waits and writes, in which what automatic cells rely on changes on the way.

`python -m tests.tracing.automatic.random_programs --seed 0 --count 1000` tries many; the test beside it tries a few. A program is text. It is run
anew for each way: one by one, batched without automatic cells, and batched with them, everything captured at its first call, twice.
"""

from __future__ import annotations

import argparse
import random
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

import foldloom as fl
from foldloom.tracing import fast_path
from tests.never_wrong.checking import assert_same, gradients, loss_of

T = TypeVar("T")
Choose = Callable[[Sequence[Any]], Any]

EXAMPLES = 7

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F

C0, C1 = 0.5, 2
TABLE = {"w": 0.25, "n": 3}
NUMBERS = [0.5, 1.5, -0.5]

def plus_one(a): return a + 1
def halved(a): return torch.tanh(a) * 0.5
def other(a, w=0.5): return torch.sigmoid(a) - w
def first_of(r, a): return torch.tanh(r[0] * 2 + a) * 0.5
def few_of(r, a): return torch.sigmoid(r[:2]).sum(0) - a
def all_of(r, a): return (torch.tanh(r) * a).mean(0)
"""

MODULE = """
class Model(nn.Module):
    kind = 2.0

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.weight = nn.Parameter(torch.randn(3))
        self.scale, self.flag, self.steps = 1.0, True, 2
        self.act = torch.tanh
        self.parts = nn.ModuleList([nn.Linear(3, 3) for _ in range(2)])
        self.seen = []

    @property
    def doubled(self):
        return self.scale * 2
"""

LEAVES = (
    "a", "b", "w", "a", "b", "w", "self.weight", "s[0]", "t[1]", "torch.zeros(3)", "torch.ones(3) * C0",
)  # fmt: skip
UNARY = (
    "torch.tanh({})", "({}).sigmoid()", "F.relu({})", "self.layer({})", "self.act({})", "self.parts[n % 2]({})", "-({})",
    "({}) * self.scale", "({}) * C0", "({}) + C1", "({}) * self.kind", "({}) * self.doubled", "({}) * TABLE['w']",
    "({}) * NUMBERS[n % 3]", "({}) * torch.tensor(float(n))", "({}).view(3)", "torch.cat([{}, a])[:3]", "({}) * n",
    "({}).flip(0)", "torch.stack([{}, b]).sum(0)", "torch.stack(ws).mean(0) + ({})", "({}) * (0.5 if self.flag else 2.0)",
    "F.softmax({}, dim=-1)", "({}).detach() * 2", "(r * ({})).sum(0)", "r[-1] * ({})", "r[:2].mean(0) + ({})", "r.flip(0)[0] - ({})",
    "first_of(r, {})", "few_of(r, {})", "all_of(r, {})", "first_of(torch.stack([a, {}]), a)",
)  # fmt: skip
BINARY = ("({}) + ({})", "({}) * ({})", "({}) - ({})", "torch.maximum({}, {})", "torch.lerp({}, {}, 0.5)")

VIOLATIONS = (
    ("old = globals()['C0']; globals()['C0'] = 3.0", "globals()['C0'] = old"),
    ("old = self.scale; self.scale = 5.0", "self.scale = old"),
    ("old = self.flag; self.flag = not old", "self.flag = old"),
    ("old = self.act; self.act = torch.sigmoid", "self.act = old"),
    ("old = Model.kind; Model.kind = 7.0", "Model.kind = old"),
    ("old = globals()['halved']; globals()['halved'] = plus_one", "globals()['halved'] = old"),
    ("old = halved.__code__; halved.__code__ = plus_one.__code__", "halved.__code__ = old"),
    ("old = other.__defaults__; other.__defaults__ = (4.0,)", "other.__defaults__ = old"),
    ("old = self.layer.register_forward_hook(lambda m, i, o: o * 2)", "old.remove()"),
    ("old = self.layer; self.layer = self.parts[0]", "self.layer = old"),
    ("TABLE['w'] = 9.0", "TABLE['w'] = 0.25"),
    ("NUMBERS[1] = 6.0", "NUMBERS[1] = 1.5"),
    ("old = a; a = a > 0", "a = old"),
    ("old = torch.is_grad_enabled(); torch.set_grad_enabled(False)", "torch.set_grad_enabled(old)"),
    ("self.eval()", "self.train()"),
    ("old = n; n = 1.5", "n = old"),
    ("old = n; n = True", "n = old"),
    ("old = b; b = b.unsqueeze(0)", "b = old"),
    ("old = b; b = torch.nn.Parameter(b.detach())", "b = old"),
    ("old = s; s = [a, b]", "s = old"),
    ("old = w; del w", "w = old"),
    ("globals()['len'] = lambda x: 1", "del globals()['len']"),
)  # fmt: skip
"""What changes, and how it is undone: in between stands code that has been run before."""


class Writer:
    """Writes one program."""

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self._methods = 0
        self._functions: list[str] = []

    def program(self) -> str:
        functions = "\n".join([self._function(number) for number in range(self._choose((0, 1, 2)))])
        methods = "\n".join([self._method(number) for number in range(self._choose((0, 1, 2)))])
        return f"{HEAD}\n{functions}\n{MODULE}\n{textwrap.indent(methods, '    ')}\n{textwrap.indent(self._forward(), '    ')}"

    def _function(self, number: int) -> str:
        body = self._body(depth=1, waits=False, of_model=False)
        self._functions.append(f"f{number}(self, {{}}, {{}}, ws, n)")
        return _defined(f"f{number}(self, a, b, ws, n, k=1.5)", body, "return a * k + b")

    def _method(self, number: int) -> str:
        body = self._body(depth=1, waits=self._choose((False, True)), of_model=True)
        self._functions.append(f"self.m{number}({{}}, {{}}, ws, n)")
        return _defined(f"m{number}(self, a, b, ws, n, k=0.5)", body, "return b * k - a")

    def _forward(self) -> str:
        start = self._choose(("pass", "self.scale = 1.0 + number % 2", "self.flag = number % 3 > 0", "n = number % 4"))
        body = [start, *self._body(depth=2, waits=True, of_model=True)]
        returned = self._choose(
            ("a + b", "(a, b, n)", "torch.stack(outs).sum(0) + a", "[a, *outs]", "{'a': a, 'b': (b, n)}")
        )
        prepared = ["a, b, n, k = ws[0], ws[-1] * 2, 1, 2.0"]
        return _defined("forward(self, ws, number)", [*prepared, *self._prepared(), *body], f"return {returned}")

    @staticmethod
    def _prepared() -> list[str]:
        return ["w, s, t, outs, r = a, (a, b), [b, a], [a], torch.stack([a, b])"]

    # ---- Statements.

    def _body(self, depth: int, waits: bool, of_model: bool) -> list[str]:
        lines = [] if depth == 2 else self._prepared()
        for _ in range(self._choose((2, 3, 4, 5))):
            lines += self._statement(depth, waits)
        return lines

    def _block(self, depth: int, waits: bool) -> list[str]:
        lines = [line for _ in range(self._choose((1, 2, 3))) for line in self._statement(depth - 1, waits)]
        return textwrap.indent("\n".join(lines), "    ").split("\n")

    def _statement(self, depth: int, waits: bool) -> list[str]:
        simple = (
            self._assign,
            self._assign,
            self._assign,
            self._append,
            self._swap,
            self._count,
            self._pair,
            self._comprehension,
        )
        nested = (
            self._loop,
            self._range,
            self._while,
            self._branch,
            self._violated,
            self._violated,
            self._caught,
            self._closure,
        )
        kinds = simple if depth == 0 else (*simple, *nested, *(() if not waits else (self._wait, self._index)))
        lines: list[str] = self._choose(kinds)(depth, waits)
        return lines

    def _assign(self, depth: int, waits: bool) -> list[str]:
        return [f"{self._choose(('a', 'b', 'w'))} = {self._expression(2)}"]

    def _append(self, depth: int, waits: bool) -> list[str]:
        return [f"outs.append({self._expression(1)})"]

    def _swap(self, depth: int, waits: bool) -> list[str]:
        return [
            self._choose(
                (
                    "a, b = b, a",
                    "w = a",
                    "b = a; a = a * 2",
                    "del w; w = b",
                    "s = (b, w)",
                    "t = [a, w]",
                    "a, b = s",
                    "r = torch.stack([a, b, w])",
                    "r = torch.stack([b])",
                    "r = torch.stack(ws)",
                    "r = torch.cat([r, r[:1]])",
                    "r = r[1:] if len(r) > 1 else r",
                    "r = torch.tanh(r)",
                    "a = r[0]",
                    "w, b = r[-1], r[0]",
                )
            )
        ]

    def _count(self, depth: int, waits: bool) -> list[str]:
        return [self._choose(("n += 1", "n = n + 1", "n = 0", "n = len(ws)", "n = len(outs)", "n = n * 2 % 5"))]

    def _pair(self, depth: int, waits: bool) -> list[str]:
        return [f"a, b = {self._expression(1)}, {self._expression(1)}"]

    def _comprehension(self, depth: int, waits: bool) -> list[str]:
        return [f"t = [{self._expression(1)} for w in [a, *ws]]"]

    def _loop(self, depth: int, waits: bool) -> list[str]:
        head = self._choose(
            ("for w in ws:", "for n, w in enumerate(ws):", "for w, v in zip(ws, [a, b]):", "for w in t:")
        )
        return [head, *self._block(depth, waits)]

    def _range(self, depth: int, waits: bool) -> list[str]:
        head = self._choose(("for n in range(3):", "for i in range(len(ws)):", "for i in range(self.steps):"))
        return [head, *self._block(depth, waits), *(("    a = a + ws[i % len(ws)]",) if " i " in head else ())]

    def _while(self, depth: int, waits: bool) -> list[str]:
        m = f"m{depth}"  # of its own, so that loops in loops end
        return [f"{m} = 0", f"while {m} < {self._choose((1, 3))}:", *self._block(depth, waits), f"    {m} += 1"]

    def _branch(self, depth: int, waits: bool) -> list[str]:
        test = self._choose(
            (
                "self.flag",
                "n % 2",
                "self.training",
                "n > 1 and self.flag",
                "self.scale > 1",
                "w is None",
                "isinstance(n, int)",
            )
        )
        other = ["else:", *self._block(depth, waits)] if self._choose((False, True)) else []
        return [f"if {test}:", *self._block(depth, waits), *other]

    def _wait(self, depth: int, waits: bool) -> list[str]:
        head = self._choose(("if ({}).sum() > 0:", "if float(({}).mean()) > 0.1:", "if bool((({}) > 0).any()):"))
        return [head.format(self._expression(1)), *self._block(depth, waits)]

    def _index(self, depth: int, waits: bool) -> list[str]:
        return [f"n = int(({self._expression(1)}).argmax())", "a = a * self.weight[n]"]

    def _violated(self, depth: int, waits: bool) -> list[str]:
        change, undo = self._choose(VIOLATIONS)
        is_local = " w" in change  # what is deleted must not be read
        lines = (
            [f"b = b + {self._call()}"] if is_local else [line for _ in range(2) for line in self._statement(0, False)]
        )
        if is_local:
            lines = ["b = b * 0.5 + a", "a = torch.tanh(a)"]
        when = self._choose(("number == 4", "number > 2", "number % 2", "True"))
        return [f"if {when}:", *_indented([change, *lines, undo]), *_indented([*lines], "else:")]

    def _caught(self, depth: int, waits: bool) -> list[str]:
        return [
            "try:",
            *self._block(depth, waits),
            "    if number == 3: raise ValueError('no')",
            "except ValueError:",
            "    a = a * 3",
        ]

    def _closure(self, depth: int, waits: bool) -> list[str]:
        body = self._choose(("z * k + a", "torch.tanh(z) + b * n", "(z - a) * self.scale"))
        return [f"def inner(z, k=k): return {body}", "w = inner(w) + inner(b, 2.0)"]

    # ---- Expressions.

    def _expression(self, depth: int) -> str:
        kinds = (self._leaf, self._unary, self._unary, self._binary, self._named) if depth else (self._leaf,)
        written: str = self._choose(kinds)(depth)
        return written

    def _leaf(self, depth: int) -> str:
        return str(self._choose(LEAVES))

    def _unary(self, depth: int) -> str:
        return str(self._choose(UNARY)).format(self._expression(depth - 1))

    def _binary(self, depth: int) -> str:
        return str(self._choose(BINARY)).format(self._expression(depth - 1), self._expression(depth - 1))

    def _named(self, depth: int) -> str:
        called = self._choose(("halved({})", "plus_one({})", "other({})", "other({}, w=0.1)", *self._functions[-2:]))
        parts = [self._expression(depth - 1) for _ in range(called.count("{}"))]
        return str(called).format(*parts)

    def _call(self) -> str:
        return self._named(1)


def _indented(lines: Sequence[str], head: str = "") -> list[str]:
    return [*([head] if head else []), *["    " + line for line in lines]]


def _defined(head: str, body: Sequence[str], last: str) -> str:
    names = "number = n" if "number" not in head else "pass"
    return "\n".join([f"def {head}:", *_indented([names, *body, last])]) + "\n"


# ---- Running.


@contextmanager
def captured_at_once() -> Iterator[None]:
    before = fast_path.automatic.capture_from(0)
    try:
        yield
    finally:
        fast_path.automatic.capture_from(before)


def _made(source: str) -> tuple[torch.nn.Module, list[list[torch.Tensor]], list[int]]:
    torch.manual_seed(0)
    space: dict[str, Any] = {"__name__": "program"}
    exec(compile(source, "program.py", "exec", dont_inherit=True), space)
    model = space["Model"]().double()
    words = [[torch.randn(3, dtype=torch.float64) for _ in range(1 + k % 3)] for k in range(EXAMPLES)]
    return model, words, list(range(EXAMPLES))


def _found(source: str, run: Callable[..., Any], rounds: int) -> Any:
    """The results of the last round with their gradients, or the error."""
    torch.set_grad_enabled(True)  # what another way has left
    model, words, numbers = _made(source)
    found: Any = None
    for _ in range(rounds):
        for row in words:
            for word in row:
                word.requires_grad_(numbers[len(row) % 2] == 0)
        try:
            results = run(model)(words, numbers)
        except Exception as error:
            found = (type(error).__name__, None)
            continue
        sources = [*model.parameters(), *[word for row in words for word in row if word.requires_grad]]
        found = (results, gradients(results, sources, loss_of))
    return found


def check(source: str) -> bool:
    """Raise if batching makes a difference, with automatic cells or without. False if the program fails one by one, or is refused because its
    examples change what others see."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = _found(source, fl.one_by_one, 1)
            without = _found(source, lambda model: fl.batch(model, automatic_cells=False), 1)
            with captured_at_once():
                actual = [_found(source, fl.batch, rounds) for rounds in (1, 3)]
    finally:
        torch.set_default_dtype(default)
        torch.set_grad_enabled(True)
    if isinstance(expected[0], str) or without[0] == fl.errors.SharedStateError.__name__:
        return False
    _assert_same(without, expected, f"without automatic cells\n{source}")
    for found in actual:
        _assert_same(found, expected, source)
    return True


def _assert_same(found: Any, expected: Any, source: str) -> None:
    assert not isinstance(found[0], str), f"{found[0]} is raised\n{source}"
    try:
        assert_same(found, expected)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{source}") from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tried = failed = 0
    for seed in range(options.seed, options.seed + options.count):
        try:
            tried += check(Writer(random.Random(seed).choice).program())
        except AssertionError as error:
            failed += 1
            print(f"== seed {seed}\n{error}", flush=True)
    print(f"{options.count} programs, {tried} compared, {failed} differ")


if __name__ == "__main__":
    main()
