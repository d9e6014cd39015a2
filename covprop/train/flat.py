"""A training step, gradients included, as one graph without autograd, for the compiler to fuse.

`torch.compile` cannot differentiate what it compiled a second time, so a loss that contains a
gradient (the linearised radius) is beyond it. Here autograd runs once, while the step is recorded;
what is left is a flat list of operations from weights, images and noise to loss and gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from covprop.errors import CovpropError
from covprop.mode import called_with

RANDOM = {"fallback_random": True}
"""For the compiler: dropout draws the same numbers as uncompiled, since the first step of a run, or
of its continuation, is not compiled. It costs a pass for masks of pixels, nothing for channels."""

Work = Callable[..., tuple[Tensor, ...]]
Draw = Callable[[torch.Generator], Tensor]


class FlatStep:
    """`work`, the backward pass of its loss included, recorded once and then compiled.

    Calling it does what `loss, *others = work(*inputs, generator)` and `loss.backward()` do:
    gradients are left in `.grad` (replaced, not added to), buffers such as running statistics
    move, noise comes from the generator, and the results are returned, detached. Everything else
    that `work` reads is a constant from then on: record anew when the epoch or an option changes
    what it does. Gradients are those of this process alone.

    Args:
        module: holds every parameter to train and every buffer that moves.
        work: (*inputs, generator) -> (scalar loss, further tensors); it draws from the generator
            by torch.randn and torch.rand.
        inputs: tensors of the shape, type and layout of those to come.
        backend: of torch.compile; None runs the recorded graph as it is.

    Example:
        >>> net, x, noise = nn.Linear(2, 2), torch.rand(3, 2), torch.Generator()
        >>> def work(x, noise):
        ...     return (net(x + torch.randn(x.shape, generator=noise)).square().mean(),)
        >>> step = FlatStep(net, work, [x], backend=None)
        >>> (loss,) = step(x, generator=noise)
        >>> net.weight.grad.shape
        torch.Size([2, 2])
    """

    def __init__(
        self,
        module: nn.Module,
        work: Work,
        inputs: Sequence[Tensor],
        backend: str | None = "inductor",
    ) -> None:
        self.module, self.inputs = _Called(module, work), len(inputs)
        self.parameters = list(self.module.parameters())
        self.buffers = list(self.module.buffers())
        self.trained: list[nn.Parameter] = []
        # Recording runs the step, so all that moves is a copy, and the random state is put back.
        state = [value.detach().clone() for value in self._state()]
        with torch.random.fork_rng(devices={value.device for value in state if value.is_cuda}):
            self.draws = self._find_draws(state, inputs)
            noise = [draw(torch.Generator(inputs[0].device)) for draw in self.draws]
            # In a thread of its own a backward pass would go unrecorded.
            with torch.autograd.set_multithreading_enabled(False):
                self.graph = make_fx(self._whole)(*state, *inputs, *noise)
        self.graph.graph.eliminate_dead_code()
        self.graph.recompile()
        self.run: Callable[..., Any] = self.graph
        if backend:
            options: Any = RANDOM if backend == "inductor" else None
            self.run = torch.compile(self.graph, backend=backend, dynamic=False, options=options)

    def __call__(self, *inputs: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        noise = [draw(generator) for draw in self.draws]
        with torch.no_grad():
            *results, gradients = self.run(*self._state(), *inputs, *noise)
        for parameter in self.parameters:
            parameter.grad = None
        for parameter, gradient in zip(self.trained, gradients, strict=True):
            parameter.grad = gradient
        return tuple(results)

    def _state(self) -> Iterator[Tensor]:
        yield from self.parameters
        yield from self.buffers

    def _called(self, state: Sequence[Tensor], arguments: Sequence[Any]) -> tuple[Tensor, ...]:
        """`work` with `state` in the place of parameters and buffers."""
        instead = dict(zip(self._state(), state, strict=True))
        return called_with(self.module, instead, *arguments)

    def _find_draws(self, state: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Draw]:
        """What `work` draws from its generator, found by a call on copies."""
        generator = torch.Generator(inputs[0].device)
        copies = [value.clone() for value in state]
        for value, like in zip(copies, self._state(), strict=True):
            value.requires_grad_(like.requires_grad)
        with _Draws(generator) as draws:
            self._called(copies, [*inputs, generator])
        return draws.found

    def _whole(self, *given: Tensor) -> tuple[Any, ...]:
        """The step as a pure function: state, inputs and noise to results and gradients."""
        size = len(self.parameters) + len(self.buffers)
        state, inputs = list(given[:size]), given[size : size + self.inputs]
        wanted: list[Tensor] = []
        for place, parameter in enumerate(self.parameters):
            if parameter.requires_grad:
                state[place] = state[place].detach().requires_grad_(True)
                wanted.append(state[place])
        generator = torch.Generator(inputs[0].device)
        with _Draws(generator, given[size + self.inputs :]):
            results = self._called(state, [*inputs, generator])
        found = torch.autograd.grad(results[0], wanted, allow_unused=True)
        trained = [p for p in self.parameters if p.requires_grad]
        self.trained = [p for p, g in zip(trained, found, strict=True) if g is not None]
        gradients = [_laid_out(g, p) for g, p in zip(found, wanted, strict=True) if g is not None]
        return *(result.detach() for result in results), gradients


class _Called(nn.Module):
    """A function of the tensors that a module holds, in the form `called_with` takes."""

    def __init__(self, module: nn.Module, work: Work) -> None:
        super().__init__()
        self.module, self.work = module, work

    def forward(self, *arguments: Any) -> tuple[Tensor, ...]:
        return self.work(*arguments)


class _Draws(TorchFunctionMode):
    """Catches what is drawn from a generator: notes it, or answers with what is given."""

    def __init__(self, generator: torch.Generator, given: Sequence[Tensor] | None = None) -> None:
        super().__init__()
        self.generator, self.found = generator, list[Draw]()
        self.given = None if given is None else iter(given)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("generator") is not self.generator:
            return func(*args, **kwargs)
        if func not in (torch.randn, torch.rand):
            raise CovpropError(
                f"This step draws {getattr(func, '__name__', func)} from its generator, which a "
                "recorded step cannot repeat; set train.compile = false."
            )
        if self.given is not None:
            return next(self.given)
        self.found.append(lambda generator: func(*args, **{**kwargs, "generator": generator}))
        return func(*args, **kwargs)


def _laid_out(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The gradient in its parameter's type and layout, as optimizers that fuse want it."""
    if gradient.dtype == parameter.dtype and gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)
