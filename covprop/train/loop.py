"""The training loop: exact to resume, the same on one process and on many."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from covprop import data, noise
from covprop.data.label_noise import NoisyLabels
from covprop.errors import CovpropError
from covprop.train import checkpoint
from covprop.train.distributed import World, world
from covprop.train.evaluate import accuracy
from covprop.train.log import Board, Log, Metrics, Row, sentence
from covprop.train.optimize import Average, optimizer
from covprop.train.recipe import Recipe
from covprop.train.schedule import betas_at, lr_at
from covprop.train.setup import (
    build_model,
    build_step,
    check_batch,
    claimed,
    keep_labels,
    with_facts,
    with_labels,
)
from covprop.train.stop import Interrupted, StopRequest

LOSS, CORRECT, RADIUS, WITH_RADIUS = range(4)
"""Places of the sums over an epoch's images so far."""


class Diverged(CovpropError):
    """The loss is no longer a number, or far above anything sensible."""


def train(
    recipe: Recipe,
    out: Path,
    *,
    data_root: Path | None = None,
    restart: bool = False,
    console: Console | None = None,
) -> None:
    """Train into the run folder `out`, from its checkpoint if there is one.

    Raises `Interrupted` when asked to stop (Ctrl-C, SIGTERM), after writing a checkpoint.

    Example:
        >>> recipe = covprop.train.load("digits/gaussian-0.25")     # doctest: +SKIP
        >>> covprop.train.train(recipe, Path("runs/first"))         # doctest: +SKIP
    """
    out = Path(out)
    with world(recipe.train.device) as here:
        console = console if here.first else None
        splits = [data.load(recipe.data.name, split, data_root) for split in ("train", "test")]
        recipe = with_facts(recipe, splits[0])
        check_batch(recipe, splits[0], here)
        splits[0], labels = with_labels(recipe, splits[0], here)
        with claimed(out, recipe, restart, here, console):
            keep_labels(out, labels)
            # Not bound to a name: it must be gone when the processes part.
            Trainer(recipe, out, splits[0], splits[1], here, console, labels).fit()


