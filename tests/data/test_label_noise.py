"""Labels made wrong: the matrices, their draw, and the files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from covprop.data import label_noise as ln
from covprop.errors import InvalidInput


def test_pair_flip_by_hand() -> None:
    by_hand = [[0.55, 0.45, 0, 0], [0, 0.55, 0.45, 0], [0, 0, 0.55, 0.45], [0.45, 0, 0, 0.55]]
    np.testing.assert_allclose(ln.pair(4, 0.45), by_hand)


def test_symmetric_by_hand() -> None:
    by_hand = [
        [0.7, 0.1, 0.1, 0.1],
        [0.1, 0.7, 0.1, 0.1],
        [0.1, 0.1, 0.7, 0.1],
        [0.1, 0.1, 0.1, 0.7],
    ]
    np.testing.assert_allclose(ln.symmetric(4, 0.3), by_hand)


@given(st.integers(2, 30), st.floats(0, 1))
def test_rows_are_distributions(classes: int, rate: float) -> None:
    for make in (ln.pair, ln.symmetric):
        matrix = make(classes, rate)
        np.testing.assert_allclose(matrix.sum(1), 1)
        np.testing.assert_allclose(np.diagonal(matrix), 1 - rate)
        assert (matrix >= 0).all()


@pytest.mark.parametrize("rate", [-0.1, 1.1])
def test_a_rate_is_a_share(rate: float) -> None:
    with pytest.raises(InvalidInput, match="between 0 and 1"):
        ln.pair(3, rate)


def test_labels_follow_the_matrix() -> None:
    """Observed frequencies against the matrix, within five standard errors."""
    truth = torch.arange(3).repeat_interleave(20_000)
    matrix = np.array([[0.5, 0.5, 0.0], [0.1, 0.8, 0.1], [0.0, 0.3, 0.7]])
    given_ = ln.draw(truth, matrix, seed=3)
    for i in range(3):
        seen = torch.bincount(given_[truth == i], minlength=3).double() / 20_000
        error = np.sqrt(matrix[i] * (1 - matrix[i]) / 20_000)
        assert (np.abs(seen.numpy() - matrix[i]) <= 5 * error).all()
        assert (seen.numpy()[matrix[i] == 0] == 0).all()


class Sizes(TorchDispatchMode):
    """Notes how large the largest tensor is."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **kwargs or {})
        made = out if isinstance(out, tuple | list) else [out]
        self.largest = max([self.largest, *(v.numel() for v in made if torch.is_tensor(v))])
        return out


def test_no_draw_needs_a_table_of_images_times_classes() -> None:
    images, classes = 5000, 100
    truth = torch.randint(classes, (images,), generator=torch.Generator().manual_seed(0))
    matrix = np.random.default_rng(0).dirichlet(np.full(classes, 0.3), classes)
    with Sizes() as sizes:
        drawn = ln.draw(truth, matrix, seed=4)
    assert sizes.largest == classes**2
    uniform = torch.rand(images, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    steps = np.cumsum(matrix, axis=1)[truth]  # the definition: where the number falls
    expected = (uniform.numpy()[:, None] >= steps).sum(1)
    assert drawn.tolist() == np.minimum(expected, classes - 1).tolist()


def test_a_number_on_a_step_belongs_to_the_class_above_it() -> None:
    step = float(torch.rand(1, dtype=torch.float64, generator=torch.Generator().manual_seed(4)))
    assert ln.draw(torch.tensor([0]), np.array([[step, 1 - step], [0, 1]]), seed=4).item() == 1


def test_the_seed_and_the_place_alone_decide() -> None:
    truth = torch.arange(10).repeat(50)
    one = ln.draw(truth, ln.pair(10, 0.45), seed=1)
    assert torch.equal(one, ln.draw(truth, ln.pair(10, 0.45), seed=1))
    assert not torch.equal(one, ln.draw(truth, ln.pair(10, 0.45), seed=2))
    before = torch.random.get_rng_state()
    ln.draw(truth, ln.pair(10, 0.45), seed=1)
    assert torch.equal(before, torch.random.get_rng_state())
    # A higher rate keeps what a lower one made wrong.
    lower = ln.draw(truth, ln.pair(10, 0.2), seed=1) != truth
    assert ((one != truth) | ~lower).all()


def test_the_recipe_s_seed_reaches_the_draw() -> None:
    own = torch.arange(10).repeat(50)
    for seed in (0, 5):
        expected = ln.draw(own, ln.pair(10, 0.45), seed=seed)
        assert torch.equal(ln.corrupt(own, 10, name="pair", rate=0.45, seed=seed).noisy, expected)


def test_what_rounding_leaves_over_is_the_last_class_s() -> None:
    short = np.array([[0.5, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]])  # much too short, to see
    given_ = ln.draw(torch.tensor([0] * 100 + [1] * 100 + [2]), short, seed=0)
    assert set(given_[:100].tolist()) == {0, 2}
    assert set(given_[100:].tolist()) == {2}


def test_a_table_is_sorted_by_number(tmp_path: Path) -> None:
    rows = [f"{i},{i % 3}" for i in (10, 2, 1, 0, 9, 8, 3, 4, 5, 7, 6)]
    (tmp_path / "a.csv").write_text("\n".join(["index,noisy", *rows]))
    assert ln.read_labels(tmp_path / "a.csv", 11, 3).tolist() == [i % 3 for i in range(11)]


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".txt"])
def test_an_own_matrix_from_a_file(tmp_path: Path, suffix: str) -> None:
    matrix, path = np.array([[0.9, 0.1], [0.4, 0.6]]), tmp_path / f"matrix{suffix}"
    if suffix == ".npy":
        np.save(path, matrix)
    else:
        path.write_text("0.9,0.1\n0.4, 0.6\n" if suffix == ".csv" else "0.9 0.1\n0.4 0.6\n")
    np.testing.assert_allclose(ln.read_matrix(path, 2), matrix)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("1 0\n0 1\n", r"shape \[2, 2\]; 3 classes"),
        ("1 0 0\n0 1 0\n0 0.5 0.4\n", "row 2 is no probability"),
        ("1 0 0\n0 2 -1\n0 0 1\n", "row 1 is no probability"),
        ("one two\n", "cannot be read"),
    ],
)
def test_a_matrix_that_is_none(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "m.txt").write_text(text)
    with pytest.raises(InvalidInput, match=what):
        ln.read_matrix(tmp_path / "m.txt", 3)
    with pytest.raises(InvalidInput, match="cannot be read"):
        ln.read_matrix(tmp_path / "absent.npy", 3)


