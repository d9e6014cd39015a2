"""Looking at a model without leaving a trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from torch import nn


@contextmanager
def switched(model: nn.Module, training: bool) -> Iterator[None]:
    """The model in another mode, every module's own mode restored afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    # A program of torch.export has its mode in its graph and refuses to be asked.
    with suppress(NotImplementedError):
        model.train(training)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
