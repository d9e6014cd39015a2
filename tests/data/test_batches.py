import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from covprop.data import Images, batches, count_batches, load
from covprop.data.batches import pick, sources
from covprop.errors import InvalidInput

N = 53
DATA = Images(
    "test",
    torch.randint(0, 256, (N, 3, 9, 7), dtype=torch.uint8),
    torch.arange(N) % 5,
    ("a", "b", "c", "d", "e"),
)


def epoch(data=DATA, size=8, **options):
    options = {"epoch": 2, "seed": 7, "device": "cpu", "augment": "crop-flip", **options}
    return list(batches(data, size, **options))


def same(a, b) -> bool:
    return len(a) == len(b) and all(
        torch.equal(p, q) for x, y in zip(a, b, strict=True) for p, q in zip(x, y, strict=True)
    )


def test_every_image_once_and_unchanged():
    got = epoch(augment="none")
    index = torch.cat([b.index for b in got])
    assert sorted(index.tolist()) == list(range(N))
    assert index.tolist() != list(range(N))
    for b in got:
        assert b.x.dtype == torch.float32
        assert torch.equal(b.x, DATA.images[b.index].float() * (1 / 255))
        assert torch.equal(b.y, DATA.labels[b.index])


def test_sizes():
    assert [len(b.y) for b in epoch()] == [8] * 6 + [5]
    assert [len(b.y) for b in epoch(drop_last=True)] == [8] * 6
    assert count_batches(DATA, 8) == 7
    assert count_batches(DATA, 8, drop_last=True) == 6
    unshuffled = torch.cat([b.index for b in epoch(shuffle=False)])
    assert unshuffled.tolist() == list(range(N))


@given(start=st.integers(0, 8))
def test_a_restart_continues_exactly(start):
    assert same(epoch(start=start), epoch()[start:])


def test_epoch_and_seed_matter_and_nothing_else_does():
    first = epoch()
    torch.manual_seed(99)
    before = torch.get_rng_state()
    assert same(first, epoch())
    assert torch.equal(before, torch.get_rng_state())
    assert not same(first, epoch(epoch=3))
    assert not same(first, epoch(seed=8))
    # Not the crops alone: the order of the images is another one as well.
    for other in ({"epoch": 3}, {"seed": 8}):
        assert not torch.equal(first[0].index, epoch(**other)[0].index)


@pytest.mark.parametrize("world", [2, 3, 6])
def test_ranks_slice_the_same_global_batch(world):
    ranks = [epoch(rank=rank, world=world) for rank in range(world)]
    joined = [
        tuple(torch.cat(parts) for parts in zip(*pieces, strict=True))
        for pieces in zip(*ranks, strict=True)
    ]
    assert same(joined, epoch())
    # 5 images over 6 processes: one gets an empty batch, and all do the same number of steps.
    assert min(len(rank[-1].y) for rank in ranks) == 5 // world


def test_a_given_order_takes_the_place_of_the_shuffle():
    order = torch.randint(0, N, (N,), generator=torch.Generator().manual_seed(0))
    got = epoch(order=order, augment="none")
    assert torch.equal(torch.cat([b.index for b in got]), order)
    assert torch.equal(torch.cat([b.y for b in got]), DATA.labels[order])
    assert same(epoch(order=order, start=3), epoch(order=order)[3:])
    halves = [epoch(order=order, rank=rank, world=2) for rank in (0, 1)]
    index = [torch.cat([one.index, two.index]) for one, two in zip(*halves, strict=True)]
    assert torch.equal(torch.cat(index), order)
    with pytest.raises(InvalidInput, match=r"order has shape .* must name 53 images"):
        epoch(order=order[:-1])


def test_crop_and_flip_against_numpy():
    x = DATA.images[:20]
    draws = torch.stack(
        [torch.randint(0, 9, (20,)), torch.randint(0, 9, (20,)), torch.arange(20) % 2]
    )
    got = pick(x, *sources(draws, x.shape[2:], crop=True), crop=True)
    for i, (down, right, flip) in enumerate(draws.T.tolist()):
        padded = np.pad(x[i].numpy(), ((0, 0), (4, 4), (4, 4)))
        expected = padded[:, down : down + 9, right : right + 7]
        expected = expected[:, :, ::-1] if flip else expected
        assert (got[i].numpy() == expected).all()
    flipped = pick(x, *sources(draws, x.shape[2:], crop=False), crop=False)
    assert torch.equal(flipped[1::2], x[1::2].flip(-1))
    assert torch.equal(flipped[::2], x[::2])


