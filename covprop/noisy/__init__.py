"""Learning from labels of which some are wrong: methods by name, one interface.

A recipe with a section `[labels]` is trained by the same loop as any other; its method is one of
these. After training, `report.judge` says which labels are suspect and how many are wrong.

Example:
    >>> sorted(METHODS)[:3]
    ['bootstrap', 'coteaching', 'decoupling']
"""

from collections.abc import Callable
from typing import Any

from covprop.names import unknown
from covprop.noisy.base import NoisyLosses, NoisyMethod, Task
from covprop.noisy.bootstrap import Bootstrap
from covprop.noisy.coteaching import Coteaching
from covprop.noisy.decoupling import Decoupling
from covprop.noisy.mentornet import MentorNet
from covprop.noisy.plain import Plain
from covprop.noisy.radius import Radius
from covprop.noisy.smodel import SModel
from covprop.noisy.step import Memory, NoisyStep
from covprop.noisy.truncated import Truncated
from covprop.options import call

METHODS: dict[str, Callable[..., NoisyMethod]] = {
    "plain": Plain,
    "bootstrap": Bootstrap,
    "smodel": SModel,
    "decoupling": Decoupling,
    "mentornet": MentorNet,
    "coteaching": Coteaching,
    "truncated": Truncated,
    "radius": Radius,
}
"""Name -> class; its parameters besides `task` are the recipe's options."""

__all__ = ["METHODS", "Memory", "NoisyLosses", "NoisyMethod", "NoisyStep", "Task", "build"]


def build(name: str, *, task: Task, **options: Any) -> NoisyMethod:
    """The method called `name`, with its own options such as `rate=0.2`."""
    if name not in METHODS:
        raise unknown("method for noisy labels", name, METHODS)
    return call("method", METHODS[name], {"task": task}, options)
