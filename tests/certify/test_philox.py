"""The GPU's noise against published test vectors, an emulation in numpy, and statistics."""

import numpy as np
import pytest
import torch
from scipy import stats

from covprop.certify import philox
from covprop.certify.philox import add_noise, normal, uniform, words


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_the_published_answers(
    counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    """The known answers that the authors of Philox ship with their code."""
    found = words(tuple(map(torch.tensor, counter)), tuple(map(torch.tensor, key)))  # type: ignore[arg-type]
    assert tuple(int(word) for word in found) == expected


def emulated(seed: int, sample: int, elements: int) -> np.ndarray:
    """The same numbers by numpy's unsigned integers, in float64."""
    with np.errstate(over="ignore"):
        c = [
            np.arange(elements, dtype=np.uint64),
            np.full(elements, sample & 0xFFFFFFFF, np.uint64),
            np.full(elements, sample >> 32, np.uint64),
            np.zeros(elements, np.uint64),
        ]
        k = [np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)]
        low = np.uint64(0xFFFFFFFF)
        for _ in range(10):
            a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
            high_a, high_b = a >> np.uint64(32), b >> np.uint64(32)
            c = [high_b ^ c[1] ^ k[0], b & low, high_a ^ c[3] ^ k[1], a & low]
            k = [(k[0] + np.uint64(0x9E3779B9)) & low, (k[1] + np.uint64(0xBB67AE85)) & low]
    u, v = ((word.astype(float) + 0.5) / 2**32 for word in c[:2])
    return np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v)


def jobs(device: str, layout: torch.memory_format, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    x = torch.rand(3, 3, 5, 7, generator=torch.Generator().manual_seed(0))
    x = x.to(device).contiguous(memory_format=layout)
    seeds = torch.tensor([1, 2**63 - 1, 0x1234567887654321], device=device)
    row = torch.tensor([2, 0, 1], device=device)
    first = torch.tensor([5, 2**33 + 1, 0], device=device)
    out = torch.empty(12, 3, 5, 7, device=device, dtype=dtype).contiguous(memory_format=layout)
    add_noise(out, x, seeds, row, first, 0.5)
    return out, x, seeds, row, first


LAYOUTS = [torch.contiguous_format, torch.channels_last]


def check_copies(device: str, layout: torch.memory_format, dtype: torch.dtype) -> None:
    out, x, seeds, row, first = jobs(device, layout, dtype)
    for j in range(3):
        image = x[row[j]].double().cpu().numpy()
        for s in range(4):
            noise = emulated(int(seeds[row[j]]), int(first[j]) + s, 105).reshape(3, 5, 7)
            found = out[4 * j + s].double().cpu().numpy()
            bound = 1e-5 if dtype == torch.float32 else 2**-7
            assert abs(found - (image + 0.5 * noise)).max() < bound


@pytest.mark.parametrize("layout", LAYOUTS)
def test_noisy_copies_against_an_emulation(layout: torch.memory_format) -> None:
    check_copies("cpu", layout, torch.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_kernel_against_an_emulation(layout: torch.memory_format, dtype: torch.dtype) -> None:
    check_copies("cuda", layout, dtype)


@pytest.mark.gpu
def test_the_kernel_against_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large launch, the last samples of a long stream."""
    x = torch.rand(40, 3, 32, 32, device="cuda")
    seeds = torch.randint(2**63 - 1, (40,), device="cuda")
    row = torch.randint(40, (32,), device="cuda")
    first = torch.randint(2**40, (32,), device="cuda")
    kernel, plain = (torch.empty(2048, 3, 32, 32, device="cuda") for _ in range(2))
    add_noise(kernel, x, seeds, row, first, 0.25)
    monkeypatch.setattr(philox, "HAVE_TRITON", False)
    add_noise(plain, x, seeds, row, first, 0.25)
    error = ((kernel - plain).norm() / plain.norm()).item()
    print(f"kernel against reference: {error:.2e}")
    assert error < 1e-6
    assert (kernel - plain).abs().max() < 1e-4


def test_no_word_makes_an_infinite_number() -> None:
    """The logarithm of 0 would: one word in 2³², at the far end of the tail."""
    ends = uniform(torch.tensor([0, 1, 2**32 - 1])).tolist()
    assert ends == [2.0**-33, 3 * 2.0**-33, 1.0]


def check_statistics(device: str, samples: int, elements: int) -> None:
    """Mean, spread, tails, and no relation between samples, elements or streams."""
    sample, element = torch.arange(samples, device=device), torch.arange(elements, device=device)
    z = normal(torch.tensor(77, device=device), sample[:, None], element).double()
    total = z.numel()
    assert abs(z.mean().item()) < 5 / total**0.5
    assert abs(z.var().item() - 1) < 5 * (2 / total) ** 0.5
    assert abs((z**3).mean().item()) < 5 * (15 / total) ** 0.5
    assert abs((z**4).mean().item() - 3) < 5 * (96 / total) ** 0.5
    for limit in (1.0, 2.0, 3.0, 4.0):
        p = 2 * stats.norm.sf(limit)
        seen = (z.abs() > limit).sum().item()
        assert abs(seen - total * p) < 5 * (total * p) ** 0.5 + 1
    other = normal(torch.tensor(78, device=device), sample[:, None], element).double()
    pairs = (z[1:] * z[:-1], z[:, 1:] * z[:, :-1], z * other, z[2:] * z[:-2])
    for pair in pairs:
        assert abs(pair.mean().item()) < 5 / pair.numel() ** 0.5
    assert len(torch.unique(z[:, 0])) > 0.999 * samples


def test_statistics() -> None:
    check_statistics("cpu", 400, 1000)


@pytest.mark.gpu
def test_statistics_of_many() -> None:
    check_statistics("cuda", 20_000, 3072)


@pytest.mark.gpu
def test_statistics_of_the_kernel() -> None:
    """What the kernel writes, not the reference: moments and no repeated copy."""
    out = torch.empty(8192, 3, 32, 32, device="cuda")
    row = torch.zeros(128, dtype=torch.int64, device="cuda")
    first = torch.arange(0, 8192, 64, device="cuda")
    seeds = torch.tensor([99], device="cuda")
    add_noise(out, torch.zeros(1, 3, 32, 32, device="cuda"), seeds, row, first, 1.0)
    total = out.numel()
    assert abs(out.double().mean().item()) < 5 / total**0.5
    assert abs(out.double().var().item() - 1) < 5 * (2 / total) ** 0.5
    assert len(torch.unique(out.flatten(1)[:, :4], dim=0)) == 8192
    assert out.abs().max().item() < 6.8
