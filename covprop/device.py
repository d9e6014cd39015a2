"""Devices by name, and this process's rank among those that torchrun started."""

from __future__ import annotations

import os

import torch

from covprop.errors import InvalidInput


def rank_and_world() -> tuple[int, int]:
    """This process's number and how many torchrun started; (0, 1) for one alone."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def is_first() -> bool:
    """Whether this is the process that prints and writes for all."""
    return rank_and_world()[0] == 0


def choose_device(name: str) -> torch.device:
    """ "auto" (a GPU where there is one), "cpu", "cuda" or "cuda:1"; of several processes that
    torchrun started each gets a GPU of its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise InvalidInput(f'There is no device "{name}"; choose auto, cpu, cuda or cuda:1.')
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise InvalidInput(f'Device "{name}" needs CUDA, which is not available; use cpu.')
    # One process alone may choose; several on one GPU could not talk to each other.
    several = rank_and_world()[1] > 1 and "LOCAL_RANK" in os.environ
    index = int(os.environ["LOCAL_RANK"]) if several else device.index or 0
    count = torch.cuda.device_count()
    if index >= count:
        raise InvalidInput(f"Device cuda:{index} does not exist; this machine has {count} GPUs.")
    return torch.device("cuda", index)
