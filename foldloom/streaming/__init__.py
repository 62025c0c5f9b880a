"""Examples that come and go while the batch runs: `fl.stream`, and the lanes that `foldloom.serving` runs its requests in."""

from foldloom.streaming.streams import Stream, StreamStatistics, stream

__all__ = ["Stream", "StreamStatistics", "stream"]
