from pathlib import Path

import pytest
import torch
from PIL import Image

from covprop import data
from covprop.data.holdout import held_out
from covprop.errors import InvalidInput


def test_every_training_image_is_on_one_side() -> None:
    whole = data.load("digits", "train")
    train, held = (data.load("digits", split, holdout=100) for split in ("train", "holdout"))
    assert isinstance(whole, data.Images)
    assert isinstance(train, data.Images)
    assert isinstance(held, data.Images)
    chosen = [i * 1437 // 100 for i in range(100)]
    rest = sorted(set(range(1437)) - set(chosen))
    assert torch.equal(held.images, whole.images[chosen])
    assert torch.equal(held.labels, whole.labels[chosen])
    assert torch.equal(train.images, whole.images[rest])
    assert torch.equal(train.labels, whole.labels[rest])
    assert (train.mean, train.classes) == (whole.mean, whole.classes)
    assert len(data.load("digits", "test", holdout=100)) == 360


def test_class_folders_keep_some_of_every_class(tmp_path: Path) -> None:
    for name in "ab":
        for part, count in (("train", 6), ("val", 1)):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (4, 4)).save(tmp_path / part / name / f"{i}.png")
    held = data.load(str(tmp_path), "holdout", holdout=4)
    assert isinstance(held, data.FolderImages)
    assert [held.path(i).relative_to(tmp_path / "train").as_posix() for i in range(4)] == [
        *("a/0.png", "a/3.png", "b/0.png", "b/3.png")
    ]
    assert held.labels.tolist() == [0, 0, 1, 1]
    assert len(data.load(str(tmp_path), "train", holdout=4)) == 8


def test_all_and_none() -> None:
    assert held_out(5, 5).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(InvalidInput, match=r"data\.holdout = 1437 of the 1437 training images"):
        data.load("digits", "train", holdout=1437)
    with pytest.raises(InvalidInput, match=r"data\.holdout = 1\.5 of .* is no whole number"):
        data.load("digits", "train", holdout=1.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"no images of digits are held out.*data\.holdout=N"):
        data.load("digits", "holdout")
