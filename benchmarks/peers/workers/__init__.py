"""Programs of the peers. Each module is run as a process: ``python -m benchmarks.peers.workers.MODULE WAY``."""
