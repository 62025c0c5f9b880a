"""``torchrun --nproc-per-node 2 -m tests.training.two_processes FOLDER``: the trainings of `ALIKE`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from tests.training.small import ALIKE, trained

if __name__ == "__main__":
    for task, written in ALIKE.items():
        trained(Path(sys.argv[1]) / task, task, written)
    torch.distributed.destroy_process_group()
