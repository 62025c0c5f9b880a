"""Arithmetic expressions in brackets with their value or their sign, as the SPINN project has them: ``-	( - ( 1 10 ) )``."""

from __future__ import annotations

import operator
import random
import re

from foldloom.data.brackets import Bracket, parse_brackets
from foldloom.data.reading import Reader
from foldloom.data.structures import Expression
from foldloom.errors import DataError

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_SIGNS = {"-": -1, "0": 0, "+": 1}
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")
LARGEST = 10**1000
"""Values beyond it are refused: a line of products may have one that takes minutes to compute."""


class ArithmeticReader(Reader[Expression]):
    """A line is an expression, or its value or sign and, after a tab, the expression; what it says of its value must be true.

    >>> ArithmeticReader().parse("( - ( 1 ( + ( 2 7 ) ) ) )").value
    -8
    >>> ArithmeticReader().parse("+\\t( - ( 1 10 ) )")
    Traceback (most recent call last):
    foldloom.errors.DataError: expected the value or the sign of ( - ( 1 10 ) ), which is -9, not '+'
    """

    def parse(self, text: str) -> Expression:
        said, tab, notation = text.rpartition("\t")
        expression = self._expression_in(notation)
        if tab and not _is_true(said, expression):
            raise DataError(
                f"expected the value or the sign of {_cut(str(expression))}, which is {_cut(str(expression.value))}, not {_cut(repr(said))}"
            )
        return expression

    def _expression_in(self, notation: str) -> Expression:
        if _NUMBER.fullmatch(notation.strip()):
            return Expression(int(notation))
        return _expression_of(parse_brackets(notation, self.limits))


def made_expressions(count: int, seed: int, *, most: int = 5, largest: int = 10) -> list[Expression]:
    """Different sums and differences of two to ``most`` numbers, each from ``-largest`` to ``largest``.

    >>> print(made_expressions(1, seed=0)[0])
    ( + ( ( + ( -2 ( + ( ( - ( -1 5 ) ) 8 ) ) ) ) -1 ) )
    """
    source = random.Random(seed)
    found: dict[str, Expression] = {}
    while len(found) < count:
        expression = _made(source, source.randint(2, most), largest)
        found[str(expression)] = expression
    return list(found.values())


def _made(source: random.Random, numbers: int, largest: int) -> Expression:
    if numbers == 1:
        return Expression(source.randint(-largest, largest))
    split = source.randint(1, numbers - 1)
    left, right = _made(source, split, largest), _made(source, numbers - split, largest)
    return _applied(source.choice("+-"), left, right)


def _applied(sign: str, left: Expression, right: Expression) -> Expression:
    value = OPERATORS[sign](left.value, right.value)
    if abs(value) > LARGEST:
        raise DataError("expected an expression whose value has a thousand digits at most")
    return Expression(value, sign, (left, right))


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}..."


def _is_true(said: str, expression: Expression) -> bool:
    if said in _SIGNS:
        return _SIGNS[said] == expression.sign
    return bool(_NUMBER.fullmatch(said)) and int(said) == expression.value


def _expression_of(root: Bracket) -> Expression:
    """Without recursion: expressions may be deeper than Python's stack."""
    pending: list[Bracket] = [root]
    backwards: list[tuple[Bracket, str, tuple[str | Bracket, str | Bracket]]] = []
    while pending:
        bracket = pending.pop()
        sign, sides = _sides(bracket)
        backwards.append((bracket, sign, sides))
        pending += [side for side in sides if isinstance(side, Bracket)]
    found: dict[int, Expression] = {}
    for bracket, sign, sides in reversed(backwards):
        left, right = [found.pop(id(side)) if isinstance(side, Bracket) else _number(side) for side in sides]
        found[id(bracket)] = _applied(sign, left, right)
    return found[id(root)]


def _sides(bracket: Bracket) -> tuple[str, tuple[str | Bracket, str | Bracket]]:
    match bracket.items:
        case [str(sign), Bracket(items=[left, right])] if sign in OPERATORS:
            return sign, (left, right)
    known = ", ".join(OPERATORS)
    raise DataError(f"expected `( operator ( left right ) )` with an operator of {known}", line=bracket.line)


def _number(text: str) -> Expression:
    if not _NUMBER.fullmatch(text):
        raise DataError(f"expected a whole number, not {_cut(repr(text))}")
    return Expression(int(text))
