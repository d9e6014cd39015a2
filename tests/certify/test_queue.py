"""The queue that fills passes: no sample twice, none left out, hardly any empty place."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from covprop.certify.bounds import Looks, Question, looks
from covprop.certify.engine import Job
from covprop.certify.fast import Certifying
from covprop.certify.noise import ESTIMATE, SELECT
from covprop.certify.queue import Image, run
from covprop.noise import seed_of


class Coins:
    """An engine whose classifier is a coin for every image: class 0 with probability p[index]."""

    def __init__(self, p: np.ndarray, block: int = 64, width: int = 32) -> None:
        self.p, self.block, self.width, self.slots, self.soft = p, block, width, 3 * width, False
        self.rng = np.random.default_rng(0)
        self.counts = np.zeros((self.slots, 3), dtype=np.int64)
        self.index = np.zeros(self.slots, dtype=np.int64)
        self.passes = self.wanted = self.partial = 0
        self.kept: list[np.ndarray] = []

    def load(self, slot: int, x: Tensor | None, seed: int) -> None:
        if x is not None:
            self.index[slot] = int(x)
        self.counts[slot] = 0

    def submit(self, jobs: list[Job]) -> None:
        assert 0 < len(jobs) <= self.width
        for job in jobs:
            heads = self.rng.binomial(job.taken, self.p[self.index[job.slot]])
            assert self.counts[job.slot].sum() == job.first  # no sample twice, none left out
            self.counts[job.slot, :2] += heads, job.taken - heads
        self.passes += 1
        self.partial += len(jobs) < self.width
        self.wanted += sum(job.taken for job in jobs)
        self.kept.append(self.counts.copy())

    def collect(self) -> tuple[np.ndarray, None]:
        return self.kept.pop(0), None

    @property
    def fill(self) -> float:
        return self.wanted / (self.passes * self.width * self.block)


def usual_p(count: int, sigma: float) -> np.ndarray:
    """Like published certificates: 9 % abstain, 17 % at the ceiling, radii in between."""
    rng = np.random.default_rng(1)
    kind, radius = rng.random(count), rng.random(count) * 0.97
    radius = np.where(kind < 0.09, -0.3 * radius, np.where(kind < 0.26, 1.2, radius))
    return stats.norm.cdf(radius / sigma)


def simulate(p: np.ndarray, question: Question | None, sigma: float = 0.25) -> Coins:
    engine = Coins(p)
    plan = looks(100_000, 0.001, sequential=question is not None, step=64)
    procedure = Certifying(100, plan, sigma=sigma, question=question, soft=False)
    source = iter([(i, torch.tensor(i)) for i in range(len(p))])
    done: list[Image] = []
    for settled in run(engine, source, procedure, seed=0):  # type: ignore[arg-type]
        procedure.found(settled)
        done += settled
    assert sorted(image.index for image in done) == list(range(len(p)))
    assert all(image.tally.counts.sum() == image.target for image in done)  # type: ignore[union-attr]
    return engine


@pytest.mark.parametrize(
    ("question", "least"),
    [
        (None, 0.99),
        (Question(delta=0.05), 0.98),
        (Question(at_least=(0.5,)), 0.95),
        (Question(at_least=(0.25, 0.5, 0.75)), 0.98),
    ],
)
def test_passes_are_full(question: Question | None, least: float) -> None:
    engine = simulate(usual_p(60 if question is None else 500, 0.25), question)
    print(question, engine.fill, engine.passes, engine.partial)
    assert engine.fill > least


def test_an_answer_settles_as_soon_as_it_is_known() -> None:
    """With room for all, nothing waits for anything but its own samples."""
    plan = Looks((64, 128), (0.0005, 0.0005))
    procedure = Certifying(64, plan, sigma=1.0, question=Question(at_least=(0.1,)), soft=False)
    engine = Coins(np.array([1.0, 0.5]))
    order = [
        [image.index for image in settled]
        for settled in run(engine, iter([(0, torch.tensor(0)), (1, torch.tensor(1))]), procedure, 0)  # type: ignore[arg-type]
    ]
    assert order == [[0], [1]]


def test_streams_of_purposes_and_images_differ() -> None:
    keys = {seed_of(0, "certify", purpose, i) for purpose in (SELECT, ESTIMATE) for i in range(9)}
    assert len(keys) == 18
