"""Times certification against the usual loop: same network, images, N and threads, in one run.

    python benchmarks/certify.py [--device cuda] [--n 10000] [--images 2] [--models lenet,...]

Reports seconds for 100,000 samples of each, and their ratio; rounds alternate, the median counts.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import torch

from covprop.bench.cohen import certify_one
from covprop.certify import certify
from covprop.data import DATASETS
from covprop.models import build

NETWORKS = {
    "lenet-digits": ("lenet", "digits"),
    "lenet": ("lenet", "mnist"),
    "cifar_resnet20": ("cifar_resnet20", "cifar10"),
    "cifar_resnet110": ("cifar_resnet110", "cifar10"),
    "preact_resnet18": ("preact_resnet18", "cifar10"),
}


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Wall-clock time on a GPU; this process's processor time on a CPU that others may use too."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    start = clock()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--images", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=2048, help="ours, on a GPU")
    parser.add_argument("--models", default="lenet-digits,lenet,cifar_resnet20")
    parser.add_argument("--bf16", action="store_true", help="ours in bfloat16")
    options = parser.parse_args()
    device = torch.device(options.device)
    where = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor()
    print(
        f"{where or platform.machine()}, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}, n = {options.n}, {options.images} images"
    )
    for name in options.models.split(","):
        arch, dataset = NETWORKS[name]
        facts = DATASETS[dataset]
        torch.manual_seed(0)
        model = build(
            arch,
            num_classes=facts.num_classes,
            image_shape=facts.image_shape,
            mean=facts.mean,
            std=facts.std,
        )
        model = model.to(device).eval()
        x = torch.rand(options.images, *facts.image_shape, device=device)
        common = {"n": options.n, "num_classes": facts.num_classes}
        dtype = torch.bfloat16 if options.bf16 else None
        ways: dict[str, Callable[[], object]] = {
            "loop": lambda m=model, x=x, c=common: [certify_one(m, i, 0.25, **c) for i in x],
            "covprop": lambda m=model, x=x, c=common, d=dtype: certify(
                m, x, sigma=0.25, batch_size=options.batch, dtype=d, **c
            ),
        }
        for way in ways.values():
            seconds(way, device)
        times: dict[str, list[float]] = {key: [] for key in ways}
        for _ in range(options.rounds):
            for key, way in ways.items():
                times[key].append(seconds(way, device))
        scale = 100_000 / (options.n * options.images)
        loop, ours = (statistics.median(times[key]) * scale for key in ("loop", "covprop"))
        print(f"{name}: loop {loop:.2f} s, covprop {ours:.2f} s, {loop / ours:.2f} times as fast")


if __name__ == "__main__":
    main()
