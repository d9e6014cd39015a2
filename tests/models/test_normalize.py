import pytest
import torch

from covprop.errors import InvalidInput
from covprop.models import Normalize


def test_constants_are_buffers_and_follow_the_module() -> None:
    layer = Normalize((0.5, 0.25), (0.5, 2.0)).double()
    assert not list(layer.parameters())
    x = torch.rand(3, 2, 4, 5, dtype=torch.float64)
    expected = x.clone()
    expected[:, 0] = (x[:, 0] - 0.5) / 0.5
    expected[:, 1] = (x[:, 1] - 0.25) / 2.0
    torch.testing.assert_close(layer(x), expected)
    other = Normalize((0.0, 0.0), (1.0, 1.0)).double()
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other(x), expected)
    assert "mean=[0.5, 0.25], std=[0.5, 2.0]" in repr(layer)


@pytest.mark.parametrize(
    ("mean", "std"),
    [
        *[((0.5,), (0.5, 0.5)), ((), ()), ((0.5,), (-1.0,)), ((0.5,), (float("nan"),))],
        *[(0.5, 0.25), ((0.5,), 1)],
    ],
)
def test_bad_constants_are_refused(mean: tuple, std: tuple) -> None:
    with pytest.raises(InvalidInput):
        Normalize(mean, std)
