"""Cells whose elementwise work is compiled, forward and backward.

What a cell computes between two matrix products is a dozen calls, each of which passes over memory once, and as many again on the
way back. `fl.cell(f, compile=True)` traces the cell once for each signature, with a symbol for the number of members, and hands every
connected region of elementwise operations to Inductor: one kernel forward, one backward. The rest of the cell stays ordinary code:
products, lookups and whatever else there is are called in turn, with the weights that the module has at that time, so that
weights may note their uses (`execution/weight_grads.py`) and autograd sees closures as always.

Why not `torch.compile` around the cell? Its guards and wrappers take longer than a narrow step computes, and a step is narrow more
often than not. What they would guard is known here: the types are those of the op, the number of members is a symbol,
and that everything else stays as it was is what ``compile=True`` promises.

Hazard: Inductor takes strides for granted, so that whatever enters a region is made contiguous first.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext, tracing
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from foldloom.errors import CellError
from foldloom.execution.kernels import dtype_of
from foldloom.execution.weight_grads import linear
from foldloom.graph import Type

_aten = torch.ops.aten

_MEMBERS = 7
"""How many members a cell is traced with; that it must not matter is checked."""

_WORTHWHILE = 2
"""A region of fewer operations than this is left as it is: one kernel it is already."""

Flat = Callable[..., Sequence[Tensor]]
"""Blocks of operands in, blocks of outputs out, neither nested."""


def fused(cell: Flat, types: Sequence[Type], module: torch.nn.Module | None, device: torch.device) -> Flat:
    """The same function with its elementwise regions compiled. Refuses what depends on more than its arguments' values."""
    graph_module = _traced(cell, types, device)
    partitioner = CapabilityBasedPartitioner(graph_module, _Elementwise(), allows_single_node_partition=True)
    regions = [region for region in partitioner.propose_partitions() if _is_worthwhile(list(region.nodes))]
    graph_module = partitioner.fuse_partitions(regions)
    for node in list(graph_module.graph.nodes):
        if node.op == "call_module":
            part = graph_module.get_submodule(node.target)
            assert isinstance(part, fx.GraphModule), "the only modules in a traced graph are its regions"
            region = _Region(part)
            with graph_module.graph.inserting_before(node):
                node.replace_all_uses_with(graph_module.graph.call_function(region.as_function(), node.args))
            graph_module.graph.erase_node(node)
        elif node.op == "call_function" and node.target in _IN_PYTHON:
            node.target = _IN_PYTHON[node.target]
    weights = _Weights(graph_module, module)
    graph_module.recompile()
    run = graph_module.forward
    return lambda *blocks: run(*weights.now(), *blocks)


def can_run(blocks: Sequence[Any]) -> bool:
    """Whether compiled code may be called here: on tensors as they were compiled for, and not while somebody else traces."""
    return (
        {Tensor}.issuperset(map(type, blocks))
        and not torch._C._is_any_autocast_enabled()
        and not torch._C._are_functorch_transforms_active()
        and not torch.compiler.is_compiling()
    )


# ---- Tracing.


def _traced(cell: Flat, types: Sequence[Type], device: torch.device) -> fx.GraphModule:
    shapes = ShapeEnv()
    mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
    blocks = []
    for type in types:
        block = torch.empty((_MEMBERS, *type.shape), dtype=dtype_of(type), device=device)
        # One symbol for the number of members of all of them; all else is what it is.
        dynamic = [DimDynamic.DUCK, *[DimDynamic.STATIC] * len(type.shape)]
        blocks.append(mode.from_tensor(block, symbolic_context=StatelessSymbolicContext(dynamic_sizes=dynamic)))
    with torch.enable_grad():
        made = make_fx(cell, tracing_mode="symbolic", pre_dispatch=True, _allow_non_fake_inputs=True)(*blocks)
    if shapes.guards:
        raise CellError(f"what it does depends on how many members there are ({shapes.guards[0].expr})")
    for node in made.graph.nodes:
        if node.op == "get_attr":
            node.meta["val"] = mode.from_tensor(getattr(made, node.target), static_shapes=True)
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        if not isinstance(node.target, torch._ops.OpOverload):
            raise CellError(f"it calls {node.target.__name__}, which changes what holds for all that comes after")
        if node.target._schema.is_mutable:
            raise CellError(f"it changes a tensor in place ({node.target._schema.name.removeprefix('aten::')})")
    made.graph.eliminate_dead_code()
    return made


class _Elementwise(OperatorSupportBase):
    """What may be part of a region: operations that go number by number, and those that only move numbers about."""

    def is_node_supported(self, submodules: Any, node: fx.Node) -> bool:
        if node.op != "call_function" or not _has_tensors(node):
            return False
        if node.target is operator.getitem:
            source = node.args[0]
            return isinstance(source, fx.Node) and self.is_node_supported(submodules, source)
        draws = torch.Tag.nondeterministic_seeded in node.target.tags  # type: ignore[union-attr]
        return not draws and (_computes(node) or node.target.is_view or node.target is _aten.cat.default)  # type: ignore[union-attr]


def _has_tensors(node: fx.Node) -> bool:
    """Whether all that a node takes and gives are tensors and constants; sizes would be numbers that vary."""
    values = [source.meta.get("val") for source in (*node.all_input_nodes, node)]
    flat = [item for value in values for item in (value if isinstance(value, (list, tuple)) else (value,))]
    return all(isinstance(item, Tensor) for item in flat)


