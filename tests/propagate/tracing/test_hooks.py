"""Weights and values that come from elsewhere: parametrizations, hooks, wrappers."""

import copy
from types import MethodType

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

import covprop

SHAPE = (1, 8, 8)
X = torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(0))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(64, 3)
    ).eval()


def parametrized() -> nn.Sequential:
    model = network()
    parametrizations.weight_norm(model[0])
    parametrizations.spectral_norm(model[4])
    return model.eval()


def plain_twin(model: nn.Sequential) -> nn.Sequential:
    """The same network with its weights as plain numbers."""
    twin = network()
    for i in (0, 4):
        twin[i].weight.data = model[i].weight.detach().clone()
        twin[i].bias.data = model[i].bias.detach().clone()
    return twin


def test_parametrized_layers_propagate_as_the_weights_they_make() -> None:
    model = parametrized()
    twin = plain_twin(model)
    covprop.check(model, SHAPE)
    out, expected = (covprop.Propagator(m, 0.25, SHAPE)(X) for m in (model, twin))
    torch.testing.assert_close(out.mean, expected.mean)
    torch.testing.assert_close(out.cov, expected.cov)
    for estimator in ("shared", "linearized", "dense"):
        found, other = (covprop.margin(m, X, 0.25, estimator) for m in (model, twin))
        torch.testing.assert_close(found.radius, other.radius)
    box, other_box = (covprop.ibp(m, X, epsilon=0.01) for m in (model, twin))
    torch.testing.assert_close(box.lower, other_box.lower)
    assert parametrize.is_parametrized(model[0])  # and still whole:
    torch.testing.assert_close(model(X), twin(X))


def test_gradients_reach_the_originals_of_a_parametrized_layer() -> None:
    model = parametrized().train()
    out = covprop.Propagator(model, 0.25, SHAPE)(X)
    out.cov.sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0
               for name, p in model.named_parameters() if "original" in name)  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_weights_that_a_hook_sets_are_refused_and_left_alone() -> None:
    normed, spectral, pruned = network(), network(), network()
    torch.nn.utils.weight_norm(normed[0])
    torch.nn.utils.spectral_norm(spectral[4])
    prune.l1_unstructured(pruned[0], "weight", 0.5)
    for model, name in ((normed, "0"), (spectral, "4"), (pruned, "0")):
        weight = model[int(name)].weight.detach().clone()
        with pytest.raises(covprop.UnsupportedModel, match="weight is set anew by a hook") as error:
            covprop.check(model, SHAPE)
        assert [fault.name for fault in error.value.faults] == [name]
        with pytest.raises(covprop.UnsupportedModel, match="set anew by a hook"):
            covprop.margin(model, X, 0.25, "dense")
        torch.testing.assert_close(model[int(name)].weight.detach(), weight)
    prune.remove(pruned[0], "weight")
    covprop.check(pruned, SHAPE)


def double(module: nn.Module, args: tuple[Tensor], out: Tensor) -> Tensor:
    return 2 * out


def half(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
    return (args[0] / 2,)


def test_hooks_that_change_values_are_faults_and_others_are_not() -> None:
    layer, before, root, root_before = (network() for _ in range(4))
    nothing = nn.Sequential(*network(), nn.Identity())
    nothing[-1].register_forward_hook(double)
    layer[0].register_forward_hook(double)
    before[0].register_forward_pre_hook(half)
    root.register_forward_hook(double)
    root_before.register_forward_pre_hook(half)
    models = {"0": (layer, before), "the model": (root, root_before), "5": (nothing,)}
    for name, model in ((name, model) for name, several in models.items() for model in several):
        with pytest.raises(covprop.UnsupportedModel, match="a hook changes") as error:
            covprop.Propagator(model, 0.25, SHAPE)
        assert error.value.faults[0].name.startswith(name)

    seen: list[torch.Size] = []
    watching = network()
    for module in (watching, watching[0], watching[4]):
        module.register_forward_hook(lambda m, args, out: seen.append(out.shape))
        module.register_forward_pre_hook(lambda m, args: None)
    before_hooks = copy.copy(watching[0]._forward_hooks)
    out = covprop.Propagator(watching, 0.25, SHAPE)(X)
    torch.testing.assert_close(out.cov, covprop.Propagator(network(), 0.25, SHAPE)(X).cov)
    assert watching[0]._forward_hooks == before_hooks


def test_hooks_of_a_block_are_traced_like_its_code() -> None:
    model = nn.Sequential(network(), nn.Identity()).eval()
    model[0].register_forward_hook(double)
    out = covprop.Propagator(model, 0.25, SHAPE)(X)
    once = covprop.Propagator(network(), 0.25, SHAPE)(X)
    torch.testing.assert_close(out.mean, 2 * once.mean)
    torch.testing.assert_close(out.cov, 4 * once.cov)


def test_a_forward_put_on_a_layer_or_the_model_is_refused() -> None:
    """No rule would know of it; the network itself computes by it."""
    layer, weights, bound, nothing, root = (network() for _ in range(5))
    own, whole, other = layer[4].forward, root.forward, torch.rand(64, 3)
    layer[4].forward = lambda x: 3 * own(x)
    weights[4].forward = lambda x: x @ other
    bound[4].forward = MethodType(lambda self, x: 3 * own(x), bound[4])
    nothing.insert(0, nn.Identity())
    nothing[0].forward = lambda x: 3 * x
    root.forward = lambda x: 3 * whole(x)
    models = (("4", layer), ("4", weights), ("4", bound), ("0", nothing), ("the model", root))
    for name, model in models:
        with pytest.raises(covprop.UnsupportedModel, match="forward was exchanged") as error:
            covprop.check(model, SHAPE)
        assert [fault.name for fault in error.value.faults] == [name]
        del (model[int(name)] if name.isdigit() else model).forward
        covprop.check(model, SHAPE)


class Chooses(nn.Module):
    """Picks one of its own methods for its forward."""

    def __init__(self, doubles: bool) -> None:
        super().__init__()
        if doubles:
            self.forward = self.twice  # type: ignore[method-assign]

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)

    def twice(self, x: Tensor) -> Tensor:
        return 2 * x.flatten(1)


