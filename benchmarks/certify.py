"""What one pass of certification costs by batch size, streams and compiler, and where time goes.

    python benchmarks/certify.py --profile
    python benchmarks/certify.py --cases compiled:2048 autotuned:2048 --seconds 300

A case is a way, a batch size, and how many parts of it run side by side (`compiled:2048x2`):

    replayed   layer by layer in a CUDA graph
    norms      compiled, batch norms as they are
    compiled   compiled, batch norms as a factor and a shift: what `covprop.certify` does
    columns    and the first layer, of few channels, as a matrix product
    fused      and the first half of every basic block in one kernel of cuDNN
    searched   compiled; of the kernels of cuDNN all are tried, not ten (at a batch size of its
               own: what was found for a shape is kept)
    autotuned  compiled; the compiler's own convolutions are tried as well (a minute and more)

`covprop bench certify` measures whole certificates; this finds the pass they should be made of.
A pass is noise, network, argmax and counts, in bfloat16 on a GPU, replayed as a CUDA graph.
"""

import argparse
import time
from collections import Counter
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covprop.bench.certify import matrix_product
from covprop.bench.layers import count_flops, no_grad
from covprop.bench.machine import choose_device
from covprop.bench.subject import Subject
from covprop.bench.timing import Effort, interleaved
from covprop.certify.affine import Affine, affine
from covprop.certify.engine import Engine, Job
from covprop.certify.noise import block_size
from covprop.models.preact_resnet import BasicBlock

WAYS = ("replayed", "norms", "compiled", "columns", "fused", "searched", "autotuned")
CASES = (
    "norms:2048", "compiled:2048", "compiled:2112", "columns:2048", "fused:2048",
    "compiled:512", "compiled:2048x2", "searched:4224",
)  # fmt: skip
SIGMA = 0.25
FEW = 32  # inputs of a pixel of the first layer that one step of a matrix product takes


class Columns(nn.Conv2d):
    """A convolution whose inputs are laid out as the rows of a matrix."""

    def forward(self, x: Tensor) -> Tensor:
        (kh, kw), (sh, sw), (ph, pw) = self.kernel_size, self.stride, self.padding
        x = F.pad(x, (int(pw), int(pw), int(ph), int(ph)))
        patches = x.unfold(2, kh, sh).unfold(3, kw, sw).permute(0, 2, 3, 1, 4, 5).flatten(3)
        rest = FEW - patches.shape[3]
        weight = F.pad(self.weight.flatten(1), (0, rest))
        return F.linear(F.pad(patches, (0, rest)), weight, self.bias).permute(0, 3, 1, 2)


def with_columns(model: nn.Module) -> nn.Module:
    """Layers of few inputs as products, in place."""
    for layer in model.modules():
        if type(layer) is nn.Conv2d and layer.groups == 1 and layer.weight[0].numel() <= FEW:
            layer.__class__ = Columns
    return model


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


class Fused(BasicBlock):
    """A basic block whose second norm is in the weights of its first convolution."""

    folded: Tensor
    shift: Tensor

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(x)).to(self.folded.dtype)
        skip = x if self.shortcut is None else self.shortcut(h)
        return skip + self.conv2(conv_relu(h, self.folded, self.shift, self.conv1.stride[0]))


@torch.no_grad()
def with_fused_blocks(model: nn.Module) -> nn.Module:
    """The basic blocks of an `affine` model in fewer kernels, in place."""
    for block in model.modules():
        if type(block) is not BasicBlock or not isinstance(block.norm2, Affine):
            continue
        norm, weight = block.norm2, block.conv1.weight
        folded = (norm.factor.view(-1, 1, 1, 1) * weight).to(weight.dtype)
        block.__class__ = Fused
        block.register_buffer("folded", folded.contiguous(memory_format=torch.channels_last))
        block.register_buffer("shift", norm.offset.to(weight.dtype))
    return model