class Trainer:
    """One run: everything it holds, and where it stands."""

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        train_data: data.Images | data.FolderImages,
        test_data: data.Images | data.FolderImages,
        here: World,
        console: Console | None,
        labels: NoisyLabels | None = None,
    ) -> None:
        self.recipe, self.out, self.here = recipe, out, here
        self.options = recipe.train
        self.train_data, self.test_data = train_data, test_data
        self.steps = len(train_data) // self.options.batch_size
        self.epoch = self.step = self.rows = 0
        self.seconds = self.epoch_seconds = 0.0
        self.sums = torch.zeros(4, dtype=torch.float64, device=here.device)
        layout = torch.channels_last if self.options.channels_last else torch.contiguous_format
        self.layout = layout
        if self.options.precision == "bf16":  # what autocast leaves in float32, Σ above all
            torch.set_float32_matmul_precision("high")
        self.model = build_model(recipe)
        self.core, self.weights = build_step(recipe, self.model, len(train_data), here, labels)
        self.core.to(here.device, memory_format=layout)  # type: ignore[call-overload]
        self.optimizer = optimizer(self.core, self.options)
        self.average = Average(self.model, self.options.ema) if self.options.ema else None
        self._restore()
        if self.options.compile:
            for network in self.core.networks():
                network.compile()
        self.module = self.core if here.size == 1 else DistributedDataParallel(self.core)
        self.saved_at = self.clock = time.perf_counter()
        self.metrics = Metrics(out / "metrics.jsonl", keep=self.rows) if here.first else None
        board = self.options.tensorboard and here.first
        self.board = Board(out, purge_after=self.rows) if board else None
        self.log = Log(
            console, epochs=self.options.epochs, steps=self.steps, done=self._steps_done()
        )

    def fit(self) -> None:
        """All epochs that remain."""
        self.module.train()
        if self.epoch == self.options.epochs:
            self.log.say(f"{self.out} is already trained; nothing to do.")
            self.here.first_does(self._save_model)
        elif self._steps_done():
            self.log.say(f"continuing {self.out} at epoch {self.epoch + 1}, step {self.step}")
        try:
            with StopRequest() as stop:
                while self.epoch < self.options.epochs:
                    self._train_epoch(stop)
                    self._finish_epoch()
        finally:
            self.log.close()
            if self.board:
                self.board.close()

    def _train_epoch(self, stop: StopRequest) -> None:
        # Reading a sum back waits for the GPU, so there only every tenth step is reported.
        every = 10 if self.here.device.type == "cuda" else 1
        self.clock = time.perf_counter()
        if self.step == 0:
            self.core.start_epoch(self.epoch)
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
        ):
            self._train_step(batch)
            self.step += 1
            if self.step % every == 0 or self.step == self.steps:
                self._report(stop)

    def _train_step(self, batch: data.Batch) -> None:
        options, here = self.options, self.here
        place = (self.epoch, self.step)
        torch.manual_seed(noise.seed_of(options.seed, "step", *place, here.rank))  # dropout
        generator = noise.stream(
            options.seed, "noise", *place, device=here.device, rank=here.rank, world=here.size
        )
        for group in self.optimizer.param_groups:
            group["lr"] = lr_at(options, self._steps_done(), self.steps)
            if "betas" in group:
                group["betas"] = betas_at(options, self._steps_done(), self.steps)
        batch = batch._replace(x=batch.x.contiguous(memory_format=self.layout))
        with torch.autocast(here.device.type, torch.bfloat16, options.precision == "bf16"):
            losses = self.module(batch, self.epoch, generator)
        per_sample = losses.per_sample.float()
        if self.weights is not None:
            per_sample = per_sample * self._weigh(batch, losses.radius)
        # DDP averages gradients over processes, and shares are equal: together the global mean.
        loss = per_sample.mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if options.clip_norm:
            nn.utils.clip_grad_norm_(self.core.parameters(), options.clip_norm)
        self.optimizer.step()
        if self.average:
            self.average.update(self.model)
        self.sums[LOSS] += per_sample.detach().sum()
        self.sums[CORRECT] += (losses.logits.argmax(1) == batch.y).sum()
        if losses.radius is not None:
            known = losses.radius.isfinite()  # it is not while a covariance is still 0
            self.sums[RADIUS] += losses.radius.where(known, 0.0).sum()
            self.sums[WITH_RADIUS] += known.sum()

    def _weigh(self, batch: data.Batch, radius: Tensor) -> Tensor:
        assert self.weights is not None
        # Every process learns every image's radius, so that all hold the same weights.
        self.weights.update(self.here.gather(batch.index), self.here.gather(radius), self.epoch)
        return self.weights.of(batch.index, self.epoch)

    def _steps_done(self) -> int:
        return self.epoch * self.steps + self.step

    def _report(self, stop: StopRequest) -> None:
        """Agree with the other processes on the sums, and on whether to save or to stop."""
        due = time.perf_counter() - self.saved_at >= 60 * self.options.checkpoint_minutes
        flags = torch.tensor(
            [stop.signum, due and self.here.first], dtype=torch.float64, device=self.here.device
        )
        totals = self.here.sum(torch.cat([self.sums, flags])).tolist()
        *sums, asked, save = totals
        now = time.perf_counter()
        self.seconds += now - self.clock
        self.epoch_seconds += now - self.clock
        self.clock = now
        row = self._row(sums)
        if not math.isfinite(sums[LOSS]) or row["loss"] > self.options.max_loss:  # type: ignore[operator]
            raise self._diverged(row["loss"])
        self.log.step(self._steps_done(), self.epoch, row)
        if asked or (save and self.step < self.steps):  # an epoch's end is saved anyway
            self._save(sums)
        if asked:
            raise Interrupted(
                stop.signum or 2, f"stopped in epoch {self.epoch + 1} after step {self.step}"
            )

    def _row(self, sums: list[float]) -> Row:
        images = self.step * self.options.batch_size
        return {
            "epoch": self.epoch + 1,
            "loss": sums[LOSS] / images,
            "train_accuracy": sums[CORRECT] / images,
            "estimated_radius": sums[RADIUS] / sums[WITH_RADIUS] if sums[WITH_RADIUS] else None,
            "lr": self.optimizer.param_groups[0]["lr"],
            "seconds": round(self.seconds, 3),
            "images_per_second": round(images / max(self.epoch_seconds, 1e-9), 1),
        }

    def _finish_epoch(self) -> None:
        """Measure, write the row, then the checkpoint that counts it."""
        row = self._row(self.here.sum(self.sums).tolist())
        number, every = self.epoch + 1, self.options.eval_every
        if number == self.options.epochs or (every and number % every == 0):
            noisy, clean = accuracy(self._result(), self.test_data, self.recipe, self.here)
            row |= {"test_accuracy_noisy": noisy, "test_accuracy_clean": clean}
        row |= self.core.end_epoch()
        self._check_weights(row["loss"])
        self.rows += 1
        self.epoch, self.step, self.epoch_seconds = number, 0, 0.0
        self.sums.zero_()
        self.here.first_does(lambda: self._write_row(row))
        self._save([0.0] * len(self.sums))
        self.here.first_does(self._save_model)
        self.log.say(sentence(row))

    def _write_row(self, row: Row) -> None:
        assert self.metrics is not None
        self.metrics.append(row)
        if self.board:
            self.board.add(row)

    def _result(self) -> nn.Module:
        """The model that counts: the running average where there is one."""
        return self.average.model if self.average else self.model

    def _save_model(self) -> None:
        checkpoint.save_weights(self.out / "model.safetensors", self._result())

    def _save(self, sums: list[float]) -> None:
        """Write state.pt: enough to go on as if nothing had happened."""
        self._check_weights(None)
        state = {
            "epoch": self.epoch,
            "step": self.step,
            "rows": self.rows,
            "seconds": self.seconds,
            "epoch_seconds": self.epoch_seconds,
            "sums": sums,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average.model.state_dict() if self.average else None,
            "average_steps": self.average.steps if self.average else 0,
            **{name: part.state_dict() for name, part in self._stateful().items()},
        }
        self.here.first_does(lambda: checkpoint.save_state(self.out / "state.pt", state))
        self.saved_at = self.clock = time.perf_counter()

    def _stateful(self) -> dict[str, Any]:
        """What else remembers things from step to step; most methods do not."""
        parts = {"weights": self.weights, **self.core.parts()}
        return {name: part for name, part in parts.items() if hasattr(part, "state_dict")}

    def _restore(self) -> None:
        path = self.out / "state.pt"
        if not path.exists():
            return
        state = checkpoint.load_state(path)
        checkpoint.load_tensors(path, self.model, state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average:
            checkpoint.load_tensors(path, self.average.model, state["average"])
            self.average.steps = state["average_steps"]
        for name, part in self._stateful().items():
            part.load_state_dict(state[name])
        for name in ("epoch", "step", "rows", "seconds", "epoch_seconds"):
            setattr(self, name, state[name])
        if self.here.first:  # the sums of all processes were saved as one
            self.sums += torch.tensor(state["sums"], dtype=torch.float64, device=self.sums.device)

    def _check_weights(self, loss: int | float | None) -> None:
        """No checkpoint may hold weights that are not numbers: it would replace a good one."""
        norms = [p.detach().norm() for p in self.core.parameters()]
        if not torch.stack(norms).isfinite().all():
            raise self._diverged(loss)

    def _diverged(self, loss: int | float | None) -> Diverged:
        what = "weights are no longer numbers" if loss is None else f"mean loss {loss:.3g}"
        kept = (
            "its last good checkpoint" if (self.out / "state.pt").exists() else "no checkpoint yet"
        )
        return Diverged(
            f"Training diverged in epoch {self.epoch + 1} at step {self.step} ({what}); "
            f"{self.out} holds {kept}: lower train.lr or set train.clip_norm, and train into "
            "another --out or with --restart."
        )
