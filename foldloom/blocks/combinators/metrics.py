"""Metrics: tensors that are collected by name. And `Void`, which drops its input."""

from __future__ import annotations

from typing import Any

from foldloom.blocks.block import Block
from foldloom.blocks.describing import Described, Describing
from foldloom.blocks.inference import head, known, wait
from foldloom.blocks.lowering.codegen import CodeBuilder, Generated
from foldloom.blocks.lowering.lowering import Lowering, Run, collecting
from foldloom.blocks.printing import shortened
from foldloom.blocks.types import BlockType, PyObjectType, TensorType, TupleType, VoidType
from foldloom.tracing.values.lazy_tensor import LazyTensor


class Metric(Block):
    """Collects a tensor under a name at every evaluation, over all examples of a batch. The input is a tensor, or a
    pair of a tensor and a Python object as its label, such as the class of a node.

    >>> from foldloom import blocks as fb
    >>> output, metrics = fb.Map(fb.Scalar() >> fb.AllOf(fb.Identity(), fb.Metric("seen")) >> fb.GetItem(0)).eval([1, 2])
    >>> metrics
    {'seen': [tensor(1.), tensor(2.)]}
    """

    def __init__(self, metric_name: str) -> None:
        self._name = metric_name
        self.gives = VoidType()
        self.settle()

    def _infer(self) -> None:
        if wait(self.takes, self._infer):
            return
        takes = head(self.takes)
        parts = takes.parts if isinstance(takes, TupleType) else (takes,)
        labelled = isinstance(takes, TupleType)
        fits = isinstance(head(parts[0]), TensorType) if parts else False
        if not fits or (labelled and (len(parts) != 2 or not isinstance(head(parts[1]), PyObjectType))):
            raise self.type_error(
                f"{shortened(self)} takes a tensor, or a pair of a tensor and a Python object as its label, not {known(takes)}"
            )

    def metrics(self) -> dict[str, BlockType]:
        return {self._name: known(self.takes)}

    def describe(self, to: Describing) -> Described:
        return {"kind": "metric", "name": self._name, "labelled": isinstance(head(self.takes), TupleType)}

    def lowered(self, lower: Lowering) -> Run:
        name, given, collected = self._name, lower.given, collecting.get

        def run(value: Any) -> None:
            collected().rows[name].append(value if isinstance(value, LazyTensor) else given(value))

        def run_labelled(pair: Any) -> None:
            value, label = pair
            here = collected()
            here.rows[name].append(value if isinstance(value, LazyTensor) else given(value))
            here.labels[name].append(label)

        return run_labelled if isinstance(head(self.takes), TupleType) else run


class Void(Generated, Block):
    """Drops its input.

    >>> from foldloom import blocks as fb
    >>> (fb.Scalar() >> fb.AllOf(fb.Identity(), fb.Void())).eval(3)
    (tensor(3.), None)
    """

    def __init__(self) -> None:
        self.gives = VoidType()

    def describe(self, to: Describing) -> Described:
        return {"kind": "void"}

    def emit(self, code: CodeBuilder, value: str) -> str:
        return "None"
