"""Muon's step for all filter banks of a network at once, as Triton kernels.

Shape by shape, Newton–Schulz is some two hundred products, most of them far too small for a GPU.
Here a product is one launch whatever the shapes: every bank lies as a matrix [m, n], m ≤ n, in one
buffer, filled up with zeros to whole tiles (they stay zeros), and a table says which tile of which
bank a program makes. Of what is symmetric one half is made, and mirrored.

A round takes S = X Xᵀ, B = b S + c S² and X ← a X + B X; the first also divides by the norm of X.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

PAD = 128
"""Sides are filled up to a multiple of it: all tiles divide it, and the tables count in it."""
SMALL = {"M": 64, "N": 128, "K": 64, "num_warps": 4, "num_stages": 4}
"""Tiles of S and B: small ones, since there are few of them."""
LARGE = {"M": 128, "N": 128, "K": 64, "num_warps": 8, "num_stages": 3}
BLOCK = 4096
"""Numbers a program of the first and last kernel reads and writes."""
FORMATS = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)

FIELDS = tl.constexpr(8)
UNIT = tl.constexpr(PAD)


@triton.jit
def _sum_of(ptr, count, N: tl.constexpr):
    total = tl.zeros((N,), dtype=tl.float32)
    for start in range(0, count, N):
        at = start + tl.arange(0, N)
        total += tl.load(ptr + at, mask=at < count, other=0.0)
    return tl.sum(total)


@triton.jit
def _take(
    grad_ptr, momentum_ptr, x_ptr, square_ptr, size, columns, length, momentum,
    TALL: tl.constexpr, NESTEROV: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """v ← μ v + g; X = g + μ v or v, a matrix whose rows have `length`; the sum of its squares."""
    at = tl.program_id(0) * N + tl.arange(0, N)
    inside = at < size
    grad = tl.load(grad_ptr + at, mask=inside, other=0.0)
    moved = momentum * tl.load(momentum_ptr + at, mask=inside, other=0.0) + grad
    tl.store(momentum_ptr + at, moved, mask=inside)
    step = grad + momentum * moved if NESTEROV else moved
    row, column = at // columns, at % columns
    place = column * length + row if TALL else row * length + column
    tl.store(x_ptr + place, step.to(x_ptr.dtype.element_ty), mask=inside)
    tl.store(square_ptr + tl.program_id(0), tl.sum(step * step))


@triton.jit
def _give(
    weight_ptr, x_ptr, lr_ptr, size, columns, length, scale, decay,
    TALL: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """w ← w − lr (scale · X + decay · w)."""
    at = tl.program_id(0) * N + tl.arange(0, N)
    inside = at < size
    row, column = at // columns, at % columns
    place = column * length + row if TALL else row * length + column
    step = scale * tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + at, mask=inside, other=0.0)
    weight -= tl.load(lr_ptr) * (step + decay * weight)
    tl.store(weight_ptr + at, weight, mask=inside)


@triton.jit
def _place(tile_ptr):
    """Where the bank's matrix and its square begin, its sides, and the tile's row and column."""
    tile = tile_ptr + tl.program_id(0) * FIELDS
    x = tl.load(tile).to(tl.int64) * UNIT
    s = tl.load(tile + 1).to(tl.int64) * UNIT
    side, length = tl.load(tile + 2) * UNIT, tl.load(tile + 3) * UNIT
    return x, s, side, length, tl.load(tile + 4) * UNIT // 2, tl.load(tile + 5) * UNIT


@triton.jit
def _norm_squared(square_ptr, tile_ptr):
    tile = tile_ptr + tl.program_id(0) * FIELDS
    return _sum_of(square_ptr + tl.load(tile + 6), tl.load(tile + 7), UNIT)


@triton.jit
def _store_both(ptr, made, rows, columns, side):
    """A tile on or above the diagonal and its mirror; where both cross it they agree."""
    made = made.to(ptr.dtype.element_ty)
    tl.store(ptr + rows[:, None] * side + columns[None, :], made)
    tl.store(ptr + columns[:, None] * side + rows[None, :], tl.trans(made))


@triton.jit
def _square(
    x_ptr, s_ptr, square_ptr, tile_ptr,
    FIRST: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """S = X Xᵀ; in the first round X is not divided by its norm yet, so S is by its square."""
    x, s, side, length, row, column = _place(tile_ptr)
    rows, columns, inner = row + tl.arange(0, M), column + tl.arange(0, N), tl.arange(0, K)
    left = x_ptr + x + rows[:, None] * length + inner[None, :]
    right = x_ptr + x + columns[None, :] * length + inner[:, None]
    total = tl.zeros((M, N), dtype=tl.float32)
    for _ in range(0, length, K):
        total = tl.dot(tl.load(left), tl.load(right), total)
        left += K
        right += K
    if FIRST:
        norm = _norm_squared(square_ptr, tile_ptr)
        total *= tl.where(norm > 0.0, 1.0 / norm, 0.0)
    _store_both(s_ptr + s, total, rows, columns, side)


@triton.jit
def _polynomial(s_ptr, b_ptr, tile_ptr, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """B = b S + c S²."""
    _x, s, side, _length, row, column = _place(tile_ptr)
    rows, columns, inner = row + tl.arange(0, M), column + tl.arange(0, N), tl.arange(0, K)
    left = s_ptr + s + rows[:, None] * side + inner[None, :]
    right = s_ptr + s + inner[:, None] * side + columns[None, :]
    total = tl.zeros((M, N), dtype=tl.float32)
    for _ in range(0, side, K):
        total = tl.dot(tl.load(left), tl.load(right), total)
        left += K
        right += K * side
    linear = tl.load(s_ptr + s + rows[:, None] * side + columns[None, :]).to(tl.float32)
    _store_both(b_ptr + s, b * linear + c * total, rows, columns, side)


@triton.jit
def _turn(
    x_ptr, b_ptr, out_ptr, square_ptr, tile_ptr, a,
    FIRST: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """a X + B X; in the first round divided by the norm of X."""
    x, s, side, length, row, column = _place(tile_ptr)
    rows, columns, inner = row + tl.arange(0, M), column + tl.arange(0, N), tl.arange(0, K)
    left = b_ptr + s + rows[:, None] * side + inner[None, :]
    right = x_ptr + x + inner[:, None] * length + columns[None, :]
    total = tl.zeros((M, N), dtype=tl.float32)
    for _ in range(0, side, K):
        total = tl.dot(tl.load(left), tl.load(right), total)
        left += K
        right += K * length
    place = x + rows[:, None] * length + columns[None, :]
    total += a * tl.load(x_ptr + place).to(tl.float32)
    if FIRST:
        norm = _norm_squared(square_ptr, tile_ptr)
        total *= tl.where(norm > 0.0, tl.rsqrt(norm), 0.0)
    tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty))


class _Bank(NamedTuple):
    """Where a filter bank lies, in PADs, and what it is filled up to; and where its squares go."""

    x: int
    s: int
    side: int
    length: int
    squares: int
    programs: int
    rows: int
    columns: int

    @property
    def tall(self) -> bool:
        return self.rows > self.columns


def takes(weight: Tensor) -> bool:
    """Whether a parameter is a filter bank that these kernels move."""
    if not weight.is_cuda or weight.dtype != torch.float32 or weight.ndim <= 2:
        return False
    return weight.numel() > 0 and _layout(weight) is not None


def _layout(weight: Tensor) -> torch.memory_format | None:
    """The format in which its filters lie one after the other, without gaps."""
    for layout, ndim in zip(FORMATS, (weight.ndim, 4, 5), strict=True):
        if weight.ndim == ndim and weight.is_contiguous(memory_format=layout):
            return layout
    return None


class Banks:
    """Work space and tables for the steps of filter banks of these shapes."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self.shapes, self.device = [w.shape for w in weights], weights[0].device
        self.banks: list[_Bank] = []
        x = s = squares = 0
        for weight in weights:
            rows, columns = len(weight), weight[0].numel()
            side, length = (-(-size // PAD) for size in sorted((rows, columns)))
            programs = -(-weight.numel() // BLOCK)
            self.banks.append(_Bank(x, s, side, length, squares, programs, rows, columns))
            x, s, squares = x + side * length * PAD, s + side * side * PAD, squares + programs
        device = self.device
        half: dict[str, Any] = {"dtype": torch.bfloat16, "device": device}
        self.x, self.other = (torch.zeros(x * PAD, **half) for _ in "ab")
        self.s, self.b = (torch.empty(s * PAD, **half) for _ in "ab")
        self.squares = torch.empty(squares, device=device)
        # The longest first: what is begun last should not be what takes longest.
        by_length = sorted(self.banks, key=lambda bank: -bank.length)
        by_side = sorted(self.banks, key=lambda bank: -bank.side)
        self.upper = self._table(by_length, upper=True).to(device)
        self.all = self._table(by_side, upper=False).to(device)

    def fits(self, weights: Sequence[Tensor]) -> bool:
        """Whether these are of the shapes and on the device that it was made for."""
        return self.device == weights[0].device and self.shapes == [w.shape for w in weights]

    def _table(self, banks: Sequence[_Bank], *, upper: bool) -> Tensor:
        """Tiles to make, a row each: of all of X, or of the upper half of a square."""
        rows = []
        for bank in banks:
            height = (SMALL if upper else LARGE)["M"] * 2 // PAD  # tables count rows in half PADs
            for row in range(0, 2 * bank.side, height):
                for column in range(row // 2 if upper else 0, bank.side if upper else bank.length):
                    where = (bank.x, bank.s, bank.side, bank.length, row, column)
                    rows.append((*where, bank.squares, bank.programs))
        return torch.tensor(rows, dtype=torch.int32)

    def step(
        self,
        weights: Sequence[Tensor],
        momenta: Sequence[Tensor],
        lr: float | Tensor,
        momentum: float,
        nesterov: bool,
        weight_decay: float,
        coefficients: tuple[float, float, float],
        rounds: int,
    ) -> None:
        """Move the weights by the step that `covprop.train.muon.Muon` defines."""
        lr = lr if isinstance(lr, Tensor) else torch.full((), lr, device=self.x.device)
        with torch.cuda.device_of(self.x):
            for bank, weight, v in zip(self.banks, weights, momenta, strict=True):
                _take[(bank.programs,)](
                    laid_as(weight, weight.grad), v, self.x[bank.x * PAD :],
                    self.squares[bank.squares :], weight.numel(), bank.columns, bank.length * PAD,
                    momentum, TALL=bank.tall, NESTEROV=nesterov, N=BLOCK,
                )  # fmt: skip
            self._rounds(coefficients, rounds)
            for bank, weight in zip(self.banks, weights, strict=True):
                scale = max(1.0, bank.rows / bank.columns) ** 0.5
                _give[(bank.programs,)](
                    weight, self.x[bank.x * PAD :], lr, weight.numel(), bank.columns,
                    bank.length * PAD, scale, weight_decay, TALL=bank.tall, N=BLOCK,
                )  # fmt: skip

    def _rounds(self, coefficients: tuple[float, float, float], rounds: int) -> None:
        a, b, c = coefficients
        halves, wholes = (len(self.upper),), (len(self.all),)
        for done in range(rounds):
            first = done == 0
            _square[halves](self.x, self.s, self.squares, self.upper, FIRST=first, **SMALL)
            _polynomial[halves](self.s, self.b, self.upper, b, c, **SMALL)
            _turn[wholes](
                self.x, self.b, self.other, self.squares, self.all, a, FIRST=first, **LARGE
            )
            self.x, self.other = self.other, self.x


def laid_as(weight: Tensor, other: Tensor | None) -> Tensor:
    """`other` with its numbers in the order of the weight's."""
    layout = _layout(weight)
    assert layout is not None
    assert other is not None
    return other.contiguous(memory_format=layout)
