"""Work recorded as a CUDA graph: what a replay draws, and what goes on beside a recording."""

import threading
import time

import pytest
import torch
from torch import nn

from covprop import cudagraph, noise
from covprop.train.flat import RANDOM

pytestmark = pytest.mark.gpu


def test_a_replay_draws_the_noise_of_its_place() -> None:
    """Own and default generator, seeded between replays; many in another order."""
    generator = torch.Generator("cuda")
    out, dropped = torch.zeros(1000, device="cuda"), torch.zeros(1000, device="cuda")

    def work() -> None:
        out.copy_(torch.randn(1000, generator=generator, device="cuda"))
        out.add_(torch.randn(1000, generator=generator, device="cuda"))
        dropped.copy_(torch.nn.functional.dropout(torch.ones(1000, device="cuda"), 0.5))

    def seed(step: int) -> None:
        generator.manual_seed(noise.seed_of(0, "noise", 0, step))
        torch.cuda.default_generators[0].manual_seed(noise.seed_of(0, "step", 0, step))

    expected = {}
    for step in range(5):
        seed(step)
        work()
        expected[step] = out.clone(), dropped.clone()
    replay = cudagraph.capture(work, None, generator, warmup=2)
    for step in (3, 0, 4, 1, 1, 2):
        seed(step)
        replay()
        assert torch.equal(out, expected[step][0])
        assert torch.equal(dropped, expected[step][1])
    assert not torch.equal(expected[0][0], expected[1][0])
    seed(3)
    work()  # and step by step again
    assert torch.equal(out, expected[3][0])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own parts
def test_a_replay_of_compiled_dropout_draws_as_plain_code_does() -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout2d(nn.functional.dropout(2 * x, 0.5), 0.25)

    net, x = Net(), torch.ones(16, 32, 8, 8, device="cuda")
    out, expected = torch.zeros_like(x), {}
    for step in range(4):
        torch.cuda.manual_seed(step)
        expected[step] = net(x)
    net.compile(dynamic=False, options=RANDOM)
    replay = cudagraph.capture(lambda: out.copy_(net(x)), warmup=2)
    for step in (2, 0, 3, 1, 1):
        torch.cuda.manual_seed(step)
        replay()
        assert torch.equal(out, expected[step])
    assert not torch.equal(expected[0], expected[1])


def test_another_thread_may_pin_memory_while_a_step_is_recorded() -> None:
    """As a data loader does, which allocates when it likes."""
    out, failed, done = torch.zeros(8, device="cuda"), list[Exception](), threading.Event()
    began = threading.Event()

    def pin() -> None:
        size, kept = 1 << 12, []
        while not done.is_set() and len(kept) < 20_000:
            try:
                kept.append(torch.empty(size, pin_memory=True))
            except RuntimeError as error:
                failed.append(error)
                return
            began.set()

    def work() -> None:
        out.add_(1)
        time.sleep(0.2)

    thread = threading.Thread(target=pin)
    thread.start()
    try:
        assert began.wait(30)
        replay = cudagraph.capture(work)
    finally:
        done.set()
        thread.join()
    replay()
    assert not failed
    assert out.tolist() == [1.0] * 8
