"""The state and the weights of a run on disk."""

from __future__ import annotations

import errno
import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from covprop.errors import InvalidInput, first_line
from covprop.files import write


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Trainer state: tensors and plain values, so that it can be read with weights_only."""
    # Through memory: torch's own file writer turns a full disk into an error without a reason.
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    write(path, buffer.getvalue())


def load_state(path: Path) -> dict[str, Any]:
    """What `save_state` wrote; runs no code from the file."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, ValueError) as error:
        # Torch says of a file that was cut off "Invalid argument", of others that one may run them.
        unreadable = isinstance(error, OSError) and error.errno != errno.EINVAL
        reason = first_line(error) if unreadable else "it is damaged or no checkpoint of covprop"
        raise InvalidInput(
            f"Checkpoint {path} cannot be read ({reason}); put an intact copy there, or start "
            "over with --restart."
        ) from error
    if not isinstance(state, dict) or "model" not in state:
        raise InvalidInput(
            f"Checkpoint {path} is not one of this program; start over with --restart."
        )
    return state


def save_weights(path: Path, model: nn.Module, said: Mapping[str, str] | None = None) -> None:
    """The model's state_dict as safetensors, under the model's own keys; `said` into the header."""
    # Clones, since safetensors refuses tensors that share memory (tied weights).
    tensors = {k: v.detach().cpu().contiguous().clone() for k, v in model.state_dict().items()}
    write(path, safetensors.torch.save(tensors, metadata={"format": "pt", **(said or {})}))


def load_weights(path: Path, model: nn.Module) -> None:
    """Load `path` into `model`; weights of another model are one sentence."""
    if not path.is_file():
        raise InvalidInput(
            f"There are no weights at {path}; the same `covprop train` command goes on and writes "
            "them."
        )
    try:
        # By its bytes: load_file knows no path that is not UTF-8.
        tensors = safetensors.torch.load(path.read_bytes())
    except (OSError, SafetensorError) as error:
        raise InvalidInput(
            f"Weights {path} cannot be read ({first_line(error)}); copy the file anew, let the "
            "same `covprop train` command write it from state.pt, or train again with --restart."
        ) from error
    load_tensors(path, model, tensors)


def load_tensors(path: Path, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """`model.load_state_dict` that says what is wrong in one sentence naming `path`."""
    if wrong := differences(tensors, model.state_dict()):
        raise InvalidInput(
            f"{path} belongs to another model than the run's config.toml names: {wrong[0]}; "
            "restore the file or the config that go together."
        )
    model.load_state_dict(dict(tensors))


def differences(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> list[str]:
    """In which keys and shapes tensors are not those of a network's own state_dict, in words.

    Example:
        >>> differences({"weight": torch.zeros(2, 3)}, nn.Linear(3, 3).state_dict())
        ['it lacks bias', 'weight is [2, 3], not [3, 3]']
    """
    return [
        *(f"it lacks {k}" for k in own if k not in tensors),
        *(f"it also holds {k}" for k in tensors if k not in own),
        *(
            f"{k} is {list(tensors[k].shape)}, not {list(v.shape)}"
            for k, v in own.items()
            if k in tensors and tensors[k].shape != v.shape
        ),
    ]
