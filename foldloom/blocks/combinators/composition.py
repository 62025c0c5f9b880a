"""Blocks side by side, and blocks wired to each other in an acyclic graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from foldloom.blocks.block import Block, Identity, converts
from foldloom.blocks.combinators.items import GetItem, item_getter
from foldloom.blocks.copying import Fresh
from foldloom.blocks.describing import NO_OPS, Described, Describing, Ops, Through, through_each
from foldloom.blocks.inference import Unknown, attempt, head, known, wait_for_head
from foldloom.blocks.lowering.codegen import CodeBuilder, Generated
from foldloom.blocks.printing import shortened
from foldloom.blocks.types import BlockType, PyObjectType, TupleType, VoidType
from foldloom.blocks.wires import Scope, Wire
from foldloom.errors import WiringError
from foldloom.tracing.scope import user_line


@converts(lambda value: isinstance(value, (dict, list, tuple)))
class Record(Generated, Block):
    """Applies one block to each item of the input; the output is the tuple of their outputs.

    A dict names the fields of a Python object, which are sorted by name. A sequence of pairs or an `OrderedDict` keeps
    its order. A tuple or list of blocks is applied to the items 0, 1, 2, ... of an object or a tuple. Keys may be
    slices.

    >>> from foldloom import blocks as fb
    >>> fb.Record({"x": fb.Scalar(), "y": fb.Scalar("int64")}).eval({"y": 1, "x": 2})
    (tensor(2.), tensor(1))
    """

    def __init__(self, named_blocks: Mapping[Any, Any] | Iterable[Any]) -> None:
        self._keys, blocks = _items(named_blocks)
        self._blocks = [self.adopt(f"[{key!r}]", block) for key, block in zip(self._keys, blocks, strict=True)]
        self.gives = TupleType([block.gives for block in self._blocks])
        if type(named_blocks) is dict or any(not isinstance(key, (int, slice)) for key in self._keys):
            self.takes = PyObjectType()  # only Python objects have named fields
        self.settle()

    def _infer(self) -> None:
        waiting = [wait_for_head(block.takes, self._infer) for block in self._blocks]
        if not any(waiting) and all(isinstance(head(block.takes), PyObjectType) for block in self._blocks):
            self.fit(self.takes, PyObjectType(), lambda takes, _: f"the items of {known(takes)} are no Python objects")
        if wait_for_head(self.takes, self._infer):
            return
        takes = head(self.takes)
        for key, block in zip(self._keys, self._blocks, strict=True):
            block.fit(
                self._item(takes, key),
                block.takes,
                lambda item, wants, key=key, block=block: (  # type: ignore[misc]
                    f"item {key!r} of {known(takes)} is {item}, but {shortened(block)} takes {wants}"
                ),
            )

    def _item(self, takes: BlockType, key: Any) -> BlockType:
        if isinstance(takes, PyObjectType):
            return takes
        if not isinstance(takes, TupleType):
            raise self.type_error(f"{shortened(self)} takes a Python object or a tuple, not {known(takes)}")
        if isinstance(key, slice):
            return TupleType(list(takes.items[key]))
        if not -len(takes.items) <= key < len(takes.items):
            raise self.type_error(f"{shortened(self)} takes item {key} of {known(takes)}, which has {len(takes.items)}")
        item: BlockType = takes.items[key]
        return item

    def position_of(self, key: Any) -> Any:
        if key in self._keys:
            return self._keys.index(key)
        if isinstance(key, (int, slice)):
            return key
        raise self.wiring_error(f"{shortened(self)} has no field {key!r}; it has {', '.join(map(repr, self._keys))}")

    def always_evaluated(self) -> Iterable[Block]:
        return self._blocks

    def describe(self, to: Describing) -> Described:
        fields = zip(self._keys, self._blocks, strict=True)
        return {"kind": "record", "fields": [[to.value(key), to.block(part)] for key, part in fields]}

    def flow(self, inputs: Ops, through: Through) -> Ops:
        return through_each(self._blocks, inputs, through)

    def emit(self, code: CodeBuilder, value: str) -> str:
        takes = head(self.takes)
        if isinstance(takes, TupleType) and all(isinstance(key, int) for key in self._keys):
            given = code.items(value, len(takes.items))
            found = [given[key] for key in self._keys]
        else:
            found = [code.lookup(value, key, item_getter(self, key)) for key in self._keys]
        return code.tuple([code.block(block, item) for item, block in zip(found, self._blocks, strict=True)])


def _items(named_blocks: Mapping[Any, Any] | Iterable[Any]) -> tuple[list[Any], list[Any]]:
    if type(named_blocks) is dict:
        try:
            items = sorted(named_blocks.items(), key=itemgetter(0))
        except TypeError:
            raise WiringError(
                "the names of a record given as a dict are sorted, and these cannot be compared: "
                f"{', '.join(map(repr, named_blocks))}. Give a list of pairs instead, whose order counts\n  at {user_line()}"
            ) from None
    elif isinstance(named_blocks, Mapping):
        items = list(named_blocks.items())
    else:
        given = list(named_blocks)
        is_pairs = bool(given) and all(
            isinstance(item, tuple) and len(item) == 2 and _is_key(item[0]) for item in given
        )
        items = given if is_pairs else list(enumerate(given))
    return [key for key, _ in items], [block for _, block in items]


def _is_key(value: Any) -> bool:
    return isinstance(value, (str, int, slice, bytes))


class AllOf(Generated, Block):
    """Applies every block to the same input; the output is the tuple of their outputs. Blocks without input get
    none.

    >>> from foldloom import blocks as fb
    >>> (fb.Scalar() >> fb.AllOf(fb.Identity(), fb.Function(lambda x: 2 * x))).eval(3)
    (tensor(3.), tensor(6.))
    """

    def __init__(self, *blocks: Any) -> None:
        self._blocks = [self.adopt(f"[{number}]", block) for number, block in enumerate(blocks)]
        self.gives = TupleType([block.gives for block in self._blocks]) if blocks else VoidType()
        self.settle()

    def _infer(self) -> None:
        for block in self._blocks:
            if isinstance(head(block.takes), VoidType):
                continue
            block.fit(
                self.takes,
                block.takes,
                lambda one, other, block=block: (  # type: ignore[misc]
                    f"the blocks of {shortened(self)} get one input: others take {one}, but {shortened(block)} takes {other}"
                ),
            )

    def always_evaluated(self) -> Iterable[Block]:
        return self._blocks

    def describe(self, to: Describing) -> Described:
        return {"kind": "all_of", "blocks": [to.block(part) for part in self._blocks]}

    def flow(self, inputs: Ops, through: Through) -> Ops:
        return through_each(self._blocks, inputs, through)

    def emit(self, code: CodeBuilder, value: str) -> str:
        return code.tuple([code.block(block, value) for block in self._blocks]) if self._blocks else "None"


class _Input(Identity):
    """The input of a composition."""

    def __repr__(self) -> str:
        return "composition.input"


class _Output(Identity):
    """The output of a composition."""

    def __repr__(self) -> str:
        return "composition.output"


class Composition(Generated, Block):
    """Blocks that read each other's outputs, in an acyclic graph.

    >>> import torch
    >>> from foldloom import blocks as fb
    >>> composition = fb.Composition()
    >>> with composition.scope():
    ...     number = fb.Scalar().reads(composition.input)
    ...     square = fb.Function(torch.mul).reads(number, number)
    ...     composition.output.reads(square, number)
    composition.output
    >>> composition.eval(3)
    (tensor(9.), tensor(3.))
    """

    def __init__(self, children: Iterable[Any] = ()) -> None:
        self.input, self.output = _Input(), _Output()
        self.takes = self.input.takes
        self.gives = self.output.gives
        self._sources: dict[Block, tuple[Block, ...]] = {}
        for child in children:
            self._include(child)

    def scope(self) -> Scope[Composition]:
        """Inside ``with composition.scope():``, ``block.reads(...)`` connects blocks of this composition."""
        return Scope(self)

    def connect(self, source: Any, block: Block) -> None:
        """Connect the input of a block to a source: a block, a wire, or a tuple of them."""
        self.wire(block, source if isinstance(source, tuple) else (source,))

    def wire(self, block: Block, sources: Sequence[Any]) -> None:
        if block is self.input:
            raise self.wiring_error("the input of a composition reads nothing: it is what the composition gets")
        if self._sources.get(block):
            raise self.wiring_error(
                f"{shortened(block)} reads something already. For the same block, weights and all, in a second place write "
                "`fb.Pipe(block).reads(...)`; for weights of its own, `block.copy().reads(...)`"
            )
        if not sources:
            raise self.wiring_error(f"{shortened(block)} reads nothing: name what it reads, or leave the line out")
        before = list(self._parts), dict(self._sources)
        try:
            with attempt():
                self._wire(block, sources)
        except Exception:
            self._parts, self._sources = before
            raise

    def _wire(self, block: Block, sources: Sequence[Any]) -> None:
        givers = tuple([self._source(source) for source in sources])
        self._refuse_circle(block, givers)
        self._include(block)
        given = givers[0].gives if len(givers) == 1 else TupleType([giver.gives for giver in givers])
        block.fit(
            given,
            block.takes,
            lambda gives, takes: (
                f"{', '.join(map(shortened, sources))} gives {gives}, but {shortened(block)} takes {takes}"
            ),
        )
        self._sources[block] = givers

    def _include(self, child: Any) -> None:
        known_parts = [part for _, part in self._parts]
        if not any(child is part for part in known_parts):
            block = self.adopt(f"[{len(known_parts)}]", child)
            self._sources.setdefault(block, ())

    def _source(self, source: object) -> Block:
        if isinstance(source, Wire):
            giver = self._source(source.source)
            item = GetItem(giver.position_of(source.key))
            item.fit(giver.gives, item.takes, lambda gives, _: f"{shortened(giver)} gives {gives}, which has no items")
            self._include(item)
            self._sources[item] = (giver,)
            return item
        if not isinstance(source, Block):
            raise self.wiring_error(
                f"{source!r:.60} ({type(source).__name__}) cannot be read: it is neither a block nor a wire"
            )
        if source is self.output:
            raise self.wiring_error(
                "the output of a composition cannot be read inside it: read the block that it reads"
            )
        if source is not self.input:
            self._include(source)
        return source

    def _refuse_circle(self, block: Block, givers: Sequence[Block]) -> None:
        pending, seen = list(givers), set()
        while pending:
            giver = pending.pop()
            if giver is block:
                raise self.wiring_error(
                    f"{shortened(block)} would read itself, directly or through other blocks. For recursion over the data use "
                    "fb.ForwardDeclaration, for recurrence along a sequence fb.RNN or fb.Fold"
                )
            if giver not in seen:
                seen.add(giver)
                pending += self._sources.get(giver, ())

    def check_unused(self) -> None:
        read = {id(giver) for givers in self._sources.values() for giver in givers}
        for block in self._sources:
            unused = id(block) not in read and block is not self.output
            if unused and not isinstance(head(block.gives), (VoidType, Unknown)):
                raise self.wiring_error(
                    f"nobody reads {shortened(block)}, which gives {known(block.gives)}. Read it, leave it out, or send it to fb.Void()"
                )

    def check_wiring(self) -> None:
        if not self._sources.get(self.output):
            with attempt():
                self.output.fit(
                    VoidType(),
                    self.gives,
                    lambda _, gives: f"the output of a composition reads nothing, but is to give {gives}",
                )
        for block, givers in self._sources.items():
            if not givers and block is not self.output:
                with attempt():
                    block.fit(
                        VoidType(),
                        block.takes,
                        lambda _, takes, block=block: (  # type: ignore[misc]
                            f"{shortened(block)} takes {takes}, but reads nothing in its composition: write `block.reads(...)`"
                        ),
                    )
        self.check_unused()

    def always_evaluated(self) -> Iterable[Block]:
        return [part for _, part in self._parts]

    def describe(self, to: Describing) -> Described:
        place: dict[Block, int] = {self.input: 0}
        steps = []
        output: list[int] = []
        for block in self._in_order():
            sources = [place[giver] for giver in self._sources[block]]
            if block is self.output:
                output = sources
                continue
            steps.append([to.block(block), sources])
            place[block] = len(steps)
        return {"kind": "composition", "steps": steps, "output": output}

    def flow(self, inputs: Ops, through: Through) -> Ops:
        out: dict[Block, Ops] = {self.input: inputs}
        for block in self._in_order():
            out[block] = through(block, NO_OPS.union(*[out[giver] for giver in self._sources[block]]))
        return out.get(self.output, NO_OPS)

    def emit(self, code: CodeBuilder, value: str) -> str:
        value_of: dict[Block, str] = {self.input: value}
        for block in self._in_order():
            read = [value_of[giver] for giver in self._sources[block]]
            reads = code.tuple(read) if len(read) > 1 else read[0] if read else "None"
            value_of[block] = code.block(block, reads)
        return value_of.get(self.output, "None")

    def _in_order(self) -> list[Block]:
        """All blocks in topological order."""
        ordered: dict[Block, None] = {}

        def visit(block: Block) -> None:
            for giver in self._sources.get(block, ()):
                if giver is not self.input:
                    visit(giver)
            ordered.setdefault(block)

        for block in self._sources:
            visit(block)
        return list(ordered)

    def copied(self, fresh: Fresh) -> Composition:
        made = Composition()
        fresh.remember(self.input, made.input)
        fresh.remember(self.output, made.output)
        for block, givers in self._sources.items():
            if givers:
                made.wire(fresh(block), fresh(givers))
            else:
                made._include(fresh(block))
        return made

    def __repr__(self) -> str:
        wired = [
            f"{block!r}.reads({', '.join(map(repr, givers))})" for block, givers in self._sources.items() if givers
        ]
        return f"Composition({'; '.join(wired)})"
