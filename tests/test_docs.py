"""The documentation is true: its code runs, its links lead somewhere, its tables are complete."""

import doctest
import importlib
import importlib.util
import itertools
import pkgutil
import re
import shlex
import types
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import covprop
from covprop.methods import METHODS
from covprop.propagate import registry
from covprop.propagate.rules.shape import piece
from covprop.propagate.tracing.faults import REASONS
from covprop.train.length import at_length
from covprop.train.recipe import load, shipped

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
MEASURED = sorted((ROOT / "results").rglob("*.md")) + sorted((ROOT / "benchmarks").glob("*.md"))
RULES = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
MODULES = [module.name for module in pkgutil.walk_packages(covprop.__path__, "covprop.")]


def names(paths: list[Path]) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in paths]


@pytest.fixture
def own_rules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Examples register rules and methods; they are gone again afterwards."""
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


def code_blocks(text: str) -> list[tuple[int, str]]:
    """(first line number, code) of every ```python block."""
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.M | re.S)
    return [(text[: match.start(1)].count("\n"), match[1]) for match in found]


@pytest.mark.usefixtures("own_rules")
@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page by page, the blocks run in order in one namespace, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("page")
    for line, code in code_blocks(page.read_text(encoding="utf-8")):
        # Padding puts the page's own line numbers into a traceback.
        exec(compile("\n" * line + code, str(page), "exec"), vars(module))


@pytest.mark.usefixtures("own_rules")
@pytest.mark.parametrize("name", ["covprop", *(m for m in MODULES if not m.endswith("__main__"))])
def test_docstring_examples_run(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "triton":  # comes with the CUDA build of torch only
            raise
        pytest.skip("needs triton")
    globs = {"torch": torch, "nn": nn, **vars(module)}
    failed, _ = doctest.testmod(module, globs=globs, optionflags=doctest.ELLIPSIS)
    assert failed == 0


COMMAND = re.compile(r"^ *(?:\$ )?(?:covprop|\S*torchrun .*?covprop) (?:train|noisy) (.+)$", re.M)


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_recipes_on_command_lines_are_there_and_take_what_is_set(page: Path) -> None:
    """`covprop train` and `noisy` as shown: a shipped recipe loads under its --set and --epochs."""
    for words in COMMAND.findall(page.read_text(encoding="utf-8")):
        recipe, *rest = shlex.split(words, comments=True)
        if recipe not in shipped():
            continue  # RECIPE, or the reader's own file
        given: dict[str, list[str]] = {key: [] for key in ("--set", "--epochs")}
        for key, value in itertools.pairwise(rest):
            given.get(key, []).append(value)
        changes = list(given["--set"])
        for epochs in given["--epochs"]:
            changes += at_length(recipe, int(epochs), changes)
        load(recipe, changes)


def anchors(text: str) -> set[str]:
    """The anchors a Markdown viewer makes of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)
    kept = [re.sub(r"[^\w\- ]", "", unicodedata.normalize("NFC", title)) for title in titles]
    return {title.strip().lower().replace(" ", "-") for title in kept}


@pytest.mark.parametrize("page", PAGES + MEASURED, ids=names(PAGES + MEASURED))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        file, _, anchor = target.partition("#")
        path = page.parent / file if file else page
        assert path.exists(), f"{page.name} links to {target}, which is not there"
        if anchor:
            assert anchor in anchors(path.read_text(encoding="utf-8")), f"no heading for {target}"


def test_every_page_is_on_the_map() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    missing = [p.name for p in PAGES if p.parent.name == "docs" and f"({p.name})" not in index]
    assert missing == ["index.md"]


def expanded(cell: str) -> set[str]:
    """The names in backticks, `nn.Conv{1,2,3}d` being three."""
    found = set()
    for name in re.findall(r"`([^`]+)`", cell):
        parts = re.split(r"\{([^}]*)\}", name)
        choices = [part.split(",") if i % 2 else [part] for i, part in enumerate(parts)]
        found |= {"".join(choice) for choice in itertools.product(*choices)}
    return found


def first_column(text: str) -> set[str]:
    rows = re.findall(r"^\| (`.*?) \|", text, re.M)
    return set().union(*(expanded(row) for row in rows))


def known_operation(name: str) -> object:
    """What a name in the tables stands for."""
    import operator

    if name in ("piece", "getattr"):
        return {"piece": piece, "getattr": getattr}[name]
    places = {"nn": nn, "F": nn.functional, "torch": torch, "Tensor": torch.Tensor}
    place, _, last = name.rpartition(".")
    home = places[place] if place else covprop if hasattr(covprop, name) else operator
    return getattr(home, last)


def test_the_table_of_rules_is_the_registry() -> None:
    supported, _, rest = RULES.partition("## What is refused")
    listed = {known_operation(name) for name in first_column(supported)}
    shipped = {
        operation
        for operation, rule in registry.registered().items()
        if rule.cov.__module__.startswith("covprop.propagate.rules")
    }
    assert {registry.describe(op) for op in shipped - listed} == set(), "add these to docs/rules.md"
    assert {registry.describe(op) for op in listed - shipped} == set(), "these have no rule"
    refused = {known_operation(name) for name in first_column(rest.partition("\n```")[0])}
    assert refused == set(REASONS)


def test_generated_pages_are_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("docs_make", ROOT / "docs" / "make.py")
    assert spec is not None
    assert spec.loader is not None
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    for name, text in make.pages().items():
        written = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert written == text, f"docs/{name} is out of date: run python docs/make.py"


def test_citation_names_this_version() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {covprop.__version__}\n" in text
