import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import covprop
from covprop import data
from covprop.errors import InvalidInput
from covprop.explore import compute, layers
from covprop.explore.compute import BLOCK, SAMPLES, Explorer
from covprop.noise import seed_of

INDEX, SIGMA = 7, 0.4


def picture(address: str) -> np.ndarray:
    kind, _, text = address.partition(",")
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))


def image(index: int) -> Tensor:
    digits = data.load("digits", "test")
    batch = next(data.batches(digits, 360, epoch=0, seed=0, device="cpu", shuffle=False))
    return batch.x[index : index + 1]


def draws(index: int, draw: int, n: int) -> Tensor:
    """The noise of a view, drawn by hand."""
    generator = torch.Generator().manual_seed(seed_of("explore", draw, index))
    blocks = [torch.randn(BLOCK, 1, 8, 8, generator=generator) for _ in range(-(-n // BLOCK))]
    return torch.cat(blocks)[:n]


def same(found: dict, expected: covprop.Margin, sigma: float) -> None:
    expected = covprop.Margin(*(value.detach() for value in expected))
    assert (found["top"], found["runner_up"]) == (int(expected.top), int(expected.runner_up))
    assert found["mean"] == pytest.approx(float(expected.mean), rel=1e-4)
    assert found["sd"] == pytest.approx(float(expected.var) ** 0.5, rel=1e-4)
    assert found["estimated_radius"] == pytest.approx(float(expected.radius), rel=1e-4)
    z = float(expected.radius) / sigma
    normal = torch.distributions.Normal(0.0, 1.0).cdf(torch.tensor(z))
    assert found["probability"] == pytest.approx(float(normal), abs=1e-4)


@pytest.mark.parametrize("sigma", [0.25, 0.4])
def test_estimates_are_those_of_margin(explorer: Explorer, model: nn.Module, sigma: float) -> None:
    explorer.estimates(INDEX, 0.1)  # another σ before leaves nothing behind
    found = explorer.estimates(INDEX, sigma)["margins"]
    assert list(found) == ["shared", "linearized"]
    for name, numbers in found.items():
        same(numbers, covprop.margin(model, image(INDEX), sigma, name), sigma)


def test_the_closed_form_probability_is_that_of_the_propagator(
    explorer: Explorer, model: nn.Module
) -> None:
    with torch.no_grad():
        out = covprop.Propagator(model, SIGMA, (1, 8, 8))(image(INDEX))
    found = explorer.estimates(INDEX, SIGMA)["margins"]["shared"]["probability"]
    assert found == pytest.approx(covprop.top_two_probability(out).item(), rel=1e-4)


def test_the_calibrated_estimate_is_that_of_margin(explorer: Explorer, model: nn.Module) -> None:
    before = torch.get_rng_state()
    found = explorer.calibrated(INDEX, SIGMA)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(seed_of("explore", "calibrate", INDEX))
    same(found["margin"], covprop.margin(model, image(INDEX), SIGMA, "calibrated"), SIGMA)


def test_ellipses_give_the_margins_variance(explorer: Explorer) -> None:
    """The variance of u_a − u_b, from the 2 × 2 covariance and from the margin."""
    views = (explorer.estimates(index, 0.1) for index in range(20))
    agree = (v for v in views if v["margins"]["linearized"]["runner_up"] == v["pair"][1])
    found = next(agree)
    for name in ("shared", "linearized"):
        ellipse, margin = found["ellipses"][name], found["margins"][name]
        assert [margin["top"], margin["runner_up"]] == found["pair"]
        (p, q), (_, r) = ellipse["cov"]
        assert p + r - 2 * q == pytest.approx(margin["sd"] ** 2, rel=1e-3)
        assert ellipse["mean"][0] - ellipse["mean"][1] == pytest.approx(margin["mean"], rel=1e-3)


def test_pictures_are_the_image_and_the_image_with_the_draw(explorer: Explorer) -> None:
    found = explorer.estimates(INDEX, SIGMA, draw=3)
    x = image(INDEX)[0, 0]
    np.testing.assert_array_equal(picture(found["clean"]), (255 * x).round().byte().numpy())
    noisy = (x + SIGMA * draws(INDEX, 3, 1)[0, 0]).clamp(0, 1)
    np.testing.assert_array_equal(picture(found["noisy"]), (255 * noisy).round().byte().numpy())
    assert found["label"] == int(data.load("digits", "test").labels[INDEX])
    assert found["noisy"] != explorer.estimates(INDEX, SIGMA, draw=4)["noisy"]


def test_samples_are_what_the_network_says_of_noisy_copies(
    explorer: Explorer, model: nn.Module
) -> None:
    n = 100  # not a multiple of the block
    found = explorer.samples(INDEX, SIGMA, draw=2, n=n)
    with torch.no_grad():
        logits = model(image(INDEX) + SIGMA * draws(INDEX, 2, n))
    counts = torch.bincount(logits.argmax(1), minlength=10)
    assert dict(map(tuple, found["votes"])) == dict(enumerate(counts.tolist()))
    assert found["votes"] == sorted(found["votes"], key=lambda v: -v[1])
    two = logits[:, found["pair"]]
    torch.testing.assert_close(torch.tensor(found["logits"]["dots"]), two, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found["logits"]["cov"], np.cov(two.T.numpy()), rtol=1e-3)
    assert found["nan"] == 0


def test_a_layer_is_that_of_the_network_and_of_the_propagator(
    explorer: Explorer, model: nn.Module
) -> None:
    names = [layer.name for layer in explorer.inside.layers]
    layer = names.index("1.conv2")
    seen: list[Tensor] = []
    hook = model.get_submodule("1.conv2").register_forward_hook(lambda m, a, out: seen.append(out))
    with torch.no_grad():
        model(image(INDEX) + SIGMA * draws(INDEX, 0, 64))
    hook.remove()
    found = explorer.estimates(INDEX, SIGMA, layer=layer)["layer"]
    a, b = found["channels"]
    y, x = found["place"]
    assert [y, x] == [size // 2 for size in seen[0].shape[2:]]
    expected = seen[0][:, [a, b], y, x]
    dots = explorer.samples(INDEX, SIGMA, n=64, layer=layer, channels=(a, b))["layer"]["dots"]
    torch.testing.assert_close(torch.tensor(dots), expected, rtol=1e-3, atol=1e-3)
    cov = covprop.Propagator(model, SIGMA, (1, 8, 8)).covariances()[
        explorer.inside.layers[layer].slot
    ]
    assert cov is not None
    assert {a, b} == set(torch.diagonal(cov).topk(2).indices.tolist())
    torch.testing.assert_close(
        torch.tensor(found["cov"]), cov[[a, b]][:, [a, b]].detach(), rtol=1e-3, atol=1e-5
    )


def test_a_layer_is_seen_before_the_next_one_works_in_place() -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(1, 4, 3)
    rest = (nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 10))
    explorer = Explorer(nn.Sequential(conv, *rest), data.load("digits", "test"), 0.25)
    found = explorer.samples(INDEX, SIGMA, n=32, layer=0, channels=(0, 1))["layer"]["dots"]
    with torch.no_grad():
        expected = conv(image(INDEX) + SIGMA * draws(INDEX, 0, 32))[:, :2, 3, 3]
    assert (expected < 0).any()
    torch.testing.assert_close(torch.tensor(found), expected, rtol=1e-3, atol=1e-4)


def test_every_layer_can_be_shown_and_the_last_is_the_logits(explorer: Explorer) -> None:
    for k, layer in enumerate(explorer.inside.layers):
        found = explorer.estimates(INDEX, SIGMA, layer=k, channels=(0, 1))["layer"]
        cloud = explorer.samples(INDEX, SIGMA, n=32, layer=k, channels=(0, 1))["layer"]
        assert len(found["mean"]) == 2, layer
        assert len(cloud["dots"]) == 32, layer
    out = covprop.Propagator(explorer.model, SIGMA, (1, 8, 8))(image(INDEX))
    torch.testing.assert_close(
        torch.tensor(found["mean"]), out.mean[0, :2].detach(), rtol=1e-3, atol=1e-4
    )


def test_a_model_without_rules_is_explored_by_sampling() -> None:
    class Sorted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(x.flatten(1).sort(1).values)

    explorer = Explorer(Sorted(), data.load("digits", "test"), 0.25)
    assert "sort" in explorer.about()["fault"]
    assert explorer.about()["layers"] == []
    assert list(explorer.estimates(INDEX, SIGMA)["margins"]) == ["linearized"]
    assert explorer.samples(INDEX, SIGMA, n=32)["n"] == 32
    with pytest.raises(InvalidInput, match="sort"):
        explorer.calibrated(INDEX, SIGMA)


def test_a_network_that_asks_for_the_image_is_propagated_with_it() -> None:
    """The covariance after a Hermite expansion depends on the mean before it."""
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), covprop.HermiteActivation(), nn.Flatten(), nn.Linear(144, 10)
    ).eval()
    found = Explorer(model, data.load("digits", "test"), 0.25).estimates(INDEX, SIGMA, layer=1)
    same(found["margins"]["shared"], covprop.margin(model, image(INDEX), SIGMA, "shared"), SIGMA)
    assert len(found["layer"]["mean"]) == 2


def test_what_is_kept_stays_within_its_limit(
    explorer: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    explorer.estimates(INDEX, 0.2)
    size = next(iter(explorer.inside._cache.values())).size()
    monkeypatch.setattr(layers, "CACHE_BYTES", 3 * size)
    for sigma in (0.3, 0.4, 0.5, 0.2, 0.6):
        explorer.estimates(INDEX, sigma)
    assert list(explorer.inside._cache) == [0.5, 0.2, 0.6]


def test_thumbnails_come_a_page_at_a_time(explorer: Explorer) -> None:
    found = explorer.thumbnails(350)
    assert len(found["pictures"]) == 10  # of 360
    np.testing.assert_array_equal(
        picture(found["pictures"][0]), explorer.images.images[350, 0].numpy()
    )


def test_as_many_samples_as_the_machine_affords(
    explorer: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute, "LIVE_SECONDS", 0.0)
    assert explorer._affordable() == SAMPLES[0]
    monkeypatch.setattr(compute, "LIVE_SECONDS", 1e6)
    assert explorer._affordable() == SAMPLES[-2]


def test_slips_are_one_sentence(explorer: Explorer) -> None:
    for index in (-1, 360):
        with pytest.raises(InvalidInput, match="0 to 359"):
            explorer.estimates(index, SIGMA)
    with pytest.raises(InvalidInput, match="no layer 99"):
        explorer.estimates(INDEX, SIGMA, layer=99)
    for channels in ((0, 0), (0, 4000)):
        with pytest.raises(InvalidInput, match="two different"):
            explorer.samples(INDEX, SIGMA, layer=0, channels=channels)


def test_the_model_is_left_alone(explorer: Explorer, model: nn.Module) -> None:
    before = {k: v.clone() for k, v in model.state_dict().items()}
    explorer.estimates(INDEX, SIGMA, layer=0)
    explorer.calibrated(INDEX, SIGMA)
    explorer.samples(INDEX, SIGMA, layer=0)
    assert list(before) == list(model.state_dict())
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in before.items())
