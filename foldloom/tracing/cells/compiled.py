"""Cells whose elementwise work is compiled, forward and backward.

What a cell computes between two matrix products is a dozen calls, each of which passes over memory once, and as many again on the
way back. `fl.cell(f, compile=True)` traces the cell once for each signature, with a symbol for the number of members, and hands the
regions of elementwise operations between its products to Inductor: one kernel forward, one backward. The rest of the cell stays ordinary code:
products, lookups and whatever else there is are called in turn, with the weights that the module has at that time, so that
weights may note their uses (`execution/backward/weight_grads.py`) and autograd sees closures as always.

Why not `torch.compile` around the cell? Its guards and wrappers take longer than a narrow step computes, and a step is narrow more
often than not. What they would guard is known here: the types are those of the op, the number of members is a symbol,
and that everything else stays as it was is what ``compile=True`` promises.

Hazards: Inductor takes dtypes and strides for granted, so that whatever enters a region is made contiguous first, and code is kept under
all that may change a dtype. Whoever calls autograd functions directly, as `_run` does, must not hand them the stand-ins of weights.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from foldloom.errors import CellError
from foldloom.execution.backward.weight_grads import LateWeight, embedding, linear, swapping
from foldloom.execution.kernels import dtype_of
from foldloom.graph import Type
from foldloom.torch_private import FakeTensorMode, OpOverload, are_transforms_active, is_any_autocast_enabled
from foldloom.torch_private.compilers import (
    TracingContext,
    compile_fx_inner,
    export_joint,
    partition_joint,
    select_decomp_table,
    tracing,
)

_aten = torch.ops.aten

_MEMBERS = 7
"""How many members a cell is traced with; that it must not matter is checked."""

_WORTHWHILE = 2
"""A region of fewer operations than this is left as it is: one kernel it is already."""

Flat = Callable[..., Sequence[Tensor]]
"""Blocks of operands in, blocks of outputs out, neither nested."""


def fused(cell: Flat, types: Sequence[Type], module: torch.nn.Module | None, device: torch.device) -> Flat:
    """The same function with its elementwise regions compiled. Refuses what depends on more than its arguments' values."""
    with swapping:
        graph_module = _traced(cell, types, device)
        weights = _Weights(graph_module, module)
    partitioner = CapabilityBasedPartitioner(
        graph_module, _Elementwise(graph_module.graph), allows_single_node_partition=True
    )
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
    weights.become_arguments(graph_module)
    graph_module.recompile()
    run = graph_module.forward
    return lambda *blocks: run(*weights.now(), *blocks)


def can_run(blocks: Sequence[Any], device: torch.device) -> bool:
    """Whether compiled code may be called here: on tensors where it was compiled for, and not while somebody else traces."""
    return (
        {Tensor}.issuperset(map(type, blocks))
        and all([block.device == device for block in blocks])  # noqa: C419 (a generator is slower here)
        and not is_any_autocast_enabled()
        and not are_transforms_active()
        and not torch.compiler.is_compiling()
    )


# ---- Tracing.


def _traced(cell: Flat, types: Sequence[Type], device: torch.device) -> fx.GraphModule:
    shapes = ShapeEnv()
    made = _graph_of(cell, types, device, shapes, _MEMBERS)
    if shapes.guards:
        raise CellError(f"what it does depends on how many members there are ({shapes.guards[0].expr})")
    # A symbol stands for two or more, so that nobody asks whether it is one.
    if _operations(made) != _operations(_graph_of(cell, types, device, ShapeEnv(), 1)):
        raise CellError("what it does depends on how many members there are: one alone is treated in another way")
    for node in _calls(made):
        if not isinstance(node.target, OpOverload):
            raise CellError(f"it calls {node.target.__name__}, which changes what holds for all that comes after")  # type: ignore[union-attr]
        if node.target._schema.is_mutable:
            raise CellError(f"it changes a tensor in place ({node.target._schema.name.removeprefix('aten::')})")
    made.graph.eliminate_dead_code()
    return made


def _graph_of(
    cell: Flat, types: Sequence[Type], device: torch.device, shapes: ShapeEnv, members: int
) -> fx.GraphModule:
    mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
    blocks = []
    for type in types:
        block = torch.empty((members, *type.shape), dtype=dtype_of(type), device=device)
        # One symbol for the number of members of all of them; all else is what it is. One member is always just that.
        dynamic = [DimDynamic.DUCK, *[DimDynamic.STATIC] * len(type.shape)]
        blocks.append(mode.from_tensor(block, symbolic_context=StatelessSymbolicContext(dynamic_sizes=dynamic)))
    with torch.enable_grad():
        made = make_fx(cell, tracing_mode="symbolic", pre_dispatch=True, _allow_non_fake_inputs=True)(*blocks)
    for node in made.graph.nodes:
        if node.op == "get_attr":
            node.meta["val"] = mode.from_tensor(getattr(made, node.target), static_shapes=True)
    return made


