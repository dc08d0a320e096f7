"""Experiments. Imported before NumPy, whose fastest sort for this machine is chosen here."""

import os
from pathlib import Path

# NumPy's AVX-512 sort is slow on AMD processors of family 25 (Zen 3 and 4): 17 M integers take 1.9 s, with AVX2 0.2 s.
_cpu = Path("/proc/cpuinfo")
_lines = _cpu.read_text().split("\n\n")[0] if _cpu.exists() else ""
if "AuthenticAMD" in _lines and "cpu family\t: 25" in _lines and "avx512f" in _lines:
    os.environ.setdefault("NPY_DISABLE_CPU_FEATURES", "X86_V4 AVX512_ICL")
