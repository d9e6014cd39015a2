"""The linearised margin at noisy points, against autograd point by point."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from covprop.errors import InvalidInput
from covprop.estimate import margin
from covprop.estimate.linearized import linearize, linearized, paired_noise

COPIES = 4


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def points(images: int) -> Tensor:
    """So far apart that the copies of an image do not agree on its class."""
    return 3 * torch.randn(images * COPIES, 1, 3, 3, dtype=torch.float64)


def by_hand(model: nn.Module, point: Tensor, a: int, b: int) -> tuple[float, float]:
    """The margin of class a over b, and the squared norm of its gradient."""
    at = point.clone().requires_grad_(True)
    gap = model(at[None])[0, a] - model(at[None])[0, b]
    gap.backward()
    assert at.grad is not None
    return gap.item(), at.grad.square().sum().item()


def others_best(logits: Tensor, a: int) -> int:
    """The class that a has to win against at one point."""
    return max((b for b in range(len(logits)) if b != a), key=lambda b: float(logits[b]))


def test_copies_share_the_top_class_of_their_mean_and_have_their_own_runner_up() -> None:
    model, at = net(), points(6)
    found = linearize(model, at, 0.5, copies=COPIES)
    own = model(at).argmax(1).view(6, COPIES)
    assert (own != own[:, :1]).any()  # the first copy, or each for itself, would be another answer
    assert len(set(found.runner_up[:COPIES].tolist())) > 1
    for i in range(6):
        rows = slice(i * COPIES, (i + 1) * COPIES)
        logits = model(at[rows]).detach()
        a = int(logits.mean(0).argmax())
        runner_ups = [others_best(row, a) for row in logits]
        assert found.top[rows].tolist() == [a] * COPIES
        assert found.runner_up[rows].tolist() == runner_ups
        for j, b in zip(range(rows.start, rows.stop), runner_ups, strict=True):
            gap, square = by_hand(model, at[j], a, b)
            assert found.gap[j].item() == pytest.approx(gap, rel=1e-9)
            assert found.var[j].item() == pytest.approx(0.25 * square, rel=1e-9)


def test_noisy_points_are_averaged_image_by_image() -> None:
    model, sigma = net(), 0.8
    x = torch.rand(5, 1, 3, 3, dtype=torch.float64)
    torch.manual_seed(1)
    found = linearized(model, x, sigma, samples=COPIES)
    torch.manual_seed(1)
    noise = torch.randn(5, COPIES // 2, 1, 3, 3, dtype=torch.float64)
    at = torch.stack([x[:, None] + sigma * noise, x[:, None] - sigma * noise], 2).flatten(0, 2)
    for i in range(5):
        copies = at[i * COPIES : (i + 1) * COPIES]
        a, b = model(copies).mean(0).topk(2).indices.tolist()
        each = [by_hand(model, p, a, others_best(model(p[None])[0].detach(), a)) for p in copies]
        mean = sum(gap for gap, _ in each) / COPIES
        var = sigma**2 * sum(square for _, square in each) / COPIES
        assert (found.top[i].item(), found.runner_up[i].item()) == (a, b)
        assert found.mean[i].item() == pytest.approx(mean, rel=1e-9)
        assert found.var[i].item() == pytest.approx(var, rel=1e-9)
        assert found.radius[i].item() == pytest.approx(sigma * mean / var**0.5, rel=1e-9)


@pytest.mark.parametrize("samples", [1, 2, 3, 4])
def test_noise_comes_in_pairs_that_cancel(samples: int) -> None:
    x = torch.zeros(3, 1, 5, 5, dtype=torch.float64)
    noise = paired_noise(x, samples).view(3, samples, 25)
    for first in range(0, samples - 1, 2):
        assert torch.equal(noise[:, first], -noise[:, first + 1])
    fresh = noise[:, ::2].flatten(0, 1)
    assert len(torch.unique(fresh, dim=0)) == len(fresh)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(25, 2)).double()
    found, clean = linearized(linear, x, 0.5, samples=2), linearized(linear, x, 0.5)
    torch.testing.assert_close(found.radius, clean.radius)  # exact for two classes that are linear


@pytest.mark.parametrize("outer", [True, False])
def test_the_graph_is_kept_where_it_is_asked_for(outer: bool) -> None:
    model, at = net(), points(1)
    with torch.set_grad_enabled(outer):
        plain, kept = linearize(model, at, 0.5), linearize(model, at, 0.5, create_graph=True)
    assert not any(value.requires_grad for value in plain)
    assert [value.requires_grad for value in kept] == [True, True, True, False, False]
    assert all(p.grad is None for p in model.parameters())
    assert not at.requires_grad


def test_half_precision_logits_are_subtracted_in_float32() -> None:
    model, at = net().bfloat16(), points(2).bfloat16()
    found = linearize(model, at, 0.5)
    first, second = model(at).float().topk(2).values.unbind(1)
    assert found.gap.dtype == found.var.dtype == torch.float32
    torch.testing.assert_close(found.gap, (first - second).detach(), rtol=0, atol=0)


def test_stride_padding_and_dilation_may_differ_by_direction() -> None:
    conv = nn.Conv2d(1, 2, (2, 3), stride=(1, 2), padding=(0, 1), dilation=(2, 1))
    model = nn.Sequential(conv, nn.Flatten(), nn.Linear(18, 3)).double()
    at = torch.randn(4, 1, 5, 6, dtype=torch.float64)
    found = linearize(model, at, 0.5)
    for i, (a, b) in enumerate(zip(found.top.tolist(), found.runner_up.tolist(), strict=True)):
        gap, square = by_hand(model, at[i], a, b)
        assert found.gap[i].item() == pytest.approx(gap, rel=1e-9)
        assert found.var[i].item() == pytest.approx(0.25 * square, rel=1e-9)


def test_a_margin_is_that_of_evaluation() -> None:
    model, x = nn.Sequential(nn.Dropout(0.5), net()), torch.rand(3, 1, 3, 3, dtype=torch.float64)
    found = margin(model.train(), x, 0.5)
    assert model.training
    torch.testing.assert_close(found, margin(model[1].eval(), x, 0.5), rtol=0, atol=0)


class Attention(nn.Module):
    """Three tokens that look at each other, by torch's fused kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Linear(3, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.tokens(x).chunk(3, -1)
        return self.head(nn.functional.scaled_dot_product_attention(q, k, v).flatten(1))


