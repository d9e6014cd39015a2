import torch

from covprop.bench.memory import cpu_peak

MIB = 2**20


def mebibytes(count: int) -> torch.Tensor:
    return torch.ones(count * MIB // 4)


def test_peak_is_what_lives_at_once() -> None:
    kept = mebibytes(3)

    def work() -> None:
        a = mebibytes(4)
        b = mebibytes(2)
        del a
        c = mebibytes(1)  # 2 + 1 is below the peak of 4 + 2
        del b, c

    assert cpu_peak(work, [kept]) == 9 * MIB


def test_what_autograd_keeps_counts() -> None:
    weight = mebibytes(1).requires_grad_()

    def work() -> None:
        weight.grad = None
        y = weight.exp().exp().exp()  # each result is kept for the backward pass
        del y

    work()
    peak = cpu_peak(work, [weight])
    assert peak == 4 * MIB
