"""The sweep over passes: every way computes the same network."""

import re

import pytest
import torch
from scripts import benchmark
from torch import nn

certify = benchmark("certify")

SMALL = ["--device", "cpu", "--width", "2", "--product", "32", "--rounds", "1"]


def test_ways_change_nothing_but_roundings(capsys: pytest.CaptureFixture[str]) -> None:
    certify.main([*SMALL, "--cases", "norms:64", "columns:64", "fused:128x2", "--profile"])
    out = capsys.readouterr().out
    changes = [float(change) for change in re.findall(r"logits change by (\S+)", out)]
    assert len(changes) == 2
    assert max(changes) < 1e-5
    assert re.findall(r"(\d+) at once: +[\d.]+ µs a sample, +[\d.]+ %", out) == ["1", "1", "2"]
    assert "convolutions:" in out
    certify.main([*SMALL, "--cases", "norms:64", "--seconds", "0"])
    assert "no time for norms:64x1" in capsys.readouterr().out


def test_layers_that_are_replaced_equal_what_they_were() -> None:
    from covprop.certify.affine import affine
    from covprop.models import build

    model = build("preact_resnet18", num_classes=3, image_shape=(3, 16, 16), width=4)
    model = model.double().eval()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.1, 3)
    x = torch.rand(4, 3, 16, 16, dtype=torch.float64)
    with torch.no_grad():
        expected = model(x)
        for replace, kind, count in (
            (certify.with_columns, certify.Columns, 4),  # narrow as it is: shortcuts as well
            (certify.with_fused_blocks, certify.Fused, 8),
        ):
            changed = replace(affine(model))
            assert sum(type(layer) is kind for layer in changed.modules()) == count
            assert (changed(x) - expected).norm() < 1e-12 * expected.norm()


def test_a_case_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        certify.main(["--cases", "compiled"])
    assert "compiled is no case; compiled:2048x2 is one" in capsys.readouterr().err
