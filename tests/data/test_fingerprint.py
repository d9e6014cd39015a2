from pathlib import Path

import numpy as np
from PIL import Image

from covprop.data import load
from covprop.data.fingerprint import fingerprint

X = np.random.default_rng(0).integers(0, 256, (10, 4, 4), np.uint8)
Y = np.arange(10) // 2 % 2


def of(path: Path, **arrays: np.ndarray) -> str:
    np.savez(path / "own.npz", **{"images": X, "labels": Y} | arrays)
    return fingerprint(load(str(path / "own.npz"), "test"))


def test_every_change_of_the_arrays_shows(tmp_path: Path) -> None:
    same = of(tmp_path)
    assert of(tmp_path, classes=np.array(["a", "b"])) == same
    one_pixel = X.copy()
    one_pixel[5, 0, 0] ^= 1
    others = [
        of(tmp_path, images=one_pixel),
        of(tmp_path, images=X[::-1]),
        of(tmp_path, images=X.reshape(10, 2, 8)),
        of(tmp_path, labels=1 - Y),
    ]
    assert len({same, *others}) == 5


def test_files_count_by_name(tmp_path: Path) -> None:
    for i, image in enumerate(X):
        file = tmp_path / "set" / str(Y[i]) / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(file)

    def now() -> str:
        return fingerprint(load(str(tmp_path / "set"), "train"))

    first = now()
    Image.fromarray(X[0]).save(tmp_path / "set" / "0" / "4.png")
    assert now() == first
    (tmp_path / "set" / "0" / "4.png").rename(tmp_path / "set" / "0" / "41.png")
    assert now() != first
