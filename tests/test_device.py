"""A word and torchrun's variables say which device; what is not there is one sentence."""

import pytest
import torch

from covprop.device import choose_device, is_first, rank_and_world
from covprop.errors import InvalidInput


@pytest.mark.parametrize("name", ["graphics", "meta"])
def test_unknown_devices_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=f'no device "{name}"'):
        choose_device(name)


def test_a_missing_gpu_is_named() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(InvalidInput, match='"cuda:3" needs CUDA, which is not available'):
        choose_device("cuda:3")


def test_every_process_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert rank_and_world() == (0, 1)
    assert is_first()
    assert [choose_device(name) for name in ("auto", "cuda", "cuda:1")] == [
        torch.device("cuda", index) for index in (0, 0, 1)
    ]
    with pytest.raises(InvalidInput, match="cuda:2 does not exist; this machine has 2 GPUs"):
        choose_device("cuda:2")
    for name, value in {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert rank_and_world() == (3, 4)
    assert not is_first()
    assert choose_device("cuda") == torch.device("cuda", 1)
    assert choose_device("cpu") == torch.device("cpu")


def test_a_process_that_torchrun_started_alone_keeps_the_gpu_it_was_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert choose_device("cuda:1") == torch.device("cuda", 1)
    assert choose_device("cuda") == torch.device("cuda", 0)