def _computes(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags


def _is_worthwhile(nodes: Sequence[fx.Node]) -> bool:
    inside = set(nodes)
    results = [node.meta["val"] for node in nodes if not set(node.users) <= inside]
    return sum(map(_computes, nodes)) >= _WORTHWHILE and all(result.is_floating_point() for result in results)


_IN_PYTHON: dict[Any, Callable[..., Any]] = {
    _aten.cat.default: torch.cat,
    _aten.linear.default: linear,
    _aten.matmul.default: torch.matmul,
    _aten.mm.default: torch.mm,
}
"""Functions of Python's are called in less time than operations by name, and weights may note their uses in them."""


class _Weights:
    """The weights of a traced cell, looked up anew for every call: while a plan runs others may stand in for them."""

    def __init__(self, graph_module: fx.GraphModule, module: torch.nn.Module | None) -> None:
        places = {
            id(tensor): (table, name)
            for part in (() if module is None else module.modules())
            for table in (part._parameters, part._buffers)
            for name, tensor in table.items()
            if tensor is not None
        }
        self._found: list[tuple[dict[str, Any], str]] = []
        first = next(iter(graph_module.graph.nodes))
        for node in list(graph_module.graph.nodes):
            if node.op != "get_attr":
                continue
            tensor = getattr(graph_module, node.target)
            self._found.append(places.get(id(tensor), ({"": tensor}, "")))
            with graph_module.graph.inserting_before(first):
                node.replace_all_uses_with(graph_module.graph.placeholder(f"weight_{len(self._found)}"))
            graph_module.graph.erase_node(node)

    def now(self) -> list[Tensor]:
        return [table[name] for table, name in self._found]


# ---- Regions.


class _Region:
    """Elementwise operations as one function of tensors. Compiled when it is first called, for what it is called for."""

    def __init__(self, graph_module: fx.GraphModule) -> None:
        self._graph_module = graph_module
        self._given = [node.meta["val"] for node in graph_module.graph.nodes if node.op == "placeholder"]
        self._mode: FakeTensorMode = self._given[0].fake_mode
        returned = graph_module.graph.output_node().args[0]
        self.returns_one = isinstance(returned, fx.Node)
        self.count = 1 if isinstance(returned, fx.Node) else len(returned)  # type: ignore[arg-type]
        self._infer: Callable[[list[Tensor]], Sequence[Tensor]] | None = None
        self._train: Callable[[list[Tensor]], Sequence[Any]] | None = None
        self.backward: Callable[[list[Any]], Sequence[Tensor | None]]

    def as_function(self) -> Callable[..., Any]:
        def region(*tensors: Tensor) -> Any:
            results = _run(self, *tensors) if torch.is_grad_enabled() else self.infer(tensors)
            return results[0] if self.returns_one else results

        return region

    def infer(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        if self._infer is None:
            with self._compiling():
                graph = make_fx(self._apart, decomposition_table=select_decomp_table())(*self._inputs(tracked=False))
                self._infer = _compiled(graph)
        return self._infer(_contiguous(tensors))

    def train(self, tensors: Sequence[Tensor]) -> Sequence[Any]:
        """The results, and after them what backward needs."""
        if self._train is None:
            with self._compiling(), torch.enable_grad():
                inputs = self._inputs(tracked=True)
                joint: Any = aot_export_joint_simple(
                    self._apart, inputs, trace_joint=True, decompositions=select_decomp_table()
                )
                forward, backward = min_cut_rematerialization_partition(joint, None, num_fwd_outputs=self.count)
                self._train, self.backward = _compiled(forward), _compiled(backward)
        return self._train(_contiguous(tensors))

    def _apart(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Results that are no views of what was given, which an autograd function may not return."""
        results = self._graph_module(*tensors)
        results = (results,) if self.returns_one else results
        storages = {tensor.untyped_storage()._cdata for tensor in tensors}
        return tuple([r.clone() if r.untyped_storage()._cdata in storages else r for r in results])

    def _inputs(self, *, tracked: bool) -> tuple[Tensor, ...]:
        return tuple(
            [
                torch.empty(value.shape, dtype=value.dtype, device=value.device).requires_grad_(
                    tracked and value.is_floating_point()
                )
                for value in self._given
            ]
        )

    @contextmanager
    def _compiling(self) -> Iterator[None]:
        with tracing(TracingContext(self._mode)), self._mode:
            yield


def _compiled(graph: fx.GraphModule) -> Callable[[list[Any]], Sequence[Any]]:
    examples = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
    made: Any = compile_fx_inner(graph, examples)
    # Calling what it is made of, without the look at profilers that comes first, takes half as long.
    compiled: Callable[[list[Any]], Sequence[Any]] = made.current_callable
    return compiled


def _contiguous(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor if tensor.is_contiguous() else tensor.contiguous() for tensor in tensors]


class _Run(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, region: _Region, *tensors: Tensor) -> tuple[Tensor, ...]:
        results = region.train(tensors)
        kept = results[region.count :]
        ctx.region = region
        ctx.sizes = [item for item in kept if not isinstance(item, Tensor)]
        ctx.save_for_backward(*kept[: len(kept) - len(ctx.sizes)])
        return tuple(results[: region.count])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise CellError(
                "a compiled cell has no second derivatives. Leave out `compile=True` for what is differentiated twice "
                "(`create_graph=True`)"
            )
        return None, *ctx.region.backward([*ctx.saved_tensors, *ctx.sizes, *_contiguous(grads)])


# Function.apply without its first line, which looks through all arguments for the wrappers of function transforms.
_run = super(torch.autograd.Function, _Run).apply
