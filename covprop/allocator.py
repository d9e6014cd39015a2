"""Keep freed memory for the next step instead of giving it back to the system."""

from __future__ import annotations

import contextlib
import ctypes

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h of the GNU C library


def keep_freed_memory() -> None:
    """Tell the C library's allocator not to shrink: a no-op where it is not the GNU one.

    A training step on the CPU frees all it allocated. Given back, every page of it costs a page
    fault in the next step, which was up to a fifth of a step's time. For programs, not for
    `import covprop`: the choice is the process's.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
