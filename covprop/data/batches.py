"""Batches as a pure function of (seed, epoch, batch number).

Nothing is remembered between batches, so a run that starts again at batch k gets exactly the
batches it would have got, and every process of a distributed run can slice the same global batch.
Random numbers are always drawn on the CPU: CPU and GPU see the same crops.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from covprop.data.decode import PADDING
from covprop.data.folders import AnyImages, FolderImages
from covprop.data.images import Images
from covprop.data.workers import give_back, mix, take
from covprop.device import choose_device
from covprop.errors import InvalidInput
from covprop.options import is_whole

Augment = Literal["none", "flip", "crop-flip"]
GROUP = 64
"""Batches whose crops are worked out together: a GPU waits less for a few large operations."""

# A product rounds alike on every device; a GPU divides by a number in its own way.
LEVEL = 1.0 / 255.0


class Batch(NamedTuple):
    """`index` int64 [b] (position in the data set), `x` float32 [b, c, h, w] in [0, 1], `y` [b]."""

    index: Tensor  # type: ignore[assignment]
    x: Tensor
    y: Tensor


def batches(
    data: AnyImages,
    batch_size: int,
    *,
    epoch: int,
    seed: int,
    device: torch.device | str,
    augment: str = "none",
    start: int = 0,
    rank: int = 0,
    world: int = 1,
    workers: int = 0,
    shuffle: bool = True,
    drop_last: bool = False,
    order: Tensor | None = None,
) -> Iterator[Batch]:
    """Iterate over one epoch from batch number `start`.

    `batch_size` counts the global batch; process `rank` of `world` gets its contiguous slice of
    it. `augment` is "none", "flip", or "crop-flip": for images in memory a random crop after
    padding by 4 zero pixels and a flip, computed for the whole batch on the device; for class
    folders, in `workers` processes, the random resized crop of 224 pixels and a flip, or at another
    `image_shape` what it is for images in memory.
    `order` are the positions of the images, as many as there are in `data`, in place of the
    shuffle: one may come more than once, another not at all.

    >>> import covprop.data as data
    >>> digits = data.load("digits", "test")
    >>> b = next(data.batches(digits, 32, epoch=0, seed=0, device="cpu"))
    >>> tuple(b.x.shape)
    (32, 1, 8, 8)
    """
    if augment not in get_args(Augment):
        known = ", ".join(get_args(Augment))
        raise InvalidInput(f"augment is {augment!r}; choose one of {known}.")
    whole = all(is_whole(n) for n in (batch_size, start, workers, rank, world))
    if not whole or batch_size < 1 or start < 0 or workers < 0 or not 0 <= rank < world:
        raise InvalidInput(
            f"batch_size {batch_size}, start {start}, workers {workers}, rank {rank} of {world}: "
            "these are whole numbers, the batch size must be positive and 0 ≤ rank < world."
        )
    numbers = range(start, count_batches(data, batch_size, drop_last=drop_last))
    if order is not None:
        order = _checked(order, data)
    elif shuffle:
        order = torch.randperm(len(data), generator=_generator(seed, epoch))
    else:
        order = torch.arange(len(data))
    slices = []
    for number in numbers:
        first, last = number * batch_size, min((number + 1) * batch_size, len(data))
        size = last - first
        slices.append(_Slice(number, first, size, size * rank // world, size * (rank + 1) // world))
    device = choose_device(str(device))
    if isinstance(data, Images):
        return _resident(data, order, slices, (seed, epoch), device, augment)
    return _decoded(data, order, slices, (seed, epoch), device, augment, workers)


def _checked(order: Tensor, data: AnyImages) -> Tensor:
    """Positions of images that there are, as many as there are."""
    order = torch.as_tensor(order).cpu()
    if order.shape != (len(data),):
        raise InvalidInput(
            f"order has shape {tuple(order.shape)}; it must name {len(data)} images, as many "
            f"as {data.name} has."
        )
    if order.is_floating_point() or order.dtype == torch.bool:
        raise InvalidInput(f"order is {order.dtype}; give positions of images, as torch.int64.")
    wrong = (order < 0) | (order >= len(data))
    if wrong.any():
        raise InvalidInput(
            f"order names image {int(order[wrong][0])}; {data.name} has images 0 to "
            f"{len(data) - 1}."
        )
    return order


def count_batches(data: AnyImages, batch_size: int, *, drop_last: bool = False) -> int:
    """How many batches one epoch has."""
    whole, rest = divmod(len(data), batch_size)
    return whole + (rest > 0 and not drop_last)


class _Slice(NamedTuple):
    """This process's part of one global batch: positions first+low .. first+high of the order."""

    number: int
    first: int
    size: int
    low: int
    high: int


