"""The 8×8 digits embedded in scikit-learn: 1,797 images, no download."""

import numpy as np

from covprop.data.images import TEST_EVERY, Images, official_images
from covprop.data.registry import Facts


def read(facts: Facts, split: str) -> Images:
    """Every fifth image is a test image; the pixel levels 0..16 become 0..255."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    test = np.arange(len(bunch.target)) % TEST_EVERY == 0
    keep = test if split == "test" else ~test
    images = np.rint(bunch.images[keep] * (255 / 16)).astype(np.uint8)
    return official_images(
        facts, images[:, None], bunch.target[keep], source="scikit-learn's load_digits"
    )
