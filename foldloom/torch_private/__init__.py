"""Every private name of torch that Foldloom uses, with the reason and what to do if it goes. Nothing else in the library names one.

Private are names that begin with an underscore, and what stands in modules that do. They are bound here once, so that a call costs no more
than one of the original. `tests/project/test_torch_private.py` says which of them an installed torch lacks. What loads torch's compilers,
which takes seconds, is in `compilers`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch._functorch.apis
import torch._functorch.eager_transforms
import torch._functorch.pyfunctorch
import torch._functorch.vmap
import torch._higher_order_ops
import torch._subclasses.fake_tensor
import torch.utils._device
import torch.utils._python_dispatch
import torch.utils._pytree
from torch.nn.utils import parametrizations, parametrize

# ---- Modes of the thread. Recording and every switch between fibers ask for them, so each must be one cheap call.

is_any_autocast_enabled: Callable[[], bool] = torch._C._is_any_autocast_enabled
"""Asked at each recorded call. If it goes: `torch.is_autocast_enabled` of each kind of device."""

set_grad_enabled: Callable[[bool], None] = torch._C._set_grad_enabled
"""`torch.set_grad_enabled` without an object to enter and leave. If it goes: enter that."""

InferenceMode = torch._C._InferenceMode
"""The guard in `torch.inference_mode`, which can be entered in one function and left in another. If it goes: use that."""

get_deterministic_algorithms: Callable[[], bool] = torch._C._get_deterministic_algorithms
"""`torch.are_deterministic_algorithms_enabled` without a Python call. If it goes: use that."""

get_deterministic_warn_only: Callable[[], bool] = torch._C._get_deterministic_algorithms_warn_only
"""If it goes: `torch.is_deterministic_algorithms_warn_only_enabled`."""

set_deterministic_algorithms: Callable[..., None] = torch._C._set_deterministic_algorithms
"""`torch.use_deterministic_algorithms` also imports the compiler's settings. If it goes: use that."""

is_multithreading_enabled: Callable[[], bool] = torch._C._is_multithreading_enabled
"""Torch has no public way to ask for it. If it goes: leave it out of the state of a fiber."""

set_multithreading_enabled: Callable[[bool], None] = torch._C._set_multithreading_enabled
"""If it goes: `torch.autograd.set_multithreading_enabled`."""

DisableTorchFunction = torch._C.DisableTorchFunction
"""Switches subclasses and modes off; the public `torch._C.DisableTorchFunctionSubclass` leaves modes on. If it goes: that, and pop the modes."""

is_torch_function_enabled: Callable[[], bool] = torch._C._is_torch_function_enabled
"""Whether `DisableTorchFunctionSubclass` is off. If it goes: leave it out of the state of a fiber."""

get_torch_function_state: Callable[[], Any] = torch._C._get_torch_function_state  # type: ignore[attr-defined]
"""All three states of the two above. If it goes: leave it out of the state of a fiber."""

set_torch_function_state: Callable[[Any], None] = torch._C._set_torch_function_state  # type: ignore[attr-defined]
"""Sets it. If it goes: leave it out of the state of a fiber."""

# ---- Stacks of modes. A fiber that pauses takes its modes off, and puts them back when it goes on.

count_function_modes: Callable[[], int] = torch._C._len_torch_function_stack
"""How many function modes are on. If it goes: count what `torch.overrides` has as its stack."""

function_mode_at: Callable[[int], Any] = torch._C._get_function_stack_at
"""One of them. If it goes: pop all of them and push them again."""

pop_function_mode: Callable[[], Any] = torch._C._pop_torch_function_stack
"""Takes the innermost off. If it goes: call `__exit__` of it."""

push_function_mode: Callable[[Any], None] = torch._C._push_on_torch_function_stack
"""Puts one on. If it goes: call `__enter__` of it."""

count_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
"""How many dispatch modes are on. If it goes: the length of what the next one returns."""

dispatch_modes: Callable[[], list[Any]] = torch.utils._python_dispatch._get_current_dispatch_mode_stack
"""All of them. If it goes: look at what `TorchDispatchMode.__enter__` does."""

pop_dispatch_mode: Callable[[], Any] = torch.utils._python_dispatch._pop_mode
"""Takes the innermost off. If it goes: call `__exit__` of it."""

