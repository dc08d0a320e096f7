"""The bench of lossless compressors: the bits that they need for new text, in the units of language models."""

import bz2
import importlib.util
import lzma
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from jexplicit.data.corpus.docstrings import docs_corpus
from jexplicit.data.sizes import text_sizes
from jexplicit.data.text import text_corpus
from jexplicit.experiments.rows import Row
from jexplicit.experiments.tables import Column
from jexplicit.experiments.views import Table
from jexplicit.lm.measures import comparable_measures
from jexplicit.runs.progress import console
from launch.bench.config import Compressors
from launch.bench.shared.harness import Comparison, bench
from launch.bench.shared.streams import refuse_dev_alone

Compressor = Callable[[bytes], bytes]
STANDARD: dict[str, Compressor] = {
    "xz -9e": partial(lzma.compress, preset=9 | lzma.PRESET_EXTREME),
    "bzip2": bz2.compress,
}
ORDERS = (5, 6, 8)
MEMORY = 256 << 20  # bytes: PPMd forgets all that it has read when they are full


def ppmd(order: int, data: bytes) -> bytes:
    """PPMd, variant I: prediction by partial matching, which blends contexts of up to `order` bytes."""
    import pyppmd  # pyright: ignore[reportMissingImports]

    return pyppmd.compress(data, max_order=order, mem_size=MEMORY)


def compressors() -> dict[str, Compressor]:
    """Those that are installed, by name."""
    if importlib.util.find_spec("pyppmd") is None:
        console.print("without pyppmd there is no PPMd: pip install pyppmd")
        return STANDARD
    return STANDARD | {f"PPMd, order {order}": partial(ppmd, order) for order in ORDERS}


def added_bytes(compress: Compressor, train: bytes, dev: bytes) -> int:
    """Bytes that a text needs after another: `|compress(train + dev)| - |compress(train)|`."""
    return len(compress(train + dev)) - len(compress(train))


def comparisons(config: Compressors, folder: Path) -> Iterator[Comparison]:
    """* **xz -9e**: `lzma` of Python, which copies from all of the text before, 64 MiB at most.
    * **bzip2**: `bz2` of Python. It sorts blocks of 900 kB: of the training text only the part in the same block helps.
    * **PPMd, order K**: PPMd (variant I) of `pyppmd` with 256 MB (`pip install pyppmd`), contexts of up to K bytes.

    *Nats* and *bits* of the dev text are those of compress(train + dev) less those of compress(train), so that a compressor may
    learn from all text before a character, dev text included. The seconds are of compress(train + dev).
    """
    corpus = text_corpus(config.train, config.dev, documents="file", split="end") if config.train else docs_corpus(keep=True)
    train, dev = ("\n".join(part).encode("utf-8", "surrogatepass") for part in (corpus.train, corpus.dev))
    sizes, cases = text_sizes([dev.decode("utf-8", "surrogatepass")]), compressors()

    def measured(case: str, compressed: bytes) -> Row:
        added = added_bytes(cases[case], train, dev)
        nats = 8 * math.log(2) * added
        found = {"dev_compressed": added, "compressed": len(compressed), "nats_per_character": nats / sizes.characters}
        return found | comparable_measures(nats, sizes)

    yield Comparison(
        {name: partial(compress, train + dev) for name, compress in cases.items()},
        {"corpus": corpus.name, "train_bytes": len(train), "dev_bytes": len(dev), "dev_characters": sizes.characters},
        reference=next(iter(cases)),
        inspect=measured,
    )


COLUMNS = [
    Column("nats per character", "nats_per_character", ".3f"),
    Column("bits per character", "bits_per_character", ".3f"),
    Column("bits per byte", "bits_per_byte", ".3f"),
]
run = bench("compressors", comparisons, COLUMNS, sizes=(), check=refuse_dev_alone)
# Of the documentation.
RESULTS = Table([Column("text", "corpus"), Column("compressor", "method"), *COLUMNS, Column("CPU s", "cpu_seconds", ".2f")])