def test_a_network_with_attention_trains_on_its_radius() -> None:
    """The fused kernels have no second derivative; against differences of the variance itself."""
    model, x = Attention().double(), torch.rand(2, 1, 3, 3, dtype=torch.float64)
    weight = model.tokens.weight
    linearize(model, x, 0.5, create_graph=True).var.sum().backward()
    assert weight.grad is not None
    step = 1e-5 * torch.randn_like(weight)
    ends = []
    for sign in (1, -1):
        with torch.no_grad():
            weight.add_(step, alpha=sign)
        ends.append(linearize(model, x, 0.5).var.sum())
        with torch.no_grad():
            weight.sub_(step, alpha=sign)
    torch.testing.assert_close(
        (weight.grad * step).sum(), (ends[0] - ends[1]) / 2, rtol=1e-5, atol=0
    )


def test_the_radius_is_that_of_winning_against_all_classes() -> None:
    """Two others that are in the way alternately: neither alone tells how often the class wins."""

    class Alternating(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            u = x.flatten(1)[:, :1]
            return torch.cat([torch.ones_like(u), 2 * u, -2 * u], 1)

    x = torch.zeros(1, 1, 1, 1, dtype=torch.float64)
    torch.manual_seed(0)
    found = margin(Alternating(), x, 0.5, samples=20_000, value_range=None)
    # 1 − 2|u| with u ~ N(0, ½²): mean 1 − 2 σ √(2/π), and a slope of 2 everywhere.
    assert found.mean.item() == pytest.approx(1 - (2 / torch.pi) ** 0.5, abs=0.02)
    assert found.var.item() == pytest.approx(1.0)
    assert found.top.item() == 0


def test_inference_mode_does_not_take_the_gradient_away() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).eval()
    x = torch.rand(2, 1, 2, 2)
    with torch.inference_mode():
        found = margin(net, x.clone(), 0.5)
    torch.testing.assert_close(found.radius, margin(net, x, 0.5).radius)


