"""Eight virtual CPU devices, float64 for the mathematics, and no silent broadcasting or promotion."""

import gc
import os
import sys
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import pytest
from jaxtyping import install_import_hook

# pytest's own option (pyproject.toml) takes a single package where the checker has arguments
install_import_hook("icl", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")

jax.config.update("jax_num_cpu_devices", 8)
jax.devices()  # start JAX now, so that no launcher under test changes the number of devices
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)  # tests compile much and compute little
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture
def data_dir():
    """The folder of larger data, where there is one."""
    folder = os.environ.get("JEXPLICIT_DATA_DIR")
    if not folder:
        pytest.skip("JEXPLICIT_DATA_DIR is not set")
    return folder


LARGEST_IDLE_BYTES = 1.5e9  # a process that is larger after a test file frees what it has compiled


@pytest.fixture(autouse=True, scope="module")
def compiled_functions_are_freed():
    """Without this a process that runs many test files keeps every function that any of them compiled, gigabytes in all."""
    yield
    if _resident_bytes() > LARGEST_IDLE_BYTES:
        jax.clear_caches()
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] in ("jexplicit", "icl", "launch"):
                for value in list(vars(module).values()):
                    if hasattr(value, "cache_clear"):  # a functools.cache, of compiled functions most often
                        value.cache_clear()
        gc.collect()


def _resident_bytes() -> float:
    """Memory of this process; infinity where the system does not have /proc."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else float("inf")
