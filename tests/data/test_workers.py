import gc
import hashlib
import math
import multiprocessing
import os
import random
import subprocess
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from covprop.data import batches, load
from covprop.data.workers import AHEAD, Workers, give_back, take
from covprop.errors import InvalidInput

# Python 3.12 warns of forking beside threads; torch's idle threads are harmless here.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

SEED, EPOCH = 3, 2
FILES = 20


@pytest.fixture
def folder(tmp_path):
    """Pictures of many sizes, every third one grey, which Pillow has to convert."""
    rng = np.random.default_rng(0)
    for i in range(FILES):
        path = tmp_path / "train" / "ab"[i % 2] / f"{i:02}.{'jpg' if i % 4 else 'png'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(rng.integers(0, 256, (50 + 2 * i, 90 - i, 3), np.uint8))
        (picture if i % 3 else picture.convert("L")).save(path)
    return load(str(tmp_path), "train")


def epoch(data, size=8, **options):
    options = {"epoch": EPOCH, "seed": SEED, "augment": "crop-flip", **options}
    return list(batches(data, size, device="cpu", **options))


def same(a, b) -> bool:
    return len(a) == len(b) and all(
        torch.equal(p, q) for x, y in zip(a, b, strict=True) for p, q in zip(x, y, strict=True)
    )


def image_at(data, place: int, index: int, epoch: int = EPOCH) -> torch.Tensor:
    """The standard crop and flip of one image step by step, a copy at each, as [3, 224, 224]."""
    digest = hashlib.sha256(f"{SEED}/{epoch}/{place}".encode()).digest()
    rng = random.Random(int.from_bytes(digest[:8], "little") >> 1)
    image = Image.open(data.path(index)).convert("RGB")
    for _ in range(10):
        area = image.width * image.height * rng.uniform(0.08, 1)
        aspect = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if w <= image.width and h <= image.height:
            left, top = rng.randint(0, image.width - w), rng.randint(0, image.height - h)
            break
    else:
        pytest.fail("choose another SEED: this image has no random part")
    part = image.crop((left, top, left + w, top + h))
    pixels = np.array(part.resize((224, 224), Image.Resampling.BILINEAR))
    pixels = pixels[:, ::-1] if rng.random() < 0.5 else pixels
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


@pytest.mark.parametrize("count", [0, 2])
def test_every_bit_of_an_epoch(folder, count):
    """Of batches that are more than one chunk, the last not a whole one."""
    order = torch.arange(3 * FILES) % FILES
    many = replace(folder, paths=folder.paths[order], labels=folder.labels[order])
    assert 32 == Workers(many, "none", 0, 40).size < 40
    got = epoch(many, 40, workers=count)
    assert [len(b.y) for b in got] == [40, 20]
    index, x, y = (torch.cat(part) for part in zip(*got, strict=True))
    expected = torch.stack([image_at(many, *at) for at in enumerate(index.tolist())])
    assert torch.equal(x, expected.float() * (1 / 255))
    assert torch.equal(y, many.labels[index])
    assert all(b.x.is_contiguous() for b in got), "noise is drawn in the order of memory"


def test_pixels_last_until_the_next_are_asked_for(folder):
    workers = Workers(folder, "crop-flip", 1, 1)
    order = np.arange(FILES)
    ones = [range(i, i + 1) for i in range(FILES)]
    for place, pixels in enumerate(workers.decode(order, ones, (SEED, EPOCH))):
        if place < 3 * AHEAD:
            time.sleep(0.1)  # the process has decoded ahead as far as it may
        assert torch.equal(pixels[0].permute(2, 0, 1), image_at(folder, place, place))


def test_processes_are_kept_as_long_as_the_set(folder):
    def running() -> set[int | None]:
        return {process.pid for process in multiprocessing.active_children()}

    own, before = replace(folder), running()
    first = epoch(own, workers=2)
    started = running() - before
    assert len(started) == 2
    assert same(epoch(own, epoch=5), epoch(own, epoch=5, workers=2))
    assert same(first, epoch(own, workers=2))
    assert running() - before == started
    epoch(own, augment="none", workers=2)
    assert len(running() - before) == 4, "the other crop has its own"
    del own
    gc.collect()
    assert running() <= before


