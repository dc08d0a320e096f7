"""The cache of tokenised texts: what it holds, and how to make room.

python -m launch.cache list
python -m launch.cache clear --older-than 30

It lies in $JEXPLICIT_CACHE_DIR, or in jexplicit in the user's cache folder. Where it holds more than $JEXPLICIT_CACHE_LIMIT
(default 10GB), the texts that were not used for the longest time are removed when another one is written.
"""

import sys
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jexplicit.data.cache_files import CacheEntry, cache_entries, cache_folder, cache_limit, clear_cache
from jexplicit.runs.bounds import NonNegativeFloat
from jexplicit.runs.command import Command, run_subcommand
from jexplicit.runs.progress import human, show
from jexplicit.runs.tables import Column, rich_table


@dataclass(frozen=True)
class List:
    """List the tokenised texts in the cache, with their sizes and when they were last used."""


@dataclass(frozen=True)
class Clear:
    """Remove tokenised texts from the cache; they are made again when they are needed."""

    older_than: NonNegativeFloat = 0.0
    """Days: remove only what was not used for so long."""


COLUMNS = (Column("entry", "entry"), Column("MB", "bytes", ",.1f", scale=1e-6), Column("last used", "used"))


def list_cache(config: List) -> dict[str, Any]:
    """Show every entry."""
    folder, limit = cache_folder(), cache_limit()
    found = [_row(entry) for entry in cache_entries(folder)]
    size = sum(row["bytes"] for row in found)
    show(rich_table(COLUMNS, found), f"{folder}: {human(size)}B of at most {human(limit)}B")
    return {"folder": str(folder), "bytes": size, "limit": limit, "entries": found}


def clear(config: Clear) -> dict[str, Any]:
    """Remove entries."""
    folder = cache_folder()
    found = [_row(entry) for entry in clear_cache(folder, older_than=config.older_than)]
    size = sum(row["bytes"] for row in found)
    show(f"{folder}: {len(found)} entries removed, {human(size)}B")
    return {"folder": str(folder), "bytes": size, "removed": found}


def _row(entry: CacheEntry) -> dict[str, Any]:
    used = datetime.fromtimestamp(entry.used).isoformat(" ", "minutes")
    return {"entry": entry.path.name, "bytes": entry.bytes, "used": used}


COMMANDS = {"list": Command(List, list_cache), "clear": Command(Clear, clear)}


def main(argv: list[str] | None = None) -> int:
    """Entry point: the first argument names the subcommand."""
    return run_subcommand(COMMANDS, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
