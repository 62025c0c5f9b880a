"""PyTorch and Foldloom: ``python -m benchmarks.peers.workers.torch_ways cells``."""

from __future__ import annotations

import sys

from benchmarks.peers.protocol import serve
from benchmarks.peers.workers import foldloom_trees, torch_molecules, torch_sentences, torch_trees

WAYS = {
    "tree-lstm": {**torch_trees.PLAIN, **foldloom_trees.FOLDLOOM},
    "tagger": torch_sentences.TAGGER,
    "tagger-characters": torch_sentences.CHARACTER_TAGGER,
    "parser": torch_sentences.PARSER,
    "weave": torch_molecules.WAYS,
}

if __name__ == "__main__":
    way = sys.argv[1]
    serve({task: programs[way] for task, programs in WAYS.items() if way in programs})
