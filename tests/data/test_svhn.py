import os

import numpy as np
import pytest
import scipy.io

from covprop.data import load, svhn
from covprop.errors import InvalidInput

RNG = np.random.default_rng(2)
X = RNG.integers(0, 256, (32, 32, 3, 10), np.uint8)
Y = np.array([[10], [1], [2], [3], [9], [10], [5], [6], [7], [8]], np.uint8)


@pytest.fixture
def write(tmp_path):
    (tmp_path / "svhn").mkdir()

    def save(**variables):
        scipy.io.savemat(tmp_path / "svhn" / "train_32x32.mat", variables, do_compression=True)
        return tmp_path

    return save


def test_axes_and_label_ten(write, small):
    data = svhn.read(small("svhn", 10, 5), "train", write(X=X, y=Y))
    assert data.images.shape == (10, 3, 32, 32)
    for n, c, h, w in [(0, 0, 0, 0), (7, 2, 3, 30), (9, 1, 31, 0)]:
        assert data.images[n, c, h, w] == X[h, w, c, n]
    assert data.labels.tolist() == [0, 1, 2, 3, 9, 0, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"X": X[..., :9], "y": Y[:9]}, "X is 32×32×3×9 where train has 10 images"),
        ({"X": X, "y": Y[:9]}, "10 images but 9 labels"),
        ({"X": X, "y": Y % 10}, "the labels y must be whole numbers 1..10"),
        ({"X": X, "y": Y + 1}, "the labels y must be whole numbers 1..10"),
        ({"X": X, "y": Y / 2}, "the labels y must be whole numbers"),
        ({"X": X[:31], "y": Y}, "an image is 3×31×32 where svhn has 3×32×32"),
        ({"X": X / 255, "y": Y}, "images must be uint8 in 0..255, these are float64"),
        ({"X": X}, "holds no variable 'y'"),
    ],
)
def test_bad_content_is_one_sentence(write, small, variables, message):
    with pytest.raises(InvalidInput, match=f"train_32x32.mat: {message}"):
        svhn.read(small("svhn", 10, 5), "train", write(**variables))


@pytest.mark.parametrize("keep", [0, 60, 200, 5000])
def test_a_truncated_file(write, small, keep):
    root = write(X=X, y=Y)
    file = root / "svhn" / "train_32x32.mat"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(InvalidInput, match=r"train_32x32.mat: "):
        svhn.read(small("svhn", 10, 5), "train", root)


@pytest.mark.skipif("COVPROP_DATA" not in os.environ, reason="needs the real files: COVPROP_DATA")
def test_the_real_files():
    data = load("svhn", "test")
    assert len(data) == 26_032
    assert np.bincount(data.labels)[:3].tolist() == [1744, 5099, 4149]
