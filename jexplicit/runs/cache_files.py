"""The user's cache: its folder, size limits, and removal of the least recently used entries.

An entry of tokens is a folder; its modification time is the time of its last use, read or write. Compiled functions are in a
separate subfolder, see `jexplicit.runs.compiled`.
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
    """A file or folder in the cache, its size in bytes, and its last use, in seconds since 1970."""

    path: Path
    bytes: int
    used: float


def cache_folder(cache_dir: str | os.PathLike | None = None) -> Path:
    """The folder of the cache: `cache_dir`, `$JEXPLICIT_CACHE_DIR`, or `jexplicit` in the user's cache folder."""
    if cache_dir := cache_dir or os.environ.get("JEXPLICIT_CACHE_DIR"):
        return Path(cache_dir)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jexplicit"


def cache_limit(variable: str = "JEXPLICIT_CACHE_LIMIT", default: str = "10GB") -> int:
    """Size limit of a part of the cache, in bytes, from an environment variable such as 500MB."""
    given = os.environ.get(variable) or default
    try:
        return 0 if given == "0" else parse_bytes(given)
    except ValueError as error:
        raise ValueError(f"{variable}={given}: {error}") from error


def cache_entries(folder: Path) -> list[CacheEntry]:
    """The tokenised texts of a cache, least recently used first; other files in the folder are ignored."""
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
    """Remove the first entries, the least recently used, until the rest fits a limit; returns them. Entries in use are kept."""
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