push_dispatch_mode: Callable[[Any], None] = torch.utils._python_dispatch._push_mode
"""Puts one on. If it goes: call `__enter__` of it."""

TorchDispatchMode = torch.utils._python_dispatch.TorchDispatchMode
"""Sees every operator that runs, to notice those that draw random numbers. Its module is private, its use documented. If it goes: search
for its new place."""

DeviceContext = torch.utils._device.DeviceContext
"""The mode that `torch.set_default_device` puts on. If it goes: compare whole states whenever there are modes."""

global_device_context: Any = torch._GLOBAL_DEVICE_CONTEXT
"""Where `torch.set_default_device` keeps that mode. If it goes: `torch.get_default_device` and `torch.set_default_device`."""

# ---- Hooks on tensors that are saved for backward.

top_saved_tensor_hooks: Callable[[bool], Any] = torch._C._autograd._top_saved_tensors_default_hooks
"""The innermost pair of `torch.autograd.graph.saved_tensors_hooks`. If it goes: leave them out of the state of a fiber."""

push_saved_tensor_hooks: Callable[[Any, Any], None] = torch._C._autograd._push_saved_tensors_default_hooks
"""Puts a pair on. If it goes: enter `saved_tensors_hooks`."""

pop_saved_tensor_hooks: Callable[[], None] = torch._C._autograd._pop_saved_tensors_default_hooks
"""Takes a pair off. If it goes: leave them out of the state of a fiber."""

saved_tensor_hooks_refusal: Callable[[], str | None] = (
    torch._C._autograd._saved_tensors_hooks_get_disabled_error_message
)
"""What `disable_saved_tensors_hooks` was told to say. If it goes: leave it out of the state of a fiber."""

enable_saved_tensor_hooks: Callable[[], None] = torch._C._autograd._saved_tensors_hooks_enable
"""Ends `disable_saved_tensors_hooks`. If it goes: leave it out of the state of a fiber."""

disable_saved_tensor_hooks: Callable[[str, bool], None] = torch._C._autograd._saved_tensors_hooks_disable
"""Begins it. If it goes: leave it out of the state of a fiber."""

# ---- Transforms of torch.func. Nothing inside one can be recorded.

modules_of_functions = frozenset(
    ("torch", "torch.functional", "torch.nn.functional", "torch._C._nn", "torch._tensor", "torch.linalg", "torch._C._linalg",
     "torch.special", "torch._C._special", "torch.fft", "torch._C._fft", "torch._VF")
)  # fmt: skip
"""Names of modules whose functions compute with tensors and call no code of the user's. If one goes: its functions are not captured."""

global_module_hooks: tuple[dict[Any, Any], ...] = tuple(
    [
        hooks
        for name, hooks in vars(torch.nn.modules.module).items()
        if name.startswith("_global_") and isinstance(hooks, dict)
    ]
)
"""Hooks on all modules. Asked whether there are any before a module's Python is skipped. If it goes: capture no calls of modules."""

are_transforms_active: Callable[[], bool] = torch._C._are_functorch_transforms_active
"""Whether code runs inside one, in one cheap call. If it goes: ask `current_transform`."""

current_transform: Callable[[], Any] = torch._C._functorch.peek_interpreter_stack
"""The innermost, or None. If it goes: search `torch.func` for how it knows."""

current_transform_level: Callable[[], int | None] = torch._C._functorch.maybe_current_level
"""How many are around, for the state of a fiber. If it goes: refuse to wait inside a transform."""

pop_transform: Callable[[], Any] = torch._C._functorch.pop_dynamic_layer_stack
"""Takes the innermost off while a fiber pauses. If it goes: refuse to wait inside a transform."""

push_transform: Callable[[Any], Any] = torch._C._functorch.push_dynamic_layer_stack
"""Puts it back. If it goes: refuse to wait inside a transform."""

no_transforms: Callable[[], Any] = torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack
"""A context without transforms, in which values are computed that one asks for. If it goes: pop and push them."""

TRANSFORMS: dict[str, tuple[ModuleType, ...]] = {
    "grad_impl": (torch._functorch.eager_transforms,),
    "grad_and_value_impl": (torch._functorch.eager_transforms,),
    "_vjp_with_argnums": (torch._functorch.eager_transforms,),
    "_jvp_with_argnums": (torch._functorch.eager_transforms,),
    "vmap_impl": (torch._functorch.vmap, torch._functorch.apis),
}
"""What the functions of `torch.func` call, and where they find it: calls of these are watched. If one goes: find what `torch.func.grad`
and the others call instead."""