def test_a_signal_to_the_whole_group_does_not_reach_them(folder):
    """A closed terminal would end them before training has written its checkpoint."""
    epoch(folder, workers=2)
    groups = [os.getpgid(process.pid) for process in multiprocessing.active_children()]
    assert len(groups) >= 2
    assert os.getpgid(0) not in groups


def test_a_sigterm_to_every_process_of_a_job_does_not_end_them(folder):
    """Batch systems send one; the trainer's own ends them."""
    own, before = replace(folder), set(multiprocessing.active_children())
    first = epoch(own, workers=2)
    started = set(multiprocessing.active_children()) - before
    assert len(started) == 2
    subprocess.run(["kill", "-TERM", *(str(process.pid) for process in started)], check=True)
    time.sleep(0.2)
    assert all(process.is_alive() for process in started)
    assert same(first, epoch(own, workers=2))
    one = started.pop()
    one.terminate()
    one.join(5)
    assert one.exitcode == 0


def test_epochs_at_once_do_not_meet(folder):
    alone = [epoch(folder, epoch=e) for e in (0, 1)]
    epoch(folder, workers=1)  # leaves a process, which only one of the two can have
    options = {"seed": SEED, "device": "cpu", "augment": "crop-flip", "workers": 1}
    pairs = zip(*(batches(folder, 8, epoch=e, **options) for e in (0, 1)), strict=True)
    for one, other in zip(alone, map(list, zip(*pairs, strict=True)), strict=True):
        assert same(one, other)


@pytest.mark.parametrize("count", [0, 1])
def test_a_cut_epoch_and_an_error_leave_nothing_behind(folder, count):
    whole = epoch(folder)
    options = {"epoch": EPOCH, "seed": SEED, "device": "cpu", "augment": "crop-flip"}
    part = batches(folder, 8, workers=count, **options)
    assert torch.equal(next(part).x, whole[0].x)
    assert same(whole, epoch(folder, workers=count))
    part.close()
    content = folder.path(7).read_bytes()
    folder.path(7).write_bytes(b"no image")
    with pytest.raises(InvalidInput, match="cannot be decoded"):
        epoch(folder, workers=count)
    folder.path(7).write_bytes(content)
    assert same(whole, epoch(folder, workers=count))


def test_workers_given_back_are_taken_once(folder):
    workers = take(folder, "none", 0, 8)
    give_back(folder, workers)
    for other in (("flip", 0, 8), ("none", 1, 8), ("none", 0, 9)):
        assert take(folder, *other) is not workers
    assert take(folder, "none", 0, 8) is workers
    assert take(folder, "none", 0, 8) is not workers


def test_large_images_come_few_at_a_time(folder):
    large = replace(folder, image_shape=(3, 1024, 1024))
    assert Workers(large, "none", 0, 8).slots.shape == (1, 2, 1024, 1024, 3)
    assert Workers(replace(folder, image_shape=(3, 4000, 4000)), "none", 0, 8).size == 1


@pytest.mark.parametrize(("count", "batch", "chunks"), [(1, 320, 20), (2, 336, 22), (2, 8, 4)])
def test_two_batches_are_decoded_ahead(folder, count, batch, chunks):
    small = replace(folder, image_shape=(3, 8, 8))
    workers = Workers(small, "none", count, batch)
    assert workers.loader.prefetch_factor * count == chunks
    assert len(workers.slots) == chunks + count


def test_too_little_shared_memory_is_one_sentence(folder, monkeypatch):
    def full(self):
        raise RuntimeError("unable to allocate shared memory(shm) for file </torch_1>")

    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    with pytest.raises(InvalidInput, match=r"4 workers need 13 MB of shared memory .*fewer"):
        epoch(folder, workers=4)


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [0, 2])
def test_cpu_and_gpu_agree(folder, workers):
    """Twice, since the second epoch uses the shared memory of the first again."""
    options = {"epoch": EPOCH, "seed": SEED, "augment": "crop-flip", "workers": workers}
    for _ in range(2):
        on_gpu = list(batches(folder, 8, device="cuda", **options))
        assert all(batch.x.is_cuda and batch.x.is_contiguous() for batch in on_gpu)
        here = [type(batch)(*(part.cpu() for part in batch)) for batch in on_gpu]
        assert same(here, epoch(folder, workers=workers))
