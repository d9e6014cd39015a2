"""A network in eval mode with fewer steps: batch norms in the weights before them, sums and ReLUs
in the kernel of a convolution.

    relu(norm(conv(x)))              one convolution; its weights are the norm's factor · weight
    relu(norm(z + conv(x)))          the same, with z · factor added in it (pre-activation)
    relu(z + norm(conv(x)))          (residual networks with the activation last)
    norm(conv(x))                    a convolution
    y = conv(x), relu(norm(y))       both written by one kernel, if x has few channels

The network is traced to find them; one that cannot be traced, or that is hooked, is left with its
norms as a factor and a shift.
"""

from __future__ import annotations

import operator
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from covprop.certify.affine import Affine, affine
from covprop.certify.convolution import conv_relu, first_conv, is_few
from covprop.logits import Classifier

SUMS = (operator.add, operator.iadd, torch.add)
RELUS = (F.relu, torch.relu, F.relu_, torch.relu_)
EVEN = 8  # channels come in so many where cuDNN does more than a convolution in half precision
CLOSE = 0.01  # of the logits; folding rounds, and convolutions round to TF32
Node = Any  # fx declares a node's arguments to be almost anything


class ConvReLU(nn.Conv2d):
    """max(conv(x) + bias + add, 0)."""

    def forward(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        assert self.bias is not None
        x, add = x.to(self.weight.dtype), None if add is None else add.to(self.weight.dtype)
        return cast(
            Tensor, conv_relu(x, self.weight, self.bias, add, *_geometry(self), self.groups)
        )


class FirstConv(nn.Module):
    """conv(x) of few channels, and its ReLU after a factor and a shift, which stay in float32."""

    factor: Tensor
    offset: Tensor

    def __init__(self, conv: nn.Conv2d, factor: Tensor, offset: Tensor) -> None:
        super().__init__()
        self.conv = conv
        self.register_buffer("factor", factor)
        self.register_buffer("offset", offset)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weight, bias = self.conv.weight, self.conv.bias
        stride, padding, _ = _geometry(self.conv)
        both = first_conv(
            x.to(weight.dtype), weight, bias, self.factor, self.offset, stride, padding
        )
        return cast(tuple[Tensor, Tensor], both)


class Scale(nn.Module):
    """x · factor, channel by channel."""

    factor: Tensor

    def __init__(self, factor: Tensor) -> None:
        super().__init__()
        self.register_buffer("factor", factor)

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.factor.view(-1, 1, 1)).to(x.dtype)


