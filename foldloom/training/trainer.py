"""The training loop. Accelerate has what is the same everywhere: processes, devices, gradients over processes, checkpoints.

A step takes a batch of as many examples as the settings say, whoever computes them: each process takes every n-th example of it. A loss is
the mean over the whole batch, so each process divides by the size of the whole, and the gradients are summed. With several processes
the curve is thus the same as with one, but for dropout, which draws its own numbers in each.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from foldloom.data.reading import installed
from foldloom.errors import RunError
from foldloom.models.training import Batch, Trainable
from foldloom.training.batches import Examples, batches_of_epoch, steps_of_epoch
from foldloom.training.checkpoints import Checkpoints
from foldloom.training.curves import Row, save_curves
from foldloom.training.evaluating import predictions
from foldloom.training.interruption import Interruption
from foldloom.training.run import Run

STEPS_OF_A_ROW = 10
"""The learning curve has the mean loss of so many steps."""


@dataclass
class Progress:
    """Where a training stands, and how it came there."""

    processes: int
    epoch: int = 0
    step: int = 0
    """In the epoch."""
    steps: int = 0
    examples: int = 0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    """Of the steps since the last row."""
    rows: list[Row] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)
    """Of the development data, after the last epoch."""
    best: float | None = None

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["processes"] != self.processes:
            raise RunError(
                f"the training was begun by {state['processes']} processes and cannot go on exactly with {self.processes}: "
                f"run it under `torchrun --nproc-per-node {state['processes']}`"
            )
        self.__dict__.update(state)

    def add_row(self) -> None:
        """The losses since the last one as a row of the curve."""
        if self.losses:
            loss, self.losses = sum(self.losses) / len(self.losses), []
            counts = {"step": self.steps, "epoch": self.epoch, "examples": self.examples}
            self.rows.append({**counts, "seconds": round(self.seconds, 3), "loss": loss})

    def end_epoch(self, scores: dict[str, float]) -> None:
        self.add_row()
        self.epoch, self.step, self.scores = self.epoch + 1, 0, scores
        self.rows[-1] |= {"epoch": self.epoch, **scores}


class Loss(nn.Module):
    """What DDP wraps: it watches over a ``forward`` that ends in what is differentiated."""

    def __init__(self, model: Trainable) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> torch.Tensor:
        return self.model.total_loss(self.model.results(batch))


def train(
    run: Run, *, resume: bool = False, device: str | None = None, checkpoint_every: int = 100, progress: bool = True
) -> bool:
    """Train to the end, or until Ctrl-C; says whether it came to the end. ``resume`` goes on from the last checkpoint.

    ``device`` is ``"cpu"``, or otherwise what Accelerate finds. A checkpoint is saved every so many steps and after every epoch.
    """
    return Trainer(run, device, progress).train(resume, checkpoint_every)


class Trainer:
    def __init__(self, run: Run, device: str | None, progress: bool) -> None:
        self.run, self.task, self.settings = run, run.task, run.task.settings
        self.accelerator = _accelerator(device)
        self.rank, self.processes = self.accelerator.process_index, self.accelerator.num_processes
        self.shows = progress and self.accelerator.is_main_process
        torch.manual_seed(self.settings.seed)
        self.model = self.task.model().to(self.accelerator.device)
        self.examples = Examples(self.model, [self.task.example(item) for item in run.data.train])
        self.dev_examples = [self.task.example(item) for item in run.data.dev]
        self.task.begin(self.model, run.data)
        optimizer = self.task.optimizer(self.model)
        steps = self.settings.epochs * steps_of_epoch(len(self.examples), self.settings.batch)
        self.schedule = self.task.schedule(optimizer, steps)
        self.loss, self.optimizer = self.accelerator.prepare(Loss(self.model), optimizer)
        self.progress = Progress(self.processes)
        self.accelerator.register_for_checkpointing(self.schedule, self.progress)
        self.checkpoints = Checkpoints(run.folder / "checkpoints", self.accelerator)
        # The numbers that dropout draws differ between processes; weights were drawn alike.
        torch.manual_seed(self.settings.seed + 1 + self.rank)

    def train(self, resume: bool, checkpoint_every: int) -> bool:
        self._begin(resume)
        with Interruption() as interruption:
            while self.progress.epoch < self.settings.epochs:
                if not self._epoch(interruption, checkpoint_every):
                    self.checkpoints.save(self.progress.steps)
                    return False
                self._evaluate()
                self.checkpoints.save(self.progress.steps)
        return True

    def _begin(self, resume: bool) -> None:
        last = self.checkpoints.last
        if resume and last is not None:
            self.checkpoints.load(last)
        elif self.accelerator.is_main_process:
            if not resume and (self.run.folder / "config.json").exists():
                raise RunError(
                    f"{self.run.folder} has a training already: go on with it by `--resume {self.run.folder}`, or give another folder"
                )
            self.run.save_config()
        self.accelerator.wait_for_everyone()

    def _epoch(self, interruption: Interruption, checkpoint_every: int) -> bool:
        """The rest of it; False if it is not finished."""
        progress = self.progress
        batches = batches_of_epoch(len(self.examples), self.settings.batch, self.settings.seed, progress.epoch)
        if min(map(len, batches)) < self.processes:
            raise RunError(f"a batch of {min(map(len, batches))} examples is too small for {self.processes} processes")
        self.model.train()
        tqdm = installed("tqdm", extra="train", to="show progress").tqdm
        with tqdm(
            total=len(self.examples),
            initial=sum(map(len, batches[: progress.step])),
            desc=f"epoch {progress.epoch + 1}/{self.settings.epochs}",
            unit=" examples",
            disable=None if self.shows else True,
            leave=False,
        ) as bar:
            for batch in batches[progress.step :]:
                loss, stop = self._step(batch, interruption.requested)
                shown = {"loss": loss, **progress.scores}
                bar.set_postfix({name: f"{value:.4f}" for name, value in shown.items()}, refresh=False)
                bar.update(len(batch))
                if progress.steps % STEPS_OF_A_ROW == 0:
                    progress.add_row()
                if stop:
                    return False
                if progress.steps % checkpoint_every == 0:
                    self.checkpoints.save(progress.steps)
        return True

    def _step(self, batch: Sequence[int], stop: bool) -> tuple[float, bool]:
        """The loss of the whole batch, and whether any process was asked to stop."""
        start = time.perf_counter()
        own = self.examples.batch(batch[self.rank :: self.processes])
        total = self.loss(own)
        self.optimizer.zero_grad()
        # Gradients are averaged over processes; their sum is wanted.
        self.accelerator.backward(total * (self.processes / len(batch)))
        if self.settings.clip:
            self.accelerator.clip_grad_norm_(self.loss.parameters(), self.settings.clip)
        self.optimizer.step()
        self.schedule.step()
        told = torch.tensor([total.item(), float(stop)], dtype=torch.float64, device=self.accelerator.device)
        all_losses, stops = self.accelerator.reduce(told, "sum").tolist()
        progress = self.progress
        progress.losses.append(all_losses / len(batch))
        progress.seconds += time.perf_counter() - start
        progress.step, progress.steps = progress.step + 1, progress.steps + 1
        progress.examples += len(batch)
        return progress.losses[-1], bool(stops)

    def _evaluate(self) -> None:
        progress = self.progress
        own = predictions(self.model, self.dev_examples[self.rank :: self.processes])
        scores = self.task.scores(self._interleaved(own), self.run.data.dev)
        progress.end_epoch(scores)
        quality = self.task.quality(scores)
        is_best = progress.best is None or quality > progress.best
        if is_best:
            progress.best = quality
        if self.accelerator.is_main_process:
            if is_best:
                self.run.save_model(self.model)
                self.run.save_json("scores.json", {"epoch": progress.epoch, "dev": scores})
            save_curves(self.run, progress.rows)
            if self.shows:
                self._tell(is_best)

    def _interleaved(self, own: list[Any]) -> list[Any]:
        """What all processes answered, in the order of the examples."""
        if self.processes == 1:
            return own
        gathered = installed("accelerate.utils", extra="train", to="train").gather_object([own])
        answers: list[Any] = [None] * len(self.dev_examples)
        for rank, part in enumerate(gathered):
            answers[rank :: self.processes] = part
        return answers

    def _tell(self, is_best: bool) -> None:
        progress = self.progress
        row, before = progress.rows[-1], [row for row in progress.rows if row["epoch"] < progress.epoch]
        since = before[-1] if before else {"examples": 0, "seconds": 0.0}
        rate = (row["examples"] - since["examples"]) / max(row["seconds"] - since["seconds"], 1e-9)
        scores = ", ".join(f"{name} {value:.4f}" for name, value in progress.scores.items())
        print(
            f"epoch {progress.epoch}/{self.settings.epochs}: loss {row['loss']:.4f}, dev {scores}, {rate:,.0f} examples/s"
            f"{', the best so far' if is_best else ''}",
            flush=True,
        )


def _accelerator(device: str | None) -> Any:
    accelerate = installed("accelerate", extra="train", to="train")
    # Which weights a batch uses depends on its examples: trees of one word merge nothing.
    unused = accelerate.DistributedDataParallelKwargs(find_unused_parameters=True)
    return accelerate.Accelerator(cpu=device == "cpu", kwargs_handlers=[unused])
