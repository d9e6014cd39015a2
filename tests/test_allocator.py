import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
import torch
from covprop.allocator import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**24)  # 64 MiB, freed at once
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

given_back = min(faults() for _ in range(4))
keep_freed_memory()
[faults() for _ in range(30)]  # the heap finds its size; small pieces take part of the first holes
kept = max(faults() for _ in range(4))
print(given_back, kept)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs the GNU C library")
def test_freed_memory_costs_no_page_faults() -> None:
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, check=True)
    given_back, kept = map(int, done.stdout.split())
    assert kept * 10 < given_back
