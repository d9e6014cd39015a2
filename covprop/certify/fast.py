"""The fast path: images from a queue, through passes of one shape that a GPU replays.

`certify` and `predict` are two procedures here, which say of each image what to draw next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
import torch
from torch import Tensor

from covprop.certify.bounds import Floats, Ints, Looks, Question, judge
from covprop.certify.engine import Engine
from covprop.certify.inputs import check_images, check_label_range, device_of, dtype_of
from covprop.certify.noise import ESTIMATE, PREDICT, SELECT, block_size
from covprop.certify.queue import IN_FLIGHT, Image, Procedure, run
from covprop.certify.sample import Sampler, Sampling, Tallies, blocks_a_pass
from covprop.errors import InvalidInput
from covprop.logits import Classifier

Source = Iterable[tuple[int, Tensor]]
CHECKED = 64  # images that are checked together
RECORDING_PAYS = 100  # passes; to warm up and record one takes about as long as ten


def on_fast_path(
    model: Classifier, x: Tensor, how: Sampling, fast: bool | None, samples: int
) -> bool:
    """Whether passes are recorded and replayed: as told, else on a GPU where that pays."""
    if dtype_of(model) not in (torch.float32, how.dtype):  # such a pass casts to `dtype` only
        return False
    if fast is not None:
        return fast
    shape = tuple(x.shape[-3:])
    passes = samples / (blocks_a_pass(shape, how.batch_size) * block_size(shape))
    return device_of(model, x, how.device).type == "cuda" and passes >= RECORDING_PAYS


@contextmanager
def opened(model: Classifier, x: Tensor, how: Sampling, samples: int) -> Iterator[Engine]:
    """An engine for images like x and about so many samples, with the model in eval mode."""
    with Sampler(model, x, [0], how) as sampler:
        assert sampler.num_classes is not None
        engine = Engine(
            model,
            sampler.x.shape[1:],
            sigma=how.sigma,
            classes=sampler.num_classes,
            block=sampler.block,
            width=sampler.width,
            # Enough for all images that can wait for a look at once, and one pass more.
            slots=(IN_FLIGHT + 1) * sampler.width,
            device=sampler.device,
            dtype=how.dtype,
            channels_last=sampler.channels_last,
            soft=how.soft,
        )
        try:
            engine.speed_up(samples, compiling=how.compiled)
            yield engine
        finally:
            engine.close()


def settle(
    model: Classifier,
    source: Source,
    procedure: Procedure,
    how: Sampling,
    samples: int,
) -> Iterator[list[Image]]:
    """Images as `procedure` is done with them; `samples` is about how many it takes in all.

    The source holds one image at least.
    """
    images = checked(source, how.value_range)
    first = next(images)
    with opened(model, first[1], how, samples) as engine:
        yield from run(engine, chain([first], images), procedure, how.seed)


def checked(
    source: Source, value_range: tuple[float, float] | None
) -> Iterator[tuple[int, Tensor]]:
    """The images, each checked for its shape and scale, `CHECKED` at a time.

    A check reads values, which on a GPU waits for all work that was started before.
    """
    images = iter(source)
    shape: torch.Size | None = None
    while some := list(islice(images, CHECKED)):
        shape = shape or some[0][1].shape
        for index, x in some:
            if x.shape != shape:
                raise InvalidInput(
                    f"images of one call have one shape, but image {index} is {list(x.shape)} "
                    f"and the first {list(shape)}"
                )
        check_images(torch.stack([x for _, x in some]), value_range)
        yield from some


@dataclass
class _Known:
    """What is known of one image so far."""

    guess: int
    lower: float = 0.0
    upper: float = 1.0


class Certifying:
    """Guess the class from n0 samples, then bound its probability look by look.

    With `right`, the labels by the images' places in the queue, wrong guesses are not bounded.
    """

    purpose = SELECT

    def __init__(
        self,
        n0: int,
        plan: Looks,
        *,
        sigma: float,
        question: Question | None,
        soft: bool,
        right: Sequence[int] | None = None,
    ) -> None:
        self.first, self.plan, self.sigma = n0, plan, sigma
        self.question, self.soft, self.right = question, soft, right
        self.known: dict[int, _Known] = {}

    def advance(self, images: list[Image]) -> None:
        """See `queue.Procedure`."""
        looking: dict[int, list[Image]] = {}
        for image in images:
            if image.purpose == SELECT:
                assert image.tally is not None
                guess = int(image.tally.argmax()[0])
                self.known[image.slot] = _Known(guess)
                label = guess if self.right is None else self.right[image.number]
                check_label_range([label], image.tally.counts.shape[1] - 1)
                if guess != label:
                    image.done = True
                else:
                    image.purpose, image.target = ESTIMATE, self.plan.sizes[0]
            else:
                looking.setdefault(self.plan.sizes.index(image.target), []).append(image)
        for look, several in looking.items():
            self._judge(look, several)

    def _judge(self, look: int, images: list[Image]) -> None:
        known = [self.known[image.slot] for image in images]
        tally = stack([image.tally for image in images if image.tally is not None])
        lower, upper, answered = judge(
            tally.of(np.array([entry.guess for entry in known])),
            self.plan,
            self.plan.alphas[look],
            np.array([entry.lower for entry in known]),
            np.array([entry.upper for entry in known]),
            sigma=self.sigma,
            question=self.question,
            soft=self.soft,
        )
        for j, (image, entry) in enumerate(zip(images, known, strict=True)):
            entry.lower, entry.upper, image.done = lower[j], upper[j], bool(answered[j])
            if not image.done:
                image.target = self.plan.sizes[look + 1]

    def found(self, images: list[Image]) -> tuple[Ints, Floats, Ints, Ints, Ints]:
        """Guess, lower bound, count, samples and NaN samples of images that are done."""
        known = [self.known.pop(image.slot) for image in images]
        guess = np.array([entry.guess for entry in known], dtype=np.int64)
        counts = stack([image.tally for image in images if image.tally is not None]).counts
        bounded = np.array([image.purpose == ESTIMATE for image in images])
        used = np.array([image.target for image in images], dtype=np.int64)
        return (
            guess,
            np.array([entry.lower for entry in known]),
            np.where(bounded, counts[np.arange(len(images)), guess], 0),
            np.where(bounded, used, 0),
            counts[:, -1].copy(),
        )


class Predicting:
    """Count n samples."""

    purpose = PREDICT

    def __init__(self, n: int) -> None:
        self.first = n

    def advance(self, images: list[Image]) -> None:
        """See `queue.Procedure`."""
        for image in images:
            image.done = True


def stack(tallies: list[Tallies]) -> Tallies:
    """Several images with as many samples each."""
    total, square = (
        None
        if getattr(tallies[0], name) is None
        else np.concatenate([getattr(tally, name) for tally in tallies])
        for name in ("total", "square")
    )
    return Tallies(tallies[0].n, np.concatenate([t.counts for t in tallies]), total, square)
