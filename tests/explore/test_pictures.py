import base64
import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from covprop import data
from covprop.explore.pictures import image, png


def decoded(address: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2])))


def test_colours_grey_and_odd_channels() -> None:
    x = torch.rand(3, 4, 5)
    assert decoded(png(x)).size == (5, 4)
    expected = (255 * x).round().byte().permute(1, 2, 0).numpy()
    np.testing.assert_array_equal(np.asarray(decoded(png(x))), expected)
    assert decoded(png(x[:1])).mode == "L"
    assert decoded(png(x[:2])).mode == "L"


def test_values_are_cut_and_large_pictures_shrink() -> None:
    x = torch.full((1, 100, 200), 7.0)
    x[:, :, :100] = -7.0
    assert decoded(png(x)).getextrema() == (0, 255)
    assert decoded(png(x, most=64)).size == (64, 32)
    assert decoded(png(x[:, :8, :8], most=64)).size == (8, 8)


def test_images_in_folders_are_read_as_batches_read_them(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for k in range(5):
            pixels = np.random.default_rng(k).integers(0, 256, (40, 30, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{k}.png")
    images = data.load(str(tmp_path), "test")
    batch = next(data.batches(images, 2, epoch=0, seed=0, device="cpu", shuffle=False))
    for i in range(2):
        assert torch.equal(image(images, i, torch.device("cpu"))[0], batch.x[i])
