"""Tokenise text of any size into shards: files of token ids that launch.lm counts through a window.

python -m launch.shards --out shards/web --train web/*.txt.gz --dev held-out.txt
python -m launch.shards --out shards/wiki --corpus tfds:wikipedia/20230601.en --vocab-size 32000

Text is read document by document, so it need not fit in memory. Run again with the same flags, a command that was
interrupted goes on after the last whole shard.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from jexplicit.data.docstrings import docs_corpus, installed_corpus
from jexplicit.data.shards import Shards, write_shards
from jexplicit.data.sources import Source, corpus_source, limited, sample_documents, text_source, tfds_source
from jexplicit.data.tfds import tfds_text
from jexplicit.data.tokenizers import Tokenizer, train_tokenizer
from jexplicit.runs.command import Preset, run_command
from jexplicit.runs.files import write_whole
from jexplicit.runs.progress import console, human, stage


@dataclass(frozen=True)
class Text:
    """Which text, and how it is cut into tokens."""

    out: str
    """Folder to write: tokenizer.model, and the shards in train/ and dev/."""
    corpus: str = "docs"
    """docs: the documentation that comes with Python. installed: the docstrings of every installed package too. tfds:NAME: a
    text data set of TensorFlow Datasets, whose validation or test split is dev. text: the files of --train (implied by it)."""
    train: tuple[str, ...] = ()
    """Training text: files, .gz files, globs or folders. Every line that is not blank is a document."""
    dev: tuple[str, ...] = ()
    """Held-out text; default, every tenth block of ten training documents."""
    tokenizer: Literal["bpe", "word", "char"] = "bpe"
    """Subwords, words between white space, or characters."""
    vocab_size: int | None = None
    """Token ids, <pad> and <unk> included; default 4098 = 2^12 + 2, or every character."""
    tokenizer_documents: int = 1_000_000
    """The tokenizer learns from so many training documents, drawn with --seed; from all, where there are no more."""
    feature: str = "text"
    """Of tfds:NAME: the feature that holds the text."""
    data_dir: str | None = None
    """Of tfds:NAME: folder of the data sets; default, TFDS's own."""
    seed: int = 0
    """Of the documents that the tokenizer learns from."""


@dataclass(frozen=True)
class Config(Text):
    """Tokenise text of any size into shards: files of token ids that launch.lm counts through a window."""

    limit: int | None = None
    """Use at most this many training documents, and a tenth as many dev documents."""
    shard_tokens: int = 1 << 26
    """Tokens after which a shard ends, at the next 512th document."""


_where_not_what = ("out", "runner", "options")
PRESETS = {
    "tiny": Preset(
        Config(out="runs/tiny-shards", limit=500, vocab_size=512),
        "500 documents of docs, vocabulary 512: 234,744 training tokens; 10 s on 2 CPU cores.",
    ),
}


def run(config: Config) -> None:
    """Text -> tokenizer -> shards of train and dev."""
    check(config)
    if config.limit is not None and config.limit < 10:
        raise ValueError(f"--limit {config.limit}: use at least 10 documents")
    if config.shard_tokens < 1:
        raise ValueError(f"--shard-tokens {config.shard_tokens}: at least 1")
    source = limited(read_source(config), config.limit) if config.limit else read_source(config)
    tokenizer, documents = tokenizer_in(config, source)
    for part, read in (("train", source.train), ("dev", source.dev)):
        with stage(f"tokenising {part}", "documents") as progress:
            folder, in_all = Path(config.out, part), documents if part == "train" else 0
            moved = _of(progress, in_all)
            shards = write_shards(folder, read(), tokenizer, shard_tokens=config.shard_tokens, progress=moved)
        describe(folder, shards)


def check(config: Text) -> None:
    """Refuse flags that make no sense, before anything is read or written."""
    named = config.corpus in ("docs", "installed", "text") or config.corpus.removeprefix("tfds:") not in ("", config.corpus)
    if not named:
        raise ValueError(f"--corpus {config.corpus}: choose docs, installed or tfds:NAME, or name files with --train FILES")
    if config.train and config.corpus not in ("docs", "text"):
        raise ValueError(f"--train with --corpus {config.corpus}: give one of the two")
    if not config.train and config.corpus == "text":
        raise ValueError("--corpus text without --train: name the training files, --train FILES")
    if config.dev and not config.train:
        raise ValueError(f"--dev with --corpus {config.corpus}: dev files go with --train FILES")
    if config.tokenizer_documents < 1:
        raise ValueError(f"--tokenizer-documents {config.tokenizer_documents}: at least 1")


def read_source(config: Text) -> Source:
    """The documents that the config asks for; text files and TFDS are not read yet."""
    if config.train:
        source = text_source(config.train, config.dev)
    elif config.corpus.startswith("tfds:"):
        data = tfds_text(config.corpus.removeprefix("tfds:"), feature=config.feature, data_dir=config.data_dir)
        source = tfds_source(data)
    elif config.corpus == "docs":
        source = corpus_source(docs_corpus())
    else:
        with stage("reading", "source files") as progress:
            source = corpus_source(installed_corpus(progress))
    return source


def tokenizer_in(config: Text, source: Source) -> tuple[Tokenizer, int]:
    """The tokenizer of the folder, trained where there is none yet, and the number of training documents.

    Raises:
        ValueError: the folder was written with other flags or of other text, or cannot be written.
    """
    out = Path(config.out)
    what = {name: value for name, value in asdict(config).items() if name not in _where_not_what}
    settings = json.loads(json.dumps({**what, "source": source.identity}))
    stored = _stored(out / "config.json")
    if stored is not None:
        changed = [name for name in settings if stored.get(name) != settings[name]]
        if changed:
            was = "; ".join(f"{name} = {_brief(stored.get(name))} (now {_brief(settings[name])})" for name in changed)
            raise ValueError(f"{out} was written with {was}: give the same flags and text, or choose another --out")
        if (out / "tokenizer.model").exists():
            return Tokenizer.load(out / "tokenizer.model"), stored["documents"]
    _make_writable(out)
    with stage("sampling", "documents") as progress:
        sample, documents = sample_documents(
            source.train(), config.tokenizer_documents, seed=config.seed, progress=lambda seen: progress(seen, seen)
        )
        progress(documents, documents)
    with stage(f"training the tokenizer on {human(len(sample))} documents"):
        tokenizer = train_tokenizer(sample, kind=config.tokenizer, vocab_size=config.vocab_size)
    described = json.dumps({**settings, "documents": documents}, indent=1) + "\n"
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
        int(stored["documents"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged or of another command: choose another --out") from error
    return stored


def _make_writable(out: Path) -> None:
    """Hours of reading would be lost to a folder that turns out to be read-only."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    except OSError as error:
        raise ValueError(f"{out} cannot be written ({error.strerror}): choose another --out") from error


def _of(progress: Callable[[int, int], None], in_all: int) -> Callable[[int, int], None]:
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