mapped_inputs: Callable[..., tuple[int, list[int | None], list[Any], Any]] = (
    torch._functorch.vmap._process_batched_inputs
)
"""How `torch.vmap` fits `in_dims` to its arguments: the number of examples, and the arguments and their dimensions, flat. `fl.vmap` is to say the
same errors. If it goes: see what `torch.vmap` calls instead."""

check_out_dims: Callable[[Any, Any], None] = torch._functorch.vmap._check_out_dims_is_int_or_int_pytree
"""The same for `out_dims`. If it goes: see what `torch.vmap` calls instead."""

check_randomness: Callable[[str], None] = torch._functorch.vmap._check_randomness_arg
"""The same for `randomness`. If it goes: see what `torch.vmap` calls instead."""

name_of_mapped: Callable[[Any], str] = torch._functorch.vmap._get_name
"""What `torch.vmap` calls a function in its errors. If it goes: its `__name__`."""

tree_flatten: Callable[[Any], tuple[list[Any], Any]] = torch.utils._pytree.tree_flatten
"""Nested arguments and results as `torch.vmap` takes them apart, with the containers that users have registered with torch. If it goes: torch
will have made it public."""

tree_unflatten: Callable[[Any, Any], Any] = torch.utils._pytree.tree_unflatten
"""The way back. If it goes: torch will have made it public."""

broadcast_dims: Callable[[Any, Any], list[Any] | None] = torch.utils._pytree._broadcast_to_and_flatten
"""`out_dims` for each leaf of a result, None if they do not fit. If it goes: see what `torch.vmap` calls instead."""

# ---- Autograd.

backward_pass: Callable[[], int] = torch._C._current_graph_task_id
"""The number of the backward pass that runs, -1 outside. If it goes: note the pass in a hook of its first node."""

queue_callback: Callable[[Callable[[], Any]], None] = torch.autograd.Variable._execution_engine.queue_callback
"""Has something called when the backward pass ends; distributed training in torch uses it. If it goes: see what that uses then."""

is_alias_of: Callable[[torch.Tensor, torch.Tensor], bool] = torch._C._is_alias_of  # type: ignore[attr-defined]
"""Whether two tensors share a storage. If it goes: compare `data_ptr` of their storages."""

storage_use_count: Callable[[int], int] = torch._C._storage_Use_Count
"""Who holds a storage: the pool reuses memory that nobody else holds. If it goes: do not reuse memory."""

exchange_tensors: Callable[[Any, Any], None] = torch._C._swap_tensor_impl
"""Exchanges what two Python objects are. If it goes: `torch.utils.swap_tensors`, for objects of types that it takes.
Else values that were kept beside the results of a batch stay values."""

make_subclass: Callable[..., Any] = torch.Tensor._make_subclass
"""A tensor of a subclass over the memory of another. If it goes: `torch.Tensor.as_subclass`."""

# ---- Tensors without data, with which the types of results are inferred.

fake_tensor: ModuleType = torch._subclasses.fake_tensor
"""The module, whose logger is silenced. If it goes: find where the logger is."""

FakeTensor = torch._subclasses.fake_tensor.FakeTensor
"""A tensor without data. If it goes: tensors on the device `meta`, which know less about devices."""

FakeTensorMode = torch._subclasses.fake_tensor.FakeTensorMode
"""In it functions are called on them; `torch.export` is built on it. If it goes: as above."""

DataDependentOutputException = torch._subclasses.fake_tensor.DataDependentOutputException
"""Raised where a result needs data. If it goes: see what `FakeTensorMode` raises then."""

DynamicOutputShapeException = torch._subclasses.fake_tensor.DynamicOutputShapeException
"""Raised where a shape needs data. If it goes: as above."""

UnsupportedOperatorException = torch._subclasses.fake_tensor.UnsupportedOperatorException
"""Raised for operators without a rule. If it goes: as above."""

# ---- Modules and functions.

functions_of_nn: ModuleType = torch._C._nn
"""Some functions of `torch.nn.functional` are bound there alone. If it goes: find where they are bound."""

BatchNorm = torch.nn.modules.batchnorm._BatchNorm
"""The base of all batch norms, which mix examples. If it goes: the classes one by one."""

