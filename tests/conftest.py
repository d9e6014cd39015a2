"""Shared set-up: reproducible torch, one thread a worker, profiles for hypothesis."""

import os
import signal
from collections.abc import Iterator

import hypothesis
import pytest
import torch

import covprop  # noqa: F401  (registers the rules)
from covprop.propagate import registry

torch.set_num_threads(1)
# For the processes that tests start: one thread, and Ctrl-C, which a background job ignores.
os.environ["OMP_NUM_THREADS"] = "1"
signal.signal(signal.SIGINT, signal.default_int_handler)
hypothesis.settings.register_profile(
    "covprop", deadline=None, max_examples=25, derandomize=True, print_blob=True
)
hypothesis.settings.load_profile("covprop")


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Every test starts from the same random state, in whatever order the tests run."""
    torch.manual_seed(0)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _own_rules() -> Iterator[None]:
    """Rules that a test registers are gone after it, so that no test depends on another."""
    before = dict(registry._RULES)
    yield
    registry._RULES.clear()
    registry._RULES.update(before)
