"""Memory that messages leave behind in the C library's heap."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

# How many received bytes may pass between two returns of free memory.
_TRIM_BYTES = 64 << 20


class Trimmer:
    """Gives free memory back to the system now and then.

    gRPC takes the memory of a message from the C library in pieces, on several threads, and glibc keeps what is freed in
    the heap of each thread: without this a trainer would hold several batches more than it reads.
    """

    def __init__(self) -> None:
        self._trim: Any = None
        self._received = 0
        if sys.platform == "linux":
            self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl does not

    def received(self, size: int) -> None:
        """Count a message of ``size`` bytes."""
        self._received += size
        if self._trim is not None and self._received >= _TRIM_BYTES:
            self._received = 0
            self._trim(0)
