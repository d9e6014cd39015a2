"""`import covprop` is quick: what it offers comes when it is asked for."""

import subprocess
import sys

import pytest

import covprop
from covprop import api


def fresh(code: str) -> list[str]:
    """The lines that `code` prints in a process of its own."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("module", ["covprop", "covprop.cli", "covprop.report"])
def test_help_and_reports_do_not_wait_for_torch(module: str) -> None:
    assert fresh(f"import sys, {module}; print('torch' in sys.modules)") == ["False"]


def test_every_public_name_is_there() -> None:
    assert covprop.__all__ == api.__all__
    assert {*api.__all__, "__version__"} <= set(dir(covprop))
    for name in api.__all__:
        assert getattr(covprop, name) is getattr(api, name)
    assert fresh("from covprop import *; print(Propagator.__name__, __version__)") == [
        f"Propagator {covprop.__version__}"
    ]


def test_certify_is_the_function_whatever_was_imported_before() -> None:
    for first in ("covprop.certify.bounds", "covprop"):
        code = f"import {first}, covprop; print(type(covprop.certify).__name__)\n"
        code += (
            "from covprop.certify import Certificate, certify; print(covprop.certify is certify)"
        )
        assert fresh(code) == ["function", "True"]


def test_a_public_name_can_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("certify", "margin"):
        monkeypatch.setattr(covprop, name, None)
        assert getattr(covprop, name) is None
    monkeypatch.undo()
    assert covprop.certify is api.certify
    assert covprop.margin is api.margin


def test_modules_come_by_themselves_and_what_is_not_there_is_said() -> None:
    assert fresh("import covprop; print(covprop.train.load.__name__)") == ["load"]
    for name in ("nonsense", "_nonsense"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
            getattr(covprop, name)
    with pytest.raises(ImportError, match="nonsense"):
        from covprop import nonsense  # type: ignore[attr-defined]  # noqa: F401


def test_rules_are_registered_with_anything_of_propagate() -> None:
    code = "from covprop.propagate.registry import registered; print(len(registered()))"
    assert int(fresh(code)[0]) > 100
