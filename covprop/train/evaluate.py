"""A cheap look at the base classifier: how often it is right, with and without noise."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor, nn

from covprop import noise
from covprop.data import AnyImages, batches
from covprop.mode import switched
from covprop.train.distributed import World
from covprop.train.recipe import Recipe


@torch.no_grad()
def accuracy(model: nn.Module, data: AnyImages, recipe: Recipe, here: World) -> tuple[float, float]:
    """(under one draw of noise per image, clean) accuracy of `model` itself.

    This is neither the smoothed classifier's accuracy nor a certificate; the noise is the same
    at every call, so that epochs can be compared.
    """
    # A compiled network would be compiled anew for this mode, and again for the last batch.
    eager = recipe.train.compile is True
    with (
        switched(model, training=False),
        torch.compiler.set_stance("force_eager") if eager else nullcontext(),
    ):
        right = _right(model, data, recipe, here)
    under_noise, without = (here.sum(right) / len(data)).tolist()
    return under_noise, without


def _right(model: nn.Module, data: AnyImages, recipe: Recipe, here: World) -> Tensor:
    """How many images of this process are classified right, (under noise, clean)."""
    options, size = recipe.train, recipe.train.batch_size
    right = torch.zeros(2, dtype=torch.float64, device=here.device)
    for step, batch in enumerate(
        batches(
            data,
            size,
            epoch=0,
            seed=options.seed,
            device=here.device,
            rank=here.rank,
            world=here.size,
            workers=recipe.data.workers,
            shuffle=False,
        )
    ):
        if not len(batch.y):
            continue  # the last batch may be smaller than the number of processes
        # Drawn for the whole batch and picked by position: the same for any number of processes.
        generator = noise.stream(options.seed, "test noise", step, device=here.device)
        draw = torch.randn((size, *batch.x.shape[1:]), generator=generator, device=here.device)
        mine = draw[batch.index.to(here.device) - step * size]
        with torch.autocast(here.device.type, torch.bfloat16, options.precision == "bf16"):
            noisy = model(batch.x + recipe.noise.sigma * mine)
            clean = model(batch.x)
        right[0] += (noisy.argmax(1) == batch.y).sum()
        right[1] += (clean.argmax(1) == batch.y).sum()
    return right
