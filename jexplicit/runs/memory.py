"""Memory of the host: what the machine has, what a run may use, what the process has used."""

import os
import re
import sys

from jax.sharding import Mesh

from jexplicit.runs.devices import data_mesh

_runtime_bytes = 600 * 10**6  # Python, its libraries, XLA and what it compiles
_units = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def check_memory(mesh: Mesh, bytes_per_device: int, what: str) -> None:
    """Raise where the devices of a CPU, which share the host's memory, would exceed it and the system kill the process.

    Args:
        mesh: the devices; accelerators are not checked, since their runtime reports when their memory is full.
        bytes_per_device: bytes that each of them allocates.
        what: the arrays, for the message.

    Raises:
        ValueError: the devices together need more than the machine has.
    """
    if mesh.devices.flat[0].platform != "cpu":
        return
    present = host_bytes()
    if mesh.size * bytes_per_device > present:
        raise ValueError(
            f"{what} take {mesh.size} x {bytes_per_device / 1e9:.1f} GB on {mesh.size} devices and this machine has "
            f"{present / 1e9:.1f} GB: use fewer --devices, a smaller --vocab-size or a smaller --radius"
        )


def host_bytes() -> float:
    """Bytes of memory of this machine; infinity where the system does not report it."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else float("inf")


def parse_bytes(size: str) -> int:
    """The number of bytes in a size such as "2GB" (10^9 bytes each) or "512MiB" (2^20 bytes each).

    Raises:
        ValueError: not a positive number followed by a unit.

    Example:
        >>> parse_bytes("2GB"), parse_bytes("1.5 GiB")
        (2000000000, 1610612736)
    """
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([a-zA-Z]+)\s*", size, re.ASCII)
    if not found or found[2].upper() not in _units or float(found[1]) <= 0:
        raise ValueError(f"memory {size!r}: give a number and a unit, such as 2GB or 512MiB")
    return int(float(found[1]) * _units[found[2].upper()])


def within_memory(mesh: Mesh, budget: int, table_bytes: int, offsets: int) -> Mesh:
    """A mesh of as many of the devices as the memory budget allows, each with count tables of its own.

    With D devices and tables of T bytes each, counting allocates (D + 1 + 2/K) T bytes beside the runtime: the devices'
    tables, their sum once it has been saved, and while it is formed one offset's sum in 8-byte integers.

    Args:
        mesh: the devices; accelerators, whose tables are not in the host's memory, are returned unchanged.
        budget: bytes that this process may allocate.
        table_bytes: T, bytes of one device's tables over all offsets.
        offsets: K, the number of offsets.

    Raises:
        ValueError: the budget is too small for one device.
    """
    if mesh.devices.flat[0].platform != "cpu":
        return mesh
    host = _runtime_bytes + table_bytes + 2 * table_bytes // offsets
    devices = min(mesh.size, (budget - host) // table_bytes)
    if devices < 1:
        raise ValueError(
            f"--memory {budget / 1e9:.1f}GB: counting with tables of {table_bytes / 1e9:.1f} GB takes "
            f"{(host + table_bytes) / 1e9:.1f} GB; allow that, or use a smaller --vocab-size or --radius"
        )
    return data_mesh(int(devices))


def peak_bytes() -> int | None:
    """Peak resident memory of this process so far, bytes; None where the system does not report it."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
