"""The least time a step can take here: its operations and bytes over what the machine reaches."""

from __future__ import annotations

import math

import torch

from covprop.bench.certify import matrix_product
from covprop.bench.layers import count_flops, propagator, sigma_pass_and_backward
from covprop.bench.step import training_step
from covprop.bench.subject import Subject
from covprop.bench.timing import Effort, interleaved


def floor(where: Subject, batch: int) -> dict[str, float]:
    """Operations and bytes a step cannot do without, over what this machine reaches."""
    cuda = where.device.type == "cuda"
    size = 8192 if cuda else 1024
    wide = torch.randn(size, size, device=where.device)
    half = torch.empty(2**28 if cuda else 2**22, device=where.device, dtype=torch.bfloat16)
    other = torch.empty_like(half)
    product = matrix_product(where.device, size)
    sides = {"product": product, "wide": lambda: wide @ wide, "copy": lambda: other.copy_(half)}
    times = interleaved(sides, where.device, Effort(warmup=3, rounds=10))
    rate, sigma_rate = (2 * size**3 / times[side].low for side in ("product", "wide"))
    bandwidth = 2 * 2 * half.numel() / times["copy"].low

    base = training_step("plain", where, 2)
    base()
    per_image = count_flops(base) / 2
    prop = propagator(where)
    sigma_flops = count_flops(lambda: sigma_pass_and_backward(prop, where))
    relu, maps = map_numbers(where)
    number = 2 if where.precision == "bf16" else 4
    return {
        "matrix product, TFLOP/s": rate / 1e12,
        "float32 (TF32 on a GPU) matrix product, TFLOP/s": sigma_rate / 1e12,
        "copy, GB/s (read and written)": bandwidth / 1e9,
        "network, forward and backward, GFLOP": batch * per_image / 1e9,
        "network at the first rate, ms": 1e3 * batch * per_image / rate,
        "Σ pass, forward and backward, GFLOP": sigma_flops / 1e9,
        "Σ pass at the first rate, ms": 1e3 * sigma_flops / rate,
        "Σ pass at the second rate, ms": 1e3 * sigma_flops / sigma_rate,
        "all feature maps, MiB": batch * maps * number / 2**20,
        "inputs of ReLUs, MiB": batch * relu * number / 2**20,
        "ReLUs alone (2 maps forward, 3 backward), ms": 1e3 * 5 * batch * relu * number / bandwidth,
        "each map written, read, read again; so its gradient, ms": (
            1e3 * 6 * batch * maps * number / bandwidth
        ),
    }


def map_numbers(where: Subject) -> tuple[int, int]:
    """Numbers of an image's feature maps: those a ReLU reads, and all."""
    noisy = [step for step in propagator(where).plan.steps if step.rule]
    relu = sum(math.prod(step.out_shape) for step in noisy if step.rule and step.rule.mean)
    return relu, sum(math.prod(step.out_shape) for step in noisy)
