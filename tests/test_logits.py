import pytest
import torch

from covprop.errors import InvalidInput
from covprop.logits import as_logits


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
