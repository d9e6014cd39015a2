"""Wrong guesses left unbounded: the same rows for all others, and the same table."""

import math
from dataclasses import fields

import pytest
import torch
from tiny import SIGMA, images, network
from torch import Tensor, nn

from covprop.certify import Certificate, certify, certify_each, sample
from covprop.certify.noise import SELECT, Streams, block_size
from covprop.errors import InvalidInput

LABELS = [0, 1, 2, 0, 1, 2, 0, 1, 2]
QUESTIONS = [{}, {"soft": True}, {"delta": 0.1}, {"at_least": 0.3}, {"soft": True, "delta": 0.2}]


def sharp() -> nn.Module:
    """The same votes, and mean probabilities above one half as well."""
    model = network().eval()
    for parameter in model[4].parameters():
        parameter.data *= 20
    return model


def acr(found: Certificate, labels: list[int]) -> float:
    return float((found.radius * (found.prediction == torch.tensor(labels))).mean())


def guesses(model: nn.Module, x: Tensor, index: list[int], n0: int) -> list[int]:
    """The most frequent class of the first n0 samples, by a plain loop."""
    size, found = block_size(tuple(x.shape[1:])), []
    for i, image in zip(index, x, strict=True):
        streams = Streams([i], seed=4, purpose=SELECT, sigma=SIGMA, device=torch.device("cpu"))
        votes: list[int] = []
        for _ in range(math.ceil(n0 / size)):
            noise = torch.empty(size, *image.shape)
            streams.fill(noise, 0)
            votes += model(image + noise).argmax(1).tolist()
        found.append(int(torch.bincount(torch.tensor(votes[:n0]), minlength=3).argmax()))
    return found


def check_same_but_skipped(full: Certificate, short: Certificate, labels: list[int]) -> None:
    bounded = short.n > 0
    assert 0 < bounded.sum() < len(labels)
    for field in fields(full):
        a, b = getattr(full, field.name), getattr(short, field.name)
        assert torch.equal(a[bounded], b[bounded]), field.name
    y = torch.tensor(labels)
    assert (short.prediction[~bounded] != y[~bounded]).all()
    assert (short.prediction[~bounded] >= 0).all()
    assert (full.prediction[~bounded] != y[~bounded]).all()
    for name in ("radius", "p_lower", "count", "n", "nan"):
        assert (getattr(short, name)[~bounded] == 0).all()
    assert acr(full, labels) == acr(short, labels) > 0


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("options", QUESTIONS)
def test_rows_of_right_guesses_are_those_of_the_full_run(options: dict, fast: bool) -> None:
    model, x = sharp(), images(9)
    index = [4, 9, 2, 0, 7, 30, 1, 12, 5]
    given = {"sigma": SIGMA, "n": 2000, "seed": 4, "index": index, "fast": fast, **options}
    given["batch_size"] = 1100
    full = certify(model, x, **given)
    short = certify(model, x, labels=LABELS, skip_wrong=True, **given)
    check_same_but_skipped(full, short, LABELS)
    sure = full.prediction >= 0
    wrong = full.prediction != torch.tensor(LABELS)
    assert (short.n[sure & wrong] == 0).all()


@pytest.mark.parametrize("batch_size", [256, 1100])  # 3 slots, which images share, and 12
@pytest.mark.parametrize("options", [{}, {"delta": 0.1}])
def test_both_ways_skip_the_same(
    options: dict, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "PHILOX", ("cpu",))
    model, x = network(), images(9)
    labels = [0, 1, 2, 2, 0, 1, 1, 2, 0]
    given = {"sigma": SIGMA, "n": 2000, "labels": labels, "skip_wrong": True, **options}
    plain = certify(model, x, fast=False, **given)
    assert 0 < (plain.n > 0).sum() < 9
    fast = certify(model, x, fast=True, batch_size=batch_size, **given)
    for name in ("prediction", "count", "n", "nan"):
        assert torch.equal(getattr(plain, name), getattr(fast, name)), name


@pytest.mark.parametrize("n0", [100, 7, 300])
def test_the_guess_is_that_of_the_first_samples_and_no_others_are_drawn(n0: int) -> None:
    model, x = network(), images(9)
    index = list(range(9))
    drawn = []
    model.register_forward_pre_hook(lambda layer, args: drawn.append(len(args[0])))
    found = certify(
        model, x, sigma=SIGMA, n0=n0, n=2000, seed=4, labels=torch.tensor(LABELS), skip_wrong=True
    )
    block = block_size(tuple(x.shape[1:]))
    right = int((found.n > 0).sum())
    a_guess, a_bound = (block * math.ceil(n / block) for n in (n0, 2000))
    # 7, as 2, 2 and 3: to learn the number of classes, and that no image depends on its company.
    assert sum(drawn) == 7 + 9 * a_guess + right * a_bound
    guessed = guesses(network().eval(), x, index, n0)
    assert [g == y for g, y in zip(guessed, LABELS, strict=True)] == (found.n > 0).tolist()
    skipped = found.n == 0
    assert found.prediction[skipped].tolist() == torch.tensor(guessed)[skipped].tolist()