def _calls(made: fx.GraphModule) -> list[fx.Node]:
    """What is called; sizes are numbers, with which nothing can go wrong."""
    return [
        node
        for node in made.graph.nodes
        if node.op == "call_function"
        and node.target is not operator.getitem
        and not isinstance(node.meta.get("val"), (torch.SymInt, torch.SymBool, torch.SymFloat))
    ]


def _operations(made: fx.GraphModule) -> list[Any]:
    """What is computed. How it is laid out may be told in other words for one member."""
    return [node.target for node in _calls(made) if not getattr(node.target, "is_view", False)]


class _Elementwise(OperatorSupportBase):
    """What may be part of a region: operations that go number by number, and those that only move numbers about. What is made of
    weights alone is not: its shape is not that of members."""

    def __init__(self, graph: fx.Graph) -> None:
        self._of_members: set[fx.Node] = set()
        for node in graph.nodes:
            if node.op == "placeholder" or not self._of_members.isdisjoint(node.all_input_nodes):
                self._of_members.add(node)

    def is_node_supported(self, submodules: Any, node: fx.Node) -> bool:
        if node.op != "call_function" or node not in self._of_members or not _has_real_tensors(node):
            return False
        if node.target is operator.getitem:
            source = node.args[0]
            return isinstance(source, fx.Node) and self.is_node_supported(submodules, source)
        draws = torch.Tag.nondeterministic_seeded in node.target.tags  # type: ignore[union-attr]
        return not draws and (_makes_anew(node) or node.target.is_view)  # type: ignore[union-attr]


def _has_real_tensors(node: fx.Node) -> bool:
    """Whether all that a node takes and gives are tensors and constants. Sizes would be numbers that vary, and complex numbers are not
    compiled."""
    values = [source.meta.get("val") for source in (*node.all_input_nodes, node)]
    flat = [item for value in values for item in (value if isinstance(value, (list, tuple)) else (value,))]
    return all(isinstance(item, Tensor) and not item.is_complex() for item in flat)


def _makes_anew(node: fx.Node) -> bool:
    """Whether the result has memory of its own."""
    return _computes(node) or node.target is _aten.cat.default


def _computes(node: fx.Node) -> bool:
    operation = node.target
    return isinstance(operation, OpOverload) and torch.Tag.pointwise in operation.tags and not operation.is_view


def _is_worthwhile(nodes: Sequence[fx.Node]) -> bool:
    inside = set(nodes)
    results = [node.meta["val"] for node in nodes if not set(node.users) <= inside]
    given = [source.meta["val"] for node in nodes for source in node.all_input_nodes if source not in inside]
    if not all(isinstance(value, Tensor) for value in (*results, *given)):
        return False
    sizes = [size.node.expr for value in given for size in value.shape if isinstance(size, torch.SymInt)]
    return (
        sum(map(_computes, nodes)) >= _WORTHWHILE
        and all(result.is_floating_point() for result in results)
        # Inductor reads the number of members off an argument, and cannot divide.
        and any(size.is_symbol for size in sizes)
    )


_IN_PYTHON: dict[Any, Callable[..., Any]] = {
    _aten.cat.default: torch.cat,
    _aten.embedding.default: embedding,
    _aten.linear.default: linear,
    _aten.matmul.default: torch.matmul,
    _aten.mm.default: torch.mm,
}
"""Functions of Python's are called in less time than operations by name, and weights may note their uses in them."""


_LISTENED_TO = frozenset((embedding, linear, torch.matmul, torch.mm))
"""Functions that know of the stand-ins of weights."""


class _Weights:
    """The weights of a traced cell, looked up anew for every call: while a plan runs others may stand in for them."""

    def __init__(self, traced: fx.GraphModule, module: torch.nn.Module | None) -> None:
        places = {
            id(tensor): (table, name)
            for part in (() if module is None else module.modules())
            for table in (part._parameters, part._buffers)
            for name, tensor in table.items()
            if tensor is not None
        }
        tensors = {node.target: getattr(traced, node.target) for node in traced.graph.nodes if node.op == "get_attr"}
        self._place_of = {name: places.get(id(tensor), ({"": tensor}, "")) for name, tensor in tensors.items()}
        self._used: list[tuple[dict[str, Any], str, bool]] = []

    def become_arguments(self, graph_module: fx.GraphModule) -> None:
        """In place of attributes of a graph: its first arguments."""
        graph = graph_module.graph
        first = next(iter(graph.nodes))
        for node in list(graph.nodes):
            if node.op == "get_attr":
                listens = all(user.target in _LISTENED_TO for user in node.users)
                self._used.append((*self._place_of[node.target], listens))
                with graph.inserting_before(first):
                    node.replace_all_uses_with(graph.placeholder(f"weight_{len(self._used)}"))
                graph.erase_node(node)

    def now(self) -> list[Tensor]:
        found = [(table[name], listens) for table, name, listens in self._used]
        return [w.weight if type(w) is LateWeight and not listens else w for w, listens in found]


# ---- Regions.