Dropout = torch.nn.modules.dropout._DropoutNd
"""The base of all dropouts. If it goes: the classes one by one."""

SpectralNorm: Any = parametrizations._SpectralNorm
"""Changes its buffers at each call in training. If it goes: find the class that `spectral_norm` registers."""

inject_class: Callable[[torch.nn.Module], None] = parametrize._inject_new_class
"""Gives a module a class of its own, as `register_parametrization` does. If it goes: see what that does."""

inject_property: Callable[[torch.nn.Module, str], None] = parametrize._inject_property
"""Makes a weight a property of that class. If it goes: see what `register_parametrization` does."""

ScriptMethod: Any = torch._C.ScriptMethod
"""A method of TorchScript, which is given computed values. If it goes: with TorchScript, and nothing is to be done."""

OpOverload = torch._ops.OpOverload
"""An operator in a traced graph. If it goes: see what `torch.export` says the targets of its nodes are."""

while_loop: Any = torch._higher_order_ops.while_loop
"""A loop in an exported graph. If it goes: search for its new place; it is on its way to become public."""

# ---- Names that are looked up, not bound.

private_effects = frozenset(("_clear_non_serializable_cached_data",))
"""Private methods of `torch.Tensor` that do something to it: no file may name them as operations. If one goes: leave it out."""

methods_of_the_object = frozenset(("_fix_weakref", "_make_subclass", "_make_wrapper_subclass", "_use_count"))
"""Methods of `torch.Tensor` that are about the Python object, not about its numbers: handles have them as they are. If one goes: leave it out."""

DYNAMO = "torch._dynamo"
"""If this module is not loaded, nothing was compiled. If it goes: find what `torch.compile` loads."""

EVAL_FRAME = "torch._dynamo.eval_frame"
"""Holds `OptimizedModule`, what `torch.compile` makes of a module. If it goes: find the class of that."""

ATTRIBUTES = {
    "_version": "Of a tensor: how often it was changed in place. If it goes: there is no other; changes would go unnoticed.",
    "_cdata": "Of a storage: which one it is. If it goes: `data_ptr`, which empty storages share.",
    "_base": "Of a tensor: the one that it is a view of. If it goes: there is no other; changes of views of leaves would not be refused.",
    "_apply": "Of a module: what `to`, `half` and `cuda` call. Cells forget their signatures then. If it goes: see what `nn.Module.to` calls.",
    "_save_to_state_dict": "Of a module: its own part of `state_dict`. A cell gives that of its module. If it goes: see `nn.Module.state_dict`.",
    "_load_from_state_dict": "Of a module: the way back. If it goes: see `nn.Module.load_state_dict`.",
    "_non_persistent_buffers_set": "Of a module: the buffers that are not saved. A cell shares it with its module. If it goes: see `register_buffer`.",
    "_parameters": "Of a module: its own weights. If it goes: `named_parameters(recurse=False)`, which is slower.",
    "_buffers": "Of a module: its own buffers. If it goes: `named_buffers(recurse=False)`.",
    "_modules": "Of a module: its parts. If it goes: `named_children`.",
    "_forward_hooks": "Of a module: hooks see one example, so such modules are not recorded as one call. If it goes: see `register_forward_hook`.",
    "_forward_pre_hooks": "As above. If it goes: see `register_forward_pre_hook`.",
    "_backward_hooks": "As above. If it goes: see `register_full_backward_hook`.",
    "_backward_pre_hooks": "As above. If it goes: see `register_full_backward_pre_hook`.",
    "_apply_on_tensors": "Of `torch.utils.hooks.BackwardHook`: puts functions around a module's call, to register hooks on. If it goes: see that class.",
    "_call_impl": "Of a module: what `__call__` calls, one frame less in deep recursions. If it goes: `nn.Module.__call__` as it was.",
    "_compiled_call_impl": "Of a module: what `module.compile()` made. If it goes: see what `nn.Module.__call__` does.",
    "_orig_mod": "Of a compiled module: the module that was compiled. If it goes: see `OptimizedModule`.",
    "_flat_weights_names": "Of a recurrent module: the names of its weights in order. If it goes: build them from its settings.",
    "_schema": "Of an operator: whether it changes its arguments. If it goes: see what `torch.export` asks.",
}
"""Private attributes of torch's objects that the library reads, in Python and in C."""
