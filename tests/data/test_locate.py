from pathlib import Path

import pytest

from covprop.data.locate import DataMissing, data_root, file_md5, locate
from covprop.data.registry import DATASETS


def test_the_root_is_argument_then_environment_then_data(monkeypatch):
    monkeypatch.delenv("COVPROP_DATA", raising=False)
    assert data_root() == Path("data")
    monkeypatch.setenv("COVPROP_DATA", "/somewhere")
    assert data_root() == Path("/somewhere")
    assert data_root("here") == Path("here")


def test_a_missing_set_says_where_it_looked_and_what_to_do(tmp_path):
    with pytest.raises(DataMissing) as caught:
        locate(DATASETS["cifar10"], "train", tmp_path)
    assert caught.value.state == "not here"
    text = str(caught.value)
    assert f"{tmp_path}/cifar-10-batches-bin, {tmp_path}/cifar-10-batches-py" in text
    assert f"covprop data get cifar10 --data {tmp_path}" in text
    assert "\n" not in text


def test_the_most_complete_layout_is_reported(tmp_path):
    for folder, names in (
        ("cifar-10-batches-bin", ["data_batch_1.bin"]),
        ("cifar-10-batches-py", [f"data_batch_{i}" for i in (1, 2, 4, 5)]),
    ):
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).touch()
    with pytest.raises(DataMissing, match=r"batches-py lacks data_batch_3;") as caught:
        locate(DATASETS["cifar10"], "train", tmp_path)
    assert caught.value.state == "incomplete"


def test_a_set_whose_files_lie_in_the_root_itself(tmp_path):
    (tmp_path / "train_32x32.mat").touch()
    assert locate(DATASETS["svhn"], "train", tmp_path).files == (tmp_path / "train_32x32.mat",)
    with pytest.raises(DataMissing) as caught:
        locate(DATASETS["svhn"], "test", tmp_path)
    assert caught.value.state == "not here"


def test_md5_of_a_file(tmp_path):
    (tmp_path / "a").write_bytes(b"a" * 3_000_000)
    assert file_md5(tmp_path / "a") == "99ddc9a3a46ea62c95652bdf937a1fb8"
