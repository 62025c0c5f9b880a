"""What a training goes on from.

Accelerate saves weights, optimiser, schedule, random numbers and our progress into a folder. The folder gets its name once it is complete
and the one before it goes afterwards, so that at every moment there is a complete one.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any


class Checkpoints:
    def __init__(self, folder: Path, accelerator: Any) -> None:
        self._folder, self._accelerator = folder, accelerator

    @property
    def last(self) -> Path | None:
        complete = [path for path in self._folder.glob("step-*") if re.fullmatch(r"step-\d+", path.name)]
        return max(complete, default=None, key=lambda path: int(path.name.removeprefix("step-")))

    def save(self, step: int) -> None:
        before, path = self.last, self._folder / f"step-{step}"
        if before == path:
            return
        written = self._folder / f"step-{step}.new"
        if self._accelerator.is_main_process and written.exists():
            shutil.rmtree(written)  # whoever wrote it was killed
        self._accelerator.wait_for_everyone()
        self._accelerator.save_state(str(written))
        self._accelerator.wait_for_everyone()
        if self._accelerator.is_main_process:
            written.rename(path)
            for old in self._folder.iterdir():
                if old != path:
                    shutil.rmtree(old)

    def load(self, path: Path) -> None:
        self._accelerator.load_state(str(path))
