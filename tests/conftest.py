"""Eight virtual CPU devices, float64 for the mathematics, and no silent broadcasting or promotion."""

import ast
import gc
import os
import sys
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
# XLA's older code for fused loops, a module at a time, compiles small functions twice as fast; processes inherit it
os.environ["XLA_FLAGS"] = (
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1 --xla_cpu_multi_thread_eigen=false "
    + os.environ.get("XLA_FLAGS", "")
)
os.environ["OMP_NUM_THREADS"] = "1"  # test processes fill the cores; threads of theirs would wait for each other
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import jax
import programs
import pytest
from jaxtyping import _import_hook, install_import_hook


def _visit_outside_of_functions(self: ast.NodeVisitor, node: ast.AST) -> None:
    """Functions inside of others stay unchecked: each call would make them and their checks anew, most of a test's seconds."""
    if not isinstance(node, ast.FunctionDef):
        ast.NodeVisitor.generic_visit(self, node)


_import_hook.JaxtypingTransformer.generic_visit = _visit_outside_of_functions
conf = "beartype.BeartypeConf(is_pep484_tower=True, is_debug=False)"
install_import_hook(["icl", "jexplicit"], f"beartype.beartype(conf={conf})")

jax.config.update("jax_num_cpu_devices", 8)
programs.listen()
jax.devices()  # start JAX now, so that no launcher under test changes the number of devices
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)  # tests compile much and compute little
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


def pytest_configure(config):
    """Doctests, which lie outside of this folder, are counted, too."""
    config.pluginmanager.register(programs, "programs")


def pytest_sessionstart(session):
    """Compiled programs of earlier runs, in a folder for each process; before workers start, each gets links to all files."""
    folder = os.environ.get("COMPILED_BY_TESTS")
    workers = session.config.getoption("numprocesses", None)
    if not folder:
        return
    if hasattr(session.config, "workerinput") or not workers:
        own = Path(folder, os.environ.get("PYTEST_XDIST_WORKER", "gw0")).absolute()
        jax.config.update("jax_compilation_cache_dir", str(own))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        return
    places = [Path(folder, f"gw{n}") for n in range(workers)]
    compiled = {path.name: path for place in places for path in place.glob("*-cache")}
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
        for name in compiled.keys() - set(os.listdir(place)):
            (place / name).hardlink_to(compiled[name])


def pytest_collection_modifyitems(items):
    """Files that use `elsewhere` come last: it drops what the files before have compiled."""
    clearing = {item.path for item in items if "elsewhere" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: item.path in clearing)


def pytest_collection_finish():
    """What is imported stays: the collector looks at the objects of tests alone, and at all of them only after each file."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(700, 10, 1_000_000)


@pytest.fixture
def data_dir():
    """The folder of larger data, where there is one."""
    return os.environ.get("JEXPLICIT_DATA_DIR") or pytest.skip("JEXPLICIT_DATA_DIR is not set")


@pytest.fixture
def elsewhere(monkeypatch):
    """`elsewhere(f, ...)` calls f with the code of accelerators, on this CPU."""

    def their_branch(*operands, default, **_):
        return default(*operands)

    def call(f, *arguments, **more):
        _free_compiled_functions()
        with monkeypatch.context() as patch:
            patch.setattr(jax.lax, "platform_dependent", their_branch)
            for module in _modules():
                if "on_cpu" in vars(module):
                    patch.setattr(module, "on_cpu", lambda mesh: False)
            result = f(*arguments, **more)
        _free_compiled_functions()
        return result

    return call


@pytest.fixture(autouse=True, scope="module")
def free_compiled_functions():
    """After a test file, free what was compiled if it is too much: a process that runs all files would keep gigabytes of it."""
    yield
    if programs.too_many():
        _free_compiled_functions()
    gc.collect()


def _free_compiled_functions():
    jax.clear_caches()
    for module in _modules():
        for value in list(vars(module).values()):
            if hasattr(type(value), "cache_clear"):  # a functools.cache, most often of compiled functions
                value.cache_clear()


def _modules():
    """Our modules, but those of texts, whose caches stay."""
    ours = ("jexplicit", "icl", "launch")
    return [m for name, m in list(sys.modules.items()) if name.split(".")[0] in ours and not name.startswith("jexplicit.data.")]
