"""Noise depends on its place only, not on history or on the number of processes."""

import torch

from covprop.noise import randn_like, seed_of, stream


def test_places_have_their_own_seeds() -> None:
    seeds = {
        seed_of(s, p, e, k) for s in range(3) for p in "ab" for e in range(5) for k in range(5)
    }
    assert len(seeds) == 150
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seed_of(1, 23) != seed_of(12, 3)


def test_any_number_of_processes_draws_the_same_noise() -> None:
    x = torch.zeros(12, 3, 4)
    whole = [randn_like(x, g) for g in [stream(5, "noise")] for _ in range(2)]
    for world in (2, 3, 4):
        shares = x.chunk(world)
        generators = [stream(5, "noise", rank=rank, world=world) for rank in range(world)]
        for draw in whole:
            parts = [randn_like(s, g) for s, g in zip(shares, generators, strict=True)]
            assert torch.equal(torch.cat(parts), draw)


def test_a_plain_generator_works() -> None:
    one, two = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    assert torch.equal(randn_like(torch.zeros(4, 2), one), torch.randn(4, 2, generator=two))
