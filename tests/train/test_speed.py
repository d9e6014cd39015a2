"""What train.fast and train.compile mean for a run, on devices that need not be there."""

import contextlib
import tomllib
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from covprop import methods
from covprop.errors import InvalidInput
from covprop.models import build
from covprop.train import Recipe, load, loop, speed, train
from covprop.train.distributed import World
from covprop.train.speed import COMPILE_FROM, Speed, speed_of
from covprop.train.step import MethodStep

Make = Callable[..., Recipe]

LONG = 78_000
CALIBRATED = {"name": "radius", "estimator": "calibrated"}
LINEARIZED = {"name": "radius", "estimator": "linearized", "mean": "sample"}


def found(recipe: Recipe, steps: int, device: str = "cuda", processes: int = 1) -> Speed:
    method = methods.build(**recipe.method, sigma=0.25, input_shape=(1, 8, 8))
    core = MethodStep(torch.nn.Identity(), method)
    return speed_of(recipe, core, World(0, processes, torch.device(device)), steps)


@pytest.fixture(autouse=True)
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "HAVE_TRITON", True)


@pytest.mark.parametrize(
    ("options", "steps", "record", "compiled", "line"),
    [
        ({}, LONG, True, True, "and compiled (train.compile = auto, 78,000 steps)."),
        ({}, COMPILE_FROM, True, True, "(train.compile = auto, 50,000 steps)."),
        ({}, COMPILE_FROM - 1, True, False, "auto, 49,999 steps: it pays from 50,000 on)."),
        ({"compile": True}, 7, True, True, "CUDA graph and compiled (train.compile = true)."),
        ({"compile": False}, LONG, True, False, "and not compiled (train.compile = false)."),
        ({"fast": False}, LONG, False, False, "Steps are not recorded (train.fast = false) and "),
        ({"fast": False, "compile": True}, 7, False, True, "and compiled (train.compile = true)"),
        ({"method": CALIBRATED}, LONG, False, False, "(no step is like another with this method)"),
        ({"method": LINEARIZED}, LONG, True, True, "and compiled"),
        (
            {"method": LINEARIZED, "weighting": {"name": "radius"}},
            *(LONG, True, False, "(train.compile = auto, not with [weighting] and a linearised"),
        ),
    ],
)
def test_on_a_gpu(
    tiny: Make, options: dict[str, Any], steps: int, record: bool, compiled: bool, line: str
) -> None:
    answer = found(tiny(**options), steps)
    assert answer[:2] == (record, compiled)
    assert line in answer.line


def test_the_whole_line(tiny: Make) -> None:
    assert found(tiny(), LONG).line == (
        "Steps are recorded as a CUDA graph and compiled (train.compile = auto, 78,000 steps)."
    )
    assert found(tiny(fast=False), LONG).line == (
        "Steps are not recorded (train.fast = false) and not compiled "
        "(train.compile = auto, only where steps are recorded)."
    )


@pytest.mark.parametrize(
    ("width", "device", "last"), [(8, "cpu", False), (16, "cpu", True), (8, "cuda", True)]
)
def test_a_narrow_network_keeps_its_layout_on_a_cpu(
    tiny: Make, width: int, device: str, last: bool
) -> None:
    """Its shortcuts are 1×1 convolutions with a stride, whose gradient breaks there."""
    net = build("preact_resnet18", num_classes=10, image_shape=(3, 32, 32), width=width)
    core = MethodStep(net, methods.build("gaussian", sigma=0.25, input_shape=(3, 32, 32)))
    recipe, here = tiny(channels_last=True, fast=False), World(0, 1, torch.device(device))
    found = speed_of(recipe, core, here, 100)
    assert speed.settled(recipe, found).train.channels_last == last
    assert ("channels_last is left off" in found.line) == (not last)
    assert "channels_last" not in speed_of(tiny(), core, here, 100).line


