"""The base class of blocks, and blocks in series.

A block is a function from one type to another. It holds no data, so the same block can be part of several others.
`fb.compile` makes a model of a block.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self, cast

import torch

from foldloom.blocks import copying
from foldloom.blocks.describing import NO_OPS, Described, Describing, Ops, Through
from foldloom.blocks.inference import Clash, Unknown, attempt, head, known, unify, wait_for_head
from foldloom.blocks.lowering.cells import cell_key
from foldloom.blocks.lowering.codegen import CodeBuilder, Generated
from foldloom.blocks.lowering.interpreting import interpreted
from foldloom.blocks.lowering.lowering import Lowerable, Lowering, Run
from foldloom.blocks.printing import expression, shortened
from foldloom.blocks.types import BlockType, convert_to_type
from foldloom.blocks.wires import Wire, connect_in_scope
from foldloom.errors import BlockInputError, BlockTypeError, MissingKeyError, WiringError
from foldloom.runtime.portable import NotPortableError
from foldloom.tracing.cells.core import Cell, cell
from foldloom.tracing.scope import user_line


class Evaluator(Protocol):
    """A model of one block, as `Block.eval` uses it."""

    def one_example(self, example: Any) -> Any: ...

    def max_depth(self, example: Any) -> int: ...


class Block(copying.Copyable, copying.Portable, Lowerable):
    """A function from one input to one output, possibly made of other blocks, its ``parts``.

    A kind of block is a subclass. It sets ``takes`` and ``gives`` or infers them in ``_infer``, and defines `describe`, with an
    interpreter of its kind in `foldloom.runtime.program`, which is registered there (`registry.py`). With these it runs and can be exported.
    The kinds that there are stand in `combinators`, by family.

    >>> from foldloom import blocks as fb
    >>> block = fb.Scalar() >> fb.Function(lambda x: 2 * x)
    >>> block.eval(3)
    tensor(6.)
    >>> block.input_type, block.output_type
    (PyObjectType(), TensorType([], 'float32'))
    """

    evaluator: ClassVar[Callable[[Block], Evaluator]]
    """Makes a model of a block. Set by `compiler.model`, which imports this module."""

    __array_ufunc__ = None  # numpy leaves `array >> block` to the block
    _arguments: tuple[tuple[Any, ...], dict[str, Any]]
    _line: str
    _printed = ""
    _printed_path = ""
    _parts: list[tuple[str, Block]]
    _wholes: list[tuple[weakref.ref[Block], str]]
    _declared: list[tuple[str, Any]]
    takes: BlockType
    gives: BlockType

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        self._arguments = (args, kwargs)
        self._line = user_line()
        self._parts, self._wholes, self._declared = [], [], []
        self.takes, self.gives = Unknown(), Unknown()
        return self

    # --- what a kind of block defines ----------------------------------------------------------------------------

    def describe(self, to: Describing) -> Described:
        """The block as a JSON object: its ``kind``, its settings, and its parts by number."""
        raise NotPortableError("its class does not define `describe`")

    def flow(self, inputs: Ops, through: Through) -> Ops:
        """The ops whose results may be in the output, if those of ``inputs`` may be in the input (see `describing`).

        The default is safe for every block: parts may get the input and each other's outputs, and all of it may come out. A tighter
        bound saves loops in exported files. Not called for blocks that have a function.
        """
        parts = [part for _, part in self.parts]
        fed_back = NO_OPS.union(*[through(part, inputs) for part in parts])
        return inputs.union(fed_back, *[through(part, inputs | fed_back) for part in parts])

    def lowered(self, lower: Lowering) -> Run:
        """The block as a Python function of a value of its input type, which runs for every example while it is recorded.

        By default the interpreter of the block's kind makes it from the description."""
        return interpreted(self, lower)

    def _infer(self) -> None:
        """Infer what can be inferred about the types now. Called again when more is known."""

    @property
    def function(self) -> Callable[..., Any] | None:
        """What the block computes on batched tensors; None if it only passes values on."""
        return None

    def cell_key(self) -> Hashable:
        """Blocks with equal keys share a cell. Only called for blocks that have a function."""
        return cell_key(cast(Callable[..., Any], self.function), None)

    def make_cell(self) -> Cell:
        return cell(cast(Callable[..., Any], self.function))

    def metrics(self) -> dict[str, BlockType]:
        """The metrics that this block collects, without those of its parts: their names and input types."""
        return {}

    def state_without_weights(self) -> dict[str, Any]:
        """The attributes that another process needs to record with this block."""
        state = {name: value for name, value in self.__getstate__().items() if name not in ("_arguments", "_declared")}
        return {**state, "_printed": repr(self), "_printed_path": self.path}

    def infer_signatures(self, cell: Cell, dtypes: Mapping[str, str]) -> None:
        """Make the block's cell infer its signatures now. Processes without weights use what was inferred."""

    def check_wiring(self) -> None:
        """Raise `WiringError` if something is missing. Called when a model is made."""

    def check_types(self) -> None:
        """Raise `BlockTypeError` for an unknown type, if the block can say more about it than the general error."""

    @property
    def parts(self) -> Sequence[tuple[str, Block]]:
        """The blocks this one is made of, each with its place as error messages print it."""
        return self._parts

    def always_evaluated(self) -> Iterable[Block]:
        """The parts that are evaluated for every input."""
        return ()

    def copied(self, fresh: copying.Fresh) -> Block:
        args, kwargs = self._arguments
        return type(self)(*fresh(args), **fresh(kwargs))

    # --- types ---------------------------------------------------------------------------------------------------

    @property
    def input_type(self) -> BlockType | None:
        """The type of the input; None while it is unknown."""
        return None if isinstance(head(self.takes), Unknown) else known(self.takes)

    @property
    def output_type(self) -> BlockType | None:
        """The type of the output; None while it is unknown."""
        return None if isinstance(head(self.gives), Unknown) else known(self.gives)

    def set_input_type(self, type: Any) -> Self:
        return self._declare("set_input_type", self.takes, type, "takes")

    def set_output_type(self, type: Any) -> Self:
        return self._declare("set_output_type", self.gives, type, "gives")

    def set_io_types(self, input_type: Any, output_type: Any) -> Self:
        return self.set_input_type(input_type).set_output_type(output_type)

    def set_input_type_classes(self, *classes: type[BlockType]) -> Self:
        """Require the input type to be an instance of one of these classes."""
        return self._declare_classes(self.takes, classes, "takes")

    def set_output_type_classes(self, *classes: type[BlockType]) -> Self:
        return self._declare_classes(self.gives, classes, "gives")

    def _declare(self, method: str, own: BlockType, type: Any, verb: str) -> Self:
        converted = convert_to_type(type)
        with attempt():
            try:
                unify(own, converted)
            except Clash:
                raise self.type_error(f"{shortened(self)} {verb} {known(own)}, not {converted}") from None
        self._declared.append((method, converted))
        return self

    def _declare_classes(self, own: BlockType, classes: tuple[type[BlockType], ...], verb: str) -> Self:
        def look() -> None:
            if not wait_for_head(own, look) and not isinstance(head(own), classes):
                names = " or ".join(kind.__name__ for kind in classes)
                raise self.type_error(f"{shortened(self)} {verb} {known(own)}, but was set to be of kind {names}")

        with attempt():
            look()
        return self

    def fit(self, one: BlockType, other: BlockType, message: Callable[[BlockType, BlockType], str]) -> None:
        """Unify two types, or raise `BlockTypeError`. ``message`` gets both types, as far as they are known."""
        try:
            unify(one, other)
        except Clash as clash:
            whole = (known(one), known(other))
            parts = (known(clash.one), known(clash.other))
            detail = "" if parts in (whole, whole[::-1]) else f": {parts[0]} is not {parts[1]}"
            raise self.type_error(message(*whole) + detail + clash.hint()) from None

    def give(self, found: BlockType) -> None:
        """Unify the output type with what was inferred for it."""
        self.fit(
            found, self.gives, lambda gives, wanted: f"{shortened(self)} gives {gives}, but {wanted} is wanted of it"
        )

    def type_error(self, message: str) -> BlockTypeError:
        return BlockTypeError(f"{message}\n  in {self.path}\n  at {user_line()}{self._made_elsewhere()}")

    def wiring_error(self, message: str) -> WiringError:
        return WiringError(f"{message}\n  in {self.path}\n  at {user_line()}{self._made_elsewhere()}")

    def input_error(self, message: str) -> BlockInputError:
        return BlockInputError(f"{message}\n  in {self.path}, made at {self._line}")

    def missing_key(self, message: str) -> MissingKeyError:
        return MissingKeyError(str(self.input_error(message)))

    def _made_elsewhere(self) -> str:
        return "" if self._line == user_line() else f"; {shortened(self)} was made at {self._line}"

    # --- structure -----------------------------------------------------------------------------------------------

    def adopt(self, place: str, part: Any) -> Block:
        """Add a part, converted to a block if necessary. ``place`` is how error messages print its place."""
        block = convert_to_block(part)
        self._parts.append((place, block))
        block._wholes.append((weakref.ref(self), place))
        return block

    def settle(self) -> None:
        """Infer the types as far as possible. Call it at the end of the constructor."""
        with attempt():
            self._infer()

    @property
    def path(self) -> str:
        """The place of the block inside the outermost block that contains it, for error messages."""
        if self._printed_path:
            return self._printed_path
        steps = [shortened(self)]
        block, seen = self, {id(self)}
        while True:
            wholes = [(whole(), place) for whole, place in block._wholes]
            block_and_place = next(((w, place) for w, place in wholes if w is not None and id(w) not in seen), None)
            if block_and_place is None:
                return " > ".join(reversed(steps))
            block, place = block_and_place
            seen.add(id(block))
            steps.append(f"{type(block).__name__}{place}")

    def __rshift__(self, other: Any) -> Block:
        return Pipe(self, other)

    def __rrshift__(self, other: Any) -> Block:
        return Pipe(other, self)

    def __getitem__(self, key: Any) -> Wire:
        """One item of the output, to be read by other blocks of a composition."""
        return Wire(self, key)

    def __iter__(self) -> Any:
        raise TypeError(f"{shortened(self)} is a block, not a sequence; its outputs are read one by one: `block[0]`")

    def position_of(self, key: Any) -> Any:
        """The position in the output tuple of the item with this key."""
        return key

    def always_evaluates(self, goal: object, seen: set[Block]) -> bool:
        """Whether evaluating this block evaluates ``goal`` for every input."""
        if self in seen:
            return False
        seen.add(self)
        return any(part.always_evaluates(goal, seen) for part in self.always_evaluated())

    @property
    def module(self) -> torch.nn.Module | None:
        """A module that the block calls directly instead of through a cell. Its weights belong to the model."""
        return None

    def reads(self, *sources: Any) -> Self:
        """Connect the input to the output of another block, or to the tuple of several. Only inside ``with
        composition.scope():``."""
        connect_in_scope(self, sources)
        return self

    def copy(self) -> Self:
        """A copy with weights of its own, initialized again where modules define ``reset_parameters``."""
        return cast(Self, copying.Fresh()(self))

    # --- use -----------------------------------------------------------------------------------------------------

    def eval(self, example: Any) -> Any:
        """The output for one example; with metrics, a pair of the output and the metrics."""
        return type(self).evaluator(self).one_example(example)

    def max_depth(self, example: Any) -> int:
        """The length of the longest chain of dependent computations for this example."""
        return type(self).evaluator(self).max_depth(example)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "takes": known(self.takes), "gives": known(self.gives), "_wholes": []}

    def __repr__(self) -> str:
        return self._printed or expression(type(self).__name__, *self._arguments)


