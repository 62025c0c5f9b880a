"""What Foldloom uses of torch's compilers and their private modules. Loading it takes seconds: only those who compile or export do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch._dynamo
import torch._functorch.aot_autograd
import torch._functorch.partitioners
import torch._guards
import torch._inductor.compile_fx
import torch._inductor.decomposition

mark_dynamic: Callable[[torch.Tensor, list[int]], None] = torch._dynamo.mark_dynamic
"""Tells `torch.compile` that a size will change; the documentation of torch names it. If it goes: `torch.compiler` has its successor."""

compile_fx_inner: Callable[..., Any] = torch._inductor.compile_fx.compile_fx_inner
"""Compiles one region of a cell. If it goes: `torch.compile` of the region, whose guards make it slower."""

select_decomp_table: Callable[[], Any] = torch._inductor.decomposition.select_decomp_table
"""Which operators Inductor wants taken apart. If it goes: see what `compile_fx` passes on."""

export_joint: Callable[..., Any] = torch._functorch.aot_autograd.aot_export_joint_simple
"""Traces forward and backward of a region together. If it goes: `torch.compile` of the region."""

partition_joint: Callable[..., Any] = torch._functorch.partitioners.min_cut_rematerialization_partition
"""Splits that into two. If it goes: as above."""

TracingContext = torch._guards.TracingContext
"""Inductor asks it for shapes while it compiles. If it goes: see what `compile_fx` sets up."""

tracing: Callable[..., Any] = torch._guards.tracing
"""Makes it the current one. If it goes: as above."""
