"""List or clear the cache of tokenised texts and compiled functions.

python -m launch.cache list
python -m launch.cache clear --older-than 30

It lies in $JEXPLICIT_CACHE_DIR, or in jexplicit in the user's cache folder. Where it holds more than $JEXPLICIT_CACHE_LIMIT
(default 10GB), the least recently used texts are removed when another one is written. Compiled functions lie in its folder
`compiled`, which holds at most $JEXPLICIT_COMPILED_LIMIT (default 1GB; 0 keeps nothing). JAX's own variables, such as
JAX_COMPILATION_CACHE_DIR, take precedence; the contents of a folder that they name are not listed here.
"""

import shutil
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from jexplicit.runs.bounds import NonNegativeFloat
from jexplicit.runs.files import CacheEntry, cache_entries, cache_folder, cache_limit, compiled_folder
from jexplicit.runs.progress import show, si_format
from launch.kit.command import Command, run_subcommand
from launch.kit.views import Column, rich_table


@dataclass(frozen=True)
class List:
    """List the tokenised texts in the cache, and compiled functions' size."""


@dataclass(frozen=True)
class Clear:
    """Remove tokenised texts and compiled functions; they are made again at need."""

    older_than: NonNegativeFloat = 0.0
    """Remove only what was not used for this many days."""


COLUMNS = (Column("entry", "entry"), Column("MB", "bytes", ",.1f", scale=1e-6), Column("last used", "used"))


def compiled_files() -> list[Path]:
    """The files of compiled functions."""
    return list(compiled_folder().rglob("*-cache"))


def list_cache(config: List) -> dict[str, Any]:
    """Show every text, and the compiled functions in one line."""
    folder, limit, kept = cache_folder(), cache_limit(), compiled_files()
    found = [_row(entry) for entry in cache_entries(folder)]
    size, compiled = sum(row["bytes"] for row in found), sum(path.stat().st_size for path in kept)
    show(rich_table(COLUMNS, found), f"{folder}: {si_format(size)}B of at most {si_format(limit)}B")
    show(f"{compiled_folder()}: {len(kept)} files, {si_format(compiled)}B")
    return {"folder": str(folder), "bytes": size, "limit": limit, "entries": found, "compiled": len(kept)}


def clear(config: Clear) -> dict[str, Any]:
    """Remove texts and compiled functions."""
    folder, last = cache_folder(), time.time() - config.older_than * 86_400
    texts = [entry for entry in cache_entries(folder) if entry.used <= last or not config.older_than]
    for entry in texts:
        shutil.rmtree(entry.path, ignore_errors=True)
    kept = [path for path in compiled_files() if path.stat().st_atime <= last or not config.older_than]
    for path in kept:
        path.unlink(missing_ok=True)
    found = [_row(entry) for entry in texts]
    show(f"{folder}: {len(found)} texts removed, {si_format(sum(entry.bytes for entry in texts))}B")
    show(f"{compiled_folder()}: {len(kept)} files removed")
    return {"folder": str(folder), "removed": found, "compiled": len(kept)}


def _row(entry: CacheEntry) -> dict[str, Any]:
    used = datetime.fromtimestamp(entry.used).isoformat(" ", "minutes")
    return {"entry": entry.path.name, "bytes": entry.bytes, "used": used}


COMMANDS = {"list": Command(List, list_cache), "clear": Command(Clear, clear)}


def main(argv: list[str] | None = None) -> int:
    """Entry point: the first argument names the subcommand."""
    return run_subcommand(COMMANDS, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