_conversions: list[tuple[Callable[[Any], bool], Callable[[Any], Block]]] = []


def converts(accepts: Callable[[Any], bool]) -> Callable[[type[Block]], type[Block]]:
    """Class decorator: `convert_to_block` wraps values that ``accepts`` accepts in this kind of block."""

    def register(kind: type[Block]) -> type[Block]:
        _conversions.append((accepts, kind))
        return kind

    return register


def convert_to_block(value: Any) -> Block:
    """Wrap a module, a function over tensors, a tensor, an array, or a record of blocks in a block.

    >>> import torch
    >>> from foldloom import blocks as fb
    >>> fb.convert_to_block({"x": fb.Scalar()})
    Record({'x': Scalar()})
    >>> fb.convert_to_block(torch.neg)
    Function(neg)
    """
    if isinstance(value, Block):
        return value
    for accepts, make in _conversions:
        if accepts(value):
            return make(value)
    raise BlockTypeError(
        f"{value!r:.80} ({type(value).__name__}) is not a block, nor a module, function, tensor or record of blocks that could stand "
        f"for one; to look at Python objects write fb.InputTransform(function)\n  at {user_line()}"
    )


class Identity(Generated, Block):
    """Returns its input.

    >>> from foldloom import blocks as fb
    >>> (fb.Scalar() >> fb.AllOf(fb.Identity(), fb.Identity())).eval(3)
    (tensor(3.), tensor(3.))
    """

    def __init__(self) -> None:
        self.gives = self.takes

    def describe(self, to: Describing) -> Described:
        return {"kind": "identity"}

    def emit(self, code: CodeBuilder, value: str) -> str:
        return value


