"""Tokenise text of any size into shards: files of token ids that launch.lm counts without loading them whole.

python -m launch.shards --out shards/web --train web/*.txt.gz --dev held-out.txt
python -m launch.shards --out shards/wiki --corpus tfds:wikipedia/20230601.en --vocab-size 32000

Text is read document by document, so it need not fit in memory. To continue an interrupted command after its last complete
shard, run it again with the same flags.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from jexplicit.data.corpora import Corpus, sample_documents
from jexplicit.data.shards import Shards, write_shards
from jexplicit.data.sizes import text_sizes, write_sizes
from jexplicit.data.sources import read_corpus
from jexplicit.data.text import Unit
from jexplicit.data.tokenizers import KINDS, Tokenizer, make_tokenizer
from jexplicit.runs.bounds import Bounds, NonNegativeInt, PositiveInt
from jexplicit.runs.command import Preset, run_command
from jexplicit.runs.files import write_whole
from jexplicit.runs.progress import console, human, stage


@dataclass(frozen=True)
class Text:
    """Which text, and how it is tokenised."""

    GROUPS: ClassVar = {"out": "run", "corpus": "text", "tokenizer": "tokens", "feature": "text", "seed": "run"}

    out: str
    """Folder to write: tokenizer.model, and the shards in train/ and dev/."""
    corpus: str = "docs"
    """Source of the text. docs: the documentation that comes with Python. installed: also the docstrings of every installed
    package. tfds:NAME: a text data set of TensorFlow Datasets, whose validation or test split is dev. text: the files of
    --train (implied by it)."""
    train: tuple[str, ...] = ()
    """Training text: files, .gz files, globs or folders; plain text, or records (see --field)."""
    dev: tuple[str, ...] = ()
    """Held-out text. Default: every tenth block of ten training documents."""
    field: str | None = None
    """For files of records (.jsonl, .csv, .tsv, each also .gz, and .parquet): the field that holds the text."""
    documents: Unit = "line"
    """For plain text: what a document is. line: every line that is not blank. paragraph: lines between blank lines. file: each
    file."""
    tokenizer: str = "bpe"
    """What the tokens are. bpe: subwords. word: words between white space; extra spaces are ignored. char: characters. Or FILE,
    an existing tokenizer: another run's folder or its tokenizer.model, any SentencePiece model, or a Hugging Face
    tokenizer.json."""
    vocab_size: int | None = None
    """Vocabulary size, including <pad> and <unk>. Default: 4098 = 2^12 + 2; with --tokenizer char, every character."""
    tokenizer_documents: PositiveInt = 1_000_000
    """Number of training documents that the tokenizer is trained on, drawn with --seed; all if there are fewer."""
    feature: str = "text"
    """tfds:NAME: the feature that holds the text."""
    data_dir: str | None = None
    """tfds:NAME: folder of the data sets. Default: that of TFDS."""
    seed: NonNegativeInt = 0
    """Random seed: which documents the tokenizer is trained on."""


@dataclass(frozen=True)
class Config(Text):
    """Tokenise text of any size into shards: files of token ids that launch.lm counts without loading them whole."""

    GROUPS: ClassVar = {"limit": "text", "shard_tokens": "tokens"}

    limit: Annotated[int, Bounds(at_least=10)] | None = None
    """Use at most this many training documents, and at most a tenth as many dev documents."""
    shard_tokens: PositiveInt = 1 << 26
    """Number of tokens after which a shard ends, at the next multiple of 512 documents."""


_no_effect = ("out", "runner", "options")  # on what is written
PRESETS = {
    "tiny": Preset(
        Config(out="runs/tiny-shards", limit=500, vocab_size=512),
        "500 documents of docs, vocabulary 512: 234,744 training tokens; 10 s on 2 CPU cores.",
    ),
}


def run(config: Config) -> dict[str, Any]:
    """Text -> tokenizer -> shards of train and dev."""
    check(config)
    corpus = open_corpus(config)
    corpus = corpus.limit(config.limit) if config.limit else corpus
    tokenizer, in_all = tokenizer_in(config, corpus)
    found: dict[str, Any] = {"out": config.out, "vocab_size": tokenizer.vocab_size}
    for part, documents in (("train", corpus.train), ("dev", corpus.dev)):
        with stage(f"tokenising {part}", "documents") as progress:
            folder, report = Path(config.out, part), _with_total(progress, in_all if part == "train" else 0)
            shards = write_shards(folder, documents, tokenizer, shard_tokens=config.shard_tokens, progress=report)
        describe(folder, shards)
        found[part] = {"documents": shards.documents, "tokens": len(shards), "files": len(shards.shards)}
    write_sizes(Path(config.out, "dev"), text_sizes(corpus.dev))
    return found


def check(config: Text) -> None:
    """Refuse flags that make no sense, before anything is read or written."""
    if config.train and config.corpus not in ("docs", "text"):
        raise ValueError(f"--train with --corpus {config.corpus}: give one of the two")
    if not config.train and config.corpus == "text":
        raise ValueError("--corpus text without --train: name the training files, --train FILES")
    if config.dev and not config.train:
        raise ValueError(f"--dev with --corpus {config.corpus}: dev files go with --train FILES")
    check_text_flags(config)


def check_text_flags(config: Any) -> None:
    """Refuse a --tokenizer that is not there, and --field and --documents where no files are read."""
    if config.tokenizer not in KINDS:
        make_tokenizer(config.tokenizer, [], config.vocab_size)
    if not config.train and (config.field is not None or config.documents != "line"):
        flag = f"--field {config.field}" if config.field is not None else f"--documents {config.documents}"
        raise ValueError(f"{flag} without --train: it says how the files of --train and --dev are read")


def open_corpus(config: Text) -> Corpus:
    """The corpus that the config asks for; text files and TFDS are not read yet."""
    options = {name: getattr(config, name) for name in ("field", "documents", "feature", "data_dir")}
    with stage("reading", "source files") if config.corpus == "installed" else nullcontext() as progress:
        return read_corpus("text" if config.train else config.corpus, config.train, config.dev, **options, progress=progress)


def tokenizer_in(config: Text, corpus: Corpus) -> tuple[Tokenizer, int]:
    """The tokenizer of the folder, trained where there is none yet, and the number of training documents.

    Raises:
        ValueError: the folder was written with other flags or of other text, or cannot be written.
    """
    out = Path(config.out)
    flags = {name: value for name, value in asdict(config).items() if name not in _no_effect}
    settings = json.loads(json.dumps({**flags, "source": corpus.identity}))
    stored = _stored(out / "config.json")
    if stored is not None:
        changed = [name for name in settings if stored.get(name) != settings[name]]
        if changed:
            was = "; ".join(f"{name} = {_brief(stored.get(name))} (now {_brief(settings[name])})" for name in changed)
            raise ValueError(f"{out} was written with {was}: give the same flags and text, or choose another --out")
        if (out / "tokenizer.model").exists():
            return Tokenizer.load(out / "tokenizer.model"), stored["train_documents"]
    _make_writable(out)
    with stage("sampling", "documents") as progress:
        sample, documents = sample_documents(
            corpus.train, config.tokenizer_documents, seed=config.seed, progress=lambda seen: progress(seen, seen)
        )
        progress(documents, documents)
    with stage(f"training the tokenizer on {human(len(sample))} documents"):
        tokenizer = make_tokenizer(config.tokenizer, sample, config.vocab_size)
    described = json.dumps({**settings, "train_documents": documents}, indent=1) + "\n"
    write_whole(out / "config.json", lambda file: file.write(described.encode()))
    write_whole(out / "tokenizer.model", lambda file: file.write(tokenizer.file_content()))
    return tokenizer, documents


def describe(folder: Path, shards: Shards) -> None:
    """One line on what was written."""
    files = f"{len(shards.shards)} file{'s' * (len(shards.shards) != 1)}"
    console.print(
        f"  {folder}: {shards.documents} documents, {len(shards)} tokens of {shards.vocab_size} in {files}", soft_wrap=True
    )


def _stored(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        stored = json.loads(path.read_text())
        int(stored["train_documents"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged or of another command: choose another --out") from error
    return stored


def _make_writable(out: Path) -> None:
    """Make the folder and try to write to it, before hours of reading."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    except OSError as error:
        raise ValueError(f"{out} cannot be written ({error.strerror}): choose another --out") from error


def _with_total(progress: Callable[[int, int], None], in_all: int) -> Callable[[int, int], None]:
    """Progress of a known number of documents, which `write_shards` does not know."""
    return lambda done, _: progress(done, max(done, in_all))


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    return run_command(run, Config, presets=PRESETS, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
