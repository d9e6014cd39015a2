"""The training loop: exact to resume, with one order and noise for any number of processes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console

from covprop import data
from covprop.data.label_noise import NoisyLabels
from covprop.errors import InvalidInput
from covprop.train import checkpoint
from covprop.train.distributed import World, world
from covprop.train.diverge import diverged, finite
from covprop.train.evaluate import accuracy
from covprop.train.graph import Fast, Gpu
from covprop.train.learned import Learned
from covprop.train.log import Board, Display, Metrics, Row, sentence
from covprop.train.opening import continuing, images_of, opening, other_images
from covprop.train.optimize import Average
from covprop.train.optimize import optimizer as make_optimizer
from covprop.train.recipe import Recipe
from covprop.train.schedule import lr_at
from covprop.train.setup import (
    build_model,
    build_step,
    check_batch,
    check_recipe,
    claimed,
    keep_labels,
    try_model,
    with_facts,
    with_labels,
)
from covprop.train.speed import settled, speed_of, switches
from covprop.train.stop import Interrupted, StopRequest
from covprop.train.update import CORRECT, LOSS, RADIUS, WITH_RADIUS, Update

EPOCH_SECONDS = 10.0
"""Least time between the checkpoints at the ends of epochs: if epochs take a fraction of a second,
writing one after each would take longer than training."""


def train(
    recipe: Recipe,
    out: Path,
    *,
    data_root: Path | None = None,
    restart: bool = False,
    console: Console | None = None,
) -> None:
    """Train into the run folder `out`, from its checkpoint if there is one.

    Raises `Interrupted` when asked to stop (Ctrl-C, SIGTERM, SIGHUP), after writing a checkpoint.

    Example:
        >>> recipe = covprop.train.load("digits/gaussian-0.25")     # doctest: +SKIP
        >>> covprop.train.train(recipe, Path("runs/first"))         # doctest: +SKIP
    """
    check_recipe(recipe)
    out = Path(out)
    with world(recipe.train.device) as here:
        console = console if here.first else None
        held, shape = recipe.data.holdout, recipe.data.image_shape
        splits = [
            data.load(recipe.data.name, split, data_root, holdout=held, image_shape=shape)
            for split in ("train", "holdout" if held else "test")
        ]
        recipe = with_facts(recipe, splits[0])
        check_batch(recipe, splits[0], here)
        splits[0], labels = with_labels(recipe, splits[0], here)
        with claimed(out, recipe, restart, here, console):
            keep_labels(out, labels)
            # Not bound to a name: it must be freed before the process group ends.
            Trainer(recipe, out, splits[0], splits[1], here, console, labels).fit()


class Trainer:
    """One run: everything it holds, and where it stands."""

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        train_data: data.AnyImages,
        test_data: data.AnyImages,
        here: World,
        console: Console | None,
        labels: NoisyLabels | None = None,
    ) -> None:
        self.out, self.here = out, here
        self.train_data, self.test_data = train_data, test_data
        self.steps = len(train_data) // recipe.train.batch_size
        self.epoch = self.step = self.rows = 0
        self.seconds = self.epoch_seconds = 0.0
        self.images = images_of(recipe, train_data)
        self.images_before = self.images  # of a continued run: those it was trained on
        self.model = build_model(recipe)
        self.core, self.weights = build_step(recipe, self.model, len(train_data), here, labels)
        speed = speed_of(recipe, self.core, here, recipe.train.epochs * self.steps)
        self.switches = switches(recipe.train, speed, here)
        self.recipe = recipe = settled(recipe, speed)
        self.options = recipe.train
        layout = torch.channels_last if self.options.channels_last else torch.contiguous_format
        self.core.to(here.device, memory_format=layout)  # type: ignore[call-overload]
        try_model(self.model, recipe, here.device)
        optimizer = make_optimizer(self.core, self.options)
        average = Average(self.model, self.options.ema) if self.options.ema else None
        parts = {"weights": self.weights, **self.core.parts()}
        self.learned = Learned(self.model, optimizer, average, parts)
        self.update = Update(
            self.core, optimizer, average, self.weights, self.options, here, self.steps
        )
        self.sums = self.update.sums
        self._restore()
        self.saved_at = self.clock = time.perf_counter()
        self.metrics = Metrics(out / "metrics.jsonl", keep=self.rows) if here.first else None
        board = self.options.tensorboard and here.first
        self.board = Board(out, purge_after=self.rows) if board else None
        self.display = Display(
            console, epochs=self.options.epochs, steps=self.steps, done=self._steps_done()
        )
        self.run_step: Callable[[data.Batch, int], None] = self.update
        if self.epoch < self.options.epochs:
            about = opening(recipe, self.model, len(train_data), self.steps, here.device)
            self.display.say(*about, *filter(None, [speed.line]))
        if speed.record:
            self.run_step = Fast(self.update, self.display.say, Gpu(here.device))

    def fit(self) -> None:
        """All epochs that remain."""
        self.core.train()
        if self.epoch == self.options.epochs:
            self.display.say(f"{self.out} is already trained; nothing to do.")
            self.here.first_does(self._save_model)
        elif (again := self.metrics.dropped if self.metrics else 0) or self._steps_done():
            self.display.say(continuing(self.out, self.epoch, self.step, again))
            self.display.say(*other_images(self.images_before, self.images))
        try:
            with self.switches, StopRequest() as stop:
                while self.epoch < self.options.epochs:
                    self._train_epoch(stop)
                    self._finish_epoch()
        finally:
            self.display.close()
            if self.board:
                self.board.close()

    def _train_epoch(self, stop: StopRequest) -> None:
        # Reading a sum waits for the GPU, so on one only every twentieth step is reported.
        every = 20 if self.here.device.type == "cuda" else 1
        self.clock = time.perf_counter()
        if self.step == 0:
            self.core.start_epoch(self.epoch)
            if self.weights:
                self.weights.start_epoch()
                self.display.say(*self.weights.early(self.epoch))
        order = self.weights.order(self.epoch, self.options.seed) if self.weights else None
        for batch in data.batches(
            self.train_data,
            self.options.batch_size,
            epoch=self.epoch,
            seed=self.options.seed,
            device=self.here.device,
            augment=self.recipe.data.augment,
            start=self.step,
            rank=self.here.rank,
            world=self.here.size,
            workers=self.recipe.data.workers,
            drop_last=True,
            order=order,
        ):
            self._train_step(batch)
            stop.stepped = True
            self.step += 1
            if self.step % every == 0 or self.step == self.steps:
                self._report(stop)

    def _train_step(self, batch: data.Batch) -> None:
        self.update.prepare(self.epoch, self.step)
        try:
            self.run_step(batch, self.epoch)
        except InvalidInput as error:  # from measuring the noise of a network that has diverged
            if finite(self.core):
                raise
            raise diverged(self.out, self.epoch, self.step, None) from error

    def _steps_done(self) -> int:
        return self.epoch * self.steps + self.step

    def _report(self, stop: StopRequest) -> None:
        """Agree with the other processes on the sums and on whether to save or stop."""
        *sums, asked, save = self._totals(
            stop.signum, self._due(60 * self.options.checkpoint_minutes)
        )
        now = time.perf_counter()
        self.seconds += now - self.clock
        self.epoch_seconds += now - self.clock
        self.clock = now
        row = self._row(sums)
        if not math.isfinite(sums[LOSS]) or row["loss"] > self.options.max_loss:  # type: ignore[operator]
            raise diverged(self.out, self.epoch, self.step, row["loss"])
        self.display.step(self._steps_done(), self.epoch, row)
        if asked or (save and self.step < self.steps):  # an epoch's end decides for itself
            self._save(sums)
        if asked:
            self.here.first_does(self._save_model)
            raise Interrupted(
                stop.signum or 2, f"stopped in epoch {self.epoch + 1} after step {self.step}"
            )

    def _due(self, seconds: float) -> bool:
        """Whether this is the first process and the last checkpoint is that old."""
        return self.here.first and time.perf_counter() - self.saved_at >= seconds

    def _totals(self, *flags: float) -> list[float]:
        """The epoch's sums, then the flags, each summed over all processes."""
        own = torch.tensor(flags, dtype=torch.float64, device=self.here.device)
        return self.here.sum(torch.cat([self.sums, own])).tolist()

    def _row(self, sums: list[float]) -> Row:
        images = self.step * self.options.batch_size
        return {
            "epoch": self.epoch + 1,
            "loss": sums[LOSS] / images,
            "train_accuracy": sums[CORRECT] / images,
            "estimated_radius": sums[RADIUS] / sums[WITH_RADIUS] if sums[WITH_RADIUS] else None,
            "lr": lr_at(self.options, self._steps_done() - 1, self.steps),
            "seconds": round(self.seconds, 3),
            "images_per_second": round(images / max(self.epoch_seconds, 1e-9), 1),
        }

    def _finish_epoch(self) -> None:
        """Measure, write the row, then the checkpoint that counts it."""
        number, every = self.epoch + 1, self.options.eval_every
        last = number == self.options.epochs
        *sums, save = self._totals(
            last or self._due(min(EPOCH_SECONDS, 60 * self.options.checkpoint_minutes))
        )
        row = self._row(sums)
        if last or (every and number % every == 0):
            noisy, clean = accuracy(self.learned.result, self.test_data, self.recipe, self.here)
            of = "holdout" if self.recipe.data.holdout else "test"
            row |= {f"{of}_accuracy_noisy": noisy, f"{of}_accuracy_clean": clean}
        row |= self.core.end_epoch()
        self._check_weights()
        self.rows += 1
        self.epoch, self.step, self.epoch_seconds = number, 0, 0.0
        self.sums.zero_()
        self.here.first_does(lambda: self._write_row(row))
        if save:
            self._save([0.0] * len(self.sums))
            self.here.first_does(self._save_model)
        self.display.say(sentence(row))

    def _write_row(self, row: Row) -> None:
        assert self.metrics is not None
        self.metrics.append(row)
        if self.board:
            self.board.add(row)

    def _save_model(self) -> None:
        checkpoint.save_weights(self.out / "model.safetensors", self.learned.result)

    def _save(self, sums: list[float]) -> None:
        """Write state.pt: all that is needed to continue exactly."""
        self._check_weights()
        state = {
            "epoch": self.epoch,
            "step": self.step,
            "rows": self.rows,
            **self.images,
            "seconds": self.seconds,
            "epoch_seconds": self.epoch_seconds,
            "sums": sums,
            **self.learned.state(),
        }
        self.here.first_does(lambda: checkpoint.save_state(self.out / "state.pt", state))
        self.saved_at = self.clock = time.perf_counter()

    def _restore(self) -> None:
        path = self.out / "state.pt"
        if not path.exists():
            return
        state = checkpoint.load_state(path)
        self.learned.restore(state, path)
        for name in ("epoch", "step", "rows", "seconds", "epoch_seconds"):
            setattr(self, name, state[name])
        self.images_before = self.images | {key: state[key] for key in self.images if key in state}
        if self.here.first:  # the sums of all processes were saved as one
            self.sums += torch.tensor(state["sums"], dtype=torch.float64, device=self.sums.device)

    def _check_weights(self) -> None:
        """Never let a checkpoint of weights that are not finite replace a good one."""
        if not finite(self.core):
            raise diverged(self.out, self.epoch, self.step, None)
