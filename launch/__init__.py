"""Experiments. Imported before NumPy: it sets the fastest sort and memory release."""

import contextlib
import ctypes
import os
from pathlib import Path

# NumPy's AVX-512 sort is slow on AMD processors of family 25 (Zen 3 and 4): 17 M integers take 1.9 s, with AVX2 0.2 s.
_cpu = Path("/proc/cpuinfo")
_lines = _cpu.read_text().split("\n\n")[0] if _cpu.exists() else ""
if "AuthenticAMD" in _lines and "cpu family\t: 25" in _lines and "avx512f" in _lines:
    os.environ.setdefault("NPY_DISABLE_CPU_FEATURES", "X86_V4 AVX512_ICL")

# glibc learns from frees which arrays are large. Here they are those of 32 MB and more, which are given back at once, while
# 256 MB of smaller ones are used again, since fresh pages take longer than the work in them (jexplicit.runs.files.trim_heap).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
with contextlib.suppress(OSError, AttributeError):  # another libc
    _libc = ctypes.CDLL("libc.so.6")
    _libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    _libc.mallopt(_M_TRIM_THRESHOLD, 256 << 20)
