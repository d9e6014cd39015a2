"""The sweep over passes: every way computes the same network."""

import re

import pytest
from scripts import benchmark

certify = benchmark("certify")

SMALL = ["--device", "cpu", "--width", "2", "--product", "32", "--rounds", "1"]


def test_ways_change_nothing_but_roundings(capsys: pytest.CaptureFixture[str]) -> None:
    cases = ("compiled:64", "fused:64", "fused:128")
    certify.main([*SMALL, "--cases", *cases, "--profile"])
    out = capsys.readouterr().out
    errors = [float(error) for error in re.findall(r"error of the logits (\S+),", out)]
    assert len(errors) == len(cases)
    assert all(error < 1e-5 for error in errors)
    shown = re.findall(r"batch +(\d+): +[\d.]+ µs a sample, +[\d.]+ %", out)
    assert shown == ["64", "64", "128"]
    assert "convolutions:" in out
    certify.main([*SMALL, "--cases", "replayed:64", "--seconds", "0"])
    assert "no time for replayed:64" in capsys.readouterr().out


def test_a_case_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        certify.main(["--cases", "compiled"])
    assert "compiled is no case; fused:4224 is one" in capsys.readouterr().err
