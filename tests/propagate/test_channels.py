"""Deviations, and a Σ over channels scaled or spread over pixels, against plain loops."""

import torch
from oracles import random_covariance

from covprop import PAPER
from covprop.propagate.channels import channel_std, constant_in, expand_pixels, scale_channels


def test_flattened_images_repeat_the_deviation_over_pixels() -> None:
    cov = torch.diag(torch.tensor([1.0, 4.0]))
    assert channel_std(cov, 6).tolist() == [1, 1, 1, 2, 2, 2]


def test_zero_variance_has_a_finite_gradient() -> None:
    cov = torch.zeros(2, 2, requires_grad=True)
    channel_std(cov, 2).sum().backward()
    assert cov.grad is not None
    assert torch.isfinite(cov.grad).all()


def test_deviations_have_the_derivatives_of_a_root_and_keep_no_covariance() -> None:
    kept: list[int] = []

    def note(saved: torch.Tensor) -> torch.Tensor:
        kept.append(saved.untyped_storage().nbytes() // saved.element_size())
        return saved

    cov = random_covariance(5).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
        channel_std(cov, 5)
    assert kept == [5]
    assert torch.autograd.gradcheck(lambda c: channel_std(c, 10), cov)
    assert torch.autograd.gradgradcheck(lambda c: channel_std(c, 10), cov)


def test_pixels_of_a_flattened_image_are_independent() -> None:
    cov = random_covariance(2)
    spread = expand_pixels(cov, 6)
    for a in range(6):
        for b in range(6):
            same_pixel = a % 3 == b % 3
            assert spread[a, b] == (cov[a // 3, b // 3] if same_pixel else 0)
    assert expand_pixels(cov, 2) is cov


def test_scales_of_channels_and_of_features() -> None:
    cov = random_covariance(2)
    scale = torch.arange(1, 7, dtype=torch.float64)
    factor = torch.diag(scale)
    torch.testing.assert_close(
        scale_channels(cov, scale[:2]), factor[:2, :2] @ cov @ factor[:2, :2]
    )
    torch.testing.assert_close(scale_channels(cov, scale), factor @ expand_pixels(cov, 6) @ factor)


def test_a_weight_is_constant_where_the_settings_say_so() -> None:
    weight, cov = torch.ones(2, requires_grad=True), random_covariance(2)
    assert constant_in(weight, cov, PAPER).requires_grad
    held = constant_in(weight, cov, PAPER.but(detach_covariance=True))
    assert not held.requires_grad
    assert held.dtype == cov.dtype
