"""Which ops may read the results of which others, found from the blocks of a model without an example.

A data-flow analysis (reaching definitions): for the input and the output of each block, the set of ops that may have computed the
tensors in it. `Block.flow` is the transfer function; it is applied to all blocks until nothing changes. Items of a tuple are not
told apart, so the result is an upper bound: an order of ops that follows from it is right for every example.
"""

from __future__ import annotations

from collections.abc import Mapping

from foldloom.blocks.block import Block
from foldloom.blocks.compiler.traversal import all_blocks
from foldloom.blocks.describing import NO_OPS, Ops, has_tensors
from foldloom.blocks.inference import known


def readers_in(root: Block, op_of_block: Mapping[Block, int]) -> set[tuple[int, int]]:
    """Pairs of an op and one that may read its results. ``op_of_block`` has all blocks that have a function."""
    return _Flows(root, op_of_block).found()


class _Flows:
    def __init__(self, root: Block, op_of_block: Mapping[Block, int]) -> None:
        self._op_of_block = op_of_block
        self._inputs: dict[Block, Ops] = dict.fromkeys(all_blocks(root), NO_OPS)
        self._outputs = dict(self._inputs)
        self._takes = {block: has_tensors(known(block.takes)) for block in self._inputs}
        self._gives = {block: has_tensors(known(block.gives)) for block in self._inputs}
        self._changed = True

    def found(self) -> set[tuple[int, int]]:
        while self._changed:
            self._changed = False
            for block in self._inputs:
                self._visit(block)
        return {(maker, reader) for block, reader in self._op_of_block.items() for maker in self._inputs[block]}

    def _visit(self, block: Block) -> None:
        own = self._op_of_block.get(block)
        found = block.flow(self._inputs[block], self._through) if own is None else frozenset((own,))
        if self._gives[block] and not found <= self._outputs[block]:
            self._outputs[block] |= found
            self._changed = True

    def _through(self, part: Block, inputs: Ops) -> Ops:
        if self._takes[part] and not inputs <= self._inputs[part]:
            self._inputs[part] |= inputs
            self._changed = True
        return self._outputs[part]
