import gzip
import sys

import pytest
from file_server import FileServer

from covprop.cli import main
from covprop.data.registry import DATASETS


def run(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["covprop", "data", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    return int(stopped.value.code or 0)


def test_list_shows_every_set_and_never_cuts_a_path(tmp_path, monkeypatch, capsys):
    root = tmp_path / ("long-name-" * 8)
    for split in ("train", "test"):
        (root / "cifar-100-binary").mkdir(parents=True, exist_ok=True)
        (root / "cifar-100-binary" / f"{split}.bin").write_bytes(bytes(1_000_000))
    assert run(monkeypatch, "list", "--root", str(root)) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in DATASETS:
        assert any(line.split()[0] == name for line in lines[1:-1])
    (row,) = [line for line in lines if line.split()[0] == "cifar100"]
    assert "here" in row
    assert "2.0 MB" in row
    assert str(root / "cifar-100-binary") in row


def test_list_with_check_names_the_damage(tmp_path, monkeypatch, capsys):
    (tmp_path / "cifar-100-binary").mkdir()
    for split in ("train", "test"):
        (tmp_path / "cifar-100-binary" / f"{split}.bin").write_bytes(bytes(10))
    monkeypatch.setenv("COVPROP_DATA", str(tmp_path))
    assert run(monkeypatch, "list", "--check") == 0
    out = capsys.readouterr().out
    assert "damaged" in out
    assert "train.bin: 10 bytes are no whole number of 3074-byte records" in out


def test_get_from_a_mirror_that_serves_a_wrong_file(tmp_path, monkeypatch, capsys):
    wrong = {item.name: gzip.compress(b"other") for item in DATASETS["mnist"].downloads}
    with FileServer(wrong) as server:
        code = run(monkeypatch, "get", "mnist", "--data", str(tmp_path), "--mirror", server.url)
    out, err = capsys.readouterr()
    assert code == 2
    assert f"fetching {server.url}/train-images-idx3-ubyte.gz" in out
    assert "serves another file" in err
    assert "official one f68b3c2dcbeaaa9fbdd348bbdeb94873" in err
    assert err.count("\n") == 1
    assert not list((tmp_path / "mnist").iterdir())


@pytest.mark.parametrize("arguments", [["get", "cifr10"], ["get", "imagenet"]])
def test_mistakes_are_one_sentence_and_exit_2(monkeypatch, capsys, arguments):
    assert run(monkeypatch, *arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("covprop: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("verb", ["get", "list"])
def test_help_teaches_by_example(monkeypatch, capsys, verb):
    assert run(monkeypatch, verb, "--help") == 0
    assert f"covprop data {verb}" in capsys.readouterr().out