class _Tracer(fx.Tracer):
    """Looks into modules that are made of others alone."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        whole = super().is_leaf_module(m, module_qualified_name)
        return whole or next(m.children(), None) is None


@torch.no_grad()
def folded(model: Classifier, sample: Tensor) -> Classifier:
    """A copy of a module with fewer steps; `sample` is a batch like those it will be given.

    >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    >>> x = torch.rand(2, 3, 8, 8)
    >>> found = folded(model, x)
    >>> len(list(found.children())), torch.allclose(found(x), model(x), atol=1e-6)
    (1, True)
    """
    plain = affine(model)
    if not isinstance(plain, nn.Module) or any(_is_hooked(layer) for layer in plain.modules()):
        return plain
    try:
        traced = fx.GraphModule(plain, _Tracer().trace(plain))
        ShapeProp(traced).propagate(sample.clone())
        _Folding(traced).run()
        # Of the network itself: its trace may be another function, as a sum in place is to a trace
        # one that writes into nothing. What the network writes into its images is not kept either.
        expected = plain(sample.clone())
        error = (traced(sample.clone()) - expected).norm() / expected.norm()
    except Exception:  # whatever code of others does when it is traced
        return plain
    return traced if error < CLOSE else plain


class _Folding:
    """Replaces nodes of a traced network, in place."""

    def __init__(self, traced: fx.GraphModule) -> None:
        self.traced, self.graph = traced, traced.graph

    def run(self) -> None:
        for node in list(self.graph.nodes):
            if type(self._layer(node)) is nn.Identity:
                node.replace_all_uses_with(node.args[0])
                self.graph.erase_node(node)
        for node in list(self.graph.nodes):
            if len(node.users) > 1 and self._is_first(node):
                self._write_twice(node)
        for node in list(self.graph.nodes):
            if self._is_relu(node):
                self._with_relu(node)
        for node in list(self.graph.nodes):
            if self._norm(node) and (chain := self._chain(node)):
                layer = _joined(self._conv(chain[0]), [self._norm(node)], nn.Conv2d)
                self._replace(node, layer, (chain[0].args[0],), chain)
        self.traced.delete_all_unused_submodules()
        self.traced.recompile()

    def _write_twice(self, conv: Node) -> None:
        """y = conv(x) that is read beside relu(norm(y)) or relu(y)."""
        for user in conv.users:
            norm = self._norm(user)
            relu = next(iter(user.users)) if norm and len(user.users) == 1 else user
            if self._is_relu(relu):
                break
        else:
            return
        plain = _joined(self._conv(conv), [], nn.Conv2d)
        one = plain.weight.new_ones(plain.out_channels)
        layer = FirstConv(plain, *(norm.factor, norm.offset) if norm else (one, 0 * one))
        both = self._insert(conv, layer, (conv.args[0],))
        for i, old in enumerate((conv, relu)):
            with self.graph.inserting_before(conv):
                new = self.graph.call_function(operator.getitem, (both, i))
            new.meta = conv.meta
            old.replace_all_uses_with(new)
        for node in dict.fromkeys((relu, user, conv)):
            self.graph.erase_node(node)

    def _with_relu(self, relu: Node) -> None:
        """relu(norm(z + conv(x))), with or without norms and sum."""
        last = relu.args[0]
        outer = [last] if self._norm(last) and self._is_sum(last.args[0]) else []
        total = outer[0].args[0] if outer else last
        if not self._is_sum(total):
            if self._fuses(chain := self._chain(last)):
                norms = [self._norm(node) for node in chain[1:]]
                layer = _joined(self._conv(chain[0]), norms, ConvReLU)
                self._replace(relu, layer, (chain[0].args[0],), chain)
            return
        for one, other in (total.args, total.args[::-1]):
            chain = self._chain(one)
            alike = _shape(one) == _shape(other)
            if self._fuses(chain) and alike and _once(total, *outer):
                break
        else:
            return
        if outer:
            other = self._insert(relu, Scale(self._norm(last).factor), (other,))
        norms = [self._norm(node) for node in chain[1:] + outer]
        layer = _joined(self._conv(chain[0]), norms, ConvReLU)
        self._replace(relu, layer, (chain[0].args[0], other), [*chain, total, *outer])

    def _replace(
        self, last: Node, layer: nn.Module, given: tuple[Node, ...], gone: list[Node]
    ) -> None:
        """A layer in place of these nodes, of which `last` is read by others."""
        new = self._insert(last, layer, given)
        new.meta = last.meta
        last.replace_all_uses_with(new)
        for node in dict.fromkeys([last, *reversed(gone)]):
            self.graph.erase_node(node)

    def _insert(self, before: Node, layer: nn.Module, given: tuple[Node, ...]) -> Node:
        name = f"folded{sum(1 for _ in self.traced.children())}"
        self.traced.add_module(name, layer)
        with self.graph.inserting_before(before):
            return self.graph.call_module(name, given)

    def _chain(self, node: Node) -> list[Node]:
        """conv, or conv and norm, up to this node, if nothing else reads them; else nothing."""
        found = [node]
        if self._norm(node):
            found.insert(0, node.args[0])
        return found if self._conv(found[0]) and _once(*found) else []

    def _fuses(self, chain: list[Node]) -> bool:
        """Whether there is a convolution that does more than its own work in one kernel."""
        if not chain or self._is_first(chain[0]):
            return bool(chain)
        conv = self._conv(chain[0])
        return conv.groups == 1 and conv.in_channels % EVEN == conv.out_channels % EVEN == 0

    def _layer(self, node: Node) -> nn.Module | None:
        """The layer that this node calls, if it is one of a single argument."""
        called = isinstance(node, fx.Node) and node.op == "call_module"
        return self.traced.get_submodule(node.target) if called and len(node.args) == 1 else None

    def _norm(self, node: Node) -> Any:
        """A norm, or None."""
        layer = self._layer(node)
        return layer if isinstance(layer, Affine) else None

    def _conv(self, node: Node) -> Any:
        """A convolution, padded with so many zeros, or None."""
        layer: Any = self._layer(node)
        plain = type(layer) is nn.Conv2d and layer.padding_mode == "zeros"
        return layer if plain and not isinstance(layer.padding, str) else None

    def _is_first(self, node: Node) -> bool:
        conv = self._conv(node)
        return conv is not None and is_few(conv.weight, list(conv.dilation), conv.groups)

    def _is_relu(self, node: Node) -> bool:
        function = node.op == "call_function" and node.target in RELUS
        return bool(node.args) and (function or type(self._layer(node)) is nn.ReLU)

    @staticmethod
    def _is_sum(node: Node) -> bool:
        found = isinstance(node, fx.Node) and node.op == "call_function" and node.target in SUMS
        pair = found and len(node.args) == 2 and not node.kwargs
        return pair and all(isinstance(part, fx.Node) for part in node.args)


def _joined(conv: Any, norms: list[Affine], kind: type[nn.Conv2d]) -> nn.Conv2d:
    """A convolution of another kind that applies these norms as well, one after the other."""
    weight = conv.weight.double()
    bias = weight.new_zeros(len(weight)) if conv.bias is None else conv.bias.double()
    for norm in norms:
        weight = weight * norm.factor.double().view(-1, 1, 1, 1)
        bias = bias * norm.factor.double() + norm.offset.double()
    with torch.device("meta"):
        layer = kind(
            conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride, conv.padding,
            conv.dilation, conv.groups,
        )  # fmt: skip
    layer.weight = nn.Parameter(weight.to(conv.weight.dtype), requires_grad=False)
    layer.bias = nn.Parameter(bias.to(conv.weight.dtype), requires_grad=False)
    return layer.eval()


def _once(*nodes: Node) -> bool:
    return all(len(node.users) == 1 for node in nodes)


def _shape(node: Node) -> tuple[int, ...] | None:
    found = node.meta.get("tensor_meta")
    return tuple(found.shape) if found is not None else None


def _is_hooked(layer: nn.Module) -> bool:
    return bool(layer._forward_hooks or layer._forward_pre_hooks)


def _geometry(conv: nn.Conv2d) -> tuple[list[int], list[int], list[int]]:
    return list(conv.stride), [int(p) for p in conv.padding], list(conv.dilation)
