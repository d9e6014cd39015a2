import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from covprop.data import batches, folders, load
from covprop.errors import InvalidInput


def image(path: Path, level: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((4, 4, 3), level, np.uint8)).save(path)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for split, count in (("train", 3), ("val", 2)):
        for name in ("n02", "n01"):
            for i in range(count):
                image(tmp_path / "own" / split / name / f"{name}_{i}.JPEG")
    return tmp_path / "own"


def names(data: folders.FolderImages) -> list[str]:
    return [str(data.path(i).relative_to(data.folder)) for i in range(len(data))]


def test_classes_are_sorted_folders(tree):
    train, test = load(str(tree), "train"), load(str(tree), "test")
    assert train.classes == test.classes == ("n01", "n02")
    assert train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert names(test) == ["n01/n01_0.JPEG", "n01/n01_1.JPEG", "n02/n02_0.JPEG", "n02/n02_1.JPEG"]
    assert train.image_shape == (3, 224, 224)


def test_a_folder_is_read_at_the_size_wanted(tree):
    small = load(str(tree), "train", image_shape=(3, 4, 4))
    (batch,) = batches(small, 6, epoch=0, seed=0, device="cpu")
    assert small.image_shape == batch.x.shape[1:] == (3, 4, 4)
    assert small.mean == load(str(tree), "train").mean
    grey = load(str(tree), "train", image_shape=[1, 4, 6])
    assert grey.image_shape == (1, 4, 6)
    assert (round(grey.mean[0], 3), round(grey.std[0], 3)) == (0.449, 0.226)
    # A process may have no part of the last batch: it is empty, and of that shape too.
    parts = [next(batches(grey, 1, epoch=0, seed=0, device="cpu", rank=r, world=2)) for r in (0, 1)]
    assert [p.x.shape for p in parts] == [(0, 1, 4, 6), (1, 1, 4, 6)]
    for shape in ((2, 4, 4), (3, 0, 4), (3, 4.5, 4), (3, 4), ()):
        with pytest.raises(InvalidInput, match=r"own: .* \[1 or 3, height, width\]"):
            load(str(tree), "train", image_shape=shape)


def test_of_val_and_test_it_is_test(tree):
    """A log of test images is not to be one of those that a model was chosen by."""
    (tree / "test").mkdir()
    image(tree / "test" / "unknown.png")  # as contests hand it out, without labels
    assert load(str(tree), "test").folder == tree / "val"
    image(tree / "test" / "n02" / "a.png")
    assert names(load(str(tree), "test")) == ["n02/a.png"]
    assert len(load(str(tree), "train")) == 6


def test_hidden_files_and_folders_are_left_out(tree):
    (tree / "train" / "n01" / "._n01_0.JPEG").write_bytes(b"macOS")
    (tree / "train" / ".cache").mkdir()
    (tree / "train" / "n01" / ".cache").mkdir()
    train = load(str(tree), "train")
    assert (len(train), train.classes) == (6, ("n01", "n02"))


def test_labels_follow_the_training_classes(tree):
    image(tree / "train" / "n00" / "a.png")
    assert load(str(tree), "test").labels.tolist() == [1, 1, 2, 2]


def test_a_plain_tree_is_split_by_name(tmp_path):
    for name, count in (("cat", 11), ("dog", 5)):
        for i in range(count):
            image(tmp_path / name / f"{i:02}.png")
    train, test = load(str(tmp_path), "train"), load(str(tmp_path), "test")
    assert names(test) == ["cat/00.png", "cat/05.png", "cat/10.png", "dog/00.png"]
    assert set(names(train)) | set(names(test)) == {
        *(f"cat/{i:02}.png" for i in range(11)),
        *(f"dog/{i:02}.png" for i in range(5)),
    }
    assert len(train) == 12
    assert test.labels.tolist() == [0, 0, 0, 1]


def refused(path: Path, split: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        load(str(path), split)


def test_bad_trees_are_one_sentence(tree, tmp_path):
    image(tree / "val" / "n09" / "a.png")
    refused(tree, "test", r"val/n09: a class that .*train does not have")
    (tree / "train" / "n09").mkdir()
    refused(tree, "train", r"train/n09: a class folder without images")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "train", "empty: holds no class folders")
    image(tree / "train" / "n01" / "more" / "a.png")
    refused(tree, "train", r"n01/more: a folder within a class folder, .* move them up into .*n01")
    (tree / "val").rename(tmp_path / "elsewhere")
    refused(tree, "test", r"has train/ but neither val/ nor test/")


def test_a_class_with_one_image_cannot_be_trained_on(tmp_path):
    for name, count in (("cat", 3), ("dog", 1)):
        for i in range(count):
            image(tmp_path / name / f"{i}.png")
    refused(tmp_path, "train", "dog: its only image is a test image")
    assert load(str(tmp_path), "test").labels.tolist() == [0, 1]  # enough to certify


def test_a_registered_set_must_be_whole(tree, small):
    tree.rename(tree.with_name("imagenet"))
    facts = small("imagenet", 6, 4, num_classes=2)
    assert len(folders.read(facts, "test", tree.parent)) == 4
    with pytest.raises(InvalidInput, match="6 images where imagenet has 7, so it was not unpacked"):
        folders.read(small("imagenet", 7, 4, num_classes=2), "train", tree.parent)
    with pytest.raises(InvalidInput, match="2 class folders where imagenet has 1000"):
        folders.read(small("imagenet", 6, 4), "train", tree.parent)


@pytest.fixture
def places(tmp_path: Path) -> Path:
    folder = tmp_path / "places365"
    for name in ("a/airfield/1.jpg", "a/alley/1.jpg", "a/alley/2.jpg"):
        image(folder / "data_256" / name)
    (folder / "categories_places365.txt").write_text("/a/airfield 0\n/a/alley 1\n")
    listing = "/a/airfield/1.jpg 0\n/a/alley/1.jpg 1\n/a/alley/2.jpg 1\n"
    (folder / "places365_train_standard.txt").write_text(listing)
    return folder


def test_places_lists(places, small):
    data = folders.read(small("places365", 3, 1, num_classes=2), "train", places.parent)
    assert data.classes == ("a/airfield", "a/alley")
    assert data.labels.tolist() == [0, 1, 1]
    assert all(data.path(i).is_file() for i in range(3))


@pytest.mark.parametrize(
    ("listing", "message"),
    [
        ("/a/airfield/1.jpg 2\n", "label 2 of image 0 is outside 0..1"),
        ("/a/airfield/1.jpg\n", "line 1: expected a name and a label"),
        ("/a/airfield/9.jpg 0\n", "9.jpg: listed in .* but missing"),
        ("", "there are no images"),
    ],
)
def test_bad_places_lists(places, small, listing, message):
    (places / "places365_train_standard.txt").write_text(listing)
    with pytest.raises(InvalidInput, match=message):
        folders.read(small("places365", 3, 1, num_classes=2), "train", places.parent)


def test_class_names_that_are_no_utf8_can_be_shown_and_their_images_read(tmp_path):
    for name in (b"caf\xe9", b"tea"):
        for i in range(3):
            image(Path(os.fsdecode(os.fsencode(tmp_path) + b"/own/" + name)) / f"{i}.png")
    train = load(str(tmp_path / "own"), "train", image_shape=(3, 4, 4))
    assert train.classes == ("caf\N{REPLACEMENT CHARACTER}", "tea")
    assert train.path(0).is_file()
    assert len(list(batches(train, 2, epoch=0, seed=0, device="cpu"))) == 2
