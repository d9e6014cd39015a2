"""What one pass of certification costs by batch size, streams and compiler, and where time goes.

    python benchmarks/certify.py --batches 512,1024,2048 --streams 1,2 --profile
    python benchmarks/certify.py --batches 2048 --modes compiled,fused,autotuned

`covprop bench certify` measures whole certificates; this finds the pass they should be made of.
A pass is noise, network, argmax and counts, in bfloat16 on a GPU, replayed as a CUDA graph.
"""

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from covprop.bench.certify import matrix_product
from covprop.bench.layers import count_flops, no_grad
from covprop.bench.machine import choose_device
from covprop.bench.subject import Subject
from covprop.bench.timing import Effort, interleaved
from covprop.certify.engine import Engine, Job
from covprop.certify.noise import block_size
from covprop.models.preact_resnet import BasicBlock

MODES = {
    "replayed": None,
    "compiled": "default",
    "fused": "default",
    "autotuned": "max-autotune-no-cudagraphs",
}
SIGMA = 0.25


@torch.library.custom_op("covprop_bench::conv_relu", mutates_args=())
def conv_relu(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    """ReLU of a 3×3 convolution, on a GPU in cuDNN's one kernel."""
    if x.is_cuda:
        pair = [stride, stride]
        return torch.cudnn_convolution_relu(x, weight, bias, pair, [1, 1], [1, 1], 1)
    return F.relu(F.conv2d(x, weight, bias, stride, 1))


@conv_relu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    return F.conv2d(x, weight, bias, stride, 1)


def fuse(model: nn.Module, dtype: torch.dtype) -> None:
    """Let the first half of every basic block be one kernel, its second norm folded into it."""
    for block in model.modules():
        if not isinstance(block, BasicBlock):
            continue
        conv = block.conv1
        if isinstance(block.norm2, nn.BatchNorm2d):
            conv = fuse_conv_bn_eval(conv, block.norm2)
        assert conv.bias is not None
        layout = torch.channels_last
        weight = conv.weight.detach().to(dtype).contiguous(memory_format=layout)
        bias, stride = conv.bias.detach().to(dtype), conv.stride[0]

        def forward(
            x: Tensor,
            block: BasicBlock = block,
            weight: Tensor = weight,
            bias: Tensor = bias,
            stride: int = stride,
        ) -> Tensor:
            h = F.relu(block.norm1(x)).to(weight.dtype)
            skip = x if block.shortcut is None else block.shortcut(h)
            return skip + block.conv2(conv_relu(h, weight, bias, stride))

        block.forward = forward  # type: ignore[method-assign]


def engine_of(subject: Subject, batch: int, streams: int, name: str) -> Engine:
    """An engine whose pass is as asked, with an image in every slot and jobs that count."""
    model, device, mode = subject.build().eval(), subject.device, MODES[name]
    block = block_size(subject.image_shape)
    on_gpu = device.type == "cuda"
    engine = Engine(
        model,
        subject.image_shape,
        sigma=SIGMA,
        classes=subject.classes,
        block=block,
        width=max(1, batch // block),
        slots=4,
        device=device,
        dtype=torch.bfloat16 if on_gpu else None,
        channels_last=on_gpu,
        streams=streams,
    )
    if name == "fused":
        noisy = engine.noisy.normal_()
        with torch.no_grad():
            expected = engine._network(noisy)
            fuse(engine.model, torch.bfloat16 if on_gpu else torch.float32)  # type: ignore[arg-type]
            error = (engine._network(noisy) - expected).norm() / expected.norm()
        print(f"fused against layer by layer: {float(error):.1e}")
    if on_gpu:
        torch.compiler.reset()
        if mode is not None:
            engine.network = torch.compile(engine.network, dynamic=False, mode=mode)
        engine._capture()
    for slot, image in enumerate(subject.batch(4)[0]):
        engine.load(slot, image, slot)
    engine.submit([Job(j % 4, 0, block) for j in range(engine.width)])
    engine.collect()
    return engine


def profile(engine: Engine, passes: int = 3, rows: int = 25) -> str:
    """Kernels by the time they take in a pass."""
    cuda = engine.device.type == "cuda"
    kinds = torch.profiler.ProfilerActivity
    activities = [kinds.CUDA] if cuda else [kinds.CPU]
    with torch.profiler.profile(activities=activities) as found:
        for _ in range(passes):
            engine.run()
        if cuda:
            torch.cuda.synchronize()
    events = [
        (e.self_device_time_total if cuda else e.self_cpu_time_total, e.count, e.key)
        for e in found.key_averages()
    ]
    total = sum(time for time, _, _ in events)
    lines = [f"{total / passes / 1000:.3f} ms a pass in {len(events)} kinds of kernels"]
    for time, count, key in sorted(events, reverse=True)[:rows]:
        lines.append(f"{100 * time / total:5.1f} %  {count // passes:4d} times  {key[:140]}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--model", default="preact_resnet18")
    parser.add_argument("--norm", default=None)
    parser.add_argument("--width", type=int, default=None)
    parser.add_argument("--batches", default="512,1024,2048,4096")
    parser.add_argument("--streams", default="1,2")
    parser.add_argument("--modes", default="replayed,compiled")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--profile", action="store_true", help="of the fastest pass")
    parser.add_argument("--product", type=int, default=8192, help="size of the matrix product")
    options = parser.parse_args()
    device = choose_device(options.device)
    subject = Subject(options.model, norm=options.norm, width=options.width, device=device)
    model, (x, _) = subject.build().eval(), subject.batch(1)
    flops = count_flops(no_grad(lambda: model(x)))
    product = matrix_product(device, options.product)
    effort = Effort(warmup=2, rounds=options.rounds)
    time = interleaved({"product": product}, device, effort)["product"].low
    ceiling = 2 * options.product**3 / time
    print(f"{subject.name}: {flops / 1e9:.3f} GFLOP a sample, ceiling {ceiling / 1e12:.0f} TFLOP/s")
    best: tuple[float, Callable[[], Engine]] | None = None
    for mode in options.modes.split(","):
        for streams in map(int, options.streams.split(",")):
            for batch in map(int, options.batches.split(",")):
                make = lambda b=batch, s=streams, m=mode: engine_of(subject, b, s, m)  # noqa: E731
                engine = make()
                median = interleaved({"pass": engine.run}, device, effort)["pass"].median
                each = median / (engine.width * engine.block)
                print(
                    f"{mode:10s} batch {batch:5d}, {engine.parts} streams: {1e6 * each:7.3f} µs a "
                    f"sample, {100 * flops / each / ceiling:5.1f} % of the ceiling",
                    flush=True,
                )
                if best is None or each < best[0]:
                    best = each, make
                del engine
    if options.profile and best is not None:
        print(profile(best[1]()))


if __name__ == "__main__":
    main()
