"""Compiled or not, an operation passes back the same gradients."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from covprop.kernels import half, moment_relu, tap_sum

Operation = Callable[[Tensor, Tensor], Tensor]


def through_half(mean: Tensor, std: Tensor) -> Tensor:
    out, same = half.half_relu(mean, std, None, again=True)
    return out + 0.5 * same


# The weight of a convolution may be in Σ's precision or not, and so may the mean.
CASES: dict[str, tuple[Operation, Tensor, Tensor]] = {
    f"{name} {dtype}".replace("torch.", ""): (operation, first.to(dtype), second)
    for name, operation, first, second in [
        ("relu", moment_relu, torch.linspace(-1, 1, 24).view(4, 3, 2, 1), torch.rand(3) + 0.1),
        ("leaky", lambda m, s: moment_relu(m, s, 0.1), torch.randn(4, 3), torch.rand(3) + 0.1),
        ("half", through_half, torch.linspace(-1, 1, 24).view(8, 3), torch.rand(3) + 0.1),
        ("taps", tap_sum, torch.randn(5, 2, 4), torch.eye(4) + 0.1),
        ("taps in half", lambda w, c: tap_sum(w, c, torch.bfloat16), torch.randn(5, 2, 4),
         torch.eye(4) + 0.1),
    ]
    for dtype in (torch.float32, torch.bfloat16)
}  # fmt: skip


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("case", CASES)
def test_a_compiled_operation_passes_back_the_same_gradients(case: str, backend: str) -> None:
    operation, first, second = CASES[case]
    a, b = first.clone().requires_grad_(), second.clone().requires_grad_()

    def loss(a: Tensor, b: Tensor) -> Tensor:
        # Neither is a leaf, and what comes out goes on, as within a network.
        return (operation(1.5 * a, 1.5 * b).float() ** 2).sum()

    expected = torch.autograd.grad(loss(a, b), (a, b))
    assert all(gradient.any() for gradient in expected)
    torch.compiler.reset()
    compiled = torch.compile(loss, backend=backend, dynamic=False)
    for ours, truth in zip(torch.autograd.grad(compiled(a, b), (a, b)), expected, strict=True):
        torch.testing.assert_close(ours, truth, rtol=2e-2 if "float16" in case else 1e-5, atol=1e-5)
