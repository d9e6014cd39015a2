"""Layers put together: the same numbers in fewer steps, and the user's model untouched."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covprop.certify.affine import Affine
from covprop.certify.convolution import conv_relu, first_conv, is_few
from covprop.certify.engine import Engine
from covprop.certify.fold import ConvReLU, FirstConv, Scale, folded
from covprop.models import build


def trained_like(model: nn.Module) -> nn.Module:
    """Statistics and weights of batch norms that are not those of a new layer."""
    torch.manual_seed(0)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.1, 3)
            nn.init.normal_(layer.weight)
            nn.init.normal_(layer.bias)
    return model.eval()


def kinds(model: object) -> list[type]:
    assert isinstance(model, nn.Module)
    return [type(layer) for layer in model.modules()]


@pytest.mark.parametrize(
    ("name", "options", "found"),
    [
        # 8 first halves and the last sums of 4 stages; the norms behind the other 4 sums stay.
        ("preact_resnet18", {"width": 8}, (12, 4, 4, 1)),
        ("preact_resnet18", {"width": 8, "norm": "none"}, (12, 0, 0, 1)),
        # Two of every block, 4 sums, and the first layer, which one thing reads.
        ("preact_resnet50", {"width": 8}, (37, 4, 12, 0)),
        # Two of every block, and the first layer.
        ("cifar_resnet20", {"width": 8}, (19, 0, 0, 0)),
        ("preact_resnet18", {"width": 8, "norm": "act"}, (0, 0, 0, 0)),
    ],
)
def test_networks_compute_the_same(name: str, options: dict, found: tuple[int, ...]) -> None:
    given = {"num_classes": 4, "image_shape": (3, 16, 16), "mean": (0.4,) * 3, "std": (0.2,) * 3}
    model = trained_like(build(name, **given, **options).double())
    x = torch.rand(3, 3, 16, 16, dtype=torch.float64)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with torch.no_grad():
        changed = folded(model, x[:2])
        error = (changed(x) - model(x)).norm() / model(x).norm()
    assert error < 1e-12
    assert (
        tuple(kinds(changed).count(kind) for kind in (ConvReLU, Scale, Affine, FirstConv)) == found
    )
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not {ConvReLU, FirstConv, Affine} & set(kinds(model))


class Sums(nn.Module):
    """Sums that are none of a feature map and a convolution of its shape."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.conv, self.norm = how, nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        if self.how == "broadcast":
            return F.relu(y + x.mean((2, 3), keepdim=True))
        if self.how == "number":
            return F.relu(y + 1)
        if self.how == "weighted":
            return F.relu(torch.add(y, x, alpha=2))
        if self.how == "twice":
            return F.relu(y) + y
        return F.relu(y + y)


@pytest.mark.parametrize("how", ["broadcast", "number", "weighted", "twice", "double"])
def test_what_looks_alike_is_left(how: str) -> None:
    model = trained_like(Sums(how).double())
    x = torch.rand(2, 8, 6, 6, dtype=torch.float64)
    with torch.no_grad():
        changed = folded(model, x)
        torch.testing.assert_close(changed(x), model(x))
    assert ConvReLU not in kinds(changed)


def test_convolutions_that_are_left() -> None:
    """Padded otherwise, in groups, of a kind of its own, or of channels that do not fit."""

    class Own(nn.Conv2d):
        pass

    layers = [
        nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(8, 8, 3, padding="same"),
        Own(8, 8, 3),
        nn.Conv2d(8, 8, 3, groups=2),
        nn.Conv2d(8, 6, 3),
    ]
    x = torch.rand(2, 8, 6, 6)
    for layer in layers:
        model = trained_like(nn.Sequential(layer, nn.BatchNorm2d(layer.out_channels), nn.ReLU()))
        with torch.no_grad():
            torch.testing.assert_close(folded(model, x)(x), model(x), rtol=1e-4, atol=1e-5)
        assert ConvReLU not in kinds(folded(model, x))
    assert Affine not in kinds(folded(model, x))  # the norm alone is in the weights