@pytest.mark.parametrize("fast", [False, True])
def test_one_by_one(fast: bool) -> None:
    model, x = network(), images(9)
    given = {"sigma": SIGMA, "n": 1000, "labels": LABELS, "skip_wrong": True, "fast": fast}
    whole = certify(model, x, batch_size=1100, **given)
    places = []
    for some, found in certify_each(model, enumerate(x), 9, batch_size=1100, **given):
        places += some
        for field in fields(found):
            assert torch.equal(getattr(found, field.name), getattr(whole, field.name)[some])
    assert sorted(places) == list(range(9))


@pytest.mark.parametrize("fast", [False, True])
def test_all_wrong_and_all_right(fast: bool) -> None:
    model, x = network(), images(4)
    given = {"sigma": SIGMA, "n": 600, "fast": fast}
    none = certify(model, x, labels=[2] * 4, skip_wrong=True, **given)
    assert none.n.tolist() == none.radius.tolist() == [0] * 4
    again = certify(model, x, labels=none.prediction, skip_wrong=True, **given)
    full = certify(model, x, **given)
    assert all(torch.equal(getattr(full, f.name), getattr(again, f.name)) for f in fields(full))
    alone = certify(model, x[0], labels=2, skip_wrong=True, **given)
    assert (alone.n.ndim, int(alone.prediction)) == (0, int(none.prediction[0]))


@pytest.mark.parametrize("fast", [False, True])
def test_nan_while_guessing_is_told(fast: bool) -> None:
    def broken(batch: Tensor) -> Tensor:
        return torch.full((len(batch), 3), torch.nan)

    found = certify(
        broken, images(2), sigma=SIGMA, n=500, labels=[1, 0], skip_wrong=True, fast=fast
    )
    assert found.nan.tolist() == [100, 500]
    assert found.n.tolist() == [0, 500]
    assert found.prediction.tolist() == [0, -1]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (None, "skip_wrong compares every guess with its label"),
        ([1], "2 images need 2 labels, not 1"),
        (torch.tensor([0.0, 1.0]), r"whole numbers, one an image, not float32 \[2\]"),
        (torch.tensor([[0], [1]]), r"one an image, not int64 \[2, 1\]"),
        ([True, False], "not bool"),
        ([3, 1], "count classes from 0 to 2, but one of them is 3"),
        ([0, -1], "one of them is -1"),
    ],
)
def test_labels_are_needed(labels: list[int] | Tensor | None, message: str) -> None:
    given = {"sigma": SIGMA, "n": 500, "num_classes": 3, "labels": labels, "skip_wrong": True}
    with pytest.raises(InvalidInput, match=message):
        certify(network(), images(2), **given)
    with pytest.raises(InvalidInput, match=message):
        next(certify_each(network(), enumerate(images(2)), 2, **given))


def test_labels_that_nothing_would_read_are_refused() -> None:
    given = {"sigma": SIGMA, "n": 500, "labels": [0, 1]}
    with pytest.raises(InvalidInput, match="labels change nothing without skip_wrong=True"):
        certify(network(), images(2), **given)
    with pytest.raises(InvalidInput, match="labels change nothing without skip_wrong=True"):
        next(certify_each(network(), enumerate(images(2)), 2, **given))


def test_nothing_in_nothing_out() -> None:
    found = certify(network(), images(0), sigma=SIGMA, n=500, labels=[], skip_wrong=True)
    assert found.n.shape == (0,)


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"delta": 0.1}])
@pytest.mark.parametrize("compiled", [False, True])
def test_on_a_gpu(options: dict, compiled: bool) -> None:
    """The same noise; a sample next to a boundary may round differently in other company."""
    model, x = sharp().cuda(), images(9)
    given = {"sigma": SIGMA, "n": 5000, "fast": True, "compiled": compiled, **options}
    full = certify(model, x, **given)
    short = certify(model, x, labels=LABELS, skip_wrong=True, **given)
    bounded = short.n > 0
    assert 0 < bounded.sum() < 9
    assert torch.equal(full.prediction[bounded], short.prediction[bounded])
    close = {"atol": 0.1 if options else 0.01, "rtol": 0}
    torch.testing.assert_close(short.radius[bounded], full.radius[bounded], **close)
    assert (short.prediction != torch.tensor(LABELS))[~bounded].all()
    assert (short.radius[~bounded] == 0).all()
