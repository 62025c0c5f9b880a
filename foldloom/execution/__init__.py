"""Running a Plan.

`engine` plans and runs; `run` goes through the steps; `buffers` and `exchange` pass values from step to step, and gradients back. Which gradients
are zero, None or left out is decided in `reach` (rows that backward reached) and `again` (steps that it reached in part); those of weights
are collected in `weight_grads`. `one_by_one` is the oracle.
"""

from foldloom.execution.buffers import Buffers
from foldloom.execution.kernels import Kernel
from foldloom.execution.oracle import run_one_by_one
from foldloom.execution.run import run_plan

__all__ = ["Buffers", "Kernel", "run_one_by_one", "run_plan"]
