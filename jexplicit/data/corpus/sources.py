"""The corpus named by the flags of a launcher."""

import os
from collections.abc import Callable

from jexplicit.data.corpora import Corpus, Split
from jexplicit.data.corpus.docstrings import docs_corpus, installed_corpus
from jexplicit.data.text import Paths, Unit, text_corpus
from jexplicit.data.tfds import tfds_corpus


def read_corpus(
    name: str,
    train: Paths = (),
    dev: Paths = (),
    *,
    field: str | None = None,
    documents: Unit = "line",
    split: Split = "blocks",
    feature: str = "text",
    data_dir: str | os.PathLike | None = None,
    keep: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Corpus:
    """The corpus of a name: `docs`, `installed`, `text` or `tfds:NAME`.

    train, dev, field, documents, split: of `text`, see `jexplicit.data.text.text_corpus`. feature, data_dir: of TFDS.
    keep: of `docs`, see `docs_corpus`. progress: of `installed`, called with (source files done, total source files).
    """
    kind, _, of_tfds = name.partition(":")
    if kind == "tfds" and of_tfds:
        return tfds_corpus(of_tfds, feature=feature, data_dir=data_dir)
    if name == "text":
        return text_corpus(train, dev, field=field, documents=documents, split=split)
    if name == "installed":
        return installed_corpus(progress)
    if name != "docs":
        raise ValueError(f"corpus {name!r}: choose docs, installed or tfds:NAME, or name training files")
    return docs_corpus(keep=keep)
