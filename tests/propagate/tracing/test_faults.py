"""The remedy that is named is one that helps."""

import pytest
import torch.nn.functional as F
from torch import nn

from covprop import fix
from covprop.propagate.tracing.faults import explain


@pytest.mark.parametrize(
    "layer",
    [
        *(nn.LayerNorm((4, 2, 2)), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), nn.MaxPool2d(2)),
        *(nn.LayerNorm(4), nn.MaxPool2d(2, dilation=2)),
        *(nn.RMSNorm(4), nn.LocalResponseNorm(2), nn.FractionalMaxPool2d(2, output_ratio=0.5)),
    ],
    ids=str,
)
def test_fix_is_named_for_the_layers_that_it_mends(layer: nn.Module) -> None:
    changes: list[str] = []
    fix(layer, log=changes.append)
    mended = any("became" in line for line in changes)
    assert ("covprop.fix" in explain(type(layer), layer)[1]) == mended


def test_fix_is_not_named_for_calls() -> None:
    for call in (F.layer_norm, F.group_norm, F.normalize, F.max_pool2d):
        why, remedy = explain(call)
        assert "no rule" not in why
        assert "covprop.fix" not in remedy