def test_a_forward_that_a_module_chose_itself() -> None:
    """A trace reads the class's own of the model, and the chosen one of a block."""
    with pytest.raises(covprop.UnsupportedModel, match="the model: Chooses: its forward was"):
        covprop.check(Chooses(True), SHAPE)
    covprop.check(Chooses(False), SHAPE)
    out = covprop.Propagator(nn.Sequential(Chooses(True)), 0.25, SHAPE)(X)
    torch.testing.assert_close(out.cov, 0.25 * torch.eye(64))


def test_a_forward_put_on_a_block_is_traced_like_its_code() -> None:
    model = nn.Sequential(network(), nn.Identity()).eval()
    own = model[0].forward
    model[0].forward = lambda x: 2 * own(x)
    out = covprop.Propagator(model, 0.25, SHAPE)(X)
    once = covprop.Propagator(network(), 0.25, SHAPE)(X)
    torch.testing.assert_close(out.cov, 4 * once.cov)


def test_what_torch_compiled_in_place_is_no_other_forward() -> None:
    """By module.compile(), or by torch.compile of forward, of a layer or of the model."""
    expected = covprop.Propagator(network(), 0.25, SHAPE)(X)
    models = [network() for _ in range(4)]
    models[0][4].compile(backend="eager")
    models[1].compile(backend="eager")
    models[2][4].forward = torch.compile(models[2][4].forward, backend="eager")
    models[3].forward = torch.compile(models[3].forward, backend="eager")
    for model in models:
        out = covprop.Propagator(model, 0.25, SHAPE)(X)
        torch.testing.assert_close(out.mean, expected.mean)
        torch.testing.assert_close(out.cov, expected.cov)


def test_a_compiled_model_is_seen_through() -> None:
    compiled = torch.compile(network(), backend="eager")
    prop = covprop.Propagator(compiled, 0.25, SHAPE)
    torch.testing.assert_close(prop(X).cov, covprop.Propagator(network(), 0.25, SHAPE)(X).cov)
    assert covprop.margin(compiled, X, 0.25, "dense").radius.shape == (3,)


def test_compiled_parts_of_a_model_are_seen_through() -> None:
    """Such as the network behind a `Normalize`, or a single layer that has a rule."""
    parts = network()
    body, last = (torch.compile(part, backend="eager") for part in (parts[:4], parts[4]))
    prop = covprop.Propagator(nn.Sequential(body, last).eval(), 0.25, SHAPE)
    whole = covprop.Propagator(network(), 0.25, SHAPE)(X)
    torch.testing.assert_close(prop(X).mean, whole.mean)
    torch.testing.assert_close(prop(X).cov, whole.cov)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_hides_a_network_is_named_with_a_remedy() -> None:
    traced = torch.jit.trace(network(), X)
    for hidden, remedy in ((nn.DataParallel(network()), "give its .module"), (traced, "TorchScri")):
        with pytest.raises(covprop.UnsupportedModel, match=remedy):
            covprop.check(hidden, SHAPE)


def test_what_is_no_module_and_samples_below_none_are_one_sentence() -> None:
    with pytest.raises(covprop.UnsupportedModel, match=r"a function is no nn\.Module"):
        covprop.check(lambda x: x, SHAPE)  # type: ignore[arg-type]
    with pytest.raises(covprop.InvalidInput, match="not function and Tensor"):
        covprop.margin(lambda x: x, X, 0.25)  # type: ignore[arg-type]
    with pytest.raises(covprop.InvalidInput, match="samples is -2"):
        covprop.margin(network(), X, 0.25, samples=-2)
    with pytest.raises(covprop.InvalidInput, match="epsilon is inf"):
        covprop.ibp(network(), X, epsilon=float("inf"))
    with pytest.raises(covprop.InvalidInput, match=r"x is torch\.uint8"):
        covprop.ibp(network(), (255 * X).byte(), epsilon=1.0)
