import pytest

from covprop.data import DATASETS, load
from covprop.errors import InvalidInput


@pytest.mark.parametrize(
    ("name", "split", "message"),
    [
        ("mnist", "val", 'split is \'val\'; choose "train", "test" or "holdout"'),
        ("cifar", "train", "no data set, .npz file or class-folder tree .*did you mean .cifar10"),
        ("/no/such/folder", "train", "choose one of digits"),
    ],
)
def test_bad_names(name, split, message):
    with pytest.raises(InvalidInput, match=message):
        load(name, split)


def test_a_folder_in_place_of_a_file(tmp_path):
    (tmp_path / "mnist" / "train-images-idx3-ubyte").mkdir(parents=True)
    (tmp_path / "mnist" / "train-labels-idx1-ubyte").mkdir()
    with pytest.raises(InvalidInput, match=r"mnist cannot be read: .*directory"):
        load("mnist", "train", tmp_path)


@pytest.mark.parametrize("name", DATASETS)
def test_facts_are_consistent(name):
    facts = DATASETS[name]
    assert facts.name == name
    assert len(facts.mean) == len(facts.std) == facts.image_shape[0]
    assert len(facts.classes) in (0, facts.num_classes)
    assert len(set(facts.classes)) == len(facts.classes)
    # The field certifies some 500 test images, or all of a small set.
    assert 360 <= -(-facts.test_size // facts.certify_skip) <= 530
