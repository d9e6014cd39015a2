"""One training step: what the host sets beforehand, and what the device then does."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from covprop import noise
from covprop.data import Batch
from covprop.errors import InvalidInput
from covprop.methods import Losses, RadiusWeights
from covprop.train.distributed import World
from covprop.train.flat import RANDOM, FlatStep
from covprop.train.optimize import Average, set_lr
from covprop.train.options import TrainOptions
from covprop.train.schedule import betas_at, lr_at
from covprop.train.step import TrainStep

LOSS, CORRECT, RADIUS, WITH_RADIUS = range(4)
"""Places of the sums over an epoch's images so far."""

MAX_PHASES = 2
"""A step with more phases would be compiled anew too often, so only its networks are."""


class Update:
    """Forward, backward, optimizer, average and sums of one step.

    Everything that changes from step to step is in tensors that stay in place, so that the call can
    be recorded and replayed. What else it depends on is its `phase`.
    """

    def __init__(
        self,
        core: TrainStep,
        optimizer: torch.optim.Optimizer,
        average: Average | None,
        weights: RadiusWeights | None,
        options: TrainOptions,
        here: World,
        steps: int,
    ) -> None:
        self.core, self.optimizer, self.average, self.weights = core, optimizer, average, weights
        self.options, self.here, self.steps = options, here, steps
        self.sums = torch.zeros(4, dtype=torch.float64, device=here.device)
        # A plain Generator for one process: the compiler does not support subclasses.
        self.generator = (
            torch.Generator(here.device)
            if here.size == 1
            else noise.stream(0, device=here.device, rank=here.rank, world=here.size)
        )
        self.defaults = [torch.default_generator]
        if here.device.type == "cuda":
            self.defaults.append(torch.cuda.default_generators[torch.cuda.current_device()])
        self.layout = torch.channels_last if options.channels_last else torch.contiguous_format
        self.lr = math.nan
        self.first: dict[Hashable, int] = {}  # the first epoch of each phase, if compiled
        self.flat: dict[Hashable, FlatStep | None] = {}  # None: seen once, not recorded yet
        # A loss that contains a gradient is compiled together with its backward pass or not at all.
        twice = getattr(getattr(core, "method", None), "estimator", "") == "linearized"
        compiled = options.compile is True  # the loop has decided what "auto" means
        self.records = compiled and twice and here.size == 1 and weights is None
        self.whole = compiled and not twice and self._compile()
        self.module: nn.Module = core if here.size == 1 else DistributedDataParallel(core)

    def _compile(self) -> bool:
        """Compile the step as a whole if it has few phases (True), else its networks (False)."""
        phases = {self.core.phase(epoch) for epoch in range(self.options.epochs)}
        if self.here.size == 1 and None not in phases and len(phases) <= MAX_PHASES:
            self.core.compile(dynamic=False, options=RANDOM)
            return True
        for network in self.core.networks():
            network.compile(options=RANDOM)
        return False

    def prepare(self, epoch: int, step: int) -> None:
        """Set random state, learning rate and averaging for a step of an epoch."""
        options, done = self.options, epoch * self.steps + step
        seed = noise.seed_of(options.seed, "step", epoch, step, self.here.rank)
        for generator in self.defaults:  # dropout
            generator.manual_seed(seed)
        self.generator.manual_seed(noise.seed_of(options.seed, "noise", epoch, step))
        lr = lr_at(options, done, self.steps)
        if lr != self.lr:
            set_lr(self.optimizer, lr)
            self.lr = lr
        for group in self.optimizer.param_groups:
            if "betas" in group:
                group["betas"] = betas_at(options, done, self.steps)
        if self.average:
            self.average.advance()

    def phase(self, epoch: int) -> Hashable | None:
        """What a prepared step depends on besides tensors; None if it cannot be recorded."""
        own = self.core.phase(epoch)
        if own is None:
            return None
        weighted = self.weights.phase(epoch) if self.weights else None
        return own, weighted, self.optimizer.param_groups[0].get("betas")

    def __call__(self, batch: Batch, epoch: int) -> None:
        """The step itself, after `prepare`."""
        batch = batch._replace(x=batch.x.contiguous(memory_format=self.layout))
        self.optimizer.zero_grad(set_to_none=True)
        per_sample, losses = self._learn(batch, epoch)
        if self.options.clip_norm:
            nn.utils.clip_grad_norm_(self.core.parameters(), self.options.clip_norm)
        self.optimizer.step()
        if self.average:
            self.average.mix(self.core.model)
        self.sums[LOSS] += per_sample.sum()
        self.sums[CORRECT] += (losses.logits.argmax(1) == batch.y).sum()
        if losses.radius is not None:
            known = losses.radius.isfinite()  # not while a covariance is still 0
            self.sums[RADIUS] += losses.radius.where(known, 0.0).sum()
            self.sums[WITH_RADIUS] += known.sum()

    def _learn(self, batch: Batch, epoch: int) -> tuple[Tensor, Losses]:
        """Compute the gradients; returns each image's loss, detached, and the method's results."""
        flat = self._flat(batch, epoch) if self.records else None
        if flat is not None:
            losses = Losses(*flat(*batch, generator=self.generator)[1:])
            return losses.per_sample, losses
        losses = self._losses(batch, epoch, self.generator)
        per_sample = losses.per_sample.float()
        if self.weights is not None:
            assert losses.radius is not None
            per_sample = per_sample * self._weigh(batch, losses.radius, epoch)
        # In this thread, since cuBLAS keeps work space for every thread, 32 MiB on an H200. DDP
        # averages over processes, whose shares are equal: the gradients are of the global mean.
        with torch.autograd.set_multithreading_enabled(self.here.size > 1):
            loss = per_sample.mean()
            if not loss.requires_grad:
                raise InvalidInput(
                    "the loss depends on no parameter of the model, so nothing can be learned; "
                    "its forward must not run under torch.no_grad or detach the logits."
                )
            loss.backward()
        return per_sample.detach(), losses

    def _losses(self, batch: Batch, epoch: int, generator: torch.Generator) -> Losses:
        half = self.options.precision == "bf16"
        with torch.autocast(self.here.device.type, torch.bfloat16, half):
            return self._forward(batch, epoch, generator)

    def _flat(self, batch: Batch, epoch: int) -> FlatStep | None:
        """The recorded step of the epoch's phase, from the second step of the phase on."""

        def work(*given: Any) -> tuple[Tensor, ...]:
            *parts, generator = given
            losses = self._losses(Batch(*parts), epoch, generator)
            per_sample = losses.per_sample.float()
            made = (losses.logits, losses.radius)
            return per_sample.mean(), per_sample, *(value for value in made if value is not None)

        phase = self.core.phase(epoch)
        if phase not in self.flat:  # the first call is not recorded: networks set things up in it
            self.flat[phase] = None
        elif self.flat[phase] is None:
            try:
                self.flat[phase] = FlatStep(self.core, work, list(batch))
            except Exception:  # for example of a network that reads a value
                if not torch._dynamo.config.suppress_errors:
                    raise
                self.records = False  # compile = "auto" does without: see speed.switches
        return self.flat[phase]

    def _forward(self, batch: Batch, epoch: int, generator: torch.Generator) -> Losses:
        if not self.whole:
            return self.module(batch, epoch, generator)
        phase = self.core.phase(epoch)
        if phase not in self.first:
            # Not compiled: a method may build things at its first call, such as a propagator.
            self.first[phase] = epoch
            with torch.compiler.set_stance("force_eager"):
                return self.module(batch, epoch, generator)
        # Always the same number for a phase, since another one would compile the step again.
        return self.module(batch, self.first[phase], generator)

    def _weigh(self, batch: Batch, radius: Tensor, epoch: int) -> Tensor:
        assert self.weights is not None
        # Every process gets every image's radius, so that all have the same weights.
        self.weights.update(self.here.gather(batch.index), self.here.gather(radius))
        return self.weights.of(batch.index, epoch)
