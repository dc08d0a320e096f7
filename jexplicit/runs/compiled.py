"""JAX's persistent compilation cache, so that commands compile each function once.

Files are in `compiled`, in the folder of the cache. JAX's file names are hashes of code, versions, XLA flags and the kind of
device, which includes the instruction set of a CPU: machines that share a home folder do not load each other's code.

JAX writes a file in place, and another process would read the half that is there. So a process has a folder of its own,
`compiled/0`, or `compiled/1` while another process holds the first one, and so on.
"""

import atexit
import fcntl
import logging
import os
from pathlib import Path
from typing import TextIO

from jexplicit.runs.cache_files import CacheEntry, cache_folder, cache_limit, shrink

logger = logging.getLogger(__name__)

# JAX's own limit, jax_compilation_cache_max_size, is not used: with it JAX scans the folder at every write.
_EVERY_FUNCTION = {"jax_persistent_cache_min_compile_time_secs": 0, "jax_persistent_cache_min_entry_size_bytes": -1}


def compiled_limit() -> int:
    """The size limit of compiled functions, in bytes: `$JEXPLICIT_COMPILED_LIMIT` such as 200MB, or 1 GB; 0 disables them."""
    return cache_limit("JEXPLICIT_COMPILED_LIMIT", "1GB")


def compiled_folder() -> Path:
    """The folder of compiled functions."""
    return cache_folder() / "compiled"


def claim(folder: Path, n: int = 0) -> tuple[Path, TextIO]:
    """The first of the folders n, n + 1, ... in a folder that no other process holds, and its lock, to be released.

    If a process was killed while it held the folder, the file that it wrote last may be incomplete and is removed.
    """
    own = folder / str(n)
    own.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = open(own / "lock", "a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return claim(folder, n + 1)
    if lock.tell() and (entries := compiled_entries(own)):
        max(entries, key=lambda entry: entry.path.stat().st_mtime).path.unlink()
    print("held", file=lock, flush=True)
    return own, lock


def release(lock: TextIO) -> None:
    """The folder of this lock is complete and free for another process."""
    lock.truncate(0)
    lock.close()


def compiled_entries(folder: Path | None = None) -> list[CacheEntry]:
    """The files of compiled functions, least recently used first."""
    found = []
    for path in (folder or compiled_folder()).rglob("*-cache"):
        try:
            about = path.stat()
        except OSError:  # removed by another process
            continue
        if path.is_file():
            found.append(CacheEntry(path, about.st_size, max(about.st_atime, about.st_mtime)))
    return sorted(found, key=lambda entry: entry.used)


def keep_compiled() -> None:
    """Enable JAX's persistent compilation cache in a folder of this process, and remove its oldest files above the limit.

    No effect if the user has configured or disabled JAX's cache, if the limit is 0, or if the folder is not writable or belongs
    to another user: its files are executed.
    """
    import jax  # local import: `launch.cache` does not need JAX

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
    own_folder, lock = claim(folder)
    atexit.register(release, lock)
    shrink(compiled_entries(own_folder), limit)
    jax.config.update("jax_compilation_cache_dir", str(own_folder.absolute()))
    for name, value in _EVERY_FUNCTION.items():
        if name.upper() not in os.environ:
            jax.config.update(name, value)
