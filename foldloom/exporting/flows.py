"""Which op may read what which other makes, found from the blocks themselves, without an example.

Every block has what may come in and what may go out, as the set of ops that may have made the tensors in it; sets grow until nothing
changes. What stands where in a tuple is forgotten, so an op may be said to read more than it ever will: the order that follows
from that holds for every example.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Ops = frozenset[int]
NONE: Ops = frozenset()


def readers_in(blocks: Sequence[dict[str, Any]], op_of_block: Mapping[int, int]) -> set[tuple[int, int]]:
    """Pairs of an op and one that may read what it makes, in a described program."""
    return _Flows(blocks, op_of_block).found()


class _Flows:
    def __init__(self, blocks: Sequence[dict[str, Any]], op_of_block: Mapping[int, int]) -> None:
        self._blocks = blocks
        self._op_of_block = op_of_block
        self._in = [NONE] * len(blocks)
        self._out = [NONE] * len(blocks)
        self._readers: set[tuple[int, int]] = set()

    def found(self) -> set[tuple[int, int]]:
        before: Any = None
        while before != (self._in, self._out):
            before = list(self._in), list(self._out)
            for number, block in enumerate(self._blocks):
                self._visit(number, block)
        return self._readers

    def _visit(self, number: int, block: dict[str, Any]) -> None:
        given = self._in[number]
        for part, enters in self._entering(block, given):
            self._in[part] |= enters
        if "cell" in block:
            own = self._op_of_block[number]
            self._readers |= {(maker, own) for maker in given}
            self._out[number] |= {own}
        else:
            self._out[number] |= self._leaving(block, given)

    def _entering(self, block: dict[str, Any], given: Ops) -> Iterator[tuple[int, Ops]]:
        """What goes into each part of a block."""
        kind = block["kind"]
        if kind == "pipe":
            for part in block["stages"]:
                yield part, given
                given = self._out[part]
        elif kind == "composition":
            made = [given]
            for part, sources in block["steps"]:
                yield part, NONE.union(*[made[source] for source in sources])
                made.append(self._out[part])
        elif kind in ("fold", "reduce", "rnn"):
            # What comes out goes in again.
            for part in _parts(block):
                again = NONE.union(*[self._out[other] for other in _parts(block)])
                yield part, given | again
        elif kind == "one_of":
            yield block["key"], given
            if block["pre"] is not None:
                yield block["pre"], given
                given = self._out[block["pre"]]
            for _, part in block["cases"]:
                yield part, given
        else:
            for part in _parts(block):
                yield part, given

    def _leaving(self, block: dict[str, Any], given: Ops) -> Ops:
        kind = block["kind"]
        if kind in _MAKES_NOTHING:
            return NONE
        if kind == "pipe":
            return self._out[block["stages"][-1]] if block["stages"] else given
        if kind == "composition":
            made = [given, *[self._out[part] for part, _ in block["steps"]]]
            return NONE.union(*[made[source] for source in block["output"]])
        made_inside = NONE.union(*[self._out[part] for part in _parts(block)])
        return made_inside | given if kind in _PASSES_ON else made_inside


_MAKES_NOTHING = ("constant", "length", "metric", "one_hot", "tensor", "transform", "void")
_PASSES_ON = ("first", "get_item", "identity", "ngrams", "nth", "reduce", "rnn", "zip")


def _parts(block: dict[str, Any]) -> list[int]:
    """The blocks that a described block is made of, but for pipes and compositions, where the order counts."""
    kind = block["kind"]
    if kind == "record":
        return [part for _, part in block["fields"]]
    if kind == "all_of":
        return list(block["blocks"])
    if kind == "one_of":
        return [part for _, part in block["cases"]]
    names = {
        "map": ("element",),
        "fold": ("combine", "start"),
        "reduce": ("combine", "default"),
        "rnn": ("rnn_cell", "initial"),
        "optional": ("some", "none"),
        "reference": ("block",),
    }
    return [block[name] for name in names.get(kind, ()) if block[name] is not None]
