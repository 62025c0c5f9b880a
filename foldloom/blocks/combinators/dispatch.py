"""Blocks that choose between others by the data, and recursion."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from foldloom.blocks.block import Block
from foldloom.blocks.combinators.inputs import InputTransform
from foldloom.blocks.combinators.items import takes_nothing
from foldloom.blocks.copying import Copyable, Fresh, Portable
from foldloom.blocks.describing import Described, Describing, Ops, Through, through_each
from foldloom.blocks.inference import Unknown, known
from foldloom.blocks.lowering.codegen import CodeBuilder, Generated
from foldloom.blocks.lowering.lowering import Lowering, Run
from foldloom.blocks.printing import expression, shortened
from foldloom.blocks.types import BlockType, PyObjectType, convert_to_type
from foldloom.errors import WiringError
from foldloom.pytrees.messages import shown
from foldloom.tracing.scope import user_line

_FEW = 8
"""Up to this number of cases, code is generated as if/elif; beyond it, each case becomes a function in a dict."""


class OneOf(Generated, Block):
    """Applies the case that is selected by a key.

    The key is computed by a Python function of the input, or by a block that returns a Python object. The selected case
    gets the input, or with ``pre_block`` the output of that. All cases have the same input type and the same output
    type.

    >>> import torch
    >>> from foldloom import blocks as fb
    >>> number = fb.Scalar()
    >>> fb.OneOf(lambda x: x < 0, {True: number >> fb.Function(torch.neg), False: number}).eval(-3)
    tensor(3.)
    """

    def __init__(
        self,
        key_fn: Callable[[Any], Any] | Block,
        case_blocks: Mapping[Any, Any] | Sequence[Any],
        pre_block: Any = None,
    ) -> None:
        cases = case_blocks if isinstance(case_blocks, Mapping) else dict(enumerate(case_blocks))
        if not cases:
            raise WiringError(
                f"fb.OneOf has no cases to choose from: give it a dict from keys to blocks\n  at {user_line()}"
            )
        self._key = self.adopt(".key_fn", key_fn if isinstance(key_fn, Block) else InputTransform(key_fn))
        self._pre = None if pre_block is None else self.adopt(".pre_block", pre_block)
        self._cases = {key: self.adopt(f"[{key!r}]", block) for key, block in cases.items()}
        self.settle()

    def _infer(self) -> None:
        key, pre = self._key, self._pre
        key.fit(
            self.takes,
            key.takes,
            lambda takes, wants: f"{shortened(self)} takes {takes}, but its key is found from {wants}",
        )
        key.fit(
            PyObjectType(),
            key.gives,
            lambda _, gives: f"the key of {shortened(self)} is a Python object, but {shortened(key)} gives {gives}",
        )
        chosen_takes = self.takes
        if pre is not None:
            pre.fit(
                self.takes,
                pre.takes,
                lambda takes, wants: f"{shortened(self)} takes {takes}, but its pre_block takes {wants}",
            )
            chosen_takes = pre.gives
        for name, case in self._cases.items():
            case.fit(
                chosen_takes,
                case.takes,
                lambda one, other, name=name: (
                    f"the cases of {shortened(self)} get {one}, but case {name!r} takes {other}"
                ),  # type: ignore[misc]
            )
            case.fit(
                self.gives,
                case.gives,
                lambda one, other, name=name: (  # type: ignore[misc]
                    f"all cases of {shortened(self)} must give one type: others give {one}, case {name!r} gives {other}"
                ),
            )

    def always_evaluates(self, goal: object, seen: set[Block]) -> bool:
        before = [self._key] if self._pre is None else [self._key, self._pre]
        return any(part.always_evaluates(goal, seen) for part in before) or all(
            case.always_evaluates(goal, set(seen)) for case in self._cases.values()
        )

    def describe(self, to: Describing) -> Described:
        return {
            "kind": "one_of",
            "key": to.block(self._key),
            "pre": to.optional_block(self._pre),
            "cases": [[to.value(key), to.block(case)] for key, case in self._cases.items()],
        }

    def flow(self, inputs: Ops, through: Through) -> Ops:
        through(self._key, inputs)
        chosen = inputs if self._pre is None else through(self._pre, inputs)
        return through_each(self._cases.values(), chosen, through)

    def emit(self, code: CodeBuilder, value: str) -> str:
        key = code.block(self._key, value)
        if len(self._cases) > _FEW:
            cases: Any = {name: code.lower(case) for name, case in self._cases.items()}
            return code.assign(f"{self._found(code, key, cases)}({self._prepared(code, value)})")
        case = self._found(code, key, {name: number for number, name in enumerate(self._cases)})
        prepared, result = self._prepared(code, value), code.lower.new_name("value")
        for number, block in enumerate(self._cases.values()):
            code.line(f"{'elif' if number else 'if'} {case} == {number}:")
            with code.indented():
                code.line(f"{result} = {code.block(block, prepared)}")
        return result

    def _prepared(self, code: CodeBuilder, value: str) -> str:
        return value if self._pre is None else code.block(self._pre, value)

    def _found(self, code: CodeBuilder, key: str, cases: dict[Any, Any]) -> str:
        """The case for a key."""
        found = code.lower.new_name("case")
        code.line(f"try: {found} = {code.name(cases, 'cases')}[{key}]")
        code.line(
            f"except (KeyError, TypeError) as error: raise {code.name(self._no_case, 'no_case')}({key}) from error"
        )
        return found

    def _no_case(self, key: Any) -> Exception:
        return self.missing_key(
            f"{shortened(self)} has no case for the key {shown(key)}; it has {', '.join(map(repr, self._cases))}"
        )


class Optional(Block):
    """Applies a block to a Python object. For None it returns the output of ``none_case``, by default zeros.

    >>> from foldloom import blocks as fb
    >>> fb.Optional(fb.Vector(2)).eval([1, 2])
    tensor([1., 2.])
    >>> fb.Optional(fb.Vector(2)).eval(None)
    tensor([0., 0.])
    """

    def __init__(self, some_case: Any, none_case: Any = None) -> None:
        self._some = self.adopt(".some_case", some_case)
        self._none = None if none_case is None else self.adopt(".none_case", none_case)
        self.takes = PyObjectType()
        self.gives = self._some.gives
        self.settle()

    def _infer(self) -> None:
        some, none = self._some, self._none
        some.fit(
            PyObjectType(),
            some.takes,
            lambda _, takes: f"{shortened(self)} passes on a Python object, but {shortened(some)} takes {takes}",
        )
        if none is not None:
            takes_nothing(none)
            none.fit(
                some.gives,
                none.gives,
                lambda one, other: f"{shortened(self)} gives {one}, but for None it would give {other}",
            )

    def describe(self, to: Describing) -> Described:
        zeros = to.zeros(known(self.gives)) if self._none is None else None
        return {
            "kind": "optional",
            "some": to.block(self._some),
            "none": to.optional_block(self._none),
            "zeros": zeros,
        }

    def flow(self, inputs: Ops, through: Through) -> Ops:
        return through_each([part for _, part in self.parts], inputs, through)


class ForwardDeclaration(Copyable, Portable):
    """Declares a block that is defined later, so that a block can contain itself.

    >>> import torch
    >>> from foldloom import blocks as fb
    >>> tree = fb.ForwardDeclaration()
    >>> total = fb.OneOf(
    ...     lambda x: isinstance(x, int),
    ...     {
    ...         True: fb.Scalar(),
    ...         False: fb.Record((tree(), tree())) >> fb.Function(torch.add),
    ...     },
    ... )
    >>> tree.resolve_to(total)
    >>> total.eval(((1, 2), 3))
    tensor(6.)
    """

    def __init__(self, input_type: Any = None, output_type: Any = None) -> None:
        given = {"input_type": input_type, "output_type": output_type}
        self._arguments = {name: type for name, type in given.items() if type is not None}
        self._line = user_line()
        self.takes: BlockType = Unknown() if input_type is None else convert_to_type(input_type)
        self.gives: BlockType = Unknown() if output_type is None else convert_to_type(output_type)
        self.resolved: Block | None = None

    def __call__(self) -> Block:
        """A reference to the declared block, to be used as a part of others."""
        if self.resolved is not None:
            raise WiringError(
                f"{self!r} is resolved already: use the block it was resolved to, {shortened(self.resolved)}, in its place\n  at {user_line()}"
            )
        return Reference(self)

    def resolve_to(self, block: Any) -> None:
        """Define the declared block."""
        if self.resolved is not None:
            raise WiringError(f"{self!r} is resolved already, to {shortened(self.resolved)}\n  at {user_line()}")
        resolved = _Resolution(self, block)
        if resolved.always_evaluates(self, set()):
            raise WiringError(
                f"{self!r} would be resolved to {shortened(resolved.block)}, which needs itself whatever the input is: it would never end. Some "
                f"case of an fb.OneOf, fb.Optional or fb.Map must do without\n  at {user_line()}"
            )
        self.resolved = resolved.block

    def copied(self, fresh: Fresh) -> ForwardDeclaration:
        made = ForwardDeclaration(**self._arguments)
        fresh.remember(self, made)
        if self.resolved is not None:
            made.resolve_to(fresh(self.resolved))
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "takes": known(self.takes), "gives": known(self.gives)}

    def state_without_weights(self) -> dict[str, Any]:
        return self.__getstate__()

    def __repr__(self) -> str:
        if "input_type" in self._arguments:
            return expression("ForwardDeclaration", list(self._arguments.values()), {})
        return expression("ForwardDeclaration", [], self._arguments)


class _Resolution(Block):
    """Unifies the types of a declaration with those of the block it is resolved to."""

    def __init__(self, declaration: ForwardDeclaration, block: Any) -> None:
        self.block = self.adopt("", block)
        self.takes, self.gives = declaration.takes, declaration.gives
        self._declaration = declaration
        self.settle()

    def _infer(self) -> None:
        block, declaration = self.block, self._declaration
        block.fit(
            self.takes,
            block.takes,
            lambda one, other: (
                f"{declaration!r} takes {one}, but is resolved to {shortened(block)}, which takes {other}"
            ),
        )
        block.fit(
            self.gives,
            block.gives,
            lambda one, other: (
                f"{declaration!r} gives {one}, but is resolved to {shortened(block)}, which gives {other}"
            ),
        )

    def always_evaluated(self) -> Iterable[Block]:
        return (self.block,)

    def lowered(self, lower: Lowering) -> Run:
        return lower(self.block)


class Reference(Generated, Block):
    """One use of a declared block."""

    def __init__(self, declaration: ForwardDeclaration) -> None:
        self.declaration = declaration
        self.takes, self.gives = declaration.takes, declaration.gives

    @property
    def parts(self) -> Sequence[tuple[str, Block]]:
        return [] if self.declaration.resolved is None else [("()", self.declaration.resolved)]

    def check_wiring(self) -> None:
        if self.declaration.resolved is None:
            raise self.wiring_error(
                f"{self.declaration!r}, made at {self.declaration._line}, was never resolved: write `declaration.resolve_to(block)`"
            )

    def always_evaluates(self, goal: object, seen: set[Block]) -> bool:
        resolved = self.declaration.resolved
        return self.declaration is goal or (resolved is not None and resolved.always_evaluates(goal, seen))

    def describe(self, to: Describing) -> Described:
        return {"kind": "reference", "block": to.block(self.declaration.resolved)}

    def flow(self, inputs: Ops, through: Through) -> Ops:
        return through(self.declaration.resolved, inputs)

    def emit(self, code: CodeBuilder, value: str) -> str:
        assert self.declaration.resolved is not None
        return code.assign(f"{code.lower.name_of(self.declaration.resolved)}({value})")

    def copied(self, fresh: Fresh) -> Reference:
        return Reference(fresh(self.declaration))

    def __repr__(self) -> str:
        return f"{self.declaration!r}()"
