"""`covprop.certify` against the usual loop, and both against what the machine can multiply."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from covprop.bench.cohen import certify_one
from covprop.bench.layers import count_flops, no_grad
from covprop.bench.timing import Effort, Timing, interleaved
from covprop.certify import SampleWarning
from covprop.certify import certify as ours
from covprop.certify.noise import block_size

LOOP, SEQUENTIAL, CEILING = "usual loop, fp32, batch 1000", "sequential", "matrix product"
DELTA = 0.05


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
    batch: int = 2048

    @property
    def device(self) -> torch.device:
        return self.x.device


@dataclass(frozen=True)
class Side:
    """One way to certify: its time for all images and the samples it drew for them."""

    name: str
    time: Timing
    samples: float  # an image, on average
    images: int
    flops: int  # a sample
    ceiling: float  # floating-point operations a second

    @property
    def seconds_a_sample(self) -> float:
        return self.time.median / (self.samples * self.images)

    @property
    def share(self) -> float:
        """Share of the measured ceiling."""
        return self.flops / self.seconds_a_sample / self.ceiling


def measure(task: Task, effort: Effort, product_size: int | None = None) -> list[Side]:
    """Every way in turn on the same images, with the ceiling measured between them."""
    drawn: dict[str, float] = {}
    ways = _ways(task, drawn)
    for _, warm in ways.values():
        warm()
    size = product_size or (8192 if task.device.type == "cuda" else 2048)
    product = matrix_product(task.device, size)
    sides: dict[str, Callable[[], object]] = {name: run for name, (run, _) in ways.items()}
    once = replace(effort, warmup=0, sample_seconds=0.0)
    times = interleaved({**sides, CEILING: product}, task.device, once)
    # The best of the rounds: a ceiling is what the machine can do.
    ceiling = 2 * size**3 / times[CEILING].low
    flops = count_flops(no_grad(lambda: task.model(task.x[:1])))
    return [Side(name, times[name], drawn[name], len(task.x), flops, ceiling) for name in sides]


Way = tuple[Callable[[], object], Callable[[], object]]


def _ways(task: Task, drawn: dict[str, float]) -> dict[str, Way]:
    """Name -> (the measured work, a short version of it that warms everything up)."""

    def loop(n: int) -> None:
        for image in task.x:
            certify_one(
                task.model, image, task.sigma,
                n0=task.n0, n=n, alpha=task.alpha, num_classes=task.classes,
            )  # fmt: skip
        drawn[LOOP] = task.n + task.n0

    def way(
        name: str,
        model: Callable[[Tensor], Tensor],
        dtype: torch.dtype | None,
        delta: float | None = None,
    ) -> Way:
        def run(n: int = task.n) -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SampleWarning)
                found = ours(
                    model, task.x, sigma=task.sigma, n0=task.n0, n=n, alpha=task.alpha,
                    num_classes=task.classes, batch_size=task.batch, device=task.device,
                    dtype=dtype, delta=delta,
                )  # fmt: skip
            drawn[name] = float(found.n.double().mean()) + task.n0

        return run, lambda: run(min(task.n, 2 * task.batch))

    ways: dict[str, Way] = {LOOP: (lambda: loop(task.n), lambda: loop(min(task.n, 2000)))}
    ways["covprop, fp32"] = way("covprop, fp32", task.model, None)
    best: Callable[[Tensor], Tensor] = task.model
    dtype, label = None, "fp32"
    if task.device.type == "cuda":
        dtype, label = torch.bfloat16, "bf16, compiled"
        ways["covprop, bf16"] = way("covprop, bf16", task.model, dtype)
        best = compiled(task)
        ways[f"covprop, {label}"] = way(f"covprop, {label}", best, dtype)
    name = f"covprop, {label}, {SEQUENTIAL}"
    ways[name] = way(name, best, dtype, delta=DELTA)
    return ways


def compiled(task: Task) -> Callable[[Tensor], Tensor]:
    """The model by torch.compile, for one batch size: the last, shorter pass is filled up."""
    block = block_size(tuple(task.x.shape[1:]))
    size = max(1, task.batch // block) * block
    network = torch.compile(task.model, dynamic=False)

    def run(x: Tensor) -> Tensor:
        if len(x) == size:
            return network(x)
        filled = torch.cat([x, x.new_zeros(size - len(x), *x.shape[1:])])
        layout = torch.channels_last if not x.is_contiguous() else torch.contiguous_format
        return network(filled.contiguous(memory_format=layout))[: len(x)]

    return run


def matrix_product(device: torch.device, size: int) -> Callable[[], object]:
    """A large square product, bfloat16 on a GPU and float32 on the CPU."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return lambda: a @ b