def _generator(*parts: int) -> torch.Generator:
    return torch.Generator().manual_seed(mix(*parts))


def _resident(
    data: Images,
    order: Tensor,
    slices: list[_Slice],
    seeds: tuple[int, int],
    device: torch.device,
    augment: str,
) -> Iterator[Batch]:
    images, labels = data.resident(device)
    order = order.to(device)
    crop = augment == "crop-flip"
    for start in range(0, len(slices), GROUP):
        group = slices[start : start + GROUP]
        if augment != "none":
            draws = torch.cat([_draws(part, seeds) for part in group], 1).to(device)
            rows, cols = sources(draws, data.image_shape[1:], crop=crop)
        done = 0
        for part in group:
            index = order[part.first + part.low : part.first + part.high]
            x = images.index_select(0, index)
            if augment != "none":
                here = slice(done, done + len(index))
                x = pick(x, rows[here], cols[here], crop=crop)
                done = here.stop
            yield Batch(index, x.float().mul_(LEVEL), labels.index_select(0, index))


def _draws(part: _Slice, seeds: tuple[int, int]) -> Tensor:
    """Rows: vertical shift, horizontal shift (0..8), flip (0 or 1).

    Drawn for the global batch, so that the number of processes changes nothing.
    """
    generator = _generator(*seeds, part.number)
    shifts = torch.randint(0, 2 * PADDING + 1, (2, part.size), generator=generator)
    flips = torch.randint(0, 2, (1, part.size), generator=generator)
    return torch.cat([shifts, flips])[:, part.low : part.high]


def sources(draws: Tensor, size: Sequence[int], *, crop: bool) -> tuple[Tensor, Tensor]:
    """Where the pixels come from: row starts [b, h] and columns [b, w] of the flattened image."""
    (h, w), (down, right, flip) = size, draws.unsqueeze(-1)
    rows = torch.arange(h, device=draws.device).expand(len(down), h)
    cols = torch.arange(w, device=draws.device).expand(len(down), w)
    cols = torch.where(flip.bool(), w - 1 - cols, cols)
    if not crop:
        return rows * w, cols
    return (rows + down) * (w + 2 * PADDING), cols + right


def pick(x: Tensor, rows: Tensor, cols: Tensor, *, crop: bool) -> Tensor:
    """The images [b, c, h, w] with the pixels that `sources` named."""
    b, c, h, w = x.shape
    if crop:
        x = F.pad(x, [PADDING] * 4)
    # One gather from the flattened images, cheaper than four-fold indexing.
    flat = (rows.unsqueeze(2) + cols.unsqueeze(1)).view(b, 1, h * w)
    return x.flatten(2).gather(2, flat.expand(b, c, h * w)).view(b, c, h, w)


def _decoded(
    data: FolderImages,
    order: Tensor,
    slices: list[_Slice],
    seeds: tuple[int, int],
    device: torch.device,
    augment: str,
    count: int,
) -> Iterator[Batch]:
    places = [range(s.first + s.low, s.first + s.high) for s in slices]
    workers = take(data, augment, count, max(map(len, places), default=0))
    decoded = workers.decode(order.numpy(), places, seeds)
    order, labels = order.to(device), data.labels.to(device)
    for here in places:
        x = torch.empty(len(here), *data.image_shape, dtype=torch.float32, device=device)
        done = 0
        while done < len(here):
            pixels = next(decoded)
            if device.type == "cuda":  # pinned, so that the host need not wait for the steps before
                pixels = pixels.pin_memory().to(device, non_blocking=True)
            x[done : done + len(pixels)] = pixels.permute(0, 3, 1, 2)
            done += len(pixels)
        index = order[here.start : here.stop]
        yield Batch(index, x.mul_(LEVEL), labels[index])
    give_back(data, workers)  # not after an error, nor where an epoch was cut short
