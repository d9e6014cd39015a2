"""What one pass of certification costs by way and batch size on this GPU, and where time goes.

    python benchmarks/certify.py --profile
    python benchmarks/certify.py --cases fused:1024 fused:8448

A case is a way and a batch size; whole processors' worth of images (2112 = 16 for each of an
H200's 132) leave none of them idle at the end of a layer. Ways:

    replayed   layer by layer in a CUDA graph
    compiled   compiled, batch norms as a factor and a shift
    fused      compiled, with norms, sums and ReLUs in the kernels of convolutions and the first
               layer, of few channels, in a kernel of our own: what `covprop.certify` compiles

`covprop bench certify` measures whole certificates; this finds the pass they should be made of.
A pass is noise, network, argmax and counts, in bfloat16 on a GPU, replayed as a CUDA graph.
"""

import argparse
import time
from collections import Counter
from collections.abc import Sequence

import torch
from torch import nn

from covprop.bench.certify import matrix_product
from covprop.bench.layers import count_flops, no_grad
from covprop.bench.subject import Subject
from covprop.bench.timing import Effort, interleaved
from covprop.certify.affine import affine
from covprop.certify.engine import Engine, Job, _in_dtype
from covprop.certify.fold import folded
from covprop.certify.noise import block_size
from covprop.device import choose_device

WAYS = ("replayed", "compiled", "fused")
CASES = ("fused:2112", "fused:1056", "fused:4224", "compiled:2112", "replayed:2112")
SIGMA = 0.25


def engine_of(subject: Subject, way: str, batch: int) -> Engine:
    """An engine whose pass is as asked, with an image in every slot and jobs that count."""
    model, device = with_statistics(subject.build()).eval(), subject.device
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
    )
    if way != "replayed":
        change(engine, way, model)
    if on_gpu:
        torch.compiler.reset()
        if way != "replayed":
            engine.network = torch.compile(engine.network, dynamic=False)
        engine._capture()
    for slot, image in enumerate(subject.batch(4)[0]):
        engine.load(slot, image, slot)
    engine.submit([Job(j % 4, 0, block) for j in range(engine.width)])
    engine.collect()
    return engine


def with_statistics(model: nn.Module) -> nn.Module:
    """Batch norms that do something, in place: those of a new network change nothing."""
    draws = torch.Generator().manual_seed(0)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            assert layer.running_mean is not None
            assert layer.running_var is not None
            layer.running_mean.copy_(0.1 * torch.randn(layer.num_features, generator=draws))
            layer.running_var.copy_(0.5 + torch.rand(layer.num_features, generator=draws))
    return model


@torch.no_grad()
def change(engine: Engine, way: str, model: nn.Module) -> None:
    """Replace layers of the network, and say what that does to its logits."""
    noisy = torch.rand_like(engine.noisy[:64])
    exact, before = model(noisy), engine._network(noisy)
    if way == "compiled":
        engine.model = affine(engine.model)
    else:
        engine.model = _in_dtype(folded(model, noisy), engine.dtype, engine.layout)
    errors = [(logits - exact).norm() / exact.norm() for logits in (before, engine._network(noisy))]
    print(f"{way}: error of the logits {errors[1]:.1e}, before {errors[0]:.1e}")


def kind_of(kernel: str) -> str:
    for kind, words in (
        ("convolutions", ("xmma", "conv", "cutlass", "cudnn")),
        ("noise", ("_add_n",)),
        ("first layer", ("_first",)),
    ):
        if any(word in kernel for word in words) and not kernel.startswith("triton_"):
            return kind
    return "compiled kernels" if kernel.startswith("triton_") else "others"


def profile(engine: Engine, passes: int = 3, rows: int = 30) -> str:
    """Kernels by the time they take, in microseconds a sample."""
    cuda = engine.device.type == "cuda"
    kinds = torch.profiler.ProfilerActivity
    kind = kinds.CUDA if cuda else kinds.CPU
    with torch.profiler.profile(activities=[kind], acc_events=True) as found:
        for _ in range(passes):
            engine.run()
        if cuda:
            torch.cuda.synchronize()
    samples = passes * engine.width * engine.block
    events = [
        ((e.self_device_time_total if cuda else e.self_cpu_time_total) / samples, e.count, e.key)
        for e in found.key_averages()
    ]
    sums: Counter[str] = Counter()
    for each, _, key in events:
        sums[kind_of(key)] += each
    lines = [f"{kind}: {each:.3f} µs a sample" for kind, each in sums.most_common()]
    for each, count, key in sorted(events, reverse=True)[:rows]:
        lines.append(f"{each:7.3f} µs  {count // passes:4d} times  {key[:140]}")
    return "\n".join(lines)


def parse(case: str) -> tuple[str, int]:
    way, _, batch = case.partition(":")
    if way not in WAYS or not batch.isdigit():
        raise argparse.ArgumentTypeError(f"{case} is no case; fused:4224 is one")
    return way, int(batch)


def main(arguments: Sequence[str] | None = None) -> None:
    begin = time.monotonic()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--model", default="preact_resnet18")
    parser.add_argument("--norm", default=None)
    parser.add_argument("--width", type=int, default=None)
    parser.add_argument("--image", type=int, default=32, help="pixels a side")
    parser.add_argument("--channels", type=int, default=3)
    parser.add_argument("--cases", nargs="+", type=parse, default=[parse(case) for case in CASES])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=70, help="no case is begun after so many")
    parser.add_argument("--profile", action="store_true", help="of the fastest pass")
    parser.add_argument("--product", type=int, default=8192, help="size of the matrix product")
    options = parser.parse_args(arguments)
    device = choose_device(options.device)
    shape = {"image": options.image, "channels": options.channels}
    subject = Subject(options.model, norm=options.norm, width=options.width, **shape, device=device)
    model, (x, _) = subject.build().eval(), subject.batch(1)
    flops = count_flops(no_grad(lambda: model(x)))
    effort = Effort(warmup=2, rounds=options.rounds)
    found = interleaved({"product": matrix_product(device, options.product)}, device, effort)
    ceiling = 2 * options.product**3 / found["product"].low
    print(f"{subject.name}: {flops / 1e9:.3f} GFLOP a sample, ceiling {ceiling / 1e12:.0f} TFLOP/s")
    best: tuple[float, Engine] | None = None
    for way, batch in options.cases:
        start = time.monotonic()
        if start - begin > options.seconds:
            print(f"no time for {way}:{batch}")
            continue
        engine = engine_of(subject, way, batch)
        setup = time.monotonic() - start
        each = interleaved({"pass": engine.run}, device, effort)["pass"].median
        each /= engine.width * engine.block
        print(
            f"{way:9s} batch {engine.width * engine.block:5d}: "
            f"{1e6 * each:7.3f} µs a sample, {100 * flops / each / ceiling:5.1f} % of the ceiling; "
            f"set-up {setup:.1f} s, {time.monotonic() - begin:.0f} s in all",
            flush=True,
        )
        worse = engine
        if best is None or each < best[0]:
            worse, best = (best[1] if best else None), (each, engine)  # type: ignore[assignment]
        if worse is not None:
            worse.close()
    if options.profile and best is not None:
        print(profile(best[1]))


if __name__ == "__main__":
    main()
