import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from covprop.data import batches, load
from covprop.data.decode import as_tensor, open_image, random_box, read_crop, read_image
from covprop.errors import InvalidInput


def augmented(path, augment, seed, shape=(3, 224, 224)):
    return as_tensor(read_crop(path, augment, random.Random(seed), shape))


def noise(height: int, width: int) -> np.ndarray:
    """A smooth random colour image, so that resampling keeps its content."""
    coarse = torch.rand(1, 3, 12, 12)
    fine = F.interpolate(coarse, (height, width), mode="bicubic").clamp(0, 1)
    return (fine[0].permute(1, 2, 0) * 255).byte().numpy()


@pytest.mark.parametrize(("height", "width"), [(300, 500), (500, 300), (100, 130), (256, 256)])
def test_test_crop_against_torch(tmp_path, height, width):
    pixels = noise(height, width)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    x = read_image(tmp_path / "a.png")
    assert x.shape == (3, 224, 224)
    assert x.dtype == torch.uint8
    short = min(height, width)
    size = (int(256 * height / short), int(256 * width / short))
    whole = torch.from_numpy(pixels).permute(2, 0, 1).float()[None]
    resized = F.interpolate(whole, size, mode="bilinear", antialias=True)[0]
    top, left = round((size[0] - 224) / 2), round((size[1] - 224) / 2)
    expected = resized[:, top : top + 224, left : left + 224]
    assert (x.float() - expected).abs().max() <= 1.01


def test_train_crop_against_torch(tmp_path):
    pixels = noise(240, 320)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    whole = torch.from_numpy(pixels).permute(2, 0, 1).float()[None]
    flips = set()
    for seed in range(8):
        x = augmented(tmp_path / "a.png", "crop-flip", seed).float()
        left, top, right, bottom = random_box(320, 240, random.Random(seed))
        part = whole[..., top:bottom, left:right]
        expected = F.interpolate(part, (224, 224), mode="bilinear", antialias=True)[0]
        errors = [(x - e).abs().max().item() for e in (expected, expected.flip(-1))]
        assert min(errors) <= 1.01
        flips.add(errors[0] < errors[1])
    assert flips == {True, False}


def test_flip_turns_half_of_the_central_crops(tmp_path):
    Image.fromarray(noise(240, 320)).save(tmp_path / "a.png")
    plain = read_image(tmp_path / "a.png")
    found = [augmented(tmp_path / "a.png", "flip", seed) for seed in range(40)]
    turned = [torch.equal(x, plain.flip(-1)) for x in found]
    assert 10 < sum(turned) < 30
    assert all(torch.equal(x, plain) for x, t in zip(found, turned, strict=True) if not t)


@pytest.mark.parametrize(("height", "width"), [(40, 64), (64, 40), (16, 20)])
def test_another_size_against_torch(tmp_path, height, width):
    pixels = noise(height, width)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    x = read_image(tmp_path / "a.png", (3, 32, 32))
    assert x.shape == (3, 32, 32)
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = torch.from_numpy(pixels[top : top + side, left : left + side]).permute(2, 0, 1)
    expected = F.interpolate(square.float()[None], (32, 32), mode="bilinear", antialias=True)[0]
    # Pillow blends pixels beyond the square into its edge; torch does not see them.
    assert (x.float() - expected)[:, 2:-2, 2:-2].abs().max() <= 1.01


def test_images_of_the_wanted_size_stay_as_they_are(tmp_path):
    pixels = torch.from_numpy(np.random.default_rng(0).integers(1, 256, (12, 20, 3), np.uint8))
    Image.fromarray(pixels.numpy()).save(tmp_path / "a.png")
    whole = pixels.permute(2, 0, 1)
    assert torch.equal(read_image(tmp_path / "a.png", (3, 12, 20)), whole)
    Image.fromarray(pixels[..., 0].numpy()).save(tmp_path / "grey.png")
    grey = read_image(tmp_path / "grey.png", (1, 12, 20))
    assert torch.equal(grey, whole[:1])
    padded = F.pad(whole, [4] * 4)
    parts = {
        (top, left): padded[:, top : top + 12, left : left + 20]
        for top in range(9)
        for left in range(9)
    }
    met = set()
    for seed in range(60):
        x = augmented(tmp_path / "a.png", "crop-flip", seed, (3, 12, 20))
        (found,) = (
            (*place, flipped)
            for place, part in parts.items()
            for flipped in (False, True)
            if torch.equal(x, part.flip(-1) if flipped else part)
        )
        met.add(found)
    tops, lefts, flips = (set(values) for values in zip(*met, strict=True))
    assert len(tops) == len(lefts) == 9
    assert flips == {False, True}


def test_boxes_have_the_right_distribution():
    rng = random.Random(0)
    boxes = np.array([random_box(400, 400, rng) for _ in range(4000)])
    w, h = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    assert boxes.min() >= 0
    assert boxes.max() <= 400
    area, ratio = w * h / 400**2, w / h
    assert 0.075 < area.min() < 0.09
    assert area.max() > 0.9
    assert 0.74 < ratio.min() < 0.77
    assert 1.3 < ratio.max() < 1.35
    assert abs(np.log(ratio).mean()) < 0.01
    # Boxes lie anywhere: their slack is split evenly between the two sides on average.
    assert abs((boxes[:, 0] - (400 - boxes[:, 2])).mean()) < 5


