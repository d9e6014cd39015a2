"""Is a model fit for propagation? `check` names every fault at once, `fix` mends what it can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from covprop.errors import UnsupportedModel, gpu_failed
from covprop.mode import attributes_kept, called_with, copied, switched, tensors_of
from covprop.propagate.inputs import check_shape
from covprop.propagate.plan import Plan
from covprop.propagate.plans import Plans
from covprop.propagate.repairs import called, repair, why_not
from covprop.propagate.settings import PAPER
from covprop.propagate.tracing.look import float_type
from covprop.propagate.tracing.trace import check_module


def check(model: nn.Module, input_shape: Sequence[int]) -> None:
    """Raise `UnsupportedModel` listing every operation that cannot be propagated.

    Each fault names the module or node, the source line, the reason and the remedy. In training
    mode the model is checked for evaluation too; in evaluation mode, what it does in training only
    is an error once it is trained. Then the model runs on two random images, in evaluation and on
    copies of its tensors, to see that what was traced of it computes the same. Nothing of it
    changes.

    Example:
        >>> check(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), input_shape=(1, 2, 2))
    """
    shape = check_shape(input_shape)
    plans = Plans(model, shape, PAPER)
    _check_same(getattr(model, "_orig_mod", model), plans[False], shape)


class _Traced(nn.Module):
    """What was traced of a model, run as it is."""

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        super().__init__()
        self.model, self.plan = model, plan

    def forward(self, x: Tensor) -> Tensor:
        seen: dict[int, Tensor] = {}
        self.plan.run_plain(x, lambda slot, value: seen.update({slot: value}))
        return seen[self.plan.output]


def _copy(tensor: Tensor) -> Tensor:
    """Another tensor, that looks the same to forward."""
    made = tensor.detach().clone()
    if isinstance(tensor, nn.Parameter):
        made = nn.Parameter(made, tensor.requires_grad)
    vars(made).update(vars(tensor))
    return made


@torch.no_grad()
def _check_same(model: nn.Module, plan: Plan, shape: tuple[int, ...]) -> None:
    """Refuse a model of which something else was traced, as one that asks for the type of x."""
    like = next(chain(model.parameters(), model.buffers()), torch.empty(0))
    device = like.device
    if like.is_meta:
        return
    with (
        attributes_kept(model),
        switched(model, training=False),
        torch.random.fork_rng([device] if like.is_cuda else []),
    ):
        x = torch.rand(2, *shape).to(device, float_type(model))
        made = []
        for network in (model, model, _Traced(model, plan)):
            torch.default_generator.manual_seed(0)
            if like.is_cuda:
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(0)
            copies = {tensor: _copy(tensor) for tensor in tensors_of(model).values()}
            try:
                made.append(called_with(network, copies, x.clone()).float())
            except Exception as error:
                if gpu_failed(error):
                    raise
                return  # not to be run so, which is for whoever runs it to see
    own, again, traced = made
    # Above what autocast within forward does; a model that draws numbers of its own is let alone.
    allowed = 0.05 * own.abs().max()
    if (own - again).abs().max() == 0 and (own - traced).abs().max() > allowed:
        raise UnsupportedModel(
            f"what torch.fx traces of {type(model).__name__}.forward computes something else than "
            "it does itself: it may ask what a trace answers otherwise (type(x) is torch.Tensor), "
            "or change a value under another name; write that part in another way, or make it a "
            "module with its own rule (covprop.rule)."
        )


def fix(model: nn.Module, log: Callable[[str], None] = print) -> nn.Module:
    """A repaired copy of a model, and a line for each change.

    Max pools become average pools; group and instance norms, and layer norms over whole images
    [channels, height, width], become ActNorm (which sets itself from the first training batch); a
    softmax is removed; interpolation becomes nearest. These change what the network computes, so
    train it afterwards. A dilated max pool, and a layer norm over fewer dimensions, whose features
    may lie in any of them, stay, with a line that says so. Functional calls (`F.max_pool2d`) cannot
    be replaced: `check` names their source lines.

    Args:
        model: the model; it stays as it is.
        log: what to do with each line; `print` by default.

    Example:
        >>> mended = fix(nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2)))
        1: MaxPool2d became AvgPool2d
    """
    check_module(model)
    mended = copied(model)
    made: dict[nn.Module, nn.Module] = {}  # a module used twice stays one module
    for name, layer in list(mended.named_modules(remove_duplicate=False)):
        new = made.get(layer) or repair(layer)
        if new is None:
            if reason := why_not(layer):
                log(f"{name or 'the model'}: {called(layer)} stays: {reason}")
            continue
        like = next(chain(layer.parameters(), model.parameters()), torch.empty(0))
        made[layer] = replacement = new.to(like.device, like.dtype).train(layer.training)
        parent, _, child = name.rpartition(".")
        if name == "":
            mended = replacement
        else:
            setattr(mended.get_submodule(parent), child, replacement)
        log(f"{name or 'the model'}: {called(layer)} became {called(replacement)}")
    return mended