class Pipe(Generated, Block):
    """``Pipe(a, b, c)`` is ``a >> b >> c``: the output of each block is the input of the next. ``Pipe()`` returns its
    input.

    >>> from foldloom import blocks as fb
    >>> (fb.GetItem("numbers") >> fb.Map(fb.Scalar()) >> fb.Sum()).eval({"numbers": [1, 2, 3]})
    tensor(6.)
    """

    def __init__(self, *blocks: Any) -> None:
        flat = [part for block in map(convert_to_block, blocks) for part in _stages(block)]
        self._stages = [self.adopt(f"[{number}]", block) for number, block in enumerate(flat)]
        if not flat:
            self.gives = self.takes
            return
        self.takes, self.gives = flat[0].takes, flat[-1].gives
        self.settle()

    def _infer(self) -> None:
        for giver, taker in zip(self._stages, self._stages[1:], strict=False):
            taker.fit(
                giver.gives,
                taker.takes,
                lambda gives, takes, giver=giver, taker=taker: (  # type: ignore[misc]
                    f"{shortened(giver)} gives {gives}, but {shortened(taker)} takes {takes}"
                ),
            )

    def always_evaluated(self) -> Iterable[Block]:
        return self._stages

    def describe(self, to: Describing) -> Described:
        return {"kind": "pipe", "stages": [to.block(stage) for stage in self._stages]}

    def flow(self, inputs: Ops, through: Through) -> Ops:
        for stage in self._stages:
            inputs = through(stage, inputs)
        return inputs

    def emit(self, code: CodeBuilder, value: str) -> str:
        for stage in self._stages:
            value = code.block(stage, value)
        return value

    def __repr__(self) -> str:
        return " >> ".join(repr(stage) for stage in self._stages if type(stage) is not Identity) or "Pipe()"


def _stages(block: Block) -> list[Block]:
    """The stages of a pipe. Nested pipes are flattened."""
    return block._stages if type(block) is Pipe else [block]