class _Region:
    """Elementwise operations as one function of tensors. Compiled when it is first called, for what it is called for."""

    def __init__(self, graph_module: fx.GraphModule) -> None:
        self._given = [node.meta["val"] for node in graph_module.graph.nodes if node.op == "placeholder"]
        self._mode: FakeTensorMode = self._given[0].fake_mode
        self._returns_one = isinstance(graph_module.graph.output_node().args[0], fx.Node)
        self._function = _with_results_apart(graph_module)
        with self._compiling(), torch.enable_grad():
            self.needs_gradient = [result.requires_grad for result in self._function(*self._inputs(tracked=True))]
            """Of each result, whether it depends on anything that has one."""
        self._infer: Callable[[list[Tensor]], Sequence[Tensor]] | None = None
        self._train: Callable[[list[Tensor]], Sequence[Any]] | None = None
        self.backward: Callable[[list[Any]], Sequence[Tensor | None]]

    def as_function(self) -> Callable[..., Any]:
        is_differentiable = any(self.needs_gradient)

        def region(*tensors: Tensor) -> Any:
            is_tracked = is_differentiable and torch.is_grad_enabled()
            results = _run(self, *tensors) if is_tracked else self.infer(tensors)
            return results[0] if self._returns_one else results

        return region

    def infer(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        if self._infer is None:
            with self._compiling():
                inputs = self._inputs(tracked=False)
                self._infer = _compiled(make_fx(self._function, decomposition_table=select_decomp_table())(*inputs))
        return self._infer(_contiguous(tensors))

    def train(self, tensors: Sequence[Tensor]) -> Sequence[Any]:
        """The results, and after them what backward needs."""
        if self._train is None:
            with self._compiling(), torch.enable_grad():
                joint: Any = export_joint(
                    self._function, self._inputs(tracked=True), trace_joint=True, decompositions=select_decomp_table()
                )
                count = len(self.needs_gradient)
                forward, backward = partition_joint(joint, None, num_fwd_outputs=count)
                self._train, self.backward = _compiled(forward), _compiled(backward)
        return self._train(_contiguous(tensors))

    def _inputs(self, *, tracked: bool) -> tuple[Tensor, ...]:
        blank = [torch.empty(value.shape, dtype=value.dtype, device=value.device) for value in self._given]
        return tuple([block.requires_grad_(tracked and block.is_floating_point()) for block in blank])

    @contextmanager
    def _compiling(self) -> Iterator[None]:
        with tracing(TracingContext(self._mode)), self._mode:
            yield


def _with_results_apart(graph_module: fx.GraphModule) -> Callable[..., tuple[Tensor, ...]]:
    """The same with results that are no views of anything and stand in order, as an autograd function must return them."""
    graph = graph_module.graph
    output = graph.output_node()
    returned: Any = output.args[0]
    results = []
    for node in (returned,) if isinstance(returned, fx.Node) else returned:
        if not _makes_anew(node) or not node.meta["val"].is_contiguous():
            with graph.inserting_before(output):
                node = graph.call_function(_aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
        results.append(node)
    output.args = (tuple(results),)
    graph_module.recompile()
    return lambda *tensors: graph_module.forward(*tensors)


def _compiled(graph: fx.GraphModule) -> Callable[[list[Any]], Sequence[Any]]:
    examples = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
    made: Any = compile_fx_inner(graph, examples)
    # Calling what it is made of, without the look at profilers that comes first, takes half as long.
    compiled: Callable[[list[Any]], Sequence[Any]] = getattr(made, "current_callable", made)
    return compiled


def _contiguous(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor if tensor.is_contiguous() else tensor.contiguous() for tensor in tensors]


class _Run(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, region: _Region, *tensors: Tensor) -> tuple[Tensor, ...]:
        made = region.train(tensors)
        results, kept = made[: len(region.needs_gradient)], made[len(region.needs_gradient) :]
        ctx.set_materialize_grads(False)
        ctx.region, ctx.count = region, len(tensors)
        ctx.like = [(result.shape, result.dtype, result.device) for result in results]
        ctx.sizes = [item for item in kept if not isinstance(item, Tensor)]
        ctx.save_for_backward(*[item for item in kept if isinstance(item, Tensor)])
        ctx.mark_non_differentiable(*[r for r, needs in zip(results, region.needs_gradient, strict=True) if not needs])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if all(grad is None for grad in grads):
            return (None,) * int(ctx.count + 1)
        if torch.is_grad_enabled():
            raise CellError(
                "a compiled cell has no second derivatives. Leave out `compile=True` for what is differentiated twice "
                "(`create_graph=True`)"
            )
        received = [
            torch.zeros(shape, dtype=dtype, device=device) if grad is None else grad
            for grad, (shape, dtype, device), needs in zip(grads, ctx.like, ctx.region.needs_gradient, strict=True)
            if needs
        ]
        # What was kept is given back with its sizes first.
        return None, *ctx.region.backward([*ctx.sizes, *ctx.saved_tensors, *_contiguous(received)])


# Function.apply without its first line, which looks through all arguments for the wrappers of function transforms.
_run = super(torch.autograd.Function, _Run).apply
