"""Running a Plan: arenas and the exchange between steps, weight gradients once, and the one-by-one oracle."""

from foldloom.execution.buffers import Buffers
from foldloom.execution.kernels import Kernel
from foldloom.execution.one_by_one import run_one_by_one
from foldloom.execution.run import run_plan

__all__ = ["Buffers", "Kernel", "run_one_by_one", "run_plan"]
