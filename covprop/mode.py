"""Looking at a model without leaving a trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def switched(model: nn.Module, training: bool) -> Iterator[None]:
    """The model in another mode, every module's own mode restored afterwards.

    Back by `train()` too: some networks do more there than set a flag (merge adapters, say).
    """
    modes = [(module, module.training) for module in model.modules()]
    before = model.training
    _switch(model, training)
    try:
        yield
    finally:
        _switch(model, before)
        for module, mode in modes:
            module.training = mode


def _switch(model: nn.Module, training: bool) -> None:
    try:
        model.train(training)
    except NotImplementedError:  # a program of torch.export has its mode in its graph
        return