def test_few_channels_are_those_whose_patch_fits_the_kernel() -> None:
    """It would pass over the numbers of a patch beyond the 32nd, in half precision alone."""

    def few(*shape: int, dilation: int = 1, groups: int = 1) -> bool:
        return is_few(torch.empty(shape), [dilation, dilation], groups)

    assert few(8, 3, 3, 3)
    assert few(8, 4, 2, 4)
    assert not few(8, 4, 3, 3)
    assert not few(8, 1, 7, 7)
    assert not few(8, 5, 1, 1)
    assert not few(8, 3, 3, 3, dilation=2)
    assert not few(8, 1, 3, 3, groups=8)


def test_models_that_are_left() -> None:
    """Hooked, not traceable, or another function where it is traced."""

    class Turning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.calls = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)), 0

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.layers(x)) if x.sum() > 0 else x

    model, x = trained_like(Turning()), torch.rand(2, 8, 4, 4)
    assert type(folded(model, x)) is Turning
    assert kinds(folded(model, x)).count(Affine) == 1
    seen: list[int] = []
    model = trained_like(nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU()))
    model[0].register_forward_hook(lambda layer, args, out: seen.append(len(out)))
    hooked = folded(model, x)
    seen.clear()
    hooked(x)  # type: ignore[operator]
    assert seen == [2]
    assert folded(torch.sin, x) is torch.sin


