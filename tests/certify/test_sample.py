"""How a classifier is called for its votes: where, on what, and what is left of that."""

from typing import Any

import pytest
import torch
from nets import HalfSpace
from torch import Tensor, nn

from covprop.certify import certify
from covprop.certify.inputs import device_of
from covprop.certify.sample import Sampler
from covprop.errors import InvalidInput

SHAPE = (1, 4, 4)
SIGMA = 0.5


def images(count: int) -> Tensor:
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(1))


def test_several_blocks_a_pass_count_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU's way of working, on the CPU: images share passes, the last one is not full."""
    model, x = HalfSpace(), images(5)
    one = vars(certify(model, x, sigma=SIGMA, n=1000))
    plain = Sampler.__init__

    def wide(self: Sampler, *args: object) -> None:
        plain(self, *args)
        self.noisy = torch.empty(3 * self.block, *SHAPE)

    monkeypatch.setattr(Sampler, "__init__", wide)
    wider = vars(certify(model, x, sigma=SIGMA, n=1000))
    assert all(torch.equal(wider[name], one[name]) for name in one)


def test_the_model_is_evaluated_and_left_as_it_was() -> None:
    net = nn.Sequential(nn.BatchNorm2d(1), nn.Dropout(0.5), nn.Flatten(), nn.Linear(16, 2))
    net[1].eval()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    with torch.random.fork_rng():
        certify(net, images(2), sigma=SIGMA, n=300)
        state = torch.random.get_rng_state()
        certify(net, images(2), sigma=SIGMA, n=300)
        assert torch.equal(torch.random.get_rng_state(), state)
    assert [m.training for m in net] == [True, False, True, True]
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_a_model_that_views_its_feature_maps_works_too() -> None:
    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = self.conv(x)
            return self.linear(h.view(len(h), -1))

    found = certify(Viewing(), torch.rand(2, 3, 4, 4), sigma=SIGMA, n=300)
    assert found.n.tolist() == [300, 300]


def test_bfloat16_agrees_up_to_rounding() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    x = images(3)
    full = certify(net, x, sigma=SIGMA, n=2000)
    half = certify(net, x, sigma=SIGMA, n=2000, dtype=torch.bfloat16)
    assert ((full.count - half.count).abs() < 60).all()


@pytest.mark.parametrize("fast", [False, True])
def test_noise_is_added_in_float32_and_the_network_runs_in_bfloat16(fast: bool) -> None:
    kinds: set[tuple[torch.dtype, torch.dtype]] = set()
    fine: list[bool] = []

    def model(x: Tensor) -> Tensor:
        y = layer(x.flatten(1))
        kinds.add((x.dtype, y.dtype))
        fine.append(not torch.equal(x, x.bfloat16().float()))
        return y

    layer = nn.Linear(16, 2)
    certify(model, images(2), sigma=SIGMA, n=300, dtype=torch.bfloat16, fast=fast)
    assert kinds == {(torch.float32, torch.bfloat16)}
    assert all(fine)


def test_a_model_without_logits_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"logits \[batch, classes\].*returned \[2\]"):
        certify(lambda x: x.mean((1, 2, 3)), images(1), sigma=SIGMA, n=500)
    with pytest.raises(InvalidInput, match=r"one tensor of logits .* it returned a tuple"):
        certify(lambda x: (x, x), images(1), sigma=SIGMA, n=500)


def test_a_module_is_sampled_where_its_tensors_are() -> None:
    """Also one that holds buffers only; `meta` stands in for a GPU."""
    assert device_of(HalfSpace().to("meta"), images(1), None).type == "meta"
    assert device_of(nn.Linear(2, 2, device="meta"), images(1), None).type == "meta"
    assert device_of(nn.Flatten(), images(1), None).type == "cpu"


def test_a_device_that_is_not_there_is_one_sentence() -> None:
    assert device_of(nn.Flatten(), images(1), "cpu").type == "cpu"
    with pytest.raises(InvalidInput, match='There is no device "gpu"'):
        certify(HalfSpace(), images(1), sigma=SIGMA, n=100, device="gpu")
    if not torch.cuda.is_available():
        with pytest.raises(InvalidInput, match='"cuda" needs CUDA, which is not available'):
            certify(HalfSpace(), images(1), sigma=SIGMA, n=100, device="cuda")


def test_a_soft_certificate_is_not_of_the_softmax_of_a_softmax() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 10), nn.Softmax(1))
    with pytest.raises(InvalidInput, match="the model returns probabilities"):
        certify(net, images(1), sigma=SIGMA, n=100, soft=True)
    votes = [certify(model, images(2), sigma=SIGMA, n=100).count for model in (net, net[:2])]
    assert torch.equal(*votes)


@pytest.mark.parametrize("options", [{}, {"fast": True}, {"dtype": torch.bfloat16}])
@pytest.mark.parametrize("double", [False, True])
def test_noise_is_that_of_float32_whatever_torch_makes_by_default(
    options: dict[str, Any], double: bool
) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).to(torch.float64 if double else None)
    x, given = images(4), {"sigma": SIGMA, "n": 300, **options}
    expected = vars(certify(net, x, **given))
    torch.set_default_dtype(torch.float64)
    try:
        found = vars(certify(net, x, **given))
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(found[name], expected[name]) for name in found)