def test_augmentation_is_drawn_for_each_image():
    """Every shift 0..8 and both flips occur, about equally often."""
    marked = torch.zeros(2000, 1, 9, 9, dtype=torch.uint8)
    marked[:, 0, 4, 3] = 255
    data = Images("marked", marked, torch.zeros(2000, dtype=torch.int64), ("a",))
    x = torch.cat([b.x for b in epoch(data, 500)])
    rows = x.sum((1, 3)).argmax(1)
    counts = torch.bincount(rows, minlength=9)
    assert counts.min() > 150
    # Where the mark is still seen, each row goes with each column: the shifts are drawn apart.
    seen = x.sum((1, 2, 3)) == 1
    assert len((rows * 9 + x.sum((1, 2)).argmax(1))[seen].unique()) == 81
    flips = torch.cat([b.x for b in epoch(data, 500, augment="flip")])
    assert 0.45 < flips[:, 0, 4, 5].mean() < 0.55
    assert torch.all(flips[:, 0, 4, 5] + flips[:, 0, 4, 3] == 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"augment": "crop"}, "augment is 'crop'; choose one of none, flip, crop-flip"),
        ({"size": 0}, "batch size must be positive"),
        ({"size": 3.5}, "batch_size 3.5, .* these are whole numbers"),
        ({"rank": 2, "world": 2}, "rank < world"),
        ({"start": -1}, "start -1"),
        ({"workers": -1}, "workers -1"),
        ({"device": "gpu"}, 'no device "gpu"; choose auto, cpu, cuda'),
        ({"order": torch.full((N,), N)}, f"order names image {N}; .* has images 0 to {N - 1}"),
        ({"order": torch.full((N,), -1)}, "order names image -1"),
        ({"order": torch.zeros(N)}, "order is torch.float32; give positions"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(InvalidInput, match=message):
        epoch(**options)


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / "train" / name).mkdir(parents=True)
        for i in range(5):
            pixels = rng.integers(0, 256, (40, 60, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "train" / name / f"{i}.jpg")
    return load(str(tmp_path), "train")


# Python 3.12 warns of forking beside threads; torch's idle threads are harmless here.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_folders_do_not_depend_on_workers_start_or_ranks(folder):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    plain = epoch(folder, 4)
    assert torch.equal(before, torch.get_rng_state())
    assert [len(b.y) for b in plain] == [4, 4, 2]
    assert same(plain, epoch(folder, 4, workers=2))
    assert same(plain[2:], epoch(folder, 4, start=2))
    halves = [epoch(folder, 4, rank=rank, world=3) for rank in range(3)]
    joined = [
        tuple(torch.cat(p) for p in zip(*pieces, strict=True))
        for pieces in zip(*halves, strict=True)
    ]
    assert same(plain, joined)
    assert not same(plain, epoch(folder, 4, epoch=3))
    for b in plain:
        assert b.x.shape[1:] == (3, 224, 224)
        assert 0 <= b.x.min() < b.x.max() <= 1
        assert torch.equal(b.y, folder.labels[b.index])


def test_copies_of_a_file_are_cropped_apart(folder):
    order = torch.tensor([4] * 5 + [7] * 5)
    (got,) = epoch(folder, 10, order=order)
    assert torch.equal(got.index, order)
    assert len(got.x[:5].flatten(1).unique(dim=0)) > 1


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_image_in_a_worker_is_one_sentence(folder, workers):
    folder.path(3).write_bytes(b"no image")
    with pytest.raises(InvalidInput, match=r"a/3\.jpg: cannot be decoded") as caught:
        epoch(folder, 4, workers=workers)
    assert "\n" not in str(caught.value)


@pytest.mark.gpu
def test_cpu_and_gpu_agree():
    for on_cpu, on_gpu in zip(epoch(), epoch(device="cuda"), strict=True):
        assert on_gpu.x.is_cuda
        assert torch.equal(on_cpu.index, on_gpu.index.cpu())
        assert torch.equal(on_cpu.x, on_gpu.x.cpu())
