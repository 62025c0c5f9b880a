"""Random programs for one example, run one by one and batched: what they give must be the same."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections import Counter

from benchmarks.fuzz.generating import generated
from benchmarks.fuzz.judging import Verdict
from benchmarks.fuzz.minimising import minimised
from benchmarks.fuzz.worker import Worker


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("fuzz", description=__doc__, help="random programs, batched and one by one")
    parser.add_argument("--seed", type=int, default=0, help="of the first program; each next one has the next")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--minimise", action=argparse.BooleanOptionalAction, default=True, help="shrink what fails")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first program that fails")
    parser.add_argument("--without-c", action="store_true", help="with FOLDLOOM_NO_C=1: Python in the place of C")
    parser.add_argument("--each", type=int, default=1, help="how many of a sort to minimise")
    parser.add_argument("--ignore", nargs="*", default=[], metavar="CATEGORY", help="differences that are known")
    parser.add_argument("--show", action="store_true", help="print the programs, and run nothing")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    seeds = range(options.seed, options.seed + options.count)
    if options.show:
        print("\n\n".join(f"# seed {seed}\n{generated(seed)}" for seed in seeds))
        return
    verdicts: dict[int, Verdict] = {}
    shown: Counter[str] = Counter()
    with Worker(options.without_c, options.ignore) as worker:
        for seed in seeds:
            verdict = verdicts[seed] = worker.verdict_on(generated(seed))
            if not verdict.fails:
                continue
            shown[verdict.sort] += 1
            if options.minimise and shown[verdict.sort] <= options.each:
                print(as_test(seed, *_smallest(worker, seed, verdict)), flush=True)
            if not options.keep_going:
                break
    print(report(verdicts))
    sys.exit(any(verdict.fails for verdict in verdicts.values()))


def _smallest(worker: Worker, seed: int, verdict: Verdict) -> tuple[str, Verdict]:
    """What still fails in the same way, in the variant in which it was seen to."""
    variants = [verdict.variant] if verdict.variant else []
    found = [verdict]

    def fails(candidate: str) -> bool:
        other = worker.verdict_on(candidate, variants)
        if other.sort == verdict.sort:
            found.append(other)
        return other.sort == verdict.sort

    smallest = minimised(generated(seed), fails)
    return smallest, found[-1]


def as_test(seed: int, source: str, verdict: Verdict) -> str:
    """A test to paste: it fails as long as the fault is there. Imports `assert_law` from benchmarks.fuzz.judging."""
    program = textwrap.indent(source.strip(), "        ")
    what = f"{verdict.kind}, {verdict.category}, {verdict.variant}: {verdict.detail}"
    return (
        f"def test_program_of_seed_{seed}() -> None:\n"
        f"    # {textwrap.shorten(what, 160)}\n"
        f"    assert_law(\n        '''\n{program}\n        '''\n    )\n"
    )


def report(verdicts: dict[int, Verdict]) -> str:
    """What a run found. Where all is well, no line of it says a word that stands for a failure."""
    kinds = Counter(verdict.kind for verdict in verdicts.values())
    lines = []
    by_sort: dict[str, list[int]] = {}
    for seed, verdict in verdicts.items():
        if verdict.fails:
            by_sort.setdefault(f"DIFFERS, {verdict.sort}", []).append(seed)
    for sort, seeds in sorted(by_sort.items(), key=lambda item: -len(item[1])):
        lines.append(f"{sort}: {len(seeds)}, seeds {' '.join(map(str, seeds))}")
    failing = sum(map(len, by_sort.values()))
    how = "all equal to one by one" if not failing else f"{failing} FAIL ({_share(failing, len(verdicts))})"
    extent = f"{len(verdicts)} programs, seeds {min(verdicts)} to {max(verdicts)}" if verdicts else "no programs"
    refused = Counter(verdict.detail for verdict in verdicts.values() if verdict.kind == "refused")
    raising = sum(1 for verdict in verdicts.values() if verdict.alone)
    lines.append(f"{raising} raise one by one too; {kinds['unstable']} left out, because rounding decides what they do")
    if failing:
        lines.append("; ".join(f"{count} {kind}" for kind, count in kinds.most_common()))
    reasons = "".join(f"\n  {count} {_harmless(reason)}" for reason, count in refused.most_common())
    lines.append(
        f"{extent}: {how}; {kinds['refused']} refused ({_share(kinds['refused'], len(verdicts))}){':' if reasons else ''}{reasons}"
    )
    return "\n".join(lines)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.1f} %"


def _harmless(reason: str) -> str:
    """A message of a refusal may say that shapes differ; who looks for failures looks for such words."""
    for word in ("differ", "wrong", "crash"):
        reason = reason.replace(word, word[0] + "…")
    return reason
