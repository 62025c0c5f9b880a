"""What a training goes on from.

A checkpoint is a folder, ``step-N``, of JSON and safetensors. ``manifest.json`` has the size and the checksum of each of the other files. The
folder gets its name once all of it is on the disk, and older ones go afterwards, all but one: if the newest turns out to be damaged, the
training goes on from the one before.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foldloom.errors import RunError
from foldloom.training.saving import durable
from foldloom.training.saving.states import parsed_json

KEPT = 2
MANIFEST = "manifest.json"
FORMAT = 1
MANIFEST_BYTES = 1 << 20

Files = dict[str, bytes]


class DamagedCheckpointError(Exception):
    """One that cannot be gone on from; an older one may do."""


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    about: Mapping[str, Any]
    files: Files


class Checkpoints:
    """Those of a run. ``identity`` is the training's: the checkpoints of another one are refused."""

    def __init__(self, folder: Path, identity: str, accelerator: Any) -> None:
        self._folder, self._identity, self._accelerator = folder, identity, accelerator

    @property
    def paths(self) -> list[Path]:
        """Newest first."""
        if not self._folder.is_dir():
            return []
        with durable.told("read", self._folder):
            named = [path for path in self._folder.iterdir() if re.fullmatch(r"step-[0-9]{1,15}", path.name)]
        return sorted(named, key=_step, reverse=True)

    def save(self, step: int, of_all: Files, own: Files, about: Mapping[str, Any]) -> None:
        """``own`` are the files of this process; those of all processes are written by the main one."""
        place = self._folder / f"step-{step}"
        if place in self.paths:
            return
        main, written = self._accelerator.is_main_process, self._folder / f"step-{step}{durable.UNFINISHED}"
        if main:
            durable.make_folder_within(self._folder.parent, self._folder.name)
            self._remove_unfinished()
            durable.make_folder(written)
        self._accelerator.wait_for_everyone()
        durable.write_within(written, own)
        if main:
            durable.write_within(written, of_all)
        self._accelerator.wait_for_everyone()
        if main:
            files = {path.name: _described(path.read_bytes()) for path in sorted(written.iterdir())}
            manifest = {"format": FORMAT, "step": step, "training": self._identity, **about, "files": files}
            durable.write_within(written, {MANIFEST: json.dumps(manifest, indent=1).encode()})
            durable.put_in_place(written, place)
            for old in self.paths[KEPT:]:
                durable.remove_folder(old)

    def read(self, path: Path, at_most: int) -> Checkpoint:
        """With all of its files, of so many bytes at most together."""
        try:
            about = parsed_json(durable.read(path / MANIFEST, MANIFEST_BYTES))
            files = self._checked(path, about, at_most)
        except (RunError, ValueError, KeyError, TypeError, AttributeError) as error:
            problem = error if isinstance(error, RunError) else f"{path / MANIFEST}: {error!r:.300}"
            raise DamagedCheckpointError(f"{problem}") from error
        return Checkpoint(path, about, files)

    def _checked(self, path: Path, about: Mapping[str, Any], at_most: int) -> Files:
        if about["format"] != FORMAT or about["step"] != _step(path):
            raise ValueError("it is of another version, or of another step")
        if about["training"] != self._identity:
            raise RunError(f"{path / MANIFEST} belongs to another training than the config.json of its folder")
        files: Files = {}
        for name, described in about["files"].items():
            if Path(name).name != name:
                raise ValueError(f"{name!r} is not the name of a file in it")
            files[name] = durable.read(path / name, at_most - sum(map(len, files.values())))
            if described != _described(files[name]):
                raise RunError(f"{path / name} is damaged: its checksum is not that of {MANIFEST}")
        return files

    def remove(self, paths: Sequence[Path]) -> None:
        """Those that turned out to be damaged: what is saved next may have their names."""
        if self._accelerator.is_main_process and paths:
            durable.make_folder_within(self._folder.parent, self._folder.name)
            for path in paths:
                durable.remove_folder(path)

    def _remove_unfinished(self) -> None:
        for path in self._folder.glob(f"*{durable.UNFINISHED}"):
            durable.remove_folder(path)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _described(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
