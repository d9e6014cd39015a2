import numpy as np
import pytest

from covprop.data import load
from covprop.errors import InvalidInput

RNG = np.random.default_rng(3)
X = RNG.integers(0, 256, (20, 6, 5, 3), np.uint8)
Y = np.arange(20) % 4


@pytest.fixture
def save(tmp_path):
    def write(**arrays) -> str:
        np.savez(tmp_path / "own.npz", **arrays)
        return str(tmp_path / "own.npz")

    return write


def both(path: str) -> None:
    load(path, "train")
    load(path, "test")


@pytest.mark.parametrize(
    "names",
    [
        ("x_train", "y_train", "x_test", "y_test"),
        ("train_images", "train_labels", "test_images", "test_labels"),
    ],
)
def test_named_splits(save, names):
    path = save(**dict(zip(names, (X[:15], Y[:15, None], X[15:], Y[15:]), strict=True)))
    train, test = load(path, "train"), load(path, "test")
    assert train.name == "own"
    assert (train.images.numpy() == X[:15].transpose(0, 3, 1, 2)).all()
    assert (test.labels.numpy() == Y[15:]).all()
    assert train.classes == test.classes == ("0", "1", "2", "3")
    assert np.allclose(train.mean, (X[:15] / 255).mean((0, 1, 2)))
    assert np.allclose(train.std, (X[:15] / 255).std((0, 1, 2)))
    assert test.mean == train.mean


def test_a_constant_channel_is_not_scaled(save):
    grey = np.where(np.arange(3) == 1, 51, X[:16]).astype(np.uint8)
    path = save(x_train=grey, y_train=Y[:16], x_test=X[16:], y_test=Y[16:])
    train = load(path, "train")
    assert train.mean[1] == pytest.approx(0.2)
    assert train.std[1] == 1.0
    assert train.std[0] == pytest.approx((X[:16, ..., 0] / 255).std())


def test_an_automatic_split_covers_all_once(save):
    path = save(images=X[..., 0], labels=Y, classes=np.array(["a", "b", "c", "d"]))
    train, test = load(path, "train"), load(path, "test")
    assert (len(train), len(test)) == (16, 4)
    assert train.image_shape == (1, 6, 5)
    assert (test.images[:, 0].numpy() == X[::5, ..., 0]).all()
    assert train.classes == ("a", "b", "c", "d")
    path = save(images=X[..., 0], labels=Y, classes=np.array([b"cat", b"dog", b"cow", b"hen"]))
    assert load(str(path), "test").classes == ("cat", "dog", "cow", "hen")


def test_a_class_that_the_split_would_take_from_training_is_named(save):
    path = save(images=X, labels=np.arange(20) % 10)  # images 0, 5, 10, 15 are all of classes 0, 5
    with pytest.raises(InvalidInput, match=r"class 0 has no image to train on; shuffle"):
        load(path, "train")


def test_a_class_with_a_name_may_lack_images(save):
    path = save(images=X, labels=Y + 1, classes=np.array(list("abcde")))
    assert load(path, "train").classes == tuple("abcde")


def test_channels_first_is_kept(save):
    images = X.transpose(0, 3, 1, 2)
    data = load(save(images=images, labels=Y), "test")
    assert (data.images.numpy() == images[::5]).all()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": X, "label": Y}, "holds the arrays images, label; name them"),
        ({"images": X / 255, "labels": Y}, "images must be uint8"),
        ({"images": X, "labels": Y[:-1]}, "20 images but 19 labels"),
        ({"images": X, "labels": Y / 2}, "labels must be whole numbers"),
        ({"images": X, "labels": np.eye(4)[Y]}, "these are float64 of shape 20×4; convert them"),
        ({"images": X, "labels": Y - 1}, r"label -1 of image 0 is outside 0..2"),
        (
            {"images": X, "labels": Y + 1},
            "class 0 has no image to train on, but .* up to 4; number",
        ),
        ({"images": X, "labels": Y + (Y == 3) * 10**12}, "class 3 has no image to train on"),
        (
            {"images": X, "labels": Y, "classes": np.array(["a", "b"])},
            r"label 2 of image 2 is outside 0..1 \(10 such",
        ),
        ({"images": X[:, :, :, :2], "labels": Y}, "images of shape 20×6×5×2"),
        ({"images": X[:0], "labels": Y[:0]}, "there are no training images"),
        ({"images": np.array([{}] * 20), "labels": Y}, "cannot be read as an .npz of plain"),
        (
            {"x_train": X, "y_train": Y, "x_test": X[:, :5], "y_test": Y},
            "an image is 3×5×5 where own has 3×6×5",
        ),
        (
            {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y + 3},
            r"label 4 of image 1 is outside 0..3",
        ),
    ],
)
def test_bad_arrays_are_one_sentence(save, arrays, message):
    path = save(**arrays)
    with pytest.raises(InvalidInput, match=f"own.npz: .*{message}"):
        both(path)


def test_a_damaged_file(save, tmp_path):
    path = save(images=X, labels=Y)
    content = (tmp_path / "own.npz").read_bytes()
    (tmp_path / "own.npz").write_bytes(content[:-30])
    with pytest.raises(InvalidInput, match=r"cannot be read as an \.npz"):
        load(path, "train")
    for write in (lambda file: np.save(file, X), lambda file: file.write(b"no archive")):
        with (tmp_path / "own.npz").open("wb") as file:
            write(file)
        with pytest.raises(
            InvalidInput, match=r"an \.npz of plain arrays \(it is cut off, or some"
        ):
            load(path, "train")
    with pytest.raises(InvalidInput, match="no such file"):
        load(str(tmp_path / "none.npz"), "train")


def test_where_images_of_a_split_are_in_the_file(save):
    """As the guide to training says."""
    images = np.arange(20, dtype=np.uint8)[:, None, None] * np.ones((1, 2, 2), np.uint8)
    path = str(save(images=images, labels=Y))
    train, test = (load(path, split).images[:, 0, 0, 0].tolist() for split in ("train", "test"))
    assert test == [5 * i for i in range(4)]
    assert train == [i + i // 4 + 1 for i in range(16)]
