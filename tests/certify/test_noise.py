"""Streams of noise: a function of (seed, index, purpose), block after block."""

import numpy as np
import pytest
import torch

from covprop.certify.noise import ESTIMATE, SELECT, Streams, block_size


def blocks(index: int, *, seed: int = 0, purpose: str = ESTIMATE, count: int = 3) -> torch.Tensor:
    streams = Streams([index], seed=seed, purpose=purpose, sigma=0.5, device=torch.device("cpu"))
    out = torch.empty(count, 256, 1, 4, 4)
    for block in out:
        streams.fill(block, 0)
    return out


def test_the_same_place_gives_the_same_draws() -> None:
    assert torch.equal(blocks(7), blocks(7))
    assert torch.equal(blocks(7, count=1)[0], blocks(7)[0])


def test_other_places_give_unrelated_draws() -> None:
    draws = [blocks(7), blocks(8), blocks(7, seed=1), blocks(7, purpose=SELECT)]
    flat = np.stack([d.flatten().numpy() for d in draws] + [blocks(7).flip(0).flatten().numpy()])
    correlation = np.corrcoef(flat) - np.eye(5)
    correlation[0, 4] = correlation[4, 0] = 0  # the middle block is the same in both
    assert abs(correlation).max() < 0.05


def test_streams_of_several_images_do_not_mix() -> None:
    both = Streams([7, 8], seed=0, purpose=ESTIMATE, sigma=0.5, device=torch.device("cpu"))
    out = torch.empty(4, 256, 1, 4, 4)
    for k, image in enumerate((1, 0, 0, 1)):
        both.fill(out[k], image)
    assert torch.equal(out[[1, 2]], blocks(7, count=2))
    assert torch.equal(out[[0, 3]], blocks(8, count=2))


def test_draws_are_normal_with_the_right_spread() -> None:
    draws = blocks(3, count=40).flatten()
    assert draws.std().item() == pytest.approx(0.5, rel=0.01)
    assert abs(draws.mean().item()) < 0.005


@pytest.mark.parametrize(
    ("shape", "size"),
    [((1, 8, 8), 256), ((1, 28, 28), 83), ((3, 32, 32), 64), ((3, 224, 224), 16)],
)
def test_block_size(shape: tuple[int, ...], size: int) -> None:
    assert block_size(shape) == size
