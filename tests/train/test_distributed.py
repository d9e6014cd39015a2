"""Several processes: sums, gathered rows, and a failure of one that all of them see."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from covprop.errors import InvalidInput
from covprop.train.distributed import World, world

WORKER = """
import json, sys, time, torch
from covprop.errors import CovpropError
from covprop.train.distributed import world

def fail():
    raise CovpropError("no disk")

with world("cpu") as here:
    mine = torch.arange(2.0) + 10 * here.rank
    seen = {"sum": here.sum(mine).tolist(), "gather": here.gather(mine).tolist()}
    seen["left alone"] = mine.tolist()
    did = []
    here.first_does(lambda: did.append(here.rank))
    seen["did"] = did
    try:
        here.first_does(fail)
    except CovpropError as error:
        seen["error"] = str(error)
# As a script does that trains with one seed after the other.
seen["again"] = []
for _ in range(6):
    with world("cpu") as here:
        seen["again"] += here.sum(torch.ones(1)).tolist()
        time.sleep(0.05 * here.rank)
open(f"{sys.argv[1]}/{here.rank}.json", "w").write(json.dumps(seen))
"""


def test_two_processes(tmp_path: Path) -> None:
    file = tmp_path / "worker.py"
    file.write_text(WORKER)
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    done = subprocess.run(
        [sys.executable, *launch, str(file), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        seen = json.loads((tmp_path / f"{rank}.json").read_text())
        assert seen == {
            "sum": [10.0, 12.0],
            "gather": [0.0, 1.0, 10.0, 11.0],
            "left alone": [10.0 * rank, 10.0 * rank + 1],
            "did": [0] if rank == 0 else [],
            "error": "no disk",
            "again": [2.0] * 6,
        }


def test_alone() -> None:
    with world("cpu") as here:
        assert here == World(0, 1, torch.device("cpu"))
        assert here.first
        mine = torch.ones(2)
        assert here.sum(mine) is mine
        assert here.gather(mine) is mine


@pytest.mark.parametrize("device", ["abc", "cuda:99", "cpu:x"])
def test_a_device_that_is_not_there(device: str) -> None:
    with pytest.raises(InvalidInput, match=device), world(device):
        pass


def test_auto_takes_what_there_is() -> None:
    with world("auto") as here:
        assert here.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
