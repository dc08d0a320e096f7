"""Whether the arrays of a run fit into the memory of the host."""

from jax.sharding import Mesh

from jexplicit.runs.devices import data_mesh
from jexplicit.runs.host import host_bytes

_runtime_bytes = 600 * 10**6  # Python, its libraries, XLA and what it compiles


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
