"""From a number, the text of a program for one example, and of the examples to run it on."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from benchmarks.fuzz.grammar import CONSTANTS, TEMPLATES
from benchmarks.fuzz.prelude import indented, prelude
from benchmarks.fuzz.statements import RISKS, WEIGHED
from benchmarks.fuzz.statements_that_raise import ERRORS

Scope = dict[str, list[str]]

KINDS_OF_X = "VSMKT"
USED = ["all", "all", "first", "last", "one tensor", "every second"]


class _NothingThereError(Exception):
    """A template asks for a variable of a kind that there is none of."""


def _copied(scope: Scope) -> Scope:
    return {kind: list(names) for kind, names in scope.items()}


class Writer:
    """Writes statements and expressions, with a name for each new variable."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.names = 0
        self.statements_left = rng.choice([4, 8, 12, 16])

    def expression(self, kind: str, scope: Scope, depth: int) -> str:
        known = scope.get(kind, [])
        if known and self.rng.random() < (0.8 if depth < 2 else 0.45):
            return self.rng.choice(known)
        if depth <= 0:
            return self.rng.choice(known or CONSTANTS[kind])
        return self.filled(self.rng.choice(TEMPLATES[kind]), scope, depth - 1)

    def filled(self, template: str, scope: Scope, depth: int) -> str:
        """Expressions for the kinds in a template; a kind with a stroke repeats the one before."""
        last: dict[str, str] = {}

        def fill(found: re.Match[str]) -> str:
            if not found[2]:
                last[found[1]] = self.expression(found[1], scope, depth)
            return last[found[1]]

        return re.sub(r"\{([VSMNIKifbLR])('?)\}", fill, template)

    def statement(self, scope: Scope, depth: int, templates: list[str] | None = None) -> list[str]:
        while True:
            chosen = templates or self.rng.choices([t for _, t in WEIGHED], [w for w, _ in WEIGHED])[0]
            try:
                return _Filling(self, scope, depth).lines(self.rng.choice(chosen))
            except _NothingThereError:
                continue

    def block(self, scope: Scope, depth: int) -> list[str]:
        inner = _copied(scope)
        if depth <= 0 or self.statements_left <= 0:
            return [f"{self.rng.choice(scope['V'])}.exp()"] if scope.get("V") else ["pass"]
        return [line for _ in range(self.rng.choice([1, 1, 2])) for line in self.statement(inner, depth)]

    def body(self, scope: Scope, depth: int, count: int) -> list[str]:
        return [line for _ in range(count) for line in self.statement(scope, depth)]


class _Filling:
    """One statement: what it makes is in scope for what follows it, what is local to it in its own blocks alone."""

    def __init__(self, writer: Writer, scope: Scope, depth: int) -> None:
        self.writer, self.outer, self.depth = writer, scope, depth
        self.inner = _copied(scope)
        self.made: list[tuple[str, str]] = []
        self.local: list[tuple[str, str]] = []

    def lines(self, template: str) -> list[str]:
        self.writer.statements_left -= 1
        written: list[str] = []
        for line in template.split("\n"):
            indent = (len(line) - len(line.lstrip())) // 4
            written += indented(self._filled(line.strip()), indent)
        for kind, name in self.made:
            self.outer.setdefault(kind, []).append(name)
        return written

    def _filled(self, line: str) -> list[str]:
        if line == "{block}":
            return self.writer.block(self.inner, self.depth - 1)
        if line == "{risky}":
            return self.writer.statement(_copied(self.inner), self.depth - 1, RISKS)
        before = len(self.made), len(self.local)
        text = line.replace("{it}", self.made[-1][1] if self.made else "")
        text = re.sub(r"\{(new|local|old):(\w)\}", self._variable, text)
        text = self.writer.filled(text, self._readable(line), 2)
        for kind, name in self.made[before[0] :] + self.local[before[1] :]:
            self.inner.setdefault(kind, []).append(name)
        return [text.replace("{error}", self.writer.rng.choice(ERRORS))]

    def _readable(self, line: str) -> Scope:
        """What a branch or a handler gives a value may have none yet."""
        if not line.startswith("{it} ="):
            return self.inner
        return {kind: [name for name in names if name != self.made[-1][1]] for kind, names in self.inner.items()}

    def _variable(self, found: re.Match[str]) -> str:
        how, kind = found[1], found[2]
        if how == "old":
            known = [name for name in self.inner.get(kind, []) if name not in ("x", "n")]
            if not known:
                raise _NothingThereError
            return self.writer.rng.choice(known)
        self.writer.names += 1
        name = f"{kind.lower()}{self.writer.names}"
        (self.made if how == "new" else self.local).append((kind, name))
        return name


def _number(rng: random.Random) -> str:
    return str(rng.choice([0.0, 0.5, -0.5, 1.0, *[round(rng.uniform(-2, 2), 2) for _ in range(8)]]))


