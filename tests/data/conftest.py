"""Small data sets in the official formats, written by hand."""

import dataclasses
from collections.abc import Callable

import pytest

from covprop.data.registry import DATASETS, Facts


@pytest.fixture
def small() -> Callable[..., Facts]:
    """The facts of a registered set, cut down to a few images and without official checksums."""

    def make(name: str, train: int, test: int, **changes: object) -> Facts:
        return dataclasses.replace(
            DATASETS[name],
            train_size=train,
            test_size=test,
            **{"md5": {}, **changes},  # type: ignore[arg-type]
        )

    return make
