"""Memory of a worker process."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes
import resource
import numpy as np
from farm.worker.process import keep_freed_memory

PR_SET_THP_DISABLE = 41  # huge pages, which a kernel may give, would hide faults
ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        arrays = [np.ones(2**20) for _ in range(8)]
        del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
before = faults()
keep_freed_memory()
faults()
print(before, faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the parameters are glibc's")
def test_a_worker_uses_memory_that_it_has_freed_again_without_new_pages() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert before > 60_000
    assert after < 1_000
