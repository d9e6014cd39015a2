"""Whether a run's steps are recorded as a CUDA graph, and whether they are compiled."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn

from covprop.kernels import HAVE_TRITON
from covprop.train.distributed import World
from covprop.train.options import TrainOptions
from covprop.train.recipe import Recipe
from covprop.train.step import TrainStep

# Compiling takes about a minute at the start of a process. On an H200 (PreActResNet-18 without
# norm, batch 256, bf16) a recorded plain step then takes 2.79 instead of 4.11 ms, and one through
# Σ 3.47 instead of 6.11: the minute is back after 45,000 and 23,000 steps.
COMPILE_FROM = 50_000
"""Steps of a whole run from which `train.compile = "auto"` compiles."""
COMPILATIONS = 64
"""Allowed compilations of one function: a process may train many recipes. torch's limit is 8."""
NARROW = 16
"""With fewer input channels than this, the backward pass of a strided 1×1 convolution, channels
last on a CPU, writes past its memory in oneDNN (torch 2.11 and 2.13). That crashes; oneDNN's issue
6035 also reports runs that hang and wrong gradients."""


class Speed(NamedTuple):
    """What is done for speed, and a line that says so, empty if there is nothing to say."""

    record: bool
    compile: bool
    channels_last: bool
    line: str


def speed_of(recipe: Recipe, core: TrainStep, here: World, steps: int) -> Speed:
    """What `train.fast` and `train.compile` mean for a run of `steps` steps in all.

    The steps still to do play no part, so a run that is continued goes on as it began.
    """
    options, gpu = recipe.train, here.device.type == "cuda"
    asked = str(options.compile).lower()
    against = _against_recording(recipe, core, here)
    if options.compile == "auto":
        unlike = "only where steps are recorded" if against else _against_compiling(recipe, steps)
        compiled, why = not unlike, f", {unlike or f'{steps:,} steps'}"
    else:
        compiled, why = options.compile, ""
    recorded = f"not recorded ({against})" if against else "recorded as a CUDA graph"
    fused = f"{'' if compiled else 'not '}compiled (train.compile = {asked}{why})"
    line = f"Steps are {recorded} and {fused}." if gpu or compiled else ""
    last = options.channels_last and not _crashes(core, here)
    if options.channels_last and not last:
        line = f"{line} channels_last is left off: this network would crash with it on a CPU."
    return Speed(not against, compiled, last, line.strip())


def settled(recipe: Recipe, speed: Speed) -> Recipe:
    """The recipe as it is run, with the answer in the place of "auto"."""
    options = dataclasses.replace(
        recipe.train, compile=speed.compile, channels_last=speed.channels_last
    )
    return dataclasses.replace(recipe, train=options)


@contextmanager
def switches(options: TrainOptions, speed: Speed, here: World) -> Iterator[None]:
    """Set torch's global switches as a run wants them, and restore them afterwards."""
    tuned = torch.backends.cudnn.benchmark
    compiler = _compiler(options.compile == "auto") if speed.compile else nullcontext()
    # For what autocast leaves in float32, Σ above all.
    products = _tf32() if options.precision == "bf16" else nullcontext()
    try:
        if options.fast and here.device.type == "cuda" and here.size == 1:
            torch.backends.cudnn.benchmark = True  # all batches have one shape
        with compiler, products:
            yield
    finally:
        torch.backends.cudnn.benchmark = tuned


def _compiler(auto: bool) -> AbstractContextManager[Any]:
    """The compiler's settings; with "auto" its failures (no C compiler, say) are ignored."""
    config = torch._dynamo.config
    limit = max(config.recompile_limit, COMPILATIONS)
    return config.patch(suppress_errors=auto, recompile_limit=limit)


@contextmanager
def _tf32() -> Iterator[None]:
    """Matrix products of float32 in TF32."""
    mkldnn: Any = torch.backends.mkldnn  # whose stubs lack it
    backends = torch.backends.cuda.matmul, mkldnn.matmul
    each = [backend.fp32_precision for backend in backends]
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:  # torch does not answer where a backend was set by itself
        before = "highest"
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        for backend, precision in zip(backends, each, strict=True):
            backend.fp32_precision = precision


def _crashes(core: TrainStep, here: World) -> bool:
    """Whether the network cannot be trained channels last here; see `NARROW`."""
    return here.device.type == "cpu" and any(
        isinstance(layer, nn.Conv2d)
        and set(layer.kernel_size) == {1}
        and max(layer.stride) > 1
        and layer.in_channels // layer.groups < NARROW
        for layer in core.modules()
    )


def _against_recording(recipe: Recipe, core: TrainStep, here: World) -> str:
    if here.device.type != "cuda":
        return "on a GPU only"
    if not recipe.train.fast:
        return "train.fast = false"
    if here.size > 1:
        return f"{here.size} processes"
    if all(core.phase(epoch) is None for epoch in range(recipe.train.epochs)):
        return "no step is like another with this method"
    return ""


def _against_compiling(recipe: Recipe, steps: int) -> str:
    if not HAVE_TRITON:
        return "Triton is missing"
    if recipe.weighting is not None and recipe.method.get("estimator") == "linearized":
        return "not with [weighting] and a linearised radius"
    if steps < COMPILE_FROM:
        return f"{steps:,} steps: it pays from {COMPILE_FROM:,} on"
    return ""
