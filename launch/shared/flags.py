"""Groups of flags that several commands share, and the models that they choose.

JAX is imported where a model is loaded, so that `--help` does without.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from rich.markup import escape

from jexplicit.data.corpora import Unit
from jexplicit.data.inputs import is_input
from jexplicit.lm.core.names import Features, History, Method
from jexplicit.runs.bounds import NonNegativeInt, PositiveInt, refuses
from jexplicit.runs.progress import console

if TYPE_CHECKING:
    from jexplicit.lm.checkpoints import TextModel


@dataclass(frozen=True)
class ModelChoice:
    """Which model of a run."""

    GROUPS: ClassVar = {"run": "model"}

    run: str
    """Run folder, exported file or folder, or .arpa file.
    Runs of launch.lm and launch.networks have models; tokens of .arpa and .arpa.gz files are separated by white space."""
    method: Method | str | None = None
    """Method that fitted the model. Default: the model with the lowest dev perplexity of those that match the other flags."""
    features: Features | None = None
    """How the model combines context tokens: sum or cat."""
    radius: int | None = None
    """Context length K of the model, in tokens."""
    history: History | None = None
    """The model's --history: none, document, window:W, all, adaptive or adaptive:document."""


@dataclass(frozen=True)
class ModelChoices:
    """Which models of runs: all that have one of the values of each flag."""

    GROUPS: ClassVar = {"method": "model"}

    method: tuple[Method | str, ...] = ()
    """Methods that fitted the models."""
    features: tuple[Features, ...] = ()
    """How the models combine context tokens: sum, cat or both."""
    radius: tuple[int, ...] = ()
    """Context lengths K of the models, in tokens."""
    history: tuple[History, ...] = ()
    """The models' --history: none, document, window:W, all, adaptive or adaptive:document."""


def load_choice(config: ModelChoice, text: str = "") -> "TextModel":
    """The chosen model, with unknown symbols of a text named."""
    from jexplicit.lm.checkpoints import load_model, model_name

    saved = load_model(config.run, method=config.method, features=config.features, radius=config.radius, history=config.history)
    perplexity = saved.about.get("dev_perplexity")
    quality = f", dev perplexity {perplexity:.2f}" if perplexity is not None else ""
    console.print(f"model {model_name(saved.about)} of {config.run}{quality}", soft_wrap=True)
    if unknown := saved.tokenizer.unknown_symbols(text):
        seen = escape(repr([f"{symbol[:40]}..." if len(symbol) > 40 else symbol for symbol in unknown]))
        console.print(f"[yellow]warning:[/] the model has never seen {seen} and reads <unk> there", soft_wrap=True)
    return saved


def load_choices(run: str, choices: ModelChoices, *, best: bool = False) -> Iterator["TextModel"]:
    """The chosen models of a run or export; `best`: one without flags."""
    from jexplicit.lm.checkpoints import load_model, load_row, model_file, model_rows

    wanted = {f.name: getattr(choices, f.name) for f in fields(ModelChoices) if getattr(choices, f.name)}
    if not is_input(model_file(run)) and (wanted or not best):
        yield from (load_row(run, row) for row in model_rows(run, **wanted))
        return
    saved = load_model(run)
    if other := [f"{name} {saved.about.get(name)}" for name, values in wanted.items() if saved.about.get(name) not in values]:
        flags = ", --".join(wanted)
        raise ValueError(f"{run} holds one model, with {', '.join(other)}: leave out --{flags}, or give its run folder")
    yield saved


def visible(piece: str) -> str:
    """A token for tables and figures, with line breaks escaped.

    Example:
        >>> print(visible("\\n"), visible("▁the"))
        \\n ▁the
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in piece)


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
    """Folder or file of images, which become grey. It is a folder of train/LABEL and test/LABEL, or of LABEL alone; a folder of
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
