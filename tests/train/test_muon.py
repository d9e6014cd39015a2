"""Muon against singular values, against torch's own for matrices, and against SGD."""

import pytest
import torch
from torch import Tensor, nn

from covprop.train.muon import Muon, orthogonal

SHAPES = [(8, 4, 3, 3), (8, 4, 3, 3), (16, 4, 1, 1), (4, 3, 3, 3), (6, 2, 5)]
"""Wide, another of the same shape, tall, of another number of rows, in one dimension."""


def grown(values: Tensor) -> Tensor:
    """What singular values, as shares of the Frobenius norm, become."""
    a, b, c = 3.4445, -4.7750, 2.0315
    for _ in range(5):
        values = a * values + b * values**3 + c * values**5
    return values


@pytest.mark.parametrize("size", [(5, 5), (4, 9), (1, 7), (9, 4)])
def test_singular_vectors_stay_and_values_grow(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    scales = torch.tensor([1.0, 1e-9, 1e9], dtype=torch.float64).view(3, 1, 1)
    matrices = scales * torch.randn(3, *size, dtype=torch.float64)
    u, s, v = torch.linalg.svd(matrices, full_matrices=False)
    expected = u * grown(s / s.norm(dim=1, keepdim=True)).unsqueeze(1) @ v
    torch.testing.assert_close(orthogonal(matrices), expected)


def test_values_come_near_one() -> None:
    """As its docstring says, for a matrix of which one singular value is nearly all."""
    small = torch.logspace(-6, -0.4, 500, dtype=torch.float64)
    matrices = torch.diag_embed(torch.stack([small, (1 - small**2).sqrt()], 1))
    made = torch.linalg.diagonal(orthogonal(matrices))[:, 0]
    assert made[small > 1 / 500].min() > 0.68
    assert made.max() < 1.21
    assert made[0] / 1e-6 == pytest.approx(485, abs=1)


def test_nothing_to_learn_from_moves_nothing() -> None:
    assert orthogonal(torch.zeros(1, 3, 5)).eq(0).all()


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels-last"])
def test_filter_banks_move_as_torch_moves_matrices(last: bool) -> None:
    """Torch's own takes matrices only, and works in bfloat16."""
    torch.manual_seed(0)
    banks = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    if last:
        for bank in banks[:4]:
            bank.data = bank.data.contiguous(memory_format=torch.channels_last)
    matrices = [nn.Parameter(bank.detach().flatten(1).clone()) for bank in banks]
    before = [matrix.detach().clone() for matrix in matrices]
    mine = Muon(banks, 0.1, 0.8, weight_decay=0.05)
    theirs = torch.optim.Muon(matrices, lr=0.1, momentum=0.8, weight_decay=0.05)
    for _ in range(3):
        for bank, matrix in zip(banks, matrices, strict=True):
            matrix.grad = torch.randn_like(matrix)
            bank.grad = torch.empty_like(bank).copy_(matrix.grad.view(bank.shape))
        mine.step()
        theirs.step()
    for bank, matrix, start in zip(banks, matrices, before, strict=True):
        moved, expected = bank.flatten(1) - start, matrix - start
        assert (moved - expected).norm() < 0.02 * expected.norm()


def take_steps(*both: tuple[torch.optim.Optimizer, list[nn.Parameter]]) -> None:
    """Three steps of two optimizers, on the same gradients."""
    (one, ones), (two, twos) = both
    for _ in range(3):
        for a, b in zip(ones, twos, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.to(b.device, copy=True)
        one.step()
        two.step()


@pytest.mark.parametrize("nesterov", [False, True])
def test_all_else_moves_as_with_sgd(nesterov: bool) -> None:
    torch.manual_seed(0)
    ones, twos = ([nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(5))] for _ in "ab")
    mine = Muon(ones, 0.1, 0.8, nesterov=nesterov)
    sgd = torch.optim.SGD(twos, lr=0.1, momentum=0.8, nesterov=nesterov)
    take_steps((mine, ones), (sgd, twos))
    for one, two in zip(ones, twos, strict=True):
        torch.testing.assert_close(one, two)


def test_momentum_without_nesterov() -> None:
    """Two gradients, the second 0: the second step is along the first, orthogonal again."""
    bank = nn.Parameter(torch.zeros(2, 3, 2))
    mine = Muon([bank], 1.0, 0.5, nesterov=False)
    torch.manual_seed(0)
    bank.grad = torch.randn(2, 3, 2)
    mine.step()
    first = bank.detach().clone()
    bank.grad = torch.zeros(2, 3, 2)
    mine.step()
    torch.testing.assert_close(bank.detach(), 2 * first)


def test_decay_is_apart_from_the_gradient() -> None:
    weight = nn.Parameter(torch.full((2, 2, 1, 1), 4.0))
    mine = Muon([weight], 0.5, weight_decay=0.25)
    weight.grad = torch.zeros_like(weight)
    mine.step()
    assert weight.eq(4 * (1 - 0.5 * 0.25)).all()


def test_what_has_no_gradient_stays() -> None:
    one, two = nn.Parameter(torch.ones(2, 2, 1, 1)), nn.Parameter(torch.ones(2))
    mine = Muon([{"params": [one]}, {"params": [two]}], 0.5, weight_decay=0.1)
    two.grad = torch.ones(2)
    mine.step()
    assert one.eq(1).all()
    assert two.ne(1).all()
    assert one not in mine.state


LARGE = [(300, 140, 3, 3), (512, 256, 1, 1), (64, 3, 3, 3), (130, 60, 3, 3), (20, 300, 2)]
"""Banks of several tiles, wide and tall, none a whole number of them."""


def twins(shapes: list[tuple[int, ...]], last: bool) -> tuple[list[nn.Parameter], ...]:
    """The same filter banks on the CPU and on the GPU."""
    torch.manual_seed(0)
    here = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    for bank in here:
        if last and bank.ndim == 4:
            bank.data = bank.data.contiguous(memory_format=torch.channels_last)
    return here, [nn.Parameter(bank.detach().cuda()) for bank in here]


def far_apart(here: list[nn.Parameter], there: list[nn.Parameter], before: list[Tensor]) -> float:
    """The largest difference, as a share of the way gone."""
    return max(
        float((b.detach().cpu() - a.detach()).norm() / (a.detach() - start).norm())
        for a, b, start in zip(here, there, before, strict=True)
    )


@pytest.mark.gpu
@pytest.mark.parametrize("fused", ["0", "1"])
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels-last"])
@pytest.mark.parametrize("shapes", [SHAPES, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("nesterov", [False, True])
def test_on_a_gpu_it_is_the_same(
    shapes: list[tuple[int, ...]],
    last: bool,
    fused: str,
    nesterov: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COVPROP_FUSED", fused)
    here, there = twins(shapes, last)
    before = [bank.detach().clone() for bank in here]
    one = Muon(here, 0.1, 0.8, nesterov=nesterov, weight_decay=0.05)
    lr = torch.tensor(0.1, device="cuda")
    two = Muon(there, lr, 0.8, nesterov=nesterov, weight_decay=0.05)
    take_steps((one, here), (two, there))
    assert far_apart(here, there, before) < 0.03
    for a, b in zip(here, there, strict=True):
        momenta = (opt.state[w]["momentum_buffer"].cpu() for opt, w in ((one, a), (two, b)))
        torch.testing.assert_close(*momenta)


@pytest.mark.gpu
def test_a_gpu_without_gradient_only_decays() -> None:
    weight = nn.Parameter(torch.full((200, 20, 3, 3), 4.0, device="cuda"))
    mine = Muon([weight], 0.5, weight_decay=0.25)
    weight.grad = torch.zeros_like(weight)
    mine.step()
    assert weight.eq(4 * (1 - 0.5 * 0.25)).all()


@pytest.mark.gpu
def test_momentum_that_lies_otherwise_is_gone_on_with() -> None:
    """As from a checkpoint of another memory format."""
    here, there = twins(LARGE, last=True)
    before = [bank.detach().clone() for bank in here]
    one, two = Muon(here, 0.1), Muon(there, 0.1)
    take_steps((one, here), (two, there))
    for bank in there:
        state = two.state[bank]
        state["momentum_buffer"] = state["momentum_buffer"].contiguous()
    take_steps((one, here), (two, there))
    assert far_apart(here, there, before) < 0.03


@pytest.mark.gpu
def test_a_recorded_step_is_the_same() -> None:
    here, there = twins(LARGE, last=True)
    before = [bank.detach().clone() for bank in here]
    lr = torch.tensor(0.1, device="cuda")
    one, two = Muon(here, 0.1), Muon(there, lr)
    take_steps((one, here), (two, there))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        two.step()
    for step in range(4):
        for a, b in zip(here, there, strict=True):
            a.grad = torch.randn_like(a)
            assert b.grad is not None
            b.grad.copy_(a.grad)
        one.param_groups[0]["lr"] = 0.1 / (1 + step)
        lr.fill_(0.1 / (1 + step))
        one.step()
        graph.replay()
    assert far_apart(here, there, before) < 0.03
