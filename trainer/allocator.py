"""Keep freed memory for the next step instead of giving it back to the kernel. Imports no torch.

Each step frees and takes the same large blocks (a 34 MB gradient, the activations). glibc maps such blocks afresh and
the kernel fills them with zeros page by page; kept on the heap the step is 1.1 to 1.5 times as fast on a CPU.
"""

import ctypes
import sys
from contextlib import suppress

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # malloc.h


def keep_freed_memory() -> bool:
    """Tell glibc. False, and nothing is changed, with another C library."""
    if sys.platform != "linux":
        return False
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018  # only glibc has it, and these numbers are glibc's
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(M_TOP_PAD, 2**27)
        return True
    return False
