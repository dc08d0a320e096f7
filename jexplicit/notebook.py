"""The first cell of a notebook runs this: it installs the package from the clone or the wheel that this file is in.

Nothing happens where the package is installed. On a machine with an NVIDIA GPU, JAX for it is installed, too.
"""

import importlib
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path


def install() -> None:
    """Install the clone (editable) or the wheel that holds this file, unless it is installed.

    Raises:
        ImportError: the kernel had loaded another version of a package that was installed: it has to be restarted.
    """
    source = Path(__file__).resolve().parents[1]
    elsewhere = [
        found for found in metadata.distributions(name="jexplicit") if Path(str(found.locate_file(""))).resolve() != source
    ]
    if elsewhere or not (source.is_file() or (source / "pyproject.toml").is_file()):
        return
    extra = "[cuda]" if shutil.which("nvidia-smi") else ""
    what = [*(["--editable"] if source.is_dir() else []), f"{source}{extra}"]
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *what], check=True)
    if source.is_file():  # from now on the installed files, not those in the archive
        sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != source]
        for name in [name for name in sys.modules if name.split(".")[0] == "jexplicit"]:
            del sys.modules[name]
    importlib.invalidate_caches()
    loaded = {name: getattr(sys.modules.get(name), "__version__", None) for name in ("jax", "matplotlib", "numpy", "scipy")}
    if stale := [name for name, version in loaded.items() if version and version != metadata.version(name)]:
        remedy = "restart it (Colab: Runtime, Restart session) and run all cells"
        raise ImportError(f"{', '.join(stale)} changed its version under this kernel: {remedy}")


if __name__ == "__main__":
    install()