class Frozen(nn.Module):
    """Features that forward cuts off from the gradient, and some that it does not."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.first, self.last, self.share = nn.Linear(9, 8), nn.Linear(8, 3), share

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x.flatten(1))
        with torch.no_grad():
            cut = h * (1 - self.share)
        return self.last(cut + self.share * h if self.share else cut)


def test_a_network_without_a_gradient_is_one_sentence() -> None:
    x = torch.rand(2, 1, 3, 3)
    with pytest.raises(
        InvalidInput, match=r"^the logits of Frozen .* requires_grad_\(False\) .*\.$"
    ):
        margin(Frozen(0.0), x, 0.5)
    assert margin(Frozen(0.0), x, 0.5, "sampled").radius.isfinite().all()


def test_what_is_cut_off_has_no_noise_as_the_docstring_says() -> None:
    torch.manual_seed(0)
    model, whole = Frozen(0.5), Frozen(1.0)
    whole.load_state_dict(model.state_dict())
    x = torch.rand(2, 1, 3, 3)
    half, full = (margin(net, x, 0.5).radius for net in (model, whole))
    torch.testing.assert_close(half, 2 * full)


@pytest.mark.parametrize("said", ["CUDA error: unspecified launch failure", "CUDA out of memory."])
@pytest.mark.parametrize("estimator", ["linearized", "sampled"])
def test_a_machine_that_failed_is_no_fault_of_the_network(said: str, estimator: str) -> None:
    class Failing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError(said)

    with pytest.raises(RuntimeError, match=said):
        margin(Failing(), torch.rand(2, 1, 2, 2), sigma=0.25, estimator=estimator)


class PerImage(nn.Module):
    """Instance norm as AdaIN has it written: a batch norm of all channels of all images."""

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        out = nn.functional.batch_norm(x.reshape(1, b * c, h, w), None, None, training=True)
        return out.view(b, c, h, w)


def test_a_norm_of_one_image_moves_with_the_image() -> None:
    """It was taken for a norm of the batch in training, whose statistics are held still."""

    def network(norm: nn.Module) -> nn.Module:
        torch.manual_seed(0)
        conv, head = nn.Conv2d(3, 8, 3), nn.Linear(8, 5)
        layers = (conv, norm, nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
        return nn.Sequential(*layers).double().eval()

    x = torch.rand(3, 3, 8, 8, dtype=torch.float64)
    expected = margin(network(nn.InstanceNorm2d(8)), x, 0.1)
    torch.testing.assert_close(margin(network(PerImage()), x, 0.1), expected)


def test_a_model_may_change_its_image_in_place() -> None:
    class Normalised(nn.Module):
        def __init__(self, in_place: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.in_place, self.inside = in_place, nn.Linear(12, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = x.sub_(0.5).div_(0.25) if self.in_place else (x - 0.5) / 0.25
            return self.inside(x.flatten(1))

    x = torch.rand(3, 3, 2, 2)
    before = x.clone()
    found = margin(Normalised(in_place=True), x, 0.25)
    assert torch.equal(x, before)
    torch.testing.assert_close(found, margin(Normalised(in_place=False), x, 0.25))


def test_a_norm_in_training_within_a_checkpoint_is_refused() -> None:
    """What runs again in the backward pass is torch's norm: radii were wrong a hundredfold."""

    class Saving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unit = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4))
            self.head = nn.Linear(144, 5)

        def forward(self, x: Tensor) -> Tensor:
            h = checkpoint(self.unit, x, use_reentrant=False)
            return self.head(torch.relu(h).flatten(1))

    net, x = Saving(), torch.rand(4, 3, 8, 8)
    with pytest.raises(InvalidInput, match=r"^linearized does not go with batch norm in training"):
        margin(net, x, 0.25, create_graph=True)
    whole = nn.Sequential(net.unit, nn.ReLU(), nn.Flatten(), net.head).eval()
    found = margin(net.eval(), x, 0.25, create_graph=True)
    torch.testing.assert_close(found, margin(whole, x, 0.25, create_graph=True))
