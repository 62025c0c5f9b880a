"""Mutations of recordings and plans on disk: of their bytes, and of their content under a checksum that fits."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import foldloom as fl
from benchmarks.mutations.changing import changed_json
from benchmarks.mutations.kinds import Kind
from foldloom.tracing.storing import checksum_of


class Scorer(nn.Module):
    """Cells, functions of torch, a derived weight, rows of any number, results in containers."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.score = fl.cell(nn.Embedding(9, 3)), nn.Linear(3, 2)

    def forward(self, words: list[int]) -> Any:
        rows = torch.stack([self.word(word) for word in words])
        scores = self.score(rows).softmax(-1) * self.score.bias.exp()
        return {"total": scores.sum(0), "rows": [scores, (scores[0], len(words), "text", 1.5)]}


SENTENCES = [[1, 2, 3], [4, 5], [6]]


class Recordings(Kind):
    """Any bytes may be changed; the checksum tells."""

    def make_originals(self, folder: Path) -> None:
        torch.manual_seed(0)
        recordings = fl.record_each(Scorer(), SENTENCES)
        fl.save(recordings, folder / "recordings")
        fl.save(fl.plan(recordings), folder / "plan")

    def use(self, path: Path) -> None:
        model, loaded = Scorer(), fl.load(path)
        try:
            fl.batch(model).run(loaded if path.name == "plan" else fl.plan(loaded))
        except (
            fl.errors.FoldloomError
        ) as error:  # what is well formed may ask for what no model does, and says which cell refuses it
            raise fl.errors.RecordingError(f"{path}: {' '.join(str(error).split())}") from error


class ForgedRecordings(Recordings):
    """What a stranger writes has a checksum that fits."""

    STRINGS = (
        "os:system",
        "torch:load",
        "torch:os.system",
        "torch.serialization:load",
        "float64",
        "object",
        "OPERAND",
        "tuple",
        "class",
        "word",
        "<tracked>",
    )
    EXTREMES = (-(2**63), -1, 0, 1, 2, 9, 10**6, 2**31, 2**62)

    def mutate(self, original: Path, source: random.Random, target: Path) -> None:
        with np.load(original) as loaded:
            arrays = {name: loaded[name] for name in loaded.files}
        if source.random() < 0.5:
            content = changed_json(json.loads(arrays["json"].tobytes()), source, self.STRINGS)
            arrays["json"] = np.frombuffer(json.dumps(content).encode("utf-8", "replace"), np.uint8)
        else:
            name = source.choice(sorted(set(arrays) - {"json", "checksum"}))
            arrays[name] = self._changed(arrays[name], source)
        target.write_bytes(forged(arrays))

    def _changed(self, array: np.ndarray[Any, Any], source: random.Random) -> np.ndarray[Any, Any]:
        how = source.randrange(5)
        if how == 0:
            return array[: source.randrange(len(array) + 1)] if array.ndim else array[None]
        if how == 1:
            return np.concatenate([array.reshape(-1), array.reshape(-1)])
        if how == 2:
            return array.astype(source.choice(("float32", "int32", "bool", "S4")))
        changed = array.copy().reshape(-1)
        if len(changed):
            value = (
                source.choice((*self.EXTREMES, *changed.tolist()))
                if changed.dtype == np.int64
                else source.randrange(256)
            )
            changed[source.randrange(len(changed))] = value
        return changed.reshape(array.shape)


def forged(arrays: dict[str, np.ndarray[Any, Any]]) -> bytes:
    """A file of these arrays, with the checksum that they have."""
    arrays["checksum"] = np.frombuffer(checksum_of(arrays), np.uint8)
    stream = io.BytesIO()
    np.savez(stream, allow_pickle=False, **arrays)
    return stream.getvalue()
