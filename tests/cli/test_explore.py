import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest


def test_it_serves_until_ctrl_c(run_folder: Path) -> None:
    command = [sys.executable, "-m", "covprop", "explore", str(run_folder), "--device", "cpu"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert process.stdout is not None
        first, url = process.stdout.readline(), process.stdout.readline().strip()
        assert first == f"{run_folder}: 360 images of digits (test), σ = 0.25\n"
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", url)
        with urllib.request.urlopen(url, timeout=20) as answer:
            assert b"covprop explore" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="403") as refused:
            urllib.request.urlopen(url[: url.rindex("/", 0, -1) + 1], timeout=20)
        refused.value.close()
        # Ctrl-C in the middle of a long certificate ends it as well.
        body = b'{"index": 0, "sigma": 0.25, "n": 1000000, "alpha": 0.001}'
        with urllib.request.urlopen(url + "certify", data=body, timeout=20) as answer:
            assert b'"running"' in answer.read()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, err
    assert out.endswith("stopped\n")
    assert err == ""


def test_slips_are_one_sentence(cli, run_folder: Path, tmp_path: Path) -> None:
    code, _, err = cli("explore", tmp_path / "nowhere")
    assert code == 2
    assert "no run folder" in err
    code, _, err = cli("explore", run_folder, "--sigma", "-1")
    assert code == 2
    assert "sigma is -1" in err
    code, _, err = cli("explore", run_folder, "--port", "99999")
    assert code == 2
    assert "port 99999" in err
    assert err.count("\n") == 1


def test_help_names_the_two_radii(cli) -> None:
    code, out, _ = cli("explore", "--help")
    assert code == 0
    assert "estimated radii" in out
    assert "Ctrl-C" in out
