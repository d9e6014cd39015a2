"""Shared set-up: reproducible torch, one thread a worker, profiles for hypothesis."""

import hypothesis
import pytest
import torch

torch.set_num_threads(1)
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
