"""The user's cache: tokenised texts, and functions that JAX has compiled.

An entry of tokens is a folder; its modification time is the time of its last use, read or write. The least recently used go
where there is too much.

Compiled functions are in its folder `compiled`, so that commands compile each function once. JAX's file names are hashes of
code, versions, XLA flags and the kind of device, which includes the instruction set of a CPU: machines that share a home folder
do not load each other's code. JAX writes a file in place, and another process would read the half that is there. So a process
has a folder of its own, `compiled/0`, or `compiled/1` while another process holds the first one, and so on.
"""

import atexit
import contextlib
import logging
import os
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from jexplicit.runs.files import local_path
from jexplicit.runs.host import parse_bytes

logger = logging.getLogger(__name__)

_name = re.compile("[0-9a-f]{32}")
_in_use: set[Path] = set()  # entries that this process has read or written: their files may be mapped
# JAX's own limit, jax_compilation_cache_max_size, is not used: with it JAX looks at all files at every write.
_every_function = {"jax_persistent_cache_min_compile_time_secs": 0, "jax_persistent_cache_min_entry_size_bytes": -1}


class CacheEntry(NamedTuple):
    """A file or folder in the cache, its bytes, and its last use."""

    path: Path
    bytes: int
    used: float


def cache_folder(cache_dir: str | os.PathLike | None = None) -> Path:
    """The folder of the cache: `cache_dir`, `$JEXPLICIT_CACHE_DIR`, or `jexplicit` in the user's cache folder."""
    if cache_dir := cache_dir or os.environ.get("JEXPLICIT_CACHE_DIR"):
        return local_path(cache_dir, "JEXPLICIT_CACHE_DIR")
    return local_path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "the cache") / "jexplicit"


def cache_limit(variable: str = "JEXPLICIT_CACHE_LIMIT", default: str = "10GB") -> int:
    """Size limit of a part of the cache in bytes, from the environment."""
    given = os.environ.get(variable) or default
    try:
        return 0 if given == "0" else parse_bytes(given)
    except ValueError as error:
        raise ValueError(f"{variable}={given}: {error}") from error


def cache_entries(folder: Path) -> list[CacheEntry]:
    """The tokenised texts of a cache, least recently used first."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if _name.fullmatch(path.name) and path.is_dir():
            size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            found.append(CacheEntry(path, size, path.stat().st_mtime))
    return sorted(found, key=lambda entry: entry.used)


def mark_used(entry: Path) -> None:
    """Mark an entry as in use by this process."""
    _in_use.add(entry)
    try:
        os.utime(entry)
    except OSError:  # a read-only cache
        pass


def shrink(entries: Sequence[CacheEntry], limit: float) -> list[CacheEntry]:
    """Remove the first entries until the rest fits a limit."""
    excess, removed = sum(entry.bytes for entry in entries) - limit, []
    for entry in entries:
        if excess <= 0:
            break
        if entry.path not in _in_use:
            removed.append(entry)
            excess -= entry.bytes
    return _remove(removed)


def clear_cache(entries: Sequence[CacheEntry], *, older_than: float = 0.0) -> list[CacheEntry]:
    """Remove the entries not used for `older_than` days (0: all); returns them."""
    last = time.time() - older_than * 86_400
    return _remove([entry for entry in entries if entry.used <= last or not older_than])


def _remove(entries: list[CacheEntry]) -> list[CacheEntry]:
    for entry in entries:  # files of an open or mapped entry remain readable
        if entry.path.is_dir():
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):  # removed by another process, or a read-only cache
                entry.path.unlink()
    return [entry for entry in entries if not entry.path.exists()]


# Compiled functions


def compiled_limit() -> int:
    """The size limit of compiled functions in bytes; 0 disables them."""
    return cache_limit("JEXPLICIT_COMPILED_LIMIT", "1GB")


def compiled_folder() -> Path:
    """The folder of compiled functions."""
    return cache_folder() / "compiled"


def claim(folder: Path, n: int = 0) -> tuple[Path, TextIO]:
    """The first free folder n, n + 1, ..., and its lock.

    If a process was killed while it held the folder, the file that it wrote last may be incomplete and is removed.
    """
    import fcntl  # not on Windows, where the rest of the cache works

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
    """Enable JAX's persistent compilation cache in a folder of this process.

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
    jax.config.update("jax_compilation_cache_dir", str(own_folder))
    for name, value in _every_function.items():
        if name.upper() not in os.environ:
            jax.config.update(name, value)
