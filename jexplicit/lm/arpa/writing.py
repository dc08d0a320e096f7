"""ARPA files from n-gram models."""

import contextlib
import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from jexplicit.data.contexts import PAD
from jexplicit.data.tokenizers import Tokenizer
from jexplicit.lm.arpa.chain import (
    BackoffLevel,
    backoff_chain,
    complete_chain,
    context_tokens,
    fold_starts,
    prefix_keys,
    search,
    seen_once,
)
from jexplicit.lm.arpa.parser import NEVER
from jexplicit.lm.arpa.words import arpa_words
from jexplicit.lm.core.model import LanguageModel

_block = 1 << 16  # lines
_ln10 = float(np.log(10))


def write_arpa(path: str | os.PathLike, model: LanguageModel, tokenizer: Tokenizer) -> None:
    """Write an n-gram model as an ARPA file, whole or not at all; gzipped if its name ends in .gz.

    Args:
        path: of the file; its folder is made.
        model: of methods "ngram", "unigram" or "bigram", or read from an ARPA file; exponents may be fitted.
        tokenizer: the model's own; see `arpa_words` for how its tokens are spelled.

    Raises:
        ValueError: a model of other rows than these; a tokenizer of another size; a file that cannot be written.

    Source: Chen & Goodman 1999, Sec. 2.8, interpolated models in back-off form; the format is that of SRILM's ngram-format(5).
    """
    path, words = Path(path), arpa_words(tokenizer)
    if len(words) != model.vocab_size:
        raise ValueError(f"a tokenizer of {len(words)} tokens and a model of {model.vocab_size}: use the model's own")
    base, levels = backoff_chain(model)
    sections = _sections(base, levels, words, eos=model.eos)
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(partial, "wb", compresslevel=5) if path.suffix.lower() == ".gz" else open(partial, "wb") as file:
            file.write(b"\\data\\\n")
            file.writelines(f"ngram {n + 1}={size}\n".encode() for n, (size, _) in enumerate(sections))
            for n, (_, lines) in enumerate(sections):
                file.write(f"\n\\{n + 1}-grams:\n".encode())
                file.writelines("".join(block).encode() for block in lines)
            file.write(b"\n\\end\\\n")
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise ValueError(f"{path} cannot be written ({error}): make room, or choose another place") from error


def _sections(
    base: np.ndarray, levels: list[BackoffLevel], words: list[str], *, eos: bool
) -> list[tuple[int, Iterator[list[str]]]]:
    """The number of n-grams of every order, and blocks of their lines."""
    N, orders = len(base), max(2, len(levels) + 1)  # KenLM reads no file of order 1, but one without bigrams
    levels = fold_starts(complete_chain(base, levels), N)
    once, weights = seen_once(levels, N), _weights(levels, words)
    sections = [(N + 1, iter([_unigram_lines(base, weights[0], words, eos=eos)]))]
    for n, level in enumerate(levels):
        kept = np.flatnonzero(once[n][level.entries // N])
        sections.append((len(kept), _lines(levels[: n + 1], kept, weights[n + 1], words, last=n + 2 == orders)))
    return [*sections, *[(0, iter(()))] * (orders - len(sections))]


def _weights(levels: list[BackoffLevel], words: list[str]) -> list[np.ndarray]:
    """The back-off weights of n-grams, which are those of the contexts that they spell: of the unigrams, and of every level."""
    N = len(words)
    once, weights = seen_once(levels, N), [levels[0].weight if levels else np.zeros(N)]
    for n, (spelled, found) in enumerate(prefix_keys(levels, N), 1):
        place, there = search(levels[n - 1].entries, spelled)
        if not np.all(found & there | ~once[n]):
            tokens = context_tokens(levels[: n + 1], N)[np.argmin(found & there | ~once[n]), ::-1]
            missing = " ".join(words[i] for i in tokens)
            raise ValueError(
                f"the model has a context {missing!r}, and not the one without its first token: fit it on whole documents"
            )
        weights.append(np.zeros(len(levels[n - 1].entries)))
        weights[n][place[once[n]]] = levels[n].weight[once[n]]
    return [*weights, np.zeros(len(levels[-1].entries))] if levels else weights


def _unigram_lines(base: np.ndarray, weight: np.ndarray, words: list[str], *, eos: bool) -> list[str]:
    p, b = (base / _ln10).tolist(), (weight / _ln10).tolist()
    start, end = f"{NEVER:g}\t<s>\t{b[PAD]:.8g}\n", f"{p[PAD] if eos else NEVER:.8g}\t</s>\t0\n"
    unk, *others = (f"{p[i]:.8g}\t{words[i]}\t{b[i]:.8g}\n" for i in range(len(p)) if i != PAD)
    return [unk, start, end, *others]


def _lines(
    levels: list[BackoffLevel], kept: np.ndarray, weight: np.ndarray, words: list[str], *, last: bool
) -> Iterator[list[str]]:
    """The lines of the n-grams `kept` of the last level, a block at a time."""
    level, N = levels[-1], len(words)
    tokens, inside, outputs = context_tokens(levels, N)[:, ::-1], list(words), list(words)
    inside[PAD], outputs[PAD] = "<s>", "</s>"
    for m in range(0, len(kept), _block):
        e = kept[m : m + _block]
        context, output = np.divmod(level.entries[e], N)
        first = context[0]
        texts = [" ".join(inside[i] for i in row) for row in tokens[first : context[-1] + 1].tolist()]
        numbers = zip((level.log_p[e] / _ln10).tolist(), (context - first).tolist(), output.tolist(), strict=True)
        if last:
            yield [f"{p:.8g}\t{texts[c]} {outputs[i]}\n" for p, c, i in numbers]
        else:
            backed_off = (weight[e] / _ln10).tolist()
            yield [f"{p:.8g}\t{texts[c]} {outputs[i]}\t{b:.8g}\n" for (p, c, i), b in zip(numbers, backed_off, strict=True)]
