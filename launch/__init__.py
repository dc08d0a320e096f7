"""Experiments. Imported before NumPy, whose fastest sort for this machine is chosen here, and how memory is given back."""

import contextlib
import ctypes
import os
from pathlib import Path

# NumPy's AVX-512 sort is slow on AMD processors of family 25 (Zen 3 and 4): 17 M integers take 1.9 s, with AVX2 0.2 s.
_cpu = Path("/proc/cpuinfo")
_lines = _cpu.read_text().split("\n\n")[0] if _cpu.exists() else ""
if "AuthenticAMD" in _lines and "cpu family\t: 25" in _lines and "avx512f" in _lines:
    os.environ.setdefault("NPY_DISABLE_CPU_FEATURES", "X86_V4 AVX512_ICL")

# glibc keeps what is freed, more of it the larger it was: arrays from 24 MB on go back to the system at once. Smaller ones,
# such as those of a block, are used again: fresh pages would take longer than what is computed in them.
_M_MMAP_THRESHOLD = -3
with contextlib.suppress(OSError, AttributeError):  # another libc
    ctypes.CDLL("libc.so.6").mallopt(_M_MMAP_THRESHOLD, 24 << 20)
