"""The public names: each costs the import of its own module, and all are listed in the packages that have them."""

import importlib
import subprocess
import sys

import pytest

import jexplicit

PARTS = ("counts", "data", "features", "lm", "solvers")


def modules_after(statement: str) -> set[str]:
    """The modules of a new process after a statement."""
    code = f"{statement}; import sys; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_a_name_imports_its_own_module_alone():
    assert not {"jax", "numpy"} & modules_after("import jexplicit, icl")
    loaded = modules_after("import jexplicit; jexplicit.explicit_solution; jexplicit.solvers.solve_layers")
    assert "jexplicit.solvers.explicit" in loaded
    assert not {"scipy", "orbax", "flax", "sentencepiece", "PIL", "jexplicit.lm.fits.fit"} & loaded


def test_the_top_lists_what_most_programs_need():
    assert set(dir(jexplicit)) == {
        *PARTS,
        *"LanguageModel contexts count data_mesh evaluate explain explicit_solution fit generate load_model".split(),
        *"curvature_bound_sweeps iterative_scaling_sweeps patch_pools score solve_layers".split(),
    }


@pytest.mark.parametrize("package", ["icl", "icl.blur", *(f"jexplicit.{part}" for part in PARTS)])
def test_every_listed_name_is_there(package):
    module = importlib.import_module(package)
    names = dir(module)
    assert len(names) > 3 and all(getattr(module, name) is not None for name in names)
    if package.startswith("jexplicit"):  # and is a name of the top, too
        assert all(getattr(jexplicit, name) is getattr(module, name) for name in names)


def test_an_unknown_name_is_an_attribute_error():
    for module in (jexplicit, jexplicit.solvers, importlib.import_module("icl")):
        with pytest.raises(AttributeError, match="nonesuch"):
            module.nonesuch  # noqa: B018