def test_given_labels_from_every_kind_of_file(tmp_path: Path) -> None:
    labels = np.array([2, 0, 1, 1])
    np.save(tmp_path / "a.npy", labels)
    np.savez(tmp_path / "b.npz", noisy=labels, labels=labels * 0)
    (tmp_path / "c.csv").write_text("index,label\n1,0\n0,2\n3,1\n2,1\n")
    (tmp_path / "d.tsv").write_text("noisy\tother\n2\t9\n0\t9\n1\t9\n1\t9\n")
    (tmp_path / "e.txt").write_text("2\n0\n1\n1\n")
    (tmp_path / "g.csv").write_text("2\n0\n1\n1\n")
    (tmp_path / "h.csv").write_text("\ufeffnoisy,other\n2,9\n0,9\n1,9\n1,9\n", encoding="utf-8")
    (tmp_path / "f.csv").write_text(
        ",is_label_issue,given_label\n0,True,2\n1,False,0\n2,False,1\n3,False,1\n"
    )
    np.save(tmp_path / "i.NPY", labels.astype(np.uint8))
    (tmp_path / "j.CSV").write_text("label,given_label\n0,2\n0,0\n1,1\n0,1\n")
    (tmp_path / "k.txt").write_text("\ufeff2\n0\n1\n1\n", encoding="utf-8")
    (tmp_path / "l.csv").write_text("\ufeff2\r\n0\r\n1\r\n1\r\n", encoding="utf-8")
    (tmp_path / "m.csv").write_text("Idx;Noisy\n1;0\n0;2\n3;1\n2;1\n")
    for path in tmp_path.iterdir():
        assert ln.read_labels(path, 4, 3).tolist() == labels.tolist(), path


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("a.txt", "0\n1\n", r"\[2\], but the training set needs 3"),
        ("a.csv", "0\n1\n", r"\[2\], but the training set needs 3"),
        ("a.txt", "0\n1\n7\n", "label 7 of image 2 is outside"),
        ("a.txt", "0\ncat\n1\n", "cannot be read"),
        ("a.csv", "index,kind\n0,1\n1,1\n2,1\n", "one called noisy"),
        ("a.csv", "index,noisy\n0,1\n0,1\n2,1\n", "once each"),
        ("a.tsv", "index\tnoisy\n0\t1\n1\n2\t1\n", "row 2 is too short"),
        ("a.tsv", "noisy\n0\t1\n1\t1\n2\t1\n", "row 1 is too long"),
        ("a.csv", f"label,why\n1,{'?' * 200_000}\n", "cannot be read: field larger"),
    ],
)
def test_given_labels_that_do_not_fit(tmp_path: Path, name: str, text: str, what: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidInput, match=what):
        ln.read_labels(tmp_path / name, 3, 3)