def engine_of(subject: Subject, way: str, batch: int, streams: int) -> Engine:
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
    if way not in ("replayed", "norms"):
        change(engine, way)
    if on_gpu:
        torch.compiler.reset()
        if way != "replayed":
            options = {"max_autotune": True} if way == "autotuned" else None
            engine.network = torch.compile(engine.network, dynamic=False, options=options)
        torch.backends.cudnn.benchmark_limit = 0 if way == "searched" else 10
        engine._capture()
    for slot, image in enumerate(subject.batch(4)[0]):
        engine.load(slot, image, slot)
    engine.submit([Job(j % 4, 0, block) for j in range(engine.width)])
    engine.collect()
    return engine


@torch.no_grad()
def change(engine: Engine, way: str) -> None:
    """Replace layers of the network, and say what that does to its logits."""
    noisy = torch.rand_like(engine.noisy[:64])
    expected = engine._network(noisy)
    model = affine(engine.model)
    assert isinstance(model, nn.Module)
    if way == "columns":
        model = with_columns(model)
    elif way == "fused":
        model = with_fused_blocks(model)
    engine.model = model
    error = (engine._network(noisy) - expected).norm() / expected.norm()
    print(f"{way}: logits change by {float(error):.1e}")


def kind_of(kernel: str) -> str:
    for kind, words in (
        ("convolutions", ("xmma", "conv", "cutlass", "cudnn")),
        ("noise", ("_add_n",)),
    ):
        if any(word in kernel for word in words) and not kernel.startswith("triton_"):
            return kind
    return "compiled kernels" if kernel.startswith("triton_") else "others"


def profile(engine: Engine, passes: int = 3, rows: int = 30) -> str:
    """Kernels by the time they take, in microseconds a sample."""
    cuda = engine.device.type == "cuda"
    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CUDA if cuda else kinds.CPU]) as found:
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


def parse(case: str) -> tuple[str, int, int]:
    way, _, size = case.partition(":")
    batch, _, streams = size.partition("x")
    if way not in WAYS or not batch.isdigit() or not (streams or "1").isdigit():
        raise argparse.ArgumentTypeError(f"{case} is no case; compiled:2048x2 is one")
    return way, int(batch), int(streams or 1)


def main(arguments: Sequence[str] | None = None) -> None:
    begin = time.monotonic()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--model", default="preact_resnet18")
    parser.add_argument("--norm", default=None)
    parser.add_argument("--width", type=int, default=None)
    parser.add_argument("--cases", nargs="+", type=parse, default=[parse(case) for case in CASES])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=70, help="no case is begun after so many")
    parser.add_argument("--profile", action="store_true", help="of the fastest pass")
    parser.add_argument("--product", type=int, default=8192, help="size of the matrix product")
    options = parser.parse_args(arguments)
    device = choose_device(options.device)
    subject = Subject(options.model, norm=options.norm, width=options.width, device=device)
    model, (x, _) = subject.build().eval(), subject.batch(1)
    flops = count_flops(no_grad(lambda: model(x)))
    effort = Effort(warmup=2, rounds=options.rounds)
    found = interleaved({"product": matrix_product(device, options.product)}, device, effort)
    ceiling = 2 * options.product**3 / found["product"].low
    print(f"{subject.name}: {flops / 1e9:.3f} GFLOP a sample, ceiling {ceiling / 1e12:.0f} TFLOP/s")
    best: tuple[float, Engine] | None = None
    for way, batch, streams in options.cases:
        start = time.monotonic()
        if start - begin > options.seconds:
            print(f"no time for {way}:{batch}x{streams}")
            continue
        engine = engine_of(subject, way, batch, streams)
        setup = time.monotonic() - start
        each = interleaved({"pass": engine.run}, device, effort)["pass"].median
        each /= engine.width * engine.block
        print(
            f"{way:9s} batch {engine.width * engine.block:5d}, {engine.parts} at once: "
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
