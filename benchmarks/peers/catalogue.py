"""Who takes part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.peers.environments import OWN


@dataclass(frozen=True)
class Peer:
    name: str
    title: str
    module: str
    """Of ``benchmarks.peers.workers``."""
    way: str
    environment: str = OWN
    threads: int = 64
    """More than so many it cannot use."""
    slow: bool = False
    """Runs a few examples of each batch, from the smallest to the largest: all of them would take minutes."""
    cannot: Mapping[str, str] = field(default_factory=dict)
    """Tasks that it has no means for, and why."""


def _plain(way: str, title: str, *, slow: bool = False) -> Peer:
    return Peer(way, title, "torch_ways", way, slow=slow)


def _foldloom(way: str, title: str) -> Peer:
    return Peer(f"foldloom-{way}", f"Foldloom {title}", "torch_ways", way)


def _dynet(strategy: str, title: str, *, slow: bool = False) -> Peer:
    return Peer(
        f"dynet-{strategy}", f"DyNet, {title}", "dynet_programs", strategy, environment="dynet", threads=1, slow=slow
    )


NO_SEQUENCES = {
    "tagger": "message passing goes edge by edge, a sequence of n words in n rounds of a few edges",
    "tagger-characters": "as for the tagger",
    "parser": "the graph would have to grow while it is being run",
}
NO_BRANCHES = {"parser": "what is computed cannot decide what is called next"}
NO_LISTS = {**NO_BRANCHES, "weave": "no operation over lists whose lengths differ"}

PEERS = {
    peer.name: peer
    for peer in (
        _plain("one-by-one", "PyTorch, one by one", slow=True),
        _plain("by-hand", "PyTorch, by hand"),
        _plain("by-hand-words-once", "PyTorch, by hand, each word once"),
        _plain("by-hand-from-objects", "PyTorch, by hand from objects"),
        _plain("by-hand-compiled", "PyTorch, by hand, torch.compile"),
        _plain("by-hand-packed", "PyTorch, by hand, packed"),
        _plain("products", "the matrix products alone"),
        _foldloom("on-the-fly", "on the fly"),
        _foldloom("cells", "with cells"),
        _foldloom("cells-kept", "with cells, recordings kept"),
        _foldloom("cells-in-workers", "with cells, planned in workers"),
        _foldloom("compiled", "with compiled cells"),
        _foldloom("compiled-kept", "with compiled cells, recordings kept"),
        _foldloom("sequences", "over sequences"),
        _foldloom("sequences-kept", "over sequences, recordings kept"),
        _foldloom("sequences-in-workers", "over sequences, planned in workers"),
        _foldloom("blocks", "in blocks"),
        _foldloom("blocks-kept", "in blocks, recordings kept"),
        _foldloom("blocks-in-workers", "in blocks, planned in workers"),
        _dynet("unbatched", "no batching", slow=True),
        _dynet("depth", "by depth"),
        _dynet("agenda", "by agenda"),
        Peer("geometric", "PyTorch Geometric", "geometric", "levels", environment="geometric", cannot=NO_SEQUENCES),
        Peer("torchfold", "torchfold", "torch_fold", "depth", environment="torchfold", cannot=NO_LISTS),
        Peer("jax", "JAX, padded scan", "jax_scan", "scan", environment="jax", cannot=NO_BRANCHES),
    )
}
ORACLE = PEERS["one-by-one"]
"""Its losses are what those of the others must be."""
