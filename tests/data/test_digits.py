import numpy as np
from sklearn.datasets import load_digits

from covprop.data import DATASETS, load


def test_the_two_splits_are_the_whole_set():
    train, test = load("digits", "train"), load("digits", "test")
    bunch = load_digits()
    facts = DATASETS["digits"]
    assert (len(train), len(test)) == (facts.train_size, facts.test_size) == (1437, 360)
    together = np.empty((1797, 8, 8))
    together[::5] = test.images[:, 0]
    together[np.arange(1797) % 5 != 0] = train.images[:, 0]
    assert np.abs(together / 255 * 16 - bunch.images).max() <= 0.5 * 16 / 255
    assert (test.labels.numpy() == bunch.target[::5]).all()


def test_facts_match_the_images():
    x = load("digits", "train").images.numpy() / 255
    facts = DATASETS["digits"]
    assert abs(x.mean() - facts.mean[0]) < 1e-4
    assert abs(x.std() - facts.std[0]) < 1e-4
