from __future__ import annotations

import argparse

from benchmarks import (
    automatic_cells,
    blocks,
    cost_per_node,
    export,
    faults,
    on_the_fly,
    operators,
    quality,
    recording,
    sequences,
    small_batches,
    step_size,
    streaming,
    tree_lstm,
    views,
)
from benchmarks.fuzz import command as fuzz
from benchmarks.gallery import command as gallery
from benchmarks.mutations import command as mutations
from benchmarks.peers import command as peers


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Every figure that the README claims.")
    commands = parser.add_subparsers(required=True)
    for module in (
        tree_lstm,
        automatic_cells,
        blocks,
        on_the_fly,
        gallery,
        operators,
        recording,
        cost_per_node,
        step_size,
        small_batches,
        sequences,
        streaming,
        views,
        export,
        faults,
        peers,
        quality,
        fuzz,
        mutations,
    ):
        module.add_command(commands)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
