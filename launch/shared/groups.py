"""Groups of flags that several commands share, and their checks."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from jexplicit.data.text import Unit
from jexplicit.runs.bounds import NonNegativeInt, PositiveInt, refuses


@dataclass(frozen=True)
class Run:
    """The folder of a run, its seed, and whether it continues an earlier one."""

    GROUPS: ClassVar = {"out": "run"}

    out: str
    """Run folder to write. It gets config, results, metrics, figures, report.md and the models."""
    seed: NonNegativeInt = 0
    """Seed of every random choice."""
    resume: bool = False
    """Continue the interrupted run in --out, with its own configuration."""


@dataclass(frozen=True)
class Images:
    """Labelled images."""

    GROUPS: ClassVar = {"data": "images"}

    data: str = "digits"
    """Image data set. digits: the 8x8 digits of scikit-learn. mnist, fashion_mnist, or any name: the files in --data-dir. A
    path, such as ./shapes or mnist.npz: the files there. tfds:NAME or tfds:DIR: a data set of TensorFlow Datasets."""
    data_dir: str | None = None
    """Folder or file of grey images of one size. It is a folder of PNGs, train/LABEL/*.png and test/LABEL/*.png; a folder of
    idx files with MNIST's file names, gzipped or not; or an .npz file with the arrays x_train, y_train, x_test, y_test.
    Default: the folder named after the data set in $JEXPLICIT_DATA_DIR."""


@dataclass(frozen=True, kw_only=True)
class Files:
    """Which text is read."""

    GROUPS: ClassVar = {"train": "text"}

    train: tuple[str, ...] = ()
    """Training text: files, pipes, globs or folders of plain text or records. Files may be compressed; see --field."""
    dev: tuple[str, ...] = ()
    """Validation text. Default: every tenth block of ten training documents."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How files are read."""

    GROUPS: ClassVar = {"field": "text"}

    field: str | None = None
    """Field with the text, for records. Their files are .jsonl, .json, .csv, .tsv and .parquet."""
    documents: Unit = "line"
    """Unit of a document in plain text. line: every line that is not blank. paragraph: lines between blank lines. file: each
    file."""


@dataclass(frozen=True, kw_only=True)
class Text(Reading, Files):
    """Which text is read, and what its tokens are."""

    tokenizer: str = "bpe"
    """Kind of tokens: bpe, word, char, or the FILE of a tokenizer. bpe: subwords. word: words between white space. char:
    characters. Or FILE, an existing tokenizer: another run's folder or its tokenizer.model, any SentencePiece model, or a
    Hugging Face tokenizer.json."""
    vocab_size: PositiveInt | None = None
    """Vocabulary size, <pad> and <unk> included. Default: 4098 = 2^12 + 2; with --tokenizer char, every character."""


@refuses
def check_text(config: Any) -> Iterator[tuple[Any, str]]:
    """Refuse text flags that exclude each other, and missing tokenizers."""
    from jexplicit.data.tokenizers import KINDS, make_tokenizer  # local import: --help does not need NumPy

    train = bool(config.train)
    yield train and config.corpus not in ("docs", "text"), f"--train with --corpus {config.corpus}: give one of the two"
    yield config.corpus == "text" and not train, "--corpus text without --train: name the training files, --train FILES"
    yield config.dev and not train, f"--dev with --corpus {config.corpus}: dev files go with --train FILES"
    if config.tokenizer not in KINDS:
        make_tokenizer(config.tokenizer, [], config.vocab_size)
    unread = "without --train: it says how the files of --train and --dev are read"
    files = train or bool(getattr(config, "test", ()))
    yield not files and config.field is not None, f"--field {config.field} {unread}"
    yield not files and config.documents != "line", f"--documents {config.documents} {unread}"