def test_one_array_under_an_archive_s_name_is_one_sentence(tmp_path: Path) -> None:
    with (tmp_path / "a.npz").open("wb") as file:
        np.save(file, np.arange(3))
    with pytest.raises(InvalidInput, match=r"a\.npz cannot be read: it is no \.npz archive"):
        ln.read_labels(tmp_path / "a.npz", 3, 3)


def test_a_torn_archive_of_labels_is_one_sentence(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "whole.npz", noisy=np.arange(3000) % 7)
    whole = (tmp_path / "whole.npz").read_bytes()
    middle = len(whole) // 2
    for content in (whole[:middle], whole[:middle] + b"????" + whole[middle + 4 :]):
        for name in ("torn.npz", "torn.npy"):
            (tmp_path / name).write_bytes(content)
            with pytest.raises(InvalidInput, match=r"Labels .* cannot be read"):
                ln.read_labels(tmp_path / name, 3000, 7)
    (tmp_path / "torn.npy").write_bytes(whole[:middle])
    with pytest.raises(InvalidInput, match=r"matrix .* cannot be read"):
        ln.read_matrix(tmp_path / "torn.npy", 7)


def test_corrupt_knows_the_truth_unless_the_labels_are_in_doubt(tmp_path: Path) -> None:
    own = torch.tensor([0, 1, 2, 0])
    (tmp_path / "g.txt").write_text("0 1 2 2")
    given_ = ln.corrupt(own, 3, name="file", file=tmp_path / "g.txt")
    assert (given_.rate, given_.noisy.tolist()) == (0.25, [0, 1, 2, 2])
    doubt = ln.corrupt(own, 3, name="none")
    assert doubt.rate is None
    assert torch.equal(doubt.noisy, own)
    np.savetxt(tmp_path / "m.txt", ln.pair(3, 1.0))
    assert ln.corrupt(own, 3, name="matrix", file=tmp_path / "m.txt").noisy.tolist() == [1, 2, 0, 1]
    assert ln.corrupt(own, 3, name="symmetric", rate=1.0).rate == 1.0


@pytest.mark.parametrize("kind", [np.array, list, lambda own: np.array(own, dtype=np.uint8)])
def test_labels_of_any_kind_are_corrupted_alike(kind: Any) -> None:
    own = [0, 1, 2, 0] * 20
    expected = ln.corrupt(torch.tensor(own), 3, name="pair", rate=0.5)
    found = ln.corrupt(kind(own), 3, name="pair", rate=0.5)
    assert torch.equal(found.noisy, expected.noisy)
    assert found.rate == expected.rate
    assert found.noisy.dtype == torch.int64


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": "pairs"}, 'no label noise "pairs" .did you mean "pair"'),
        ({"name": "pair", "rate": None}, 'label noise "pair" needs a rate'),
        ({"name": "symmetric", "rate": None}, 'label noise "symmetric" needs a rate'),
        ({"name": "matrix"}, 'label noise "matrix" needs a file'),
        ({"name": "file"}, 'label noise "file" needs a file'),
        ({"num_classes": 2}, r"label 2 of image 2 is outside 0\.\.1"),
        ({"num_classes": 1}, "num_classes must be at least 2"),
        ({"num_classes": 3.5}, "num_classes must be a whole number"),
        ({"rate": "half"}, "between 0 and 1, not half"),
        ({"labels": None}, "no list of whole numbers .NoneType.; give one class number an image"),
        ({"labels": [0.0, 1.0]}, r"float32 \[2\]; give one class number"),
        ({"labels": [[0, 1]]}, r"int64 \[1, 2\]; give one class number"),
        ({"labels": [0, -1]}, "label -1 of image 1 is outside"),
    ],
)
def test_what_cannot_be_corrupted_is_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    given_ = {"labels": [0, 1, 2], "num_classes": 3, "name": "pair", "rate": 0.5}
    with pytest.raises(InvalidInput, match=sentence):
        ln.corrupt(**(given_ | changes))


@pytest.mark.parametrize("known", [True, False])
def test_the_table_is_read_back(tmp_path: Path, known: bool) -> None:
    labels = ln.NoisyLabels(torch.tensor([1, 0]), torch.tensor([1, 1]) if known else None)
    path = tmp_path / "labels.tsv"
    path.write_bytes(ln.table(labels))
    again = ln.read_table(path)
    assert torch.equal(again.noisy, labels.noisy)
    assert again.rate == labels.rate
    assert ln.read_labels(path, 2, 2).tolist() == [1, 0]
    path.write_text("nothing\n1\n")
    with pytest.raises(InvalidInput, match="not the label table"):
        ln.read_table(path)