@pytest.mark.parametrize(("width", "height"), [(2000, 10), (10, 2000)])
def test_a_very_long_image_falls_back_to_the_centre(width, height):
    left, top, right, bottom = random_box(width, height, random.Random(0))
    assert min(right - left, bottom - top) == 10
    assert max(right - left, bottom - top) in (13, 14)
    assert abs(left + right - width) <= 1
    assert abs(top + bottom - height) <= 1


@pytest.mark.parametrize("mode", ["L", "RGBA", "CMYK", "P", "1"])
def test_every_colour_mode_becomes_rgb(tmp_path, mode):
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    pixels = noise(256, 256)
    image = Image.fromarray(pixels)
    image.convert(mode).save(path)
    x = read_image(path)
    assert x.shape == (3, 224, 224)
    expected = np.array(image.convert("L" if mode in "L1" else "RGB").convert("RGB"))
    error = x.float() - torch.from_numpy(expected[16:240, 16:240]).permute(2, 0, 1)
    assert error.mean().abs() < 4, "as bright as it was"
    # A palette and black dots only look alike from afar, and JPEG loses a little.
    assert error.abs().mean() < {"1": 256, "P": 32, "CMYK": 4}.get(mode, 0.01)


def test_sixteen_bits_of_grey_keep_their_range(tmp_path):
    levels = np.linspace(0, 65535, 256 * 256).reshape(256, 256).astype(np.uint16)
    Image.fromarray(levels).save(tmp_path / "a.png")
    x = read_image(tmp_path / "a.png")
    assert (x[0] == torch.from_numpy((levels // 256).astype(np.uint8)[16:240, 16:240])).all()
    assert (x == x[:1]).all()
    assert open_image(tmp_path / "a.png", "L").getextrema() == (0, 255)


def test_whole_numbers_of_32_bits_are_taken_as_they_are_up_to_255(tmp_path):
    """Such a TIFF tells no scale: 0 to 255 can be meant in one way only, more is refused."""
    levels = np.arange(256, dtype=np.int32).reshape(16, 16)
    Image.fromarray(levels).save(tmp_path / "a.tif")
    assert np.array_equal(np.asarray(open_image(tmp_path / "a.tif", "L")), levels)
    assert np.array_equal(np.asarray(open_image(tmp_path / "a.tif", "RGB"))[..., 2], levels)
    for beyond in (levels + 1, levels - 1, 257 * levels):
        Image.fromarray(beyond).save(tmp_path / "b.tif")
        with pytest.raises(InvalidInput, match=r"b\.tif: its pixels go from .* with 8 or 16 bits"):
            open_image(tmp_path / "b.tif", "L")
    Image.fromarray(257 * levels).save(tmp_path / "c.pgm")  # of 16 bits, which Pillow opens as 32
    assert np.array_equal(np.asarray(open_image(tmp_path / "c.pgm", "L")), levels)


def test_a_picture_beyond_pillow_s_limit_is_one_sentence(tmp_path, monkeypatch):
    Image.new("L", (30, 30)).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(InvalidInput, match=r"a\.png: cannot be decoded .* exceeds limit"):
        read_image(tmp_path / "a.png")


def test_a_damaged_image_is_named(tmp_path):
    path = tmp_path / "a.jpg"
    Image.fromarray(noise(64, 64)).save(path)
    whole = path.read_bytes()
    for content in (b"", b"<html>", whole[:100], whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(InvalidInput, match=r"a\.jpg: cannot be decoded as an image"):
            read_image(path)
    path.unlink()
    with pytest.raises(InvalidInput, match="has disappeared"):
        read_image(path)


def test_a_palette_with_transparency_is_opaque_without_a_warning(tmp_path):
    pixels = noise(12, 9)
    palette = Image.fromarray(pixels).quantize(16)
    palette.save(tmp_path / "plain.png")
    palette.save(tmp_path / "clear.png", transparency=bytes(range(0, 160, 10)))
    plain, clear = (open_image(tmp_path / name, "RGB") for name in ("plain.png", "clear.png"))
    assert np.array_equal(np.asarray(plain), np.asarray(clear))


@pytest.mark.parametrize("suffix", ["tif", "gif", "ppm", "pgm", "TIFF"])
def test_the_other_formats_of_own_pictures(tmp_path, suffix):
    grey = np.arange(48, dtype=np.uint8).reshape(6, 8)
    for i in range(3):
        for name in "ab":
            (tmp_path / "own" / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(grey).save(tmp_path / "own" / name / f"{i}.{suffix}")
    data = load(str(tmp_path / "own"), "train", image_shape=(1, 6, 8))
    assert len(data) == 4
    (batch,) = batches(data, 4, epoch=0, seed=0, device="cpu")
    assert torch.equal((batch.x[0, 0] * 255).round().byte(), torch.from_numpy(grey))


def test_float_pixels_are_refused_where_they_would_come_out_black(tmp_path):
    Image.fromarray(np.full((4, 4), 0.5, np.float32)).save(tmp_path / "a.tif")
    with pytest.raises(InvalidInput, match=r"^\S*a\.tif: its pixels are floats"):
        open_image(tmp_path / "a.tif", "RGB")
