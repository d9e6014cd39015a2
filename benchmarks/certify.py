"""What one pass of certification costs by batch size, streams and compiler, and where time goes.

    python benchmarks/certify.py --batches 512,1024,2048 --streams 1,2 --profile
    python benchmarks/certify.py --batches 2048 --modes compiled,autotuned

`covprop bench certify` measures whole certificates; this finds the pass they should be made of.
A pass is noise, network, argmax and counts, in bfloat16 on a GPU, replayed as a CUDA graph.
"""

import argparse
from collections.abc import Callable

import torch

from covprop.bench.certify import matrix_product
from covprop.bench.layers import count_flops, no_grad
from covprop.bench.machine import choose_device
from covprop.bench.subject import Subject
from covprop.bench.timing import Effort, interleaved
from covprop.certify.engine import Engine, Job
from covprop.certify.noise import block_size

MODES = {"replayed": None, "compiled": "default", "autotuned": "max-autotune-no-cudagraphs"}
SIGMA = 0.25


def engine_of(subject: Subject, batch: int, streams: int, mode: str | None) -> Engine:
    """An engine whose pass is as asked, with an image in every slot and jobs that count."""
    model, device = subject.build().eval(), subject.device
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
                make = lambda b=batch, s=streams, m=mode: engine_of(subject, b, s, MODES[m])  # noqa: E731
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
