"""A step can be recorded and replayed: it reads nothing back, and its phase says what it does."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from covprop import models, noise
from covprop.data import Batch
from covprop.noisy import METHODS, Memory, NoisyLosses, NoisyStep, Task, build

READS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "is_nonzero")
IMAGES = 12


class Recorder(TorchDispatchMode):
    """The operations and sizes of a step; one that needs a value on the host is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in READS, f"{name} reads a value back from the device"
        if name in ("index", "index_put", "index_put_"):
            assert all(i is None or i.dtype == torch.int64 for i in args[1]), "a mask as index"
        plain = [a if isinstance(a, int | float | bool) else "" for a in args]
        out = func(*args, **(kwargs or {}))
        shape = tuple(out.shape) if isinstance(out, torch.Tensor) else ""
        self.calls.append(f"{name} {plain} {shape}")
        return out


def network() -> nn.Module:
    return models.build("lenet", num_classes=3, image_shape=(1, 8, 8), width=2)


def step(name: str, **options: Any) -> NoisyStep:
    task = Task(IMAGES, 3, 0.45, 0.25, (1, 8, 8), network)
    clean = torch.arange(IMAGES) % 3
    return NoisyStep(network(), build(name, task=task, **options), task, clean)


def record(one: NoisyStep, epoch: int) -> list[str]:
    index = torch.arange(IMAGES).flip(0)[:8]
    batch = Batch(index, torch.rand(8, 1, 8, 8), (index + index % 2) % 3)
    one(batch, epoch, noise.stream(0)).per_sample.mean().backward()  # what is made at first use
    with Recorder() as recorder:
        one(batch, epoch, noise.stream(1)).per_sample.mean().backward()
    return recorder.calls


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in METHODS},
    "bootstrap soft": ("bootstrap", {"kind": "soft"}),
    "truncated pruned": ("truncated", {"from_epoch": 1, "refresh": 1}),
    "radius of the label": (
        *("radius", {"of": "label", "weight": 0, "from_epoch": 1, "per_class": True}),
    ),
    "radius with a layer": (
        *("radius", {"of": "label", "weight": 0, "from_epoch": 5, "per_class": True, "layer": 2}),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_steps_of_one_phase_compute_the_same_and_read_nothing_back(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Done on the CPU only, where nothing is recorded; test_step_gpu.py records such steps.
    monkeypatch.setattr("covprop.radius._check_range", lambda *_: None)
    name, options = CASES[case]
    one = step(name, **options)
    recorded: dict[Any, list[str]] = {}
    tables = {key: value.data_ptr() for key, value in one.named_buffers()}
    for epoch in range(12):
        phase = one.phase(epoch)
        assert phase is not None
        one.start_epoch(epoch)
        calls = record(one, epoch)
        assert recorded.setdefault(phase, calls) == calls
    assert {key: value.data_ptr() for key, value in one.named_buffers()} == tables  # in place


@pytest.mark.parametrize("name", ["mentornet", "coteaching"])
def test_the_share_that_is_left_out_makes_the_phase(name: str) -> None:
    one = step(name, ramp=4)
    assert len({one.phase(epoch) for epoch in range(5)}) == 5
    assert one.phase(4) == one.phase(199)
    assert record(one, 0) != record(one, 4)


def test_the_noise_layer_makes_another_phase() -> None:
    one = step("smodel", pretrain=2)
    assert one.phase(0) == one.phase(1) != one.phase(2) == one.phase(9)


def test_the_memory_s_sums_are_those_of_plain_indexing() -> None:
    torch.manual_seed(0)
    memory, probability, radius = Memory(9, 3), torch.zeros(9, 3), torch.full((9,), torch.nan)
    seen = torch.zeros(9)
    for _ in range(4):
        index, logits = torch.randperm(9)[:5], torch.randn(5, 3)
        learned = NoisyLosses(logits[:, 0], logits, logits[:, 0] > 0, logits[:, 1])
        memory.update(index, learned)
        probability[index] += logits.softmax(1)
        seen[index] += 1
        radius[index] = logits[:, 1]
    assert torch.equal(memory.probability, probability)
    assert torch.equal(memory.seen, seen)
    assert torch.equal(memory.radius.nan_to_num(-9), radius.nan_to_num(-9))
