import pytest
import torch

from covprop.errors import InvalidInput
from covprop.logits import as_logits, check_scale


def test_logits_pass_as_they_are() -> None:
    logits = torch.zeros(3, 10)
    assert as_logits(logits, 3) is logits


@pytest.mark.parametrize(
    ("returned", "found"),
    [
        ((torch.zeros(3, 10),), "a tuple"),
        (None, "a NoneType"),
        (torch.zeros(3), "[3]"),
        (torch.zeros(3, 10, 1), "[3, 10, 1]"),
        (torch.zeros(2, 10), "[2, 10]"),
    ],
)
def test_anything_else_is_one_sentence(returned: object, found: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        as_logits(returned, 3, "Net")
    assert str(caught.value) == (
        "Net must return one tensor of logits [batch, classes], but for a batch of 3 it returned "
        f"{found}; wrap it in a module that does."
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("classes", [2, 1000])
def test_a_softmax_is_seen_in_any_precision(dtype: torch.dtype, classes: int) -> None:
    logits = 5 * torch.randn(4, classes, generator=torch.Generator().manual_seed(0))
    logits[0] = float("nan")  # belongs to no scale
    check_scale(logits.to(dtype))
    for fine in (logits, logits.log_softmax(1), logits.sigmoid(), logits.softmax(1)):
        check_scale(fine.to(dtype))
    with pytest.raises(InvalidInput, match=r"^Net returns probabilities, .* the softmax"):
        check_scale(logits[1:].to(dtype).softmax(1), "Net")
