"""Plain PyTorch: ``python -m benchmarks.peers.workers.torch_plain one-by-one``."""

from __future__ import annotations

import sys

from benchmarks.peers.protocol import serve
from benchmarks.peers.workers import torch_trees

if __name__ == "__main__":
    way = sys.argv[1]
    tasks = {"tree-lstm": torch_trees.WAYS}
    serve({task: ways[way] for task, ways in tasks.items() if way in ways})
