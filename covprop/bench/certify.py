"""`covprop.certify` against the usual loop, and both against what the machine can multiply.

A way that draws a fixed number of samples is timed on a few images, the others on all: how soon a
sequential certificate stops depends on the image, what a sample costs does not.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from covprop.bench.cohen import certify_one
from covprop.bench.layers import count_flops, no_grad
from covprop.bench.timing import Effort, Timing, interleaved
from covprop.certify import SampleWarning
from covprop.certify import certify as ours
from covprop.certify.bounds import Question, certified_radius, looks, most_lower
from covprop.certify.engine import Engine
from covprop.certify.fast import Certifying, opened
from covprop.certify.noise import block_size
from covprop.certify.queue import run
from covprop.certify.sample import Sampling

LOOP, LOOP_TF32 = "usual loop, fp32", "usual loop, TF32"
CEILING = "matrix product"
PRODUCTS = 10  # in a row


@dataclass(frozen=True)
class Task:
    """What is certified: a model in eval mode, images on its device, and the question."""

    model: nn.Module
    x: Tensor
    sigma: float
    classes: int
    n: int = 100_000
    n0: int = 100
    alpha: float = 0.001
    batch: int | None = None
    few: int = 2  # images of the ways that draw a fixed number of samples
    compiling: bool = True

    @property
    def device(self) -> torch.device:
        return self.x.device

    @property
    def replays(self) -> bool:
        """Whether this device replays passes, in bfloat16."""
        return self.device.type == "cuda"

    @property
    def questions(self) -> dict[str, Question]:
        """The sequential ways: the radius to within σ/5 and 2σ/5, or which radii it reaches."""
        unit = self.sigma
        plan = looks(self.n, self.alpha, sequential=True, step=block_size(tuple(self.x.shape[1:])))
        largest = float(certified_radius(most_lower(plan), unit))
        radii = [(2 * unit,), (unit, 2 * unit, 3 * unit)]
        within = [tuple(radius for radius in some if radius <= largest) for some in radii]
        asked = [Question(delta=0.2 * unit), Question(delta=0.4 * unit)]
        asked += [Question(at_least=some) for some in within if some]
        return {title(question): question for question in asked}


def title(question: Question) -> str:
    if question.delta is not None:
        return f"sequential, radius within {question.delta:g}"
    return f"sequential, at least {' / '.join(f'{r:g}' for r in question.at_least)}?"


@dataclass(frozen=True)
class Side:
    """One way to certify: its time for some images and the samples it drew for them."""

    name: str
    time: Timing
    samples: float  # an image, on average
    images: int
    flops: int  # a sample
    ceiling: float  # floating-point operations a second
    setup: float = 0.0  # seconds, once
    fill: float = 1.0  # share of the computed samples that count

    @property
    def seconds_an_image(self) -> float:
        return self.time.median / self.images

    @property
    def seconds_a_sample(self) -> float:
        return self.seconds_an_image / self.samples

    @property
    def share(self) -> float:
        """Share of the measured ceiling."""
        return self.flops / self.seconds_a_sample / self.ceiling

    def seconds(self, images: int) -> float:
        """For so many images, set-up included."""
        return self.setup + images * self.seconds_an_image


@dataclass
class Work:
    """One way as it is measured: what to run, and what the runs said of themselves."""

    run: Callable[[], object]
    images: int
    samples: float = 0.0
    setup: float = 0.0
    fill: float = 1.0


def measure(
    task: Task,
    effort: Effort,
    product_size: int | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Side]:
    """Every way in turn on the same images, with the ceiling measured between them."""
    size = product_size or (8192 if task.device.type == "cuda" else 2048)
    flops = count_flops(no_grad(lambda: task.model(task.x[:1])))
    once = replace(effort, warmup=0, sample_seconds=0.0)
    with ExitStack() as stack:
        fixed, engine = _fixed(task, stack, say)
        sides = {name: work.run for name, work in fixed.items()}
        say(f"a fixed number of samples: {', '.join(fixed)} …")
        product = matrix_product(task.device, size)
        sides[CEILING] = lambda: [product() for _ in range(PRODUCTS)]
        sides[CEILING]()
        times = interleaved(sides, task.device, once)
        works = dict(fixed)
        best = list(fixed)[-1]
        for name, question in task.questions.items():
            full = f"{best}, {name}"
            say(f"{full} …")
            works[full] = _sequential(task, engine, question, fixed[best].setup)
            times |= interleaved({full: works[full].run}, task.device, replace(once, rounds=1))
    # Not the median but the fast end of the rounds: a ceiling is what the machine can do.
    ceiling = PRODUCTS * 2 * size**3 / times[CEILING].low
    return [
        Side(name, times[name], w.samples, w.images, flops, ceiling, w.setup, w.fill)
        for name, w in works.items()
    ]


def _fixed(
    task: Task, stack: ExitStack, say: Callable[[str], None]
) -> tuple[dict[str, Work], Engine | None]:
    """The ways that draw n samples, warmed up; the last is the fastest, with its engine."""
    few = min(task.few, len(task.x))
    ways = {LOOP: _loop(task, few, tf32=False)}
    if not task.replays:
        ways["covprop, fp32"] = _plain(task, few, None, None)
        return ways, None
    ways[LOOP_TF32] = _loop(task, few, tf32=True)
    ways["covprop, bf16, plain passes"] = _plain(task, few, torch.bfloat16, None)
    engine = None
    for name, compiling in (("replayed", False), ("compiled and replayed", True)):
        if compiling and not task.compiling:
            continue
        say(f"{name}: set-up …")
        start = time.perf_counter()
        how = Sampling(
            task.sigma, task.classes, task.batch, device=task.device, dtype=torch.bfloat16,
            compiled=compiling,
        )  # fmt: skip
        engine = stack.enter_context(opened(task.model, task.x[0], how, 0))
        if task.device.type == "cuda":
            torch.cuda.synchronize(task.device)
        setup = time.perf_counter() - start
        # A graph takes a few more images: the last pass is not full.
        ways[f"covprop, bf16, {name}"] = _queue(task, engine, None, min(8 * few, len(task.x)))
        ways[f"covprop, bf16, {name}"].setup = setup
    return ways, engine


def _loop(task: Task, few: int, *, tf32: bool) -> Work:
    # As the loop's own code has it: weights in torch's ordinary layout.
    model = copy.deepcopy(task.model).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]

    def go(n: int) -> None:
        with _tf32(tf32):
            for image in task.x[:few]:
                certify_one(
                    model, image.contiguous(), task.sigma,
                    n0=task.n0, n=n, alpha=task.alpha, num_classes=task.classes,
                )  # fmt: skip

    go(min(task.n, 2000))
    return Work(lambda: go(task.n), few, float(task.n + task.n0))


def _plain(task: Task, images: int, dtype: torch.dtype | None, question: Question | None) -> Work:
    """`certify` without replayed passes."""
    work = Work(lambda: None, images)

    def go(n: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SampleWarning)
            found = ours(
                task.model, task.x[:images], sigma=task.sigma, n0=task.n0, n=n, alpha=task.alpha,
                num_classes=task.classes, batch_size=task.batch, device=task.device, dtype=dtype,
                delta=question.delta if question else None,
                at_least=(question.at_least or None) if question else None, fast=False,
            )  # fmt: skip
        work.samples = float(found.n.double().mean()) + task.n0

    if question is None:
        go(min(task.n, 4096))
    work.run = lambda: go(task.n)
    return work


def _sequential(task: Task, engine: Engine | None, question: Question, setup: float) -> Work:
    if engine is None:
        return _plain(task, len(task.x), None, question)
    work = _queue(task, engine, question, len(task.x))
    work.setup = setup
    return work


def _queue(task: Task, engine: Engine, question: Question | None, images: int) -> Work:
    """Replayed passes, from the first image to the last answer."""
    plan = looks(task.n, task.alpha, sequential=question is not None, step=engine.block)
    work = Work(lambda: None, images)

    def go() -> None:
        procedure = Certifying(task.n0, plan, sigma=task.sigma, question=question, soft=False)
        before, wanted, drawn = engine.passes, engine.wanted, 0
        for settled in run(engine, enumerate(task.x[:images]), procedure, 0):
            drawn += int(procedure.found(settled)[3].sum())
        work.samples = drawn / images + task.n0
        computed = (engine.passes - before) * engine.width * engine.block
        work.fill = (engine.wanted - wanted) / computed

    work.run = go
    return work


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    """Whether float32 products may round their factors to TF32, which GPUs of 2019 did not."""
    flags: tuple[Any, ...] = (torch.backends.cudnn, torch.backends.cuda.matmul)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = [flag.allow_tf32 for flag in flags]
        for flag in flags:
            flag.allow_tf32 = allowed
        try:
            yield
        finally:
            for flag, value in zip(flags, before, strict=True):
                flag.allow_tf32 = value


def matrix_product(device: torch.device, size: int) -> Callable[[], object]:
    """A large square product, bfloat16 on a GPU and float32 on the CPU."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return lambda: a @ b
