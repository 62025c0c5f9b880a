"""The graph in an ``.onnx``, looked at before ONNX Runtime reads it.

A few bytes of a graph can keep ONNX Runtime busy for hours: functions that call each other twice are written out when it is loaded. Strings and
sequences lie outside of the arena that limits memory. `fl.export` writes none of these, so they are refused, and the rest is counted.

The file is walked through as it is stored, in the wire format of Protocol Buffers: whoever only runs models does not have the package `onnx`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from foldloom.pytrees.messages import shown

MOST_LEVELS = 25
"""Of graphs in loops and branches."""
_OF_ONNX = ("", "ai.onnx")
_REFUSED = (
    "Sequence",
    "SplitToSequence",
    "ConcatFromSequence",
    "Optional",
    "String",
    "RegexFullMatch",
    "TfIdf",
    "ImageDecoder",
)
"""How operators begin that make or take sequences and strings."""
_STRING = 8
"""The number of the type of strings."""

_NUMBER: Final = 0
_BYTES: Final = 2
_FIXED: Final = {1: 8, 5: 4}


class GraphError(ValueError):
    """What is in a graph that may not be."""


class TooManyNodes(GraphError):  # noqa: N818
    pass


Span = tuple[int, int]


class Walk:
    """Through all of a model."""

    def __init__(self, content: bytes, nodes: int) -> None:
        self._content, self._left = content, nodes

    def model(self) -> None:
        for number, value in self._fields((0, len(self._content))):
            if number == 7:
                self._graph(_span(value), 1)
            elif number == 25:
                raise GraphError("its graph has functions of its own")
            elif number == 20:
                raise GraphError("it says how to train it")

    def _graph(self, span: Span, level: int) -> None:
        if level > MOST_LEVELS:
            raise GraphError(f"its graph has more than {MOST_LEVELS} graphs in each other")
        for number, value in self._fields(span):
            if number in (1, 5, 11, 12, 13, 14):
                self._count()
            if number == 1:
                self._node(_span(value), level)
            elif number == 5:
                self._tensor(_span(value))
            elif number == 15:
                raise GraphError("its graph has sparse weights")

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise TooManyNodes("its graph has more than {:,} operators, weights and values")

    def _node(self, span: Span, level: int) -> None:
        for number, value in self._fields(span):
            if number in (1, 2):
                self._count()
            elif number == 4:
                name = self._bytes(value).decode("utf-8", "replace")
                if name.startswith(_REFUSED):
                    raise GraphError(f"its graph has an operator on sequences or strings, {shown(name)}")
            elif number == 7 and (domain := self._bytes(value).decode("utf-8", "replace")) not in _OF_ONNX:
                raise GraphError(f"its graph has an operator that is none of ONNX, of {shown(domain)}")
            elif number == 5:
                self._attribute(_span(value), level)

    def _attribute(self, span: Span, level: int) -> None:
        name, numbers = b"", []
        for number, value in self._fields(span):
            if number == 1:
                name = self._bytes(value)
            elif number == 3:
                numbers.append(value)
            elif number in (5, 10):
                self._tensor(_span(value))
            elif number in (6, 11):
                self._graph(_span(value), level + 1)
            elif number in (22, 23):
                raise GraphError("its graph has sparse weights")
        if (name in (b"to", b"dtype") and _STRING in numbers) or name.startswith(b"value_string"):
            raise GraphError("its graph has strings")

    def _tensor(self, span: Span) -> None:
        for number, value in self._fields(span):
            if number == 2 and value == _STRING:
                raise GraphError("its graph has strings")
            if number in (13, 14) and value != 0:
                raise GraphError("its graph has weights in another file")

    def _bytes(self, value: int | Span) -> bytes:
        start, end = _span(value)
        return self._content[start:end]

    def _fields(self, span: Span) -> Iterator[tuple[int, int | Span]]:
        """The number of each field, and its value: a number, or where it begins and ends."""
        place, end = span
        while place < end:
            key, place = self._varint(place, end)
            kind = key & 7
            if kind == _NUMBER:
                value, place = self._varint(place, end)
                yield key >> 3, value
                continue
            if kind == _BYTES:
                size, place = self._varint(place, end)
            elif kind in _FIXED:
                size = _FIXED[kind]
            else:
                raise GraphError("it is no model of ONNX")
            if size > end - place:
                raise GraphError("it is no model of ONNX, or it was cut off")
            yield key >> 3, (place, place + size)
            place += size

    def _varint(self, place: int, end: int) -> tuple[int, int]:
        value = 0
        for shift in range(0, 70, 7):
            if place >= end:
                break
            byte = self._content[place]
            place += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF, place
        raise GraphError("it is no model of ONNX, or it was cut off")


def _span(value: int | Span) -> Span:
    if isinstance(value, int):
        raise GraphError("it is no model of ONNX")
    return value


def check_graph(content: bytes, nodes: int) -> None:
    """Refuse a model whose graph is not such as `fl.export` writes, or has more parts than so many."""
    Walk(content, nodes).model()
