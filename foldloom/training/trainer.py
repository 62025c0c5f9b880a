"""The training loop. Accelerate has what is the same everywhere: processes, devices, gradients over processes.

A step takes a batch of as many examples as the settings say, whoever computes them: each process takes every n-th example of it. A loss is
the mean over the whole batch, so each process divides by the size of the whole, and the gradients are summed. With several processes
the curve is thus the same as with one, but for dropout, which draws its own numbers in each.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from foldloom.data.reading import installed
from foldloom.errors import ArgumentError, RunError
from foldloom.models.training import Batch, Trainable
from foldloom.training.batches import Examples, batches_of_epoch, shares_of, steps_of_epoch
from foldloom.training.curves import save_curves
from foldloom.training.evaluating import predictions
from foldloom.training.interruption import Interruption
from foldloom.training.progress import Progress
from foldloom.training.run import Run
from foldloom.training.saving.checkpoints import Checkpoints, DamagedCheckpointError
from foldloom.training.saving.locking import locked
from foldloom.training.saving.snapshots import Parts, restore, snapshot
from foldloom.training.saving.weights import not_finite, size_of, weights_of

STEPS_OF_A_ROW = 10
"""The learning curve has the mean loss of so many steps."""

BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]"
"""As usual, but never seconds per example."""


def train(
    run: Run, *, resume: bool = False, device: str | None = None, checkpoint_every: int = 100, progress: bool = True
) -> bool:
    """Train to the end, or until Ctrl-C; says whether it came to the end. ``resume`` goes on from the last checkpoint.

    ``device`` is ``"cpu"``, or otherwise what Accelerate finds. A checkpoint is saved every so many steps and after every epoch.

    >>> import tempfile
    >>> from foldloom.tasks import TASKS
    >>> from foldloom.training import Run, train
    >>> settings = TASKS["adding"].defaults(quick=True).changed({"epochs": "1"})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = Run.new(folder, "adding", settings=settings, quick=True)
    ...     train(run, device="cpu", progress=False), run.has_model
    (True, True)
    """
    accelerator = accelerator_for(device)
    with locked(run.folder) if accelerator.is_main_process else nullcontext():
        if run.exists and not resume:
            raise RunError(
                f"{run.folder} has a training already: go on with it by `--resume {run.folder}`, or give another folder"
            )
        if resume and run.has_model:
            run.model()  # before anything is made by a config.json that is not that of the weights
        return Trainer(run, accelerator, progress).train(resume, checkpoint_every)


class Loss(nn.Module):
    """What DDP wraps: it watches over a ``forward`` that ends in what is differentiated."""

    def __init__(self, model: Trainable) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> torch.Tensor:
        return self.model.total_loss(self.model.results(batch))


class Trainer:
    def __init__(self, run: Run, accelerator: Any, shows_progress: bool) -> None:
        self.run, self.task, self.settings = run, run.task, run.task.settings
        self.accelerator = accelerator
        self.rank, self.processes = self.accelerator.process_index, self.accelerator.num_processes
        self.shows = shows_progress and self.accelerator.is_main_process
        torch.manual_seed(self.settings.seed)
        self.model = self.task.model().to(self.accelerator.device)
        self.task.begin(self.model, run.data)
        examples = [self.task.example(item) for item in run.data.train]
        # As the first epoch takes them, so that it records what it needs and nothing else.
        groups = [share for batch in self._batches(0) for share in shares_of(batch, self.processes)]
        self.examples = Examples(self.model, examples, groups)
        self.dev_examples = [self.task.example(item) for item in run.data.dev]
        optimizer = self.task.optimizer(self.model)
        steps = self.settings.epochs * steps_of_epoch(len(self.examples), self.settings.batch)
        self.schedule = self.task.schedule(optimizer, steps)
        self.loss, self.optimizer = self.accelerator.prepare(Loss(self.model), optimizer)
        self.progress = Progress(self.processes)
        self.checkpoints = Checkpoints(run.folder / "checkpoints", run.identity, accelerator)
        # The numbers that dropout draws differ between processes; weights were drawn alike.
        torch.manual_seed(self.settings.seed + 1 + self.rank)

    def train(self, resume: bool, checkpoint_every: int) -> bool:
        self._begin(resume)
        with Interruption() as interruption, _kept_from_collection():
            while self.progress.epoch < self.settings.epochs:
                if not self._epoch(interruption, checkpoint_every):
                    self._save_checkpoint()
                    self._tell(f"stopped: `foldloom train --resume {self.run.folder}` goes on")
                    return False
                self._evaluate()
                self._save_checkpoint()
        self._tell(f"finished: the best model is in {self.run.folder}")
        return True

    def _begin(self, resume: bool) -> None:
        if resume:
            self.run.check_data()
            self.checkpoints.remove(self.go_on())
        elif self.accelerator.is_main_process:
            self.run.save_config()
        self.accelerator.wait_for_everyone()

    def go_on(self) -> list[Path]:
        """From the newest checkpoint that is not damaged; returns those that are."""
        damaged: dict[Path, str] = {}
        for path in self.checkpoints.paths:
            try:
                checkpoint = self.checkpoints.read(path, at_most=4 * size_of(self.model))
                self.progress = restore(checkpoint, self._parts(), self.rank, self.processes)
            except DamagedCheckpointError as error:
                damaged[path] = str(error)
                continue
            for problem in damaged.values():
                self._tell(f"{problem}: going on from {path.name}, the one before")
            if self.progress.epoch:
                self.run.check_model(self.model)
            return list(damaged)
        if damaged:
            raise RunError(
                f"no checkpoint of {self.run.folder} can be gone on from: {'; '.join(damaged.values())}. Train anew in another folder"
            )
        self._tell(f"{self.run.folder} has no checkpoint yet: beginning anew")
        return []

    def _parts(self) -> Parts:
        return Parts(self.model, self.optimizer, self.schedule)

    def _save_checkpoint(self) -> None:
        progress = self.progress
        self._check_weights()
        of_all, own = snapshot(self._parts(), progress, self.rank)
        about = {"processes": self.processes}
        self.checkpoints.save(progress.steps, of_all if self.accelerator.is_main_process else {}, own, about)

    def _check_weights(self) -> None:
        """What is no number stays none, whatever is learned: nothing could go on from it."""
        name = not_finite(weights_of(self.model))
        if name is not None:
            raise RunError(
                f"the weight {name!r} is infinite or no number after step {self.progress.steps}, and no checkpoint of that is kept: "
                f"{self._smaller()}"
            )

    def _smaller(self) -> str:
        return f"a smaller learning rate may help, --set learning_rate={self.settings.learning_rate / 3:.2g}"

    def _epoch(self, interruption: Interruption, checkpoint_every: int) -> bool:
        """The rest of it; False if somebody asked to stop."""
        progress = self.progress
        batches = self._batches(progress.epoch)
        if min(map(len, batches)) < self.processes:
            raise ArgumentError(
                f"a batch of {min(map(len, batches))} examples is too small for {self.processes} processes: give a greater one, "
                "--set batch=N"
            )
        self.model.train()
        with self._bar(
            total=len(self.examples),
            initial=sum(map(len, batches[: progress.step])),
            desc=f"epoch {progress.epoch + 1}/{self.settings.epochs}",
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
                    self._save_checkpoint()
        return True

    def _batches(self, epoch: int) -> list[list[int]]:
        return batches_of_epoch(len(self.run.data.train), self.settings.batch, self.settings.seed, epoch)

    def _step(self, batch: Sequence[int], stop: bool) -> tuple[float, bool]:
        """The loss of the whole batch, and whether any process was asked to stop."""
        start = time.perf_counter()
        total = self.loss(self.examples.batch(shares_of(batch, self.processes)[self.rank]))
        self.optimizer.zero_grad()
        # Gradients are averaged over processes; their sum is wanted.
        self.accelerator.backward(total * (self.processes / len(batch)))
        if self.settings.clip:
            self.accelerator.clip_grad_norm_(self.loss.parameters(), self.settings.clip)
        self.optimizer.step()
        self.schedule.step()
        told = torch.tensor([total.item(), stop], dtype=torch.float64, device=self.accelerator.device)
        of_all, stops = self.accelerator.reduce(told, "sum").tolist()
        loss = of_all / len(batch)
        if not math.isfinite(loss):
            raise RunError(f"the loss of step {self.progress.steps + 1} is {loss}: {self._smaller()}")
        self.progress.add_step(len(batch), loss, time.perf_counter() - start)
        return loss, bool(stops)

    def _evaluate(self) -> None:
        self._check_weights()
        progress, before = self.progress, self.progress.last_epoch()
        own = predictions(self.model, self.dev_examples[self.rank :: self.processes])
        scores = self.task.scores(self._of_all(own), self.run.data.dev)
        is_best = progress.end_epoch(scores, self.task.quality(scores))
        if self.accelerator.is_main_process:
            if is_best:
                self.run.save_model(self.model)
                self.run.save_scores(progress.epoch, scores)
            save_curves(self.run, progress.rows)
        rate = (progress.examples - before["examples"]) / (progress.seconds - before["seconds"])
        told = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
        self._tell(
            f"epoch {progress.epoch}/{self.settings.epochs}: loss {progress.rows[-1]['loss']:.4f}, dev {told}, "
            f"{rate:,.0f} examples/s{', the best so far' if is_best else ''}"
        )

    def _of_all(self, own: list[Any]) -> list[Any]:
        """What all processes answered, in the order of the examples."""
        if self.processes == 1:
            return own
        gathered = installed("accelerate.utils", extra="train", to="train").gather_object([own])
        answers: list[Any] = [None] * len(self.dev_examples)
        for rank, part in enumerate(gathered):
            answers[rank :: self.processes] = part
        return answers

    def _bar(self, **settings: Any) -> Any:
        """On a terminal, and only there."""
        tqdm = installed("tqdm", extra="train", to="show progress").tqdm
        disable = None if self.shows else True
        return tqdm(unit=" examples", leave=False, disable=disable, bar_format=BAR, **settings)

    def _tell(self, text: str) -> None:
        if self.shows:
            print(text, flush=True)


@contextmanager
def _kept_from_collection() -> Iterator[None]:
    """What is kept of examples is no garbage, and for the collector to walk it takes longer than a step."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def accelerator_for(device: str | None) -> Any:
    accelerate = installed("accelerate", extra="train", to="train")
    # Which weights a batch uses depends on its examples: trees of one word merge nothing.
    unused = accelerate.DistributedDataParallelKwargs(find_unused_parameters=True)
    accelerator = accelerate.Accelerator(cpu=device == "cpu", kwargs_handlers=[unused])
    if device is not None and accelerator.device.type != device:
        raise ArgumentError(f"there is no {device} here, but {accelerator.device.type}")
    return accelerator
