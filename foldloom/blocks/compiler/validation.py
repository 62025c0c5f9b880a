"""Checks of a root block before a model is made of it."""

from __future__ import annotations

from foldloom.blocks.block import Block
from foldloom.blocks.compiler.traversal import all_blocks
from foldloom.blocks.inference import attempt, known, unify, unknowns
from foldloom.blocks.printing import shortened
from foldloom.blocks.types import (
    BlockType,
    BroadcastSequenceType,
    PyObjectType,
    SequenceType,
    TupleType,
    VoidType,
    canonicalize_type,
)


def check_root(root: Block, objects_at_root: bool) -> None:
    """Raise an error for whatever is wrong with a block as a whole."""
    blocks = list(all_blocks(root))
    for block in blocks:
        block.check_wiring()
    for unknown in unknowns(root.takes):
        # An input type that no block constrains is a Python object.
        with attempt():
            unify(unknown, PyObjectType())
    for block in blocks:
        block.check_types()
    for block in blocks:
        for type, way in ((block.takes, "takes"), (block.gives, "gives")):
            if unknowns(type):
                raise block.type_error(
                    f"it cannot be inferred what {shortened(block)} {way}: {known(type)}. Say it: "
                    f"`block.set_{'input' if way == 'takes' else 'output'}_type(...)`"
                )
    _check_metrics(blocks)
    _check_output(root, canonicalize_type(known(root.gives)), objects_at_root, any(b.metrics() for b in blocks))


def _check_metrics(blocks: list[Block]) -> None:
    first: dict[str, tuple[Block, BlockType]] = {}
    for block in blocks:
        for name, type in block.metrics().items():
            other, known_type = first.setdefault(name, (block, type))
            if known_type != type:
                raise block.type_error(
                    f"metric {name!r} collects {known_type} in one place and {type} in another; its rows could not be stacked. "
                    f"Give one of them another name (the other is in {other.path})"
                )


def _check_output(root: Block, output: BlockType, objects_at_root: bool, has_metrics: bool) -> None:
    kinds = _kinds(output)
    if BroadcastSequenceType in kinds:
        raise root.type_error(
            f"the output {output} has an endless sequence in it. End it with fb.Zip() or fb.ZipWith() beside a sequence of some "
            "length, or take one element with fb.GetItem(0)"
        )
    if PyObjectType in kinds and not objects_at_root:
        raise root.type_error(
            f"the output {output} has Python objects in it, but a model gives tensors. End with fb.Scalar, fb.Vector or fb.Tensor to "
            "make tensors of them, or carry them as labels of an fb.Metric"
        )
    if kinds <= {VoidType, TupleType, SequenceType} and not (has_metrics or objects_at_root):
        raise root.type_error(f"{shortened(root)} gives nothing and has no fb.Metric: there is nothing to compute")


def _kinds(type: BlockType) -> set[type[BlockType]]:
    return {type.__class__}.union(*[_kinds(part) for part in type.parts])
