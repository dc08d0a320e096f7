"""The cache of a user: where it lies, how large its parts may become, and what is removed first.

An entry of tokens is a folder; it is used when it is read or written, which its modification time says. Compiled functions
are in a folder of their own there, see `jexplicit.runs.compiled`.
"""

import contextlib
import os
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jexplicit.runs.host import parse_bytes

_name = re.compile("[0-9a-f]{32}")
_in_use: set[Path] = set()  # entries that this process has read or written: their files may be mapped


class CacheEntry(NamedTuple):
    """A file or folder in the cache, its size in bytes, and when it was last used, in seconds since 1970."""

    path: Path
    bytes: int
    used: float


def cache_folder(cache_dir: str | os.PathLike | None = None) -> Path:
    """The folder of the cache: the one given, `$JEXPLICIT_CACHE_DIR`, or `jexplicit` in the user's cache folder."""
    if cache_dir := cache_dir or os.environ.get("JEXPLICIT_CACHE_DIR"):
        return Path(cache_dir)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jexplicit"


def cache_limit(variable: str = "JEXPLICIT_CACHE_LIMIT", default: str = "10GB") -> int:
    """The most bytes that a part of the cache may hold: what an environment variable says, such as 500MB, or the default.

    Raises:
        ValueError: the variable is no number of bytes.
    """
    given = os.environ.get(variable) or default
    try:
        return 0 if given == "0" else parse_bytes(given)
    except ValueError as error:
        raise ValueError(f"{variable}={given}: {error}") from error


def cache_entries(folder: Path) -> list[CacheEntry]:
    """The tokenised texts of a cache, least recently used first; other files in the folder are left alone."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if _name.fullmatch(path.name) and path.is_dir():
            size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            found.append(CacheEntry(path, size, path.stat().st_mtime))
    return sorted(found, key=lambda entry: entry.used)


def mark_used(entry: Path) -> None:
    """Note that this process uses an entry now."""
    _in_use.add(entry)
    try:
        os.utime(entry)
    except OSError:  # a cache that is only read
        pass


def shrink(entries: Sequence[CacheEntry], limit: float) -> list[CacheEntry]:
    """Remove the first entries, the least recently used, until the others fit a limit; those that this process uses stay.

    Returns:
        the entries removed.
    """
    excess, removed = sum(entry.bytes for entry in entries) - limit, []
    for entry in entries:
        if excess <= 0:
            break
        if entry.path not in _in_use:
            removed.append(entry)
            excess -= entry.bytes
    return _remove(removed)


def clear_cache(entries: Sequence[CacheEntry], *, older_than: float = 0.0) -> list[CacheEntry]:
    """Remove the entries that were not used for so many days; 0 removes all.

    Returns:
        the entries removed.
    """
    last = time.time() - older_than * 86_400
    return _remove([entry for entry in entries if entry.used <= last or not older_than])


def _remove(entries: list[CacheEntry]) -> list[CacheEntry]:
    for entry in entries:  # a reader that has an entry open or mapped keeps its files
        if entry.path.is_dir():
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):  # another process was faster, or the cache is only read
                entry.path.unlink()
    return [entry for entry in entries if not entry.path.exists()]
