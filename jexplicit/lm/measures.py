"""Measures that do not depend on a tokenizer, as lm-evaluation-harness defines them.

With L the summed log-likelihood of a text in nats,

    bits per byte = -L / (ln 2 · bytes)    bits per character = -L / (ln 2 · characters)    word perplexity = exp(-L / words),

bytes of UTF-8, characters of Unicode, and words between white space. The text between documents is not among them, nor is L of
the ends of documents unless the model predicts them (`eos`). `<unk>` is predicted without saying which character or word it is:
a uniform code says it (`spelling`), whose price belongs to L, so that the measures price all of a text.

Source: Gao et al., lm-evaluation-harness, `lm_eval/api/metrics.py`.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int, Integer

from jexplicit.data.contexts import PAD, Stream
from jexplicit.data.corpora import TextSizes
from jexplicit.data.inputs import MinimalPair
from jexplicit.data.tokenizers import UNK_ID, Progress, Tokenizer, encode_documents
from jexplicit.lm.counted.use import AnyModel
from jexplicit.lm.evaluation import score


class Difference(NamedTuple):
    """A mean difference per byte, and its standard error (NaN of a single document)."""

    mean: float
    standard_error: float


def paired_difference(
    nll: Float[np.ndarray, " n"], other: Float[np.ndarray, " n"], sizes: Integer[np.ndarray, " n"]
) -> Difference:
    """How much more one model loses per byte than another, on the same documents.

    Args:
        nll: negative log-likelihood of each document, in nats or bits.
        other: the same of the other model, whatever its tokenizer.
        sizes: bytes of each document.

    Raises:
        ValueError: no documents, unequal numbers of them, a loss that is not finite, or a size that is not above 0.

    Example:
        >>> paired_difference(np.array([4.0, 6.0]), np.array([3.0, 6.0]), np.array([2, 2]))
        Difference(mean=0.25, standard_error=0.25)
    """
    if not nll.shape == other.shape == sizes.shape or not len(nll):
        raise ValueError(f"{nll.shape}, {other.shape} losses, {sizes.shape} sizes: give one of each for at least one document")
    if not (np.isfinite(nll) & np.isfinite(other) & (sizes > 0)).all():
        raise ValueError("losses that are not finite, or documents of 0 bytes: leave these documents out, of both models")
    nll, other = nll.astype(np.float64), other.astype(np.float64)
    d, n, in_all = nll - other, len(nll), sizes.sum()
    mean = d.sum() / in_all
    variance = n / (n - 1) * np.sum((d - mean * sizes) ** 2) / in_all**2 if n > 1 else np.nan
    return Difference(float(mean), float(np.sqrt(variance)))


def bootstrap_standard_error(
    nll: Float[np.ndarray, " n"], sizes: Integer[np.ndarray, " n"], *, draws: int = 1000, seed: int = 0
) -> float:
    """The bootstrap standard error over documents of the loss `Σ nll / Σ sizes`.

    Args:
        nll: negative log-likelihood of each document.
        sizes: predictions of each document.
        draws: how often as many documents are drawn with replacement. The result has a relative error of `1/sqrt(2 draws)`.

    Raises:
        ValueError: no documents, unequal numbers of them, a loss that is not finite, a size that is not above 0, or fewer than
            two draws.

    Example:
        >>> bootstrap_standard_error(np.array([2.0, 4.0, 6.0]), np.array([1, 2, 3]))  # every prediction loses 2
        0.0
    """
    if nll.shape != sizes.shape or not len(nll) or draws < 2:
        raise ValueError(f"{nll.shape} losses, {sizes.shape} sizes, {draws} draws: give one of each a document, and two draws")
    if not (np.isfinite(nll) & (sizes > 0)).all():
        raise ValueError("losses that are not finite, or documents without predictions: leave these documents out")
    if len(nll) == 1:
        return float("nan")
    rng, n, nll = np.random.default_rng(seed), len(nll), nll.astype(np.float64)
    drawn = (rng.integers(n, size=n) for _ in range(draws))
    return float(np.std([nll[m].sum() / sizes[m].sum() for m in drawn], ddof=1))


_block = 1 << 24  # tokens at a time
_largest_exponent = 700.0  # of a double


def comparable_measures(nll: float, sizes: TextSizes | None) -> dict[str, float | None]:
    """Bits per byte, bits per character and word perplexity; None if unknown.

    Args:
        nll: summed negative log-likelihood of the whole text, nats. Of a sample: mean per position times positions in all.
        sizes: of the text.

    Raises:
        ValueError: a log-likelihood that is NaN.

    Example:
        >>> sizes = TextSizes(documents=1, bytes=4, characters=4, words=2)
        >>> {name: round(value, 3) for name, value in comparable_measures(8 * math.log(2), sizes).items()}
        {'bits_per_byte': 2.0, 'bits_per_character': 2.0, 'word_perplexity': 16.0}
    """
    names = "bits_per_byte", "bits_per_character", "word_perplexity"
    if np.isnan(nll):
        raise ValueError("a log-likelihood that is NaN: check the model")
    if sizes is None or not sizes.bytes:
        return dict.fromkeys(names)
    bits, exponent = nll / math.log(2), nll / sizes.words if sizes.words else math.inf  # white space has no words
    perplexity = math.exp(exponent) if exponent < _largest_exponent else None
    return dict(zip(names, (bits / sizes.bytes, bits / sizes.characters, perplexity), strict=True))


def positions_in_all(stream: Stream, *, eos: bool = False) -> int:
    """The number of predictions of a stream: tokens, and predicted ends of documents.

    Example:
        >>> stream = np.array([0, 5, 6, 0, 7, 0])
        >>> positions_in_all(stream), positions_in_all(stream, eos=True)
        (3, 5)
    """
    return len(stream) - 1 if eos else sum(int(np.count_nonzero(tokens != PAD)) for tokens in _blocks(stream))


def unknown_share(stream: Stream) -> float:
    """The share of `<unk>` among the tokens of a stream.

    Example:
        >>> unknown_share(np.array([0, 5, 1, 0, 7, 0]))
        0.3333333333333333
    """
    unknown = sum(int(np.count_nonzero(tokens == UNK_ID)) for tokens in _blocks(stream))
    return unknown / max(positions_in_all(stream), 1)


def spelling(tokenizer: Tokenizer, stream: Stream, sizes: TextSizes | None) -> float:
    """The price in nats of a uniform code for the unknown in a text.

    A character costs ln 0x110000, the number of Unicode's. A word costs ln 256 for its end and for each byte; of a tokenizer of
    words all bytes cost ln 256 that are neither of known words nor one character of white space between words.

    Args:
        stream: token ids of the text.
        sizes: of the text; where they are not known, words cost 0.

    Example:
        >>> from jexplicit.data.tokenizers import train_tokenizer
        >>> tokenizer = train_tokenizer(["to be"], kind="word")
        >>> sizes = TextSizes(documents=1, bytes=8, characters=8, words=3)  # of "to be we"
        >>> spelling(tokenizer, tokenizer.encode("to be we"), sizes) / math.log(256)  # w, e, and the end of the word
        3.0
    """
    counts = sum((np.bincount(tokens, minlength=tokenizer.vocab_size) for tokens in _blocks(stream)), np.zeros(1, int))
    unknown = int(counts[UNK_ID:][:1].sum())
    if not tokenizer.of_words:
        return unknown * math.log(0x110000)
    if sizes is None:
        return 0.0
    words = (UNK_ID + 1 + np.flatnonzero(counts[UNK_ID + 1 :])).tolist()
    known = sum(int(counts[i]) * len("".join(tokenizer.piece(i).replace("▁", " ").split()).encode()) for i in words)
    return (max(sizes.bytes - (sizes.words - sizes.documents) - known, 0) + unknown) * math.log(256)


def score_documents(
    model: AnyModel, tokenizer: Tokenizer, documents: Sequence[str], *, separate: bool = False, progress: Progress | None = None
) -> Float[np.ndarray, " n"]:
    """`log p(document)` of every document of a text, in nats, in one call.

    Args:
        separate: score each as if it were the only one; otherwise models of the past see those before it.

    Raises:
        ValueError: a document without a token.

    Example:
        >>> import jax.numpy as jnp
        >>> from jexplicit.data.tokenizers import train_tokenizer
        >>> from jexplicit.lm.core.model import token_model
        >>> tokenizer = train_tokenizer(["ab"], kind="char")  # with <pad> and <unk>, 4 token ids
        >>> score_documents(token_model([jnp.zeros((4, 4))], "cat", False), tokenizer, ["ab", "a"]).round(3)  # log 16, log 4
        array([-2.773, -1.386])
    """
    stream = encode_documents(tokenizer, documents)
    pads = np.flatnonzero(stream == PAD)
    if len(pads) != len(documents) + 1:
        n, text = next((n, text) for n, text in enumerate(documents) if not len(tokenizer.encode(text)))
        raise ValueError(f"document {n}, {text!r}, has no token: leave it out")
    if not len(documents):
        return np.zeros(0)
    return -document_losses(model, stream, separate=separate, progress=progress).nll


class DocumentLosses(NamedTuple):
    """The summed negative log-likelihood of every document, in nats, and its predictions."""

    nll: Float[np.ndarray, " n"]
    positions: Int[np.ndarray, " n"]


def document_losses(
    model: AnyModel,
    stream: np.ndarray,
    *,
    separate: bool = False,
    block: int | None = None,
    mesh: Mesh | None = None,
    progress: Progress | None = None,
) -> DocumentLosses:
    """The loss of every document, or of blocks of a single document.

    Args:
        stream: [L] token ids, `<pad> d_1 <pad> ... d_n <pad>`.
        separate: score each document as if it were the only one; otherwise models of the past see those before it.
        block: predictions of a block of a single document, the last of which is shorter; default, the whole document.

    Raises:
        ValueError: a malformed stream, or a token id that the model does not have.

    Example:
        >>> import jax.numpy as jnp
        >>> from jexplicit.lm.core.model import token_model
        >>> uniform = token_model([jnp.zeros((4, 4))], "cat", False)
        >>> losses = document_losses(uniform, np.array([0, 2, 3, 0, 3, 0]))
        >>> losses.positions.tolist(), losses.nll.round(3).tolist()  # log 16, log 4
        ([2, 1], [2.773, 1.386])
    """
    log_p = score(model, stream, separate=separate, mesh=mesh, progress=progress).astype(np.float64)
    pads = np.flatnonzero(stream == PAD)
    starts = pads[:-1] if model.eos else pads[:-1] - np.arange(len(pads) - 1)
    if block and len(starts) == 1:
        starts = np.arange(0, len(log_p), block)
    return DocumentLosses(-np.add.reduceat(log_p, starts), np.diff(starts, append=len(log_p)))


def loss_fields(losses: Sequence[DocumentLosses]) -> dict[str, Any]:
    """`loss`, `perplexity`, `loss_se` and `positions` of some texts together."""
    nll, positions = (np.concatenate(part) for part in zip(*losses, strict=True))
    loss, error = float(nll.sum() / positions.sum()), bootstrap_standard_error(nll, positions)
    error = None if np.isnan(error) else error
    return {"loss": loss, "perplexity": float(np.exp(loss)), "loss_se": error, "positions": int(positions.sum())}


def _blocks(stream: Stream) -> Any:
    return (stream[start : start + _block] for start in range(0, len(stream), _block))


_tie = 1e-4  # nats: log-probabilities are float32, and sums of the same numbers in another order differ by some 1e-5


class Judgement(NamedTuple):
    """How often a model is right.

    accuracy: share of pairs where the acceptable sentence is likelier, ties as halves.
    ties: their share.
    pairs: how many.
    """

    accuracy: float
    ties: float
    pairs: int


def preferences(
    model: AnyModel, tokenizer: Tokenizer, pairs: Sequence[MinimalPair], *, progress: Progress | None = None
) -> Float[np.ndarray, " n"]:
    """`log p(good) - log p(bad)` of every pair, in nats, in one call."""
    sentences = [sentence for pair in pairs for sentence in (pair.good, pair.bad)]
    log_p = score_documents(model, tokenizer, sentences, separate=True, progress=progress)
    return log_p[::2] - log_p[1::2]


def judgement(differences: Float[np.ndarray, " n"]) -> Judgement:
    """Accuracy and ties of some pairs, from their `preferences`.

    Raises:
        ValueError: no pairs, or a difference that is NaN.

    Example:
        >>> judgement(np.array([1.0, -0.5, 0.0, 2.0]))
        Judgement(accuracy=0.625, ties=0.25, pairs=4)
    """
    if not len(differences) or np.isnan(differences).any():
        raise ValueError(f"{len(differences)} differences, some maybe NaN: give at least one pair that a model can score")
    ties = np.abs(differences) < _tie
    right = (differences > 0) & ~ties
    return Judgement(float(np.mean(right + ties / 2)), float(ties.mean()), len(differences))
