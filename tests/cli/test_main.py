"""What all verbs share: too little memory, said in a sentence."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from covprop.errors import out_of_memory


def test_a_model_beyond_all_memory_is_one_sentence(
    cli: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    code, out, err = cli(
        "train", "digits/gaussian-0.25", "--set", "model.width=2000000000", "--out", str(tmp_path)
    )
    assert (code, out) == (1, "")
    assert err.startswith("covprop: out of memory (")
    assert err.count("\n") == 1
    assert not (tmp_path / "config.toml").exists()


def test_what_torch_and_python_say_of_memory_is_known() -> None:
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**60, dtype=torch.int8)
    assert out_of_memory(error.value)
    assert out_of_memory(MemoryError())
    assert not out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
