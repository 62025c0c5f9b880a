"""How good the models of the literature get: ``python -m benchmarks quality`` trains them and writes docs/results.md.

Each training leaves a record in benchmarks/results/quality. Those that are there are not run again, so that the command can be
stopped and goes on where it was; the page is written from the records alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.corpora import DATA
from benchmarks.timing import machine
from foldloom.tasks import TASKS
from foldloom.training import Run, train
from foldloom.training.evaluating import evaluate

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "benchmarks" / "results" / "quality"
PAGE = ROOT / "docs" / "results.md"
Record = dict[str, Any]

TOX21 = "NR-AR,NR-AR-LBD,NR-AhR,NR-Aromatase,NR-ER,NR-ER-LBD,NR-PPAR-gamma,SR-ARE,SR-ATAD5,SR-HSE,SR-MMP,SR-p53"  # all of them


@dataclass(frozen=True, kw_only=True)
class Experiment:
    name: str
    model: str
    corpus: str
    """In words."""
    task: str
    source: str | None = None
    """Below the folder of data."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """As ``--set`` takes them; ``{data}`` stands for the folder of data."""
    scores: Mapping[str, str]
    """Those to report, and how: percent, or number."""
    published: str
    part: str = "test"
    """Of the data, to report on."""

    def written_settings(self, seed: int) -> dict[str, str]:
        return {**{name: text.format(data=DATA) for name, text in self.settings.items()}, "seed": str(seed)}

    def command(self) -> str:
        words = [f"foldloom train {self.task}"]
        if self.source is not None:
            words.append(f"--data $FOLDLOOM_DATA/{self.source}")
        words += [f"--set {name}={text.format(data='$FOLDLOOM_DATA')}" for name, text in self.settings.items()]
        return " ".join([*words, "--threads 1"])

    def record_of(self, seed: int) -> Path:
        return RECORDS / f"{self.name}-{seed}.json"


EXPERIMENTS = (
    Experiment(
        name="arithmetic-tree-lstm",
        model="Tree-LSTM (Tai et al. 2015)",
        corpus="signs of arithmetic expressions (Bowman et al. 2016), and made-up ones to learn from",
        task="arithmetic",
        source="arithmetic/arithmetic_sign5_10k.tsv",
        scores={"accuracy": "percent"},
        published="",
    ),
    Experiment(
        name="sentiment",
        model="binary Tree-LSTM (Tai et al. 2015), 100-d GloVe vectors, recurrent dropout",
        corpus="Stanford Sentiment Treebank, whole sentences",
        task="sentiment",
        source="sst",
        settings={"vectors": "{data}/glove"},
        scores={"accuracy": "percent", "binary accuracy": "percent"},
        published="51.0 and 88.0 (Tai et al. 2015), 52.3 and 89.4 (Looks et al. 2017), both with 300-d vectors",
    ),
    Experiment(
        name="solubility",
        model="weave convolutions (Kearnes et al. 2016)",
        corpus="ESOL, random split 80/10/10",
        task="molecules",
        source="molecules/delaney-processed.csv",
        scores={"RMSE": "number"},
        published="0.61 ± 0.07 (weave, random split; Wu et al. 2018)",
    ),
    Experiment(
        name="toxicity",
        model="weave convolutions (Kearnes et al. 2016)",
        corpus="Tox21, twelve targets, random split 80/10/10",
        task="molecules",
        source="molecules/tox21.csv.gz",
        settings={"targets": TOX21, "epochs": "8"},
        scores={"ROC-AUC": "number"},
        published="0.820 ± 0.010 (weave, random split; Wu et al. 2018)",
    ),
    Experiment(
        name="adding",
        model="feed-forward attention (Raffel and Ellis 2015)",
        corpus="adding problem, sequences of 100 to 1,000",
        task="adding",
        scores={"solved": "percent"},
        published="solved (Raffel and Ellis 2015)",
    ),
    Experiment(
        name="code",
        model="child-sum Tree-LSTM (Tai et al. 2015)",
        corpus="hidden operators of Python's standard library",
        task="code",
        scores={"accuracy": "percent"},
        published="",
    ),
    Experiment(
        name="names",
        model="BiLSTM tagger (Huang et al. 2015)",
        corpus="WikiNER, English: no test set, so the one by which the epoch is chosen",
        part="dev",
        task="tagging",
        source="wikiner",
        settings={"characters": "false"},
        scores={"F1": "percent", "accuracy": "percent"},
        published="",
    ),
    Experiment(
        name="names-characters",
        model="BiLSTM tagger with characters (Ling et al. 2015)",
        corpus="WikiNER, English: no test set, so the one by which the epoch is chosen",
        part="dev",
        task="tagging",
        source="wikiner",
        scores={"F1": "percent", "accuracy": "percent"},
        published="",
    ),
    Experiment(
        name="parts-of-speech",
        model="BiLSTM tagger with characters (Ling et al. 2015)",
        corpus="UD English EWT, UPOS, no pretraining",
        task="tagging",
        source="ud_ewt",
        scores={"accuracy": "percent"},
        published="",
    ),
    Experiment(
        name="arithmetic-spinn",
        model="SPINN (Bowman et al. 2016)",
        corpus="signs of arithmetic expressions (Bowman et al. 2016), and made-up ones to learn from",
        task="arithmetic",
        source="arithmetic/arithmetic_sign5_10k.tsv",
        settings={"model": "spinn"},
        scores={"accuracy": "percent"},
        published="",
    ),
    Experiment(
        name="sentiment-in-context",
        model="binary Tree-LSTM (Tai et al. 2015) over MiniLM (Wang et al. 2020), trained together",
        corpus="Stanford Sentiment Treebank, whole sentences",
        task="sentiment",
        source="sst",
        settings={
            "encoder": "true",
            "epochs": "4",
            "batch": "32",
            "learning_rate": "1e-3",
            "word_learning_rate": "1e-4",
            "weight_decay": "0.01",
            "hidden": "300",
            "dropout": "0.3",
            "recurrent_dropout": "0.1",
        },
        scores={"accuracy": "percent", "binary accuracy": "percent"},
        published="one model 52.3 and 89.4, thirty together 53.6 and 90.2, with 300-d vectors (Looks et al. 2017)",
    ),
    Experiment(
        name="parsing",
        model="transition parser with BiLSTM features (Kiperwasser and Goldberg 2016), greedy",
        corpus="UD English EWT, gold tags",
        task="parsing",
        source="ud_ewt",
        scores={"UAS": "percent", "LAS": "percent"},
        published="",
    ),
)


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("quality", help=__doc__)
    names = [experiment.name for experiment in EXPERIMENTS]
    command.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    command.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N")
    command.add_argument("--runs", type=Path, default=Path("runs/quality"), help="where trainings are kept")
    command.add_argument("--page", action="store_true", help="train nothing: write docs/results.md from what there is")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    chosen = [experiment for experiment in EXPERIMENTS if experiment.name in options.only and not options.page]
    for experiment in chosen:
        for seed in options.seeds:
            if not experiment.record_of(seed).exists():
                run_experiment(experiment, seed, options.runs / f"{experiment.name}-{seed}")
                PAGE.write_text(page(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")


def run_experiment(experiment: Experiment, seed: int, folder: Path) -> None:
    source = None if experiment.source is None else DATA / experiment.source
    if source is not None and not source.exists():
        print(f"{experiment.name}: skipped, there is no {source}; FOLDLOOM_DATA says where data is")
        return
    print(f"{experiment.name}, seed {seed}", flush=True)
    start, own_start = time.perf_counter(), time.process_time()
    resumes = (folder / "config.json").exists()
    if resumes:
        training = Run.at(folder, source=source)
    else:
        settings = TASKS[experiment.task].defaults().changed(experiment.written_settings(seed))
        training = Run.new(folder, experiment.task, source=source, settings=settings)
    if not train(training, resume=resumes, device="cpu"):
        raise SystemExit("stopped: the same command goes on")
    record = {
        "experiment": experiment.name,
        "seed": seed,
        "command": f"{experiment.command()} --seed {seed}",
        "scores": evaluate(training, experiment.part),
        "best": json.loads((folder / "scores.json").read_text(encoding="utf-8")),
        "examples": training.data.counts,
        "parameters": sum(weight.numel() for weight in training.model().parameters()),
        # Of reading, recording, training and evaluation. What came before an interruption nobody measured.
        "seconds": None if resumes else round(time.perf_counter() - start, 1),
        "processor seconds": None if resumes else round(time.process_time() - own_start, 1),
        "machine": machine(),
    }
    RECORDS.mkdir(parents=True, exist_ok=True)
    experiment.record_of(seed).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def records_of(experiment: Experiment) -> list[Record]:
    paths = sorted(RECORDS.glob(f"{experiment.name}-[0-9]*.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def page() -> str:
    rows = [(experiment, records) for experiment in EXPERIMENTS if (records := records_of(experiment))]
    return "\n".join([*_HEAD, *_table(rows), *_notes(rows)]) + "\n"


def _table(rows: Sequence[tuple[Experiment, list[Record]]]) -> Iterator[str]:
    yield "| model | data | score | seeds | published | minutes |"
    yield "|---|---|---|---|---|---|"
    for experiment, records in rows:
        scores = "; ".join(_score(name, shown, records) for name, shown in experiment.scores.items())
        seeds = ", ".join(str(record["seed"]) for record in records)
        yield f"| {experiment.model} | {experiment.corpus} | {scores} | {seeds} | {experiment.published} | {_minutes(records)} |"


def _score(name: str, shown: str, records: Sequence[Record]) -> str:
    values = [record["scores"][name] * (100 if shown == "percent" else 1) for record in records]
    digits = 1 if shown == "percent" else 3
    text = f"{name} **{statistics.mean(values):.{digits}f}**{' %' if shown == 'percent' else ''}"
    if len(values) > 1:
        text += f" ({min(values):.{digits}f} to {max(values):.{digits}f})"
    return text


def _minutes(records: Sequence[Record]) -> str:
    measured = [record["processor seconds"] for record in records if record["processor seconds"] is not None]
    return f"{statistics.mean(measured) / 60:.1f}" if measured else ""


def _notes(rows: Sequence[tuple[Experiment, list[Record]]]) -> Iterator[str]:
    yield from ("", "## Commands", "")
    for experiment, records in rows:
        counts = records[0]["examples"]
        yield f"- **{experiment.name}**: `{experiment.command()} --seed N`, then `foldloom eval`."
        yield (
            f"  {counts['train']:,} examples to learn from, {counts['dev']:,} to choose the epoch by, {counts[experiment.part]:,} to report on; "
            f"{records[0]['parameters']:,} weights."
        )
    machines = {
        f"{m['cores']} cores, Python {m['python']}, torch {m['torch']}"
        for _, records in rows
        for m in (record["machine"] for record in records)
    }
    yield from ("", f"Run on: {'; '.join(sorted(machines))}.", *_PAPERS)


_HEAD = (
    "# Results",
    "",
    "The models of `foldloom.models`, trained by `foldloom train` with the defaults of their tasks where no setting is named below.",
    "`python -m benchmarks quality` trains what has no record in `benchmarks/results/quality` yet and writes this page from the records.",
    "",
    "Scores are on the test set where nothing else is said: means over seeds, with the least and the greatest. The epoch is chosen on the",
    "development set, and the test set is looked at once. Minutes are those that one core spent on one seed: reading, recording, training",
    "and evaluation.",
    "",
)
_PAPERS = (
    "",
    "## Papers",
    "",
    '- Bowman, Gauthier, Rastogi, Gupta, Manning, Potts, "A Fast Unified Model for Parsing and Sentence Understanding", ACL 2016.',
    '- Huang, Xu, Yu, "Bidirectional LSTM-CRF Models for Sequence Tagging", 2015.',
    '- Kearnes, McCloskey, Berndl, Pande, Riley, "Molecular Graph Convolutions: Moving Beyond Fingerprints", 2016.',
    '- Kiperwasser, Goldberg, "Simple and Accurate Dependency Parsing Using Bidirectional LSTM Feature Representations", TACL 2016.',
    '- Ling et al., "Finding Function in Form: Compositional Character Models for Open Vocabulary Word Representation", EMNLP 2015.',
    '- Looks, Herreshoff, Hutchins, Norvig, "Deep Learning with Dynamic Computation Graphs", ICLR 2017.',
    '- Raffel, Ellis, "Feed-Forward Networks with Attention Can Solve Some Long-Term Memory Problems", 2015.',
    '- Tai, Socher, Manning, "Improved Semantic Representations From Tree-Structured Long Short-Term Memory Networks", ACL 2015.',
    '- Wang, Wei, Dong, Bao, Yang, Zhou, "MiniLM: Deep Self-Attention Distillation for Task-Agnostic Compression of Pre-Trained Transformers", NeurIPS 2020.',
    '- Wu et al., "MoleculeNet: A Benchmark for Molecular Machine Learning", Chemical Science 2018.',
)
