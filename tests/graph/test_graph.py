"""Types and graphs, with no tensor in sight."""

from __future__ import annotations

import numpy as np
import pytest

from foldloom.graph import Type, merge
from tests.graph.sketches import VECTOR, balanced, chain


def test_types_are_one_object_and_never_change() -> None:
    import pickle

    assert Type([2], "float32") is VECTOR
    assert pickle.loads(pickle.dumps(VECTOR)) is VECTOR
    with pytest.raises(AttributeError, match="never changes"):
        VECTOR.dtype = "int64"
    assert repr(VECTOR) == "float32[2]"


def test_merging_keeps_each_example_apart() -> None:
    parts = [balanced(2), chain(3, scored=True), balanced(1)]
    whole = merge(parts)
    assert whole.example_count == 3
    assert whole.nodes_of_example.tolist() == [len(part.op_of_node) for part in parts]
    assert whole.node_count == sum(part.node_count for part in parts)
    source = whole.node_of_value[whole.operands]
    reader = np.repeat(np.arange(len(whole.op_of_node)), whole.arity_of_node)
    assert np.array_equal(whole.example_of_node[source], whole.example_of_node[reader])
    for number, part in enumerate(parts):
        mine = whole.example_of_node == number
        assert [whole.ops[op] for op in whole.op_of_node[mine]] == [part.ops[op] for op in part.op_of_node]
        assert np.array_equal(whole.depth_of_node[mine], part.depth_of_node)
    assert "graph of 3 examples" in str(whole)