def _tensor(rng: random.Random, shape: Callable[[], str], needs: bool) -> str:
    return f"torch.tensor({shape()}, requires_grad={needs})"


def _vector(rng: random.Random, length: int) -> str:
    return "[" + ", ".join(_number(rng) for _ in range(length)) + "]"


def _tree(rng: random.Random, depth: int) -> str:
    if depth == 0 or rng.random() < 0.3:
        return str(rng.randrange(4))
    return "[" + ", ".join(_tree(rng, depth - 1) for _ in range(rng.choice([1, 2, 2, 3]))) + "]"


def _example(rng: random.Random, kind: str, needs: bool) -> str:
    length = rng.choice([0, 1, 2, 3, 3, 4, 5])
    if kind == "V":
        return _tensor(rng, lambda: _vector(rng, 3), needs)
    if kind == "S":
        return _tensor(rng, lambda: _vector(rng, length), needs)
    if kind == "M":
        return _tensor(rng, lambda: "[" + ", ".join(_vector(rng, 3) for _ in range(max(length, 1))) + "]", needs)
    if kind == "K":
        return "[" + ", ".join(str(rng.randrange(3)) for _ in range(length)) + "]"
    return _tree(rng, 3)


def _examples(rng: random.Random, kind: str) -> list[str]:
    needs = rng.choice([True, True, False, None])
    rows = []
    for _ in range(rng.choice([2, 3, 4, 5])):
        x = _example(rng, kind, rng.random() < 0.5 if needs is None else needs)
        rows.append(f"    ({x}, {rng.randrange(5)}),")
    return ["EXAMPLES = [", *rows, "]"]


AS_VECTOR = {
    "V": ["return x * 0.5"],
    "S": ["return F.pad(x, (0, 3))[:3]"],
    "M": ["return x.sum(0)"],
    "K": ["return net.table(torch.tensor(x, dtype=torch.long)).sum(0)"],
    "T": [
        "if isinstance(x, int):",
        "    return net.table(torch.tensor(x))",
        "v = torch.zeros(3)",
        "for branch in x:",
        "    v = torch.tanh(net.linear(v) + x_as_vector(branch))",
        "return v",
    ],
}


def _helper(writer: Writer) -> list[str]:
    """A function of a vector and a count, which may call itself with a smaller one."""
    scope: Scope = {"V": ["v"], "i": ["k"]}
    lines = ["if k <= 0:", "    return v", "k = min(k, 3) - 1"]
    if writer.rng.random() < 0.5:
        lines += ["if v.sum() > 1.7:", "    return v * 0.5"]
    lines += [f"v = v * {writer.rng.choice(['0.5', 'net.scale', 'net.weight[1]'])}"]
    if writer.rng.random() < 0.4:
        body = writer.body(scope, 1, 1)
        lines += [] if any("helper" in line or "x_as_vector" in line for line in body) else body
    return lines + ["return helper(v, k)"]


def generated(seed: int) -> str:
    """A program as text: what it calls, ``program(x, n)``, ``EXAMPLES`` and which of its results the loss is made of."""
    rng = random.Random(seed)
    writer = Writer(rng)
    kind = rng.choice(KINDS_OF_X)
    scope: Scope = {"V": ["base"], "i": ["n"]}
    if kind in "VSM":
        scope.setdefault(kind, []).append("x")
    lines = prelude(rng)
    lines += ["def x_as_vector(x):", *indented(AS_VECTOR[kind])]
    lines += ["def helper(v, k):", *indented(["n = k", "x = v", *_helper_safe(writer)])]
    body = ["base = x_as_vector(x)"]
    if kind == "K":
        body.append("rows = net.table(torch.tensor(x, dtype=torch.long))")
        scope["M"] = ["rows"]
    body += writer.body(scope, 3, rng.choice([1, 2, 3, 4, 6]))
    body.append(f"return {_result(writer, scope)}")
    lines += ["def program(x, n):", *indented(body)]
    lines += _examples(rng, kind)
    cells = rng.sample(["linear", "norm", "seq", "table"], rng.choice([1, 2, 3]))
    lines += [f"CELLS = {cells!r}", f"USED = {rng.choice(USED)!r}"]
    return "\n".join(lines) + "\n"


def _helper_safe(writer: Writer) -> list[str]:
    left, writer.statements_left = writer.statements_left, 1
    lines = _helper(writer)
    writer.statements_left = left
    return lines


def _result(writer: Writer, scope: Scope) -> str:
    """Results of all sorts, most often with what was computed last, so that little is in vain."""
    parts = [writer.expression("R", scope, 2) for _ in range(writer.rng.choice([0, 1, 1, 2]))]
    names = [name for kind in "VNSMIKLfi" for name in scope.get(kind, []) if name not in ("x", "n")]
    parts += writer.rng.sample(names, min(len(names), writer.rng.choice([1, 2, 3])))
    return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
