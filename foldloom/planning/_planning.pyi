from typing import Any

from foldloom.graph import Ints, Op

def bind(
    step: type[Any], read: type[Any], write: type[Any], accesses: tuple[Any, ...], error: type[Exception], /
) -> None: ...
def by_depth(op_of_node: Ints, depth_of_node: Ints, op_count: int, /) -> bytearray: ...
def by_agenda(
    ops: tuple[Op, ...], op_of_node: Ints, operands: Ints, depth_of_node: Ints, lengths: Ints, /
) -> bytearray: ...
def arrange(
    ops: tuple[Op, ...],
    op_of_node: Ints,
    operands: Ints,
    lengths: Ints,
    nodes_of_example: Ints,
    step_of_node: Ints,
    earlier_ops: int,
    /,
) -> tuple[tuple[bytearray, ...], int, int]: ...
def lay_out(
    ops: tuple[Op, ...],
    op_of_node: Ints,
    lengths: Ints,
    outputs: Ints,
    nodes: Ints,
    op_of_run: Ints,
    size_of_run: Ints,
    operands: Ints,
    rows_of_block: Ints,
    arena_of_output: Ints,
    arena_of_input: Ints,
    kept: Ints,
    earlier_arena: Ints,
    earlier_row: Ints,
    earlier_ops: int,
    input_runs: int,
    /,
) -> tuple[tuple[bytearray, ...], list[Any], list[Any], list[Any]]: ...
def histories(
    ops: tuple[Op, ...],
    rules: Ints,
    op_of_node: Ints,
    operands: Ints,
    lengths: Ints,
    flags: bytearray,
    first_value: int,
    /,
) -> None: ...
def cut(
    ops: list[Op],
    op_of_node: Ints,
    operands: Ints,
    lengths: Ints,
    depth_of_new: Ints,
    first_value_of_left: Ints,
    example_of_node: Ints,
    roots: Ints | None,
    outputs: Ints,
    where: Ints,
    arena_of_value: Ints,
    first_new_value: int,
    value_count: int,
    arena_count: int,
    example_count: int,
    in_turn: bool,
    /,
) -> tuple[tuple[bytearray, ...], tuple[bytearray, ...], int]: ...
