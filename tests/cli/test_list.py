"""`covprop list` shows what the registries hold."""

import pytest
from typer.testing import CliRunner

from covprop.cli import app
from covprop.data import DATASETS
from covprop.errors import InvalidInput
from covprop.methods import METHODS
from covprop.models import MODELS
from covprop.train import shipped


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("recipes", shipped()),
        ("methods", METHODS),
        ("models", MODELS),
        ("datasets", DATASETS),
        ("rules", ["nn.Conv2d", "nn.Linear", "nn.ReLU", "F.relu", "nn.AvgPool2d"]),
    ],
)
def test_everything_is_listed(kind: str, names: list[str]) -> None:
    result = CliRunner().invoke(app, ["list", kind])
    assert result.exit_code == 0
    listed = [line.split()[0] for line in result.output.splitlines()]
    assert set(names) <= set(listed)
    assert len(listed) == len(set(listed))
    assert all(len(line.split()) > 1 for line in result.output.splitlines())


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("cifar10/gaussian-0.25", "gaussian, preact_resnet18, 200 epochs"),
        ("cifar10/minutes/late-0.25", "consistency after 20 epochs, preact_resnet18, 60 epochs"),
        ("mnist/radius-0.50", "radius (paper) after 100 epochs, lenet, 200 epochs"),
        ("digits/radius-linearized-0.25", "radius (linearized) after 10 epochs, lenet, 30 epochs"),
        ("mnist/minutes/reach-0.50", "consistency after 13 epochs, reach 1.0, lenet, 40 epochs"),
        ("mnist/minutes/weighted-0.25", "gaussian weighted by radius, lenet, 40 epochs"),
    ],
)
def test_a_recipe_is_told_from_those_of_the_same_method(name: str, what: str) -> None:
    lines = CliRunner().invoke(app, ["list", "recipes"]).output.splitlines()
    (line,) = (line for line in lines if line.split()[0] == name)
    assert line.split(maxsplit=1)[1] == what


def test_options_are_shown_with_their_defaults() -> None:
    assert "[samples=1]" in CliRunner().invoke(app, ["list", "methods"]).output


def test_a_word_leaves_the_names_that_contain_it() -> None:
    output = CliRunner().invoke(app, ["list", "recipes", "CIFAR10/minutes/LATE-muon"]).output
    begin, *listed = output.splitlines()
    assert "digits/... for a first try" in begin
    names = [f"cifar10/minutes/late-muon-{sigma}" for sigma in ("0.25", "0.50", "1.00")]
    assert [line.split()[0] for line in listed] == names
    assert "consistency after 20 epochs, preact_resnet18, 60 epochs, muon" in listed[0]
    assert CliRunner().invoke(app, ["list", "models", "cnn"]).output.startswith("cnn9 ")
    result = CliRunner().invoke(app, ["list", "models", "vgg"])
    assert isinstance(result.exception, InvalidInput)
    assert 'None of the models has "vgg" in its name' in str(result.exception)


def test_an_unknown_kind_is_a_usage_error() -> None:
    assert CliRunner().invoke(app, ["list", "recipe"]).exit_code == 2