def test_elsewhere(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(tiny(), LONG, "cpu") == (False, False, False, "")
    asked = found(tiny(compile=True), 7, "cpu")
    assert asked[:2] == (False, True)
    assert asked.line.startswith("Steps are not recorded (on a GPU only) and compiled")
    many = found(tiny(), LONG, processes=4)
    assert many[:2] == (False, False)
    assert "not recorded (4 processes)" in many.line
    monkeypatch.setattr(speed, "HAVE_TRITON", False)
    bare = found(tiny(), LONG)
    assert bare[:2] == (True, False)
    assert "Triton is missing" in bare.line


@pytest.mark.parametrize(("text", "value"), [("auto", "auto"), ("true", True), ("false", False)])
def test_recipes_and_overrides(tmp_path: Path, text: str, value: Any) -> None:
    overridden = load("digits/gaussian-0.25", [f"train.compile={text}"])
    assert overridden.train.compile is value or overridden.train.compile == value == "auto"
    recipe = tmp_path / "own.toml"
    written = f'"{text}"' if text == "auto" else text
    recipe.write_text(
        '[data]\nname = "digits"\n[model]\nname = "lenet"\n[noise]\nsigma = 0.25\n'
        f'[method]\nname = "gaussian"\n[train]\nepochs = 1\ncompile = {written}\n'
    )
    assert load(str(recipe)).train.compile == value
    with pytest.raises(InvalidInput, match=r"train\.compile must be one of 'auto', true, false"):
        load(str(recipe), ["train.compile=True"])


def test_a_run_asks_about_all_its_steps_however_often_it_is_continued(
    tmp_path: Path, tiny: Make, train_in_parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def spy(recipe: Recipe, core: Any, here: World, steps: int) -> Speed:
        asked.append(steps)
        return speed_of(recipe, core, here, steps)

    monkeypatch.setattr(loop, "speed_of", spy)
    train_in_parts(tiny(), tmp_path / "run", lambda trainer: trainer.step == 3)
    assert asked == [14, 14]
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert config["train"]["compile"] == "auto"  # what was asked for, not what became of it
    train(tiny(compile=False), tmp_path / "run")  # either may be changed


def test_the_run_says_so(tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "speed_of", lambda *_: Speed(False, False, False, "Steps are plain."))
    said = StringIO()
    train(tiny(epochs=1), tmp_path, console=Console(file=said, width=200))
    assert said.getvalue().splitlines()[1] == "Steps are plain."  # after what is trained


def test_a_compiler_that_fails_is_left_aside_where_nobody_asked_for_it(
    tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._dynamo.exc import TorchDynamoException

    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", fails)
    monkeypatch.setattr(loop, "speed_of", lambda *_: Speed(False, True, False, ""))
    torch.compiler.reset()
    with pytest.raises(TorchDynamoException, match="C compiler"):
        train(tiny(epochs=1, compile=True), tmp_path / "asked")
    before = torch._dynamo.config.suppress_errors
    train(tiny(epochs=1), tmp_path / "auto")
    assert torch._dynamo.config.suppress_errors is before is False
    torch.compiler.reset()


MATMUL = (torch.backends.cuda.matmul, cast(Any, torch.backends.mkldnn).matmul)


@pytest.fixture(params=["as a whole", "by itself"])
def products(request: pytest.FixtureRequest) -> Iterator[str]:
    """How somebody set the precision: for one backend by itself, after which torch does not name
    it for all of them any more."""
    before = MATMUL[0].fp32_precision
    if request.param == "by itself":
        MATMUL[0].fp32_precision = "tf32"
    yield request.param
    MATMUL[0].fp32_precision = before


def process() -> tuple[object, ...]:
    """The switches of the process that a run may turn."""
    compiler = torch._dynamo.config
    precisions = (backend.fp32_precision for backend in MATMUL)
    tuned = torch.backends.cudnn.benchmark
    return compiler.suppress_errors, compiler.recompile_limit, tuned, *precisions


@pytest.mark.parametrize("fails", [False, True])
def test_the_switches_of_the_process_are_as_before_once_a_run_is_over(
    tiny: Make, fails: bool, products: str
) -> None:
    before, here = process(), World(0, 1, torch.device("cuda"))
    options = tiny(precision="bf16").train
    with contextlib.suppress(KeyError), speed.switches(options, Speed(True, True, False, ""), here):
        assert process() == (True, 64, True, "tf32", "tf32") != before
        assert torch.get_float32_matmul_precision() == "high"
        if fails:
            raise KeyError
    assert process() == before
    if products == "as a whole":
        assert torch.get_float32_matmul_precision() == "highest"


def test_a_run_in_full_precision_leaves_products_alone(tiny: Make, products: str) -> None:
    before, here = process(), World(0, 1, torch.device("cpu"))
    with speed.switches(tiny().train, Speed(True, False, False, ""), here):
        assert process() == before
    assert process() == before


def test_a_step_that_cannot_be_flattened_is_left_aside_where_nobody_asked_for_it(
    tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "reads.py"
    file.write_text(
        "from torch import nn\n"
        "class Reads(nn.Linear):\n"
        "    def forward(self, x):\n"
        "        y = super().forward(x.flatten(1))\n"
        "        return y if y.detach().sum().item() < 1e9 else 2 * y\n"
        "def build(num_classes):\n"
        "    return Reads(64, num_classes)\n"
    )
    model = {"name": f"{file}:build"}
    monkeypatch.setattr(loop, "speed_of", lambda *_: Speed(False, True, False, ""))
    with pytest.raises(InvalidInput, match="tracing tensor"):
        train(tiny(LINEARIZED, model=model, epochs=1, compile=True), tmp_path / "asked")
    train(tiny(LINEARIZED, model=model, epochs=1), tmp_path / "auto")
    monkeypatch.undo()
    train(tiny(LINEARIZED, model=model, epochs=1, compile=False), tmp_path / "plain")
    auto, plain = (load_file(tmp_path / n / "model.safetensors") for n in ("auto", "plain"))
    assert all(torch.equal(auto[name], plain[name]) for name in plain)
