import math

import pytest
import torch
from torch import Tensor, nn

from covprop.methods import Gaussian


@pytest.mark.parametrize("samples", [1, 3])
def test_loss_is_the_mean_cross_entropy_of_the_copies(
    net: nn.Module, batch: tuple[Tensor, Tensor], samples: int
) -> None:
    x, y = batch
    method = Gaussian(sigma=0.5, samples=samples)
    losses = method(net, x, y, epoch=0, generator=torch.Generator().manual_seed(1))
    noise = torch.randn(5, samples, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    for i in range(5):
        total, mean = 0.0, torch.zeros(4)
        for s in range(samples):
            logits = net((x[i] + 0.5 * noise[i, s])[None])[0]
            norm = sum(math.exp(v) for v in logits.tolist())
            total -= math.log(math.exp(logits[y[i]].item()) / norm) / samples
            mean += logits.detach() / samples
        assert losses.per_sample[i].item() == pytest.approx(total, rel=1e-5)
        torch.testing.assert_close(losses.logits[i], mean)
