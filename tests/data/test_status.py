import struct

import numpy as np

from covprop.data import registry
from covprop.data.registry import DATASETS, IDX_TEST, IDX_TRAIN
from covprop.data.status import status


def test_states_of_a_set(tmp_path, small, monkeypatch):
    facts = small("mnist", 3, 3)
    monkeypatch.setitem(registry.DATASETS, "mnist", facts)
    assert status(facts, tmp_path).state == "not here"

    folder = tmp_path / "mnist"
    folder.mkdir()
    (folder / f"{IDX_TRAIN[0]}.gz.part").touch()
    assert status(facts, tmp_path).state == "half downloaded"
    (folder / f"{IDX_TRAIN[0]}.gz.part").unlink()
    assert status(facts, tmp_path).state == "incomplete"

    images = struct.pack(">4I", 0x803, 3, 28, 28) + bytes(784 * 3)
    labels = struct.pack(">2I", 0x801, 3) + bytes(3)
    for names in (IDX_TRAIN, IDX_TEST):
        for name, content in zip(names, (images, labels), strict=True):
            assert status(facts, tmp_path).state == "incomplete"
            (folder / name).write_bytes(content)
    found = status(facts, tmp_path)
    assert (found.state, found.folder) == ("here", folder)
    assert found.size == 2 * (len(images) + len(labels))
    assert status(facts, tmp_path, check=True).state == "verified"

    (folder / IDX_TEST[1]).write_bytes(labels[:-1])
    assert status(facts, tmp_path).state == "here"
    checked = status(facts, tmp_path, check=True)
    assert checked.state == "damaged"
    assert IDX_TEST[1] in checked.detail


def test_built_in_and_folders(tmp_path):
    assert status(DATASETS["digits"], tmp_path).state == "built in"
    for split in ("train", "val"):
        (tmp_path / "imagenet" / split).mkdir(parents=True)
    found = status(DATASETS["imagenet"], tmp_path)
    assert (found.state, found.size) == ("here", None)
    assert status(DATASETS["imagenet"], tmp_path, check=True).state == "damaged"
    assert np.prod(DATASETS["imagenet"].image_shape) == 150_528