class Written(nn.Module):
    """Feature maps that are read again after something was written into them."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.first, self.second = (nn.Conv2d(c, 8, 3, padding=1) for c in (3, 8))

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "input":
            return F.relu(self.first(x.mul_(2)))
        y = self.first(x)
        if self.how == "relu":
            z = F.relu_(y)
        else:
            z = y
            z += self.second(torch.sin(y))  # a trace takes it for a sum, which leaves y as it was
            z = F.relu(z)
        return self.second(y + z)


@pytest.mark.parametrize("how", ["relu", "sum", "input"])
def test_a_network_that_writes_in_place_stays_what_it_is(how: str) -> None:
    torch.manual_seed(0)
    model, x = Written(how).double().eval(), torch.rand(2, 3, 6, 6, dtype=torch.float64)
    with torch.no_grad():
        found = folded(model, x.clone())
        torch.testing.assert_close(found(x.clone()), model(x.clone()))  # type: ignore[operator]


def test_an_engine_folds_first_and_rounds_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what it compiles is one graph."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    model = build("preact_resnet18", num_classes=4, image_shape=(3, 16, 16), width=8)
    model, x = trained_like(model), torch.rand(3, 3, 16, 16)
    engine = Engine(
        model, (3, 16, 16), sigma=0.25, classes=4, block=3, width=1, slots=2,
        device=torch.device("cpu"), dtype=torch.bfloat16, channels_last=True,
    )  # fmt: skip
    with torch.no_grad():
        plain, exact = engine.network(x), model(x)
        engine.model = engine._simplified()
        found = engine.network(x)
        compiled = torch.compile(engine.network, dynamic=False, backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(x), found)
    errors = [((logits - exact).norm() / exact.norm()).item() for logits in (plain, found)]
    assert 0 < errors[1] < 1.5 * errors[0]
    wide = [m for m in folded(model, x).modules() if type(m) is ConvReLU]  # type: ignore[union-attr]
    half = [m for m in engine.model.modules() if type(m) is ConvReLU]
    assert len(wide) == len(half) == 12
    for one, other in zip(wide, half, strict=True):
        assert torch.equal(one.weight.bfloat16(), other.weight)
        assert other.weight.is_contiguous(memory_format=torch.channels_last)
    assert all(m.factor.dtype == torch.float32 for m in engine.model.modules() if type(m) is Affine)


FIRST = [(3, 8, 3, 1, 1), (1, 20, 5, 1, 0), (3, 130, 3, 2, 1), (4, 16, 2, 1, 0)]
"""Channels in and out, kernel, stride, padding."""


@pytest.mark.parametrize(("inside", "outside", "size", "stride", "padding"), FIRST)
def test_a_compiler_is_told_what_comes_out(
    inside: int, outside: int, size: int, stride: int, padding: int
) -> None:
    """Shapes and layouts, also of one channel, where layouts coincide."""
    x = torch.randn(2, inside, 7, 6)
    weight, bias = torch.randn(outside, inside, size, size), torch.randn(outside)
    where = [stride, stride], [padding, padding]
    kept = "test_schema", "test_faketensor"
    torch.library.opcheck(first_conv, (x, weight, bias, bias, bias, *where), test_utils=kept)
    add = F.conv2d(x, weight, None, *where)
    for some in (None, add):
        given = (x, weight, bias, some, *where, [1, 1], 1)
        torch.library.opcheck(conv_relu, given, test_utils=kept)
        y = F.conv2d(x, weight, bias, *where)
        expected = F.relu(y if some is None else y + some)
        torch.testing.assert_close(conv_relu(*given), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("inside", "outside", "size", "stride", "padding"), FIRST)
def test_first_layer_on_a_gpu(
    dtype: torch.dtype, inside: int, outside: int, size: int, stride: int, padding: int
) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, inside, 17, 12, device="cuda").to(dtype)
    x = x.contiguous(memory_format=torch.channels_last)
    weight = torch.randn(outside, inside, size, size, device="cuda").to(dtype)
    bias = torch.randn(outside, device="cuda").to(dtype)
    factor, offset = torch.randn(2, outside, device="cuda")
    exact = F.conv2d(x.double(), weight.double(), bias.double(), stride, padding)
    active = F.relu(exact * factor.view(-1, 1, 1) + offset.view(-1, 1, 1))
    where = [stride, stride], [padding, padding]
    found = first_conv(x, weight, bias, factor, offset, *where)
    relu = conv_relu(x, weight, bias, None, *where, [1, 1], 1)
    for got, expected in ((found[0], exact), (found[1], active), (relu, F.relu(exact))):
        assert got.is_contiguous(memory_format=torch.channels_last)
        error = ((got.double() - expected).norm() / expected.norm()).item()
        print(f"first layer, {dtype}: {error:.1e}")
        assert error < torch.finfo(dtype).eps


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("with_sum", [False, True])
def test_sum_and_relu_on_a_gpu(dtype: torch.dtype, with_sum: bool) -> None:
    torch.manual_seed(0)
    x, add = torch.randn(2, 64, 32, 8, 8, device="cuda").to(dtype)
    x, add = (t.contiguous(memory_format=torch.channels_last) for t in (x, add))
    weight = (torch.randn(32, 32, 3, 3, device="cuda") / 17).to(dtype)
    bias = torch.randn(32, device="cuda").to(dtype)
    exact = F.conv2d(x.double(), weight.double(), bias.double(), 1, 1)
    expected = F.relu(exact + add.double() if with_sum else exact)
    torch.full_like(expected, torch.nan, dtype=dtype)  # what the output's memory held before
    got = conv_relu(x, weight, bias, add if with_sum else None, [1, 1], [1, 1], [1, 1], 1)
    error = ((got.double() - expected).norm() / expected.norm()).item()
    print(f"sum {with_sum}, {dtype}: {error:.1e}")
    assert error < torch.finfo(dtype).eps


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["preact_resnet18", "cifar_resnet20"])
def test_a_compiled_network_on_a_gpu(name: str) -> None:
    """Errors of the folded network in bfloat16 are those of the network in bfloat16."""
    model = build(name, num_classes=10, image_shape=(3, 32, 32), width=16)
    model = trained_like(model).cuda()
    x = torch.rand(64, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    logits = []
    for way in ("exact", "plain", "folded"):
        dtype = None if way == "exact" else torch.bfloat16
        engine = Engine(
            copy.deepcopy(model).double() if way == "exact" else model, (3, 32, 32), sigma=0.25,
            classes=10, block=64, width=1, slots=1, device=torch.device("cuda"), dtype=dtype,
            channels_last=True,
        )  # fmt: skip
        if way == "folded":
            engine.model = engine._simplified()
            assert ConvReLU in kinds(engine.model)
            engine.network = torch.compile(engine._network, dynamic=False)
        with torch.no_grad():
            given = x.double() if way == "exact" else x
            logits.append(engine.network(given).double())
    exact, plain, ours = logits
    errors = [((found - exact).norm() / exact.norm()).item() for found in (plain, ours)]
    print(f"{name}: error {errors[0]:.1e} as it is, {errors[1]:.1e} folded")
    assert errors[1] < 1.5 * errors[0]
