"""Tokenise text of any size into shards of token ids.

python -m launch.shards --out shards/web --train web/*.txt.gz --dev held-out.txt

Text is read document by document, so it need not fit in memory. To continue an interrupted command after its last complete
shard, run it again with the same flags.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from jexplicit.data.text import Corpus, read_corpus, sample_documents, text_sizes
from jexplicit.runs import files
from jexplicit.runs.files import Bounds, NonNegativeInt, PositiveInt, local_path
from jexplicit.runs.progress import console, si_format, stage
from launch.kit.command import Preset, entry_point
from launch.kit.text import Text, check_text

if TYPE_CHECKING:
    from jexplicit.data.streams import Shards
    from jexplicit.data.tokenizers import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Source(Text):
    """Which text, and how it is tokenised."""

    out: str
    """Folder to write: tokenizer.model, and the shards in train/ and dev/."""
    corpus: str = "docs"
    """Source of the text: docs, the documentation that comes with Python, or text, the files of --train (implied by it)."""
    tokenizer_documents: PositiveInt = 1_000_000
    """Training documents of the tokenizer. They are drawn with --seed; all if there are fewer."""
    seed: NonNegativeInt = 0
    """Random seed: which documents the tokenizer is trained on."""


@dataclass(frozen=True, kw_only=True)
class Config(Source):
    limit: Annotated[int, Bounds(at_least=10)] | None = None
    """Most training documents to use. Dev has at most a tenth as many."""
    shard_tokens: PositiveInt = 1 << 26
    """Tokens after which a shard ends. It ends at the next multiple of 512 documents."""


_no_effect = ("out", "runner", "options")  # on what is written
_tiny = Config(out="runs/tiny-shards", limit=500, vocab_size=512)
PRESETS = {"tiny": Preset(_tiny, "500 documents of docs, vocabulary 512: 234,744 training tokens; 10 s on 2 CPU cores.")}


def run(config: Config) -> dict[str, Any]:
    """Text -> tokenizer -> shards of train and dev."""
    from jexplicit.data.streams import write_shards, write_sizes

    corpus = open_corpus(config)
    corpus = corpus.limit(config.limit) if config.limit else corpus
    tokenizer, in_all = tokenizer_in(config, corpus)
    found: dict[str, Any] = {"out": config.out, "vocab_size": tokenizer.vocab_size}
    for part, documents, known in (("train", corpus.train, in_all), ("dev", corpus.dev, 0)):  # of dev there may be any number
        with stage(f"tokenising {part}", "documents") as progress:
            told = lambda done, _, progress=progress, known=known: progress(done, max(done, known))  # noqa: E731
            folder, options = Path(config.out, part), {"shard_tokens": config.shard_tokens, "progress": told}
            shards = write_shards(folder, documents, tokenizer, **options)
        found[part] = describe(folder, shards)
    write_sizes(Path(config.out, "dev"), text_sizes(corpus.dev))
    return found


def open_corpus(config: Source) -> Corpus:
    """The corpus of checked flags, not yet read."""
    check_text(config)
    name = "text" if config.train else config.corpus
    return read_corpus(name, config.train, config.dev, field=config.field, documents=config.documents)


def tokenizer_in(config: Source, corpus: Corpus) -> "tuple[Tokenizer, int]":
    """The folder's tokenizer, trained if missing, and its training documents."""
    from jexplicit.data.tokenizers import Tokenizer, make_tokenizer

    out, settings = local_path(config.out, "--out"), {n: value for n, value in asdict(config).items() if n not in _no_effect}
    settings = json.loads(json.dumps({**settings, "source": corpus.identity}))
    with files.refuse_errors(f"{out / 'config.json'} is damaged or of another command", "choose another --out"):
        stored = files.parse_json((out / "config.json").read_bytes()) if (out / "config.json").exists() else {}
        known = int(stored["train_documents"]) if stored else 0
    if stored:
        if changed := [name for name in settings if stored.get(name) != settings[name]]:
            was = "; ".join(f"{name} = {stored.get(name)!r:.100} (now {settings[name]!r:.100})" for name in changed)
            raise ValueError(f"{out} was written with {was}: give the same flags and text, or choose another --out")
        if (out / "tokenizer.model").exists():
            return Tokenizer.load(out / "tokenizer.model"), known
    files.check_writable(out / "config.json", "--out")  # before hours of reading
    with stage("sampling", "documents") as progress:
        options: Any = {"seed": config.seed, "progress": lambda seen: progress(seen, seen)}
        sample, documents = sample_documents(corpus.train, config.tokenizer_documents, **options)
        progress(documents, documents)
    with stage(f"training the tokenizer on {si_format(len(sample))} documents"):
        tokenizer = make_tokenizer(config.tokenizer, sample, config.vocab_size)
    files.write_json(out / "config.json", {**settings, "train_documents": documents})
    tokenizer.save(out / "tokenizer.model")
    return tokenizer, documents


def describe(folder: Path, shards: "Shards") -> dict[str, int]:
    """One line on what was written, and the numbers in it."""
    found = {"documents": shards.documents, "tokens": len(shards), "files": len(shards.shards)}
    about = f"{found['documents']} documents, {found['tokens']} tokens of {shards.vocab_size} in {found['files']} file"
    console.print(f"  {folder}: {about}{'s' * (found['files'] != 1)}", soft_wrap=True)
    return found


main = entry_point(run, Config, __doc__, PRESETS, module=__name__)
