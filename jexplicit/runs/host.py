"""Memory of the host: its size, use, and sizes of users."""

import ctypes
import os
import re
import sys
from collections.abc import Callable

_units = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_malloc_options = {"trim_threshold": -1, "mmap_max": -4, "arena_max": -8}  # of malloc.h


def host_bytes() -> float:
    """Bytes of memory of this machine; infinity if the system does not report it."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else float("inf")


def parse_bytes(size: str) -> int:
    """The bytes of a size such as "2GB" (10^9) or "512MiB" (2^20)."""
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([a-zA-Z]+)\s*", size, re.ASCII)
    if not found or found[2].upper() not in _units or float(found[1]) <= 0:
        raise ValueError(f"memory {size!r}: give a number and a unit, such as 2GB or 512MiB")
    return int(float(found[1]) * _units[found[2].upper()])


def peak_bytes() -> int | None:
    """Peak resident memory of this process in bytes; None if unknown."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    # macOS counts bytes, others units of 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def set_malloc(**options: int) -> bool:
    """Set `trim_threshold`, `mmap_max` or `arena_max` of glibc's malloc; False with another C library."""
    if mallopt := _of_libc("mallopt"):
        for name, value in options.items():
            mallopt(_malloc_options[name], value)
    return mallopt is not None


def trim_heap() -> None:
    """Return freed memory that glibc has kept to the system, between memory-intensive stages."""
    if trim := _of_libc("malloc_trim"):
        trim(0)


def _of_libc(name: str) -> Callable[..., int] | None:
    """A function of the C library, or None."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None
