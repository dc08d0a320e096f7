"""Compiled functions kept on disk, so that commands compile each of them once: JAX's persistent compilation cache.

They lie in `compiled`, in the folder of the cache. JAX names each by a hash of its code, the versions, the flags of XLA and the
kind of device, which for a CPU are the instructions that it has: machines that share a home folder do not read what another one
compiled for itself.
"""

import logging
import os
from pathlib import Path

from jexplicit.runs.cache_files import CacheEntry, cache_folder, cache_limit, shrink

logger = logging.getLogger(__name__)

# Of JAX's own limit, jax_compilation_cache_max_size, no use is made: with it JAX looks through the folder at every write.
_EVERY_FUNCTION = {"jax_persistent_cache_min_compile_time_secs": 0, "jax_persistent_cache_min_entry_size_bytes": -1}


def compiled_limit() -> int:
    """The most bytes of compiled functions: `$JEXPLICIT_COMPILED_LIMIT`, such as 200MB, or 1 GB; 0 where none are kept.

    Raises:
        ValueError: the variable is no number of bytes.
    """
    return cache_limit("JEXPLICIT_COMPILED_LIMIT", "1GB")


def compiled_folder() -> Path:
    """Where compiled functions lie."""
    return cache_folder() / "compiled"


def compiled_entries() -> list[CacheEntry]:
    """The files of compiled functions, least recently used first."""
    found = []
    for path in compiled_folder().rglob("*"):
        try:
            about = path.stat()
        except OSError:  # another process has removed it
            continue
        if path.is_file():
            found.append(CacheEntry(path, about.st_size, max(about.st_atime, about.st_mtime)))
    return sorted(found, key=lambda entry: entry.used)


def keep_compiled() -> None:
    """Let JAX keep what it compiles from now on, and read what is there; those over the limit that were not used are removed.

    Nothing changes where the user has chosen a folder for JAX or has switched its cache off, by JAX's own variables or in the
    program, where `$JEXPLICIT_COMPILED_LIMIT` is 0, and where the folder cannot be written or is another user's: what lies
    there is run.

    Raises:
        ValueError: the variable is no number of bytes.
    """
    import jax  # here, so that `launch.cache` does without

    limit, folder = compiled_limit(), compiled_folder()
    chosen = jax.config.values
    if not limit or chosen["jax_compilation_cache_dir"] or not chosen["jax_enable_compilation_cache"]:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        own = not hasattr(os, "getuid") or folder.stat().st_uid == os.getuid()
    except OSError:
        own = False
    if not own or not os.access(folder, os.W_OK):
        logger.info("compiled functions are not kept in %s: set JEXPLICIT_CACHE_DIR to a folder of yours", folder)
        return
    shrink(compiled_entries(), limit)
    jax.config.update("jax_compilation_cache_dir", str(folder.absolute()))
    for name, value in _EVERY_FUNCTION.items():
        if name.upper() not in os.environ:
            jax.config.update(name, value)
