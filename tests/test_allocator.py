import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
import torch
from covprop.allocator import keep_freed_memory

if {keep}:
    keep_freed_memory()

def step():
    return torch.ones(2**24)  # 64 MiB, freed at once

step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(keep: bool) -> int:
    script = FAULTS.format(keep=keep)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs the GNU C library")
def test_freed_memory_costs_no_page_faults() -> None:
    assert page_faults(keep=True) * 10 < page_faults(keep=False)
