import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """docs/make_results.py with an empty results folder."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    spec = importlib.util.spec_from_file_location("make_results", ROOT / "docs/make_results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "make_results", module)  # its dataclasses look it up
    spec.loader.exec_module(module)
    published = (module.RESULTS / "published.toml").read_text(encoding="utf-8")
    (tmp_path / "published.toml").write_text(published, encoding="utf-8")
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    monkeypatch.setattr(module, "FIGURES", tmp_path / "figures")
    return module
