import pytest
from torch import nn

import covprop


@pytest.mark.parametrize("wrong", [nn.Hardshrink(), "hardshrink", None])
def test_a_rule_for_what_is_no_operation_is_refused(wrong: object) -> None:
    """It was registered and never found."""
    with pytest.raises(TypeError, match=r"a type of module \(nn.ReLU\) or a function"):
        covprop.elementwise(wrong, slope=1.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not for "):
        covprop.rule(wrong)(lambda layer, cov, settings: cov)  # type: ignore[arg-type]
    with pytest.raises(covprop.UnsupportedModel, match="it has no rule"):
        covprop.check(nn.Sequential(nn.Flatten(), nn.Hardshrink()), (1, 2, 2))
