"""Tokenise and count text of any size with Apache Beam.

python -m launch.beam --out /web --train '/web/*.txt' --dev /dev.txt --runner FlinkRunner --options='--flink_master=HOST:PORT'

Every worker must see --out and the text under the same paths. Needs the extra `beam`.
"""

import logging
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jexplicit.data.text import Documents, files_documents, train_and_dev_files
from jexplicit.runs.files import PositiveInt
from jexplicit.runs.progress import console, stage
from launch.kit.command import Preset, entry_point
from launch.shards import Source, describe, open_corpus, tokenizer_in


@dataclass(frozen=True, kw_only=True)
class Config(Source):
    context: PositiveInt = 4
    """Count pairs of tokens up to this many positions apart."""
    runner: str = "DirectRunner"
    """Beam's runner; DirectRunner is this machine."""
    options: str = ""
    """Flags of Beam and its runner in one string, --options='--direct_num_workers=2'."""


_tiny = Config(out="runs/tiny-beam", vocab_size=512, context=2)
PRESETS = {"tiny": Preset(_tiny, "docs with a vocabulary of 512, pairs up to 2 apart; 15 s on 2 CPU cores.")}


def run(config: Config) -> dict[str, Any]:
    """Text -> tokenizer -> shards of train and dev, counts of train."""
    from jexplicit.beam import Part, check_beam, ingest
    from jexplicit.counts import read_tables
    from jexplicit.data.streams import read_shards

    check_beam()
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)  # a worker's error is printed as one line
    if config.train and not config.dev:
        raise ValueError("--train without --dev: name the files of the validation text, which no worker could hold out alone")
    corpus = open_corpus(config)
    units: dict[str, Any] = {"train": [corpus.train], "dev": [corpus.dev]}
    if config.train:  # a worker's part is a file
        files = zip(units, train_and_dev_files(config.train, config.dev), strict=True)
        reading = {"field": config.field, "documents": config.documents}
        units = {split: [Documents(files_documents, [file], **reading) for file in own] for split, own in files}
    parts = [Part(split, n, unit) for split, own in units.items() for n, unit in enumerate(own)]
    tokenizer, documents = tokenizer_in(config, corpus)
    with stage("tokenising and counting", "documents") as progress:
        options: Any = {"context": config.context, "runner": config.runner, "options": shlex.split(config.options)}
        ingest(parts, tokenizer, config.out, **options)
        progress(documents, documents)
    for part in ("train", "dev"):
        describe(Path(config.out, part), read_shards(Path(config.out, part)))
    counts = Path(config.out, "counts")
    pairs = [int(table.nnz) for table in read_tables(counts)]
    console.print(f"  {counts}: distinct pairs 1 .. {config.context} apart: {' '.join(map(str, pairs))}", soft_wrap=True)
    return {"out": config.out, "documents": documents, "vocab_size": tokenizer.vocab_size, "distinct_pairs": pairs}


main = entry_point(run, Config, __doc__, PRESETS, module=__name__)
