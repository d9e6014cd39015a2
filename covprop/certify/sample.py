"""Run many noisy copies through a classifier and count its answers on the device.

Counts are read once a look, so the host never waits for a GPU between two forward passes.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from covprop.certify.bounds import Floats, Ints, Tally
from covprop.certify.count import add_outcomes
from covprop.certify.inputs import (
    as_index,
    check_classifier,
    check_images,
    device_of,
    dtype_of,
)
from covprop.certify.noise import Streams, block_size
from covprop.certify.philox import add_noise
from covprop.errors import InvalidInput, first_line, machine_failed
from covprop.independence import batch_with, check_independence, check_norms
from covprop.logits import Classifier, as_logits, check_scale
from covprop.mode import switched
from covprop.noise import seed_of
from covprop.options import is_whole

# Pixels in a pass: 16 images of 32 × 32 for each of the 132 processors of an H100 or H200, so that
# none is idle at the end of a layer. A sample takes 2 % longer in a pass of 2,048 samples, and 3 %
# less in one of 4,224, which needs twice the memory and is harder to fill.
PIXELS = 16 * 132 * 1024
PRECISIONS = (None, torch.float32, torch.bfloat16, torch.float16)
PHILOX = ("cuda",)  # devices whose noise is a function of the sample's number


@dataclass(frozen=True)
class Sampling:
    """How samples are drawn; `certify` says what the fields mean."""

    sigma: float
    num_classes: int | None = None
    batch_size: int | None = None
    seed: int = 0
    device: torch.device | str | None = None
    dtype: torch.dtype | None = None
    soft: bool = False
    value_range: tuple[float, float] | None = (0.0, 1.0)
    compiled: bool | None = None

    def __post_init__(self) -> None:
        for name in ("num_classes", "batch_size", "seed"):
            value = getattr(self, name)
            if not (is_whole(value) or (value is None and name != "seed")):
                raise InvalidInput(f"{name} is a whole number, not {value!r}")


@dataclass(frozen=True)
class Tallies:
    """Outcomes of some images after n samples each: counts [images, classes + 1], NaN last."""

    n: int
    counts: Ints
    total: Floats | None
    square: Floats | None

    def argmax(self) -> Ints:
        """The class seen most (soft: of the largest mean probability); NaN is none."""
        score = self.counts[:, :-1] if self.total is None else self.total
        return score.argmax(axis=1).astype(np.int64)

    def of(self, classes: Ints) -> Tally:
        """One class an image."""
        rows = np.arange(len(classes))
        return Tally(
            n=self.n,
            count=self.counts[rows, classes],
            total=None if self.total is None else self.total[rows, classes],
            square=None if self.square is None else self.square[rows, classes],
        )


@dataclass
class _Stage:
    """The streams of one purpose (their keys, if noise is a function) and what was counted."""

    streams: Streams | Tensor
    counts: Tensor
    sums: Tensor
    drawn: Ints


def blocks_a_pass(image_shape: Sequence[int], batch_size: int | None) -> int:
    """How many blocks of samples a forward pass on a GPU takes; by default about `PIXELS`."""
    block = block_size(tuple(image_shape))
    if batch_size is None:
        batch_size = max(128, min(4096, PIXELS // math.prod(image_shape[1:])))
    if batch_size < 1:
        raise InvalidInput(f"the batch size is {batch_size}: a pass takes at least one sample.")
    return max(1, batch_size // block)


class Sampler:
    """Draws samples of `model(x + noise)` for a batch of images and counts them by class."""

    def __init__(
        self,
        model: Classifier,
        x: Tensor,
        index: list[int],
        how: Sampling,
    ) -> None:
        check_classifier(model)
        check_images(x, how.value_range)
        if how.dtype not in PRECISIONS:
            raise InvalidInput(
                f"dtype is {how.dtype}; give torch.bfloat16, torch.float16 or torch.float32, or "
                "nothing for the precision of the model's weights"
            )
        self.device = device_of(model, x, how.device)
        if self.device.type == "meta":
            raise InvalidInput(
                "the model is on the meta device, where there are no numbers; give it weights first"
            )
        self.model, self.num_classes = model, how.num_classes
        self.sigma, self.seed, self.soft, self.dtype = how.sigma, how.seed, how.soft, how.dtype
        self.own = dtype_of(model)
        self.load(x, index)
        self.block = block_size(tuple(self.x.shape[1:]))
        # On the CPU one block a pass: a fixed shape makes every kernel round the same way, and more
        # samples would not fit the cache.
        self.width = blocks_a_pass(self.x.shape[1:], how.batch_size)
        blocks = 1 if self.device.type == "cpu" else self.width
        self.noisy = self.x.new_empty(blocks * self.block, *self.x.shape[1:])
        self.evaluating = ExitStack()

    def __enter__(self) -> "Sampler":
        if isinstance(self.model, nn.Module):
            check_norms(self.model)
            self.evaluating.enter_context(switched(self.model, training=False))
        self._probe()
        return self

    def __exit__(self, *exception: object) -> None:
        self.evaluating.close()

    def load(self, x: Tensor, index: list[int]) -> None:
        """Start with other images, of the same shape and already checked."""
        self.x = (x if x.ndim == 4 else x[None]).to(self.device, torch.float32).contiguous()
        self.images, self.index = len(self.x), index
        self.stages: dict[str, _Stage] = {}

    @torch.inference_mode()
    def tally(self, purpose: str, active: Ints, size: int) -> Tallies:
        """Outcomes of the active images after `size` samples each of this purpose's streams."""
        stage = self._stage(purpose)
        jobs = [
            (i, start, min(self.block, size - start))
            for i in active.tolist()
            for start in range(int(stage.drawn[i]), size, self.block)
        ]
        width = len(self.noisy) // self.block
        for first in range(0, len(jobs), width):
            self._pass(stage, jobs[first : first + width])
        stage.drawn[active] = size
        rows = torch.as_tensor(active, device=self.device)
        total, square = stage.sums[:, rows].cpu().numpy() if self.soft else (None, None)
        return Tallies(size, stage.counts[rows].cpu().numpy(), total, square)

    def nan(self, purpose: str) -> Ints:
        """How many samples of every image were NaN."""
        return self._stage(purpose).counts[:, -1].cpu().numpy()

    def _stage(self, purpose: str) -> _Stage:
        if purpose not in self.stages:
            k = self.num_classes or 0
            self.stages[purpose] = _Stage(
                self._streams(purpose),
                torch.zeros(self.images, k + 1, dtype=torch.int64, device=self.device),
                torch.zeros(2, self.images, k, dtype=torch.float64, device=self.device),
                np.zeros(self.images, np.int64),
            )
        return self.stages[purpose]

    def _streams(self, purpose: str) -> Streams | Tensor:
        if self.device.type in PHILOX:
            keys = [seed_of(self.seed, "certify", purpose, i) for i in self.index]
            return torch.tensor(keys, dtype=torch.int64, device=self.device)
        return Streams(
            self.index, seed=self.seed, purpose=purpose, sigma=self.sigma, device=self.device
        )

    def _pass(self, stage: _Stage, jobs: list[tuple[int, int, int]]) -> None:
        """One forward pass over whole blocks; of a block's samples the first `m` count."""
        noisy = self.noisy[: len(jobs) * self.block]
        owner, first, taken = torch.tensor(jobs).T.contiguous().to(self.device, non_blocking=True)
        if isinstance(stage.streams, Tensor):
            add_noise(noisy, self.x, stage.streams, owner, first, self.sigma)
        else:
            blocks = noisy.unflatten(0, (len(jobs), self.block))
            for block, (i, _, _) in zip(blocks, jobs, strict=True):
                stage.streams.fill(block, i)
            blocks += self.x[owner].unsqueeze(1)
        logits = self._logits(noisy)
        add_outcomes(logits, owner, taken, stage.counts, stage.sums if self.soft else None)

    def _logits(self, noisy: Tensor) -> Tensor:
        if self.channels_last:
            # `contiguous` would leave images of one channel as they are, and the layers with them.
            noisy = torch.empty_like(noisy, memory_format=torch.channels_last).copy_(noisy)
        noisy = noisy.to(self.own)  # noise is drawn in float32, whatever the network computes in
        if self.dtype in (None, torch.float32):
            return as_logits(self.model(noisy), len(noisy)).float()
        with torch.autocast(self.device.type, dtype=self.dtype):
            return as_logits(self.model(noisy), len(noisy)).float()

    @torch.inference_mode()
    def _probe(self) -> None:
        """Find the number of classes, check independence, and choose the memory layout.

        Convolutions run up to twice as fast on channels-last images; a model that calls `view` on
        its feature maps cannot take them, and gets ordinary ones.
        """
        pixels = math.prod(self.x.shape[1:])
        image = torch.linspace(0, 1, pixels, device=self.device, dtype=self.x.dtype)
        image = image.view(self.x.shape[1:])
        sample = batch_with(image, 0.0)
        self.channels_last = self.device.type == "cpu" or self.dtype not in (None, torch.float32)
        try:
            logits = self._logits(sample)
        except (RuntimeError, TypeError):
            self.channels_last = False
            logits = self._plain_logits(sample)
        if logits.shape[1] < 2:  # its argmax would be 0 whatever the noise: the largest certificate
            raise InvalidInput(
                "the model returns a single output for an image, of which no class can be read; "
                "make it two logits by stacking it with zeros, as torch.cat([0 * out, out], 1)"
            )
        if self.num_classes not in (None, logits.shape[1]):
            raise InvalidInput(
                f"the model returns {logits.shape[1]} logits but num_classes is {self.num_classes}"
            )
        self.num_classes = logits.shape[1]
        if self.soft:  # votes are the same, of logits and of their softmax
            check_scale(logits, "the model")
        # Cloned: a network that replays a CUDA graph writes every answer to the same memory.
        check_independence(lambda *other: self._logits(batch_with(image, *other))[0].clone())

    def _plain_logits(self, sample: Tensor) -> Tensor:
        try:
            return self._logits(sample)
        except (RuntimeError, TypeError) as error:
            if machine_failed(error):
                raise
            raise InvalidInput(
                f"the model fails on images of shape {list(sample.shape[1:])}: {first_line(error)}"
            ) from error


def in_turn(
    model: Classifier, source: Iterable[tuple[int, Tensor]], how: Sampling
) -> Iterator[Sampler]:
    """For each image (index, x [c, h, w]) a sampler of it alone.

    As long as the shape stays the same it is one object, so that the network is probed once.
    """
    sampler: Sampler | None = None
    with ExitStack() as opened:
        for index, x in source:
            check_images(x[None], how.value_range)
            names = as_index(index, 1)
            if sampler is None or sampler.x.shape[1:] != x.shape:
                opened.close()
                sampler = opened.enter_context(Sampler(model, x[None], names, how))
            else:
                sampler.load(x[None], names)
            yield sampler
