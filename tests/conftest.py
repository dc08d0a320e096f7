"""Eight virtual CPU devices, float64 for the mathematics, and no silent broadcasting or promotion."""

import gc
import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
# XLA's older code for fused loops, a module at a time, compiles small functions twice as fast; processes inherit it
os.environ["XLA_FLAGS"] = " ".join(
    ["--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1", os.environ.get("XLA_FLAGS", "")]
)

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


@pytest.fixture
def elsewhere(monkeypatch):
    """The code of accelerators, run on this CPU: `elsewhere(f, ...)` calls f with it."""

    def call(f, *arguments, **more):
        def their_branch(*operands, default, **_):
            return default(*operands)

        jax.clear_caches()
        with monkeypatch.context() as patch:
            patch.setattr(jax.lax, "platform_dependent", their_branch)
            result = jax.block_until_ready(f(*arguments, **more))
        jax.clear_caches()
        return result

    return call


@pytest.fixture(autouse=True, scope="module")
def free_compiled_functions():
    """After each test file, free what it compiled: a process that runs many files would keep gigabytes of it."""
    yield
    jax.clear_caches()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("jexplicit", "icl", "launch") and not name.startswith("jexplicit.data."):  # texts stay
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear"):  # a functools.cache, most often of compiled functions
                    value.cache_clear()
    gc.collect()
