"""``python -m tests.training.killed FOLDER STEP``: a training that is killed in the middle of a step, as by a machine that fails."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from foldloom.training.trainer import Trainer, accelerator_for
from tests.training.small import small_run

if __name__ == "__main__":
    folder, at = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)

    class Doomed(Trainer):
        def _step(self, batch: Sequence[int], stop: bool) -> tuple[float, bool]:
            if self.progress.steps == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return super()._step(batch, stop)

    Doomed(small_run(folder), accelerator_for("cpu"), False).train(False, 3)
