"""Flags of commands that read text or models, and the models that they name."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from jexplicit.data.text import Unit
from jexplicit.lm.names import Features, History, Method
from jexplicit.runs.files import PositiveInt, refuses
from jexplicit.runs.progress import console

if TYPE_CHECKING:
    from jexplicit.lm.text_model import TextModel


@dataclass(frozen=True, kw_only=True)
class ModelChoices:
    """Which models of runs: all that have one of the values of each flag."""

    method: tuple[Method | str, ...] = ()
    """Methods that fitted the models. Default: of a run, the model with the lowest dev perplexity, if one is wanted."""
    features: tuple[Features, ...] = ()
    """How the models combine context tokens: sum, cat or both."""
    context: tuple[int, ...] = ()
    """Context lengths K of the models, in tokens."""
    history: tuple[History, ...] = ()
    """The models' --history: none, document, window:W, all, online or online:document."""

    @property
    def wanted(self) -> dict[str, Any]:
        """The given flags and their values."""
        return {field.name: own for field in fields(ModelChoices) if (own := getattr(self, field.name))}


@dataclass(frozen=True, kw_only=True)
class ModelChoice(ModelChoices):
    """Which model of a run: the best on dev of those that match."""

    run: str
    """Run folder of launch.lm or launch.networks, exported file, or .arpa file, whose tokens white space separates."""


def load_choice(config: ModelChoice, text: str = "") -> "TextModel":
    """The chosen model, with unknown symbols of a text named."""
    from jexplicit.lm.text_model import load_models, model_name

    (saved,) = load_models(config.run, best=True, **config.wanted)
    perplexity = saved.about.get("dev_perplexity")
    quality = f", dev perplexity {perplexity:.2f}" if perplexity is not None else ""
    console.print(f"model {model_name(saved.about)} of {config.run}{quality}", soft_wrap=True)
    if unknown := saved.tokenizer.unknown_symbols(text):
        seen = escape(repr([f"{symbol[:40]}..." if len(symbol) > 40 else symbol for symbol in unknown]))
        console.print(f"[yellow]warning:[/] the model has never seen {seen} and reads <unk> there", soft_wrap=True)
    return saved


def visible(piece: str) -> str:
    """A token for tables and figures, with line breaks escaped.

    Example:
        >>> print(visible("\\n"), visible("▁the"))
        \\n ▁the
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in piece)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How files are read."""

    field: str | None = None
    """Field with the text, for records: files .jsonl, .json, .csv, .tsv and .parquet."""
    documents: Unit = "line"
    """Unit of a document in plain text: a line that is not blank, a paragraph between blank lines, or a file."""


@dataclass(frozen=True, kw_only=True)
class Text(Reading):
    """Which text is read, and what its tokens are."""

    train: tuple[str, ...] = ()
    """Training text: files, pipes, globs or folders of plain text or records. Files may be compressed; see --field."""
    dev: tuple[str, ...] = ()
    """Validation text. Default: every tenth block of ten training documents."""
    tokenizer: str = "bpe"
    """Kind of tokens: bpe (subwords), word (words between white space), char, or the FILE of a tokenizer: another run's folder,
    or any SentencePiece model."""
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
