"""The scale that σ is measured on."""

import pytest
import torch

from covprop.errors import InvalidInput
from covprop.pixels import check_range


def test_pixels_on_another_scale_are_refused() -> None:
    for values in ([0.0, 255.0], [-1.0, 1.0], [0.5, float("nan")]):
        x = torch.tensor(values)
        with pytest.raises(InvalidInput, match=r"must lie in \[0, 1\], the scale sigma") as caught:
            check_range(x, (0.0, 1.0))
        assert str(caught.value).endswith(
            ", or pass value_range=None if sigma is meant on the scale they have."
        )
        check_range(x, None)
    check_range(torch.tensor([0.0, 1.0]), (0.0, 1.0))
    check_range(torch.empty(0, 3), (0.0, 1.0))


@pytest.mark.filterwarnings("error")
def test_images_that_want_a_gradient() -> None:
    check_range(torch.tensor([0.0, 1.0], requires_grad=True), (0.0, 1.0))
