"""A recorded and compiled step on a GPU: bf16, channels-last, inside a CUDA graph."""

import pytest
import torch
from oracles import relative
from torch import Tensor

from covprop import methods, models
from covprop.cudagraph import capture
from covprop.train.flat import FlatStep

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the compiler's own parts
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]

SHAPE = (3, 32, 32)


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_compiled_and_captured_gradients_are_those_of_eager_code(norm: str) -> None:
    torch.manual_seed(0)
    last = torch.channels_last
    net = models.build("preact_resnet18", num_classes=10, image_shape=SHAPE, width=16, norm=norm)
    for parameter in net.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)
    net = net.to("cuda", memory_format=last)
    # Clean images, so that one step does what the other does.
    method = methods.build(
        "radius", sigma=0.25, input_shape=SHAPE, estimator="linearized", mean="clean", offset=5.0
    )
    x = torch.rand(32, *SHAPE, device="cuda").contiguous(memory_format=last)
    y = net(x).argmax(1)
    generator = torch.Generator("cuda")

    def work(x: Tensor, y: Tensor, generator: torch.Generator, half: bool = True) -> tuple[Tensor]:
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            losses = method(net, x, y, epoch=0, generator=generator)
        return (losses.per_sample.mean(),)

    def gradient() -> Tensor:
        return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])

    work(x, y, generator, half=False)[0].backward()
    exact = gradient()
    net.zero_grad(set_to_none=True)
    work(x, y, generator)[0].backward()
    eager = gradient()
    step = FlatStep(net, work, [x, y])
    step(x, y, generator=generator)
    allowed = 1.5 * relative(eager, exact)  # what bfloat16 costs in eager code
    assert relative(gradient(), exact) < allowed
    replay = capture(lambda: step(x, y, generator=generator), generator=generator, warmup=3)
    replay()
    torch.cuda.synchronize()
    assert relative(gradient(), exact) < allowed
    weight = net.stem.weight
    assert weight.grad is not None
    assert weight.grad.stride() == weight.stride()
