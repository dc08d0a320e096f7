"""Rows of the words and the line that a context of characters stands in.

The tokens are characters, and a word is a run of letters. A context says three things of words: the part of the current word
that is there (alone, or with what separates it from the word before), and the words before. Each is a number, so that rows of
contexts of several such numbers are those of jexplicit.lm.rows.ngrams.

Strings are numbered by a trie, whose nodes a context walks through from its oldest character to its nearest: a state of a few
numbers, pure.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Integer

from jexplicit.data.contexts import PAD
from jexplicit.data.tokenizers import Tokenizer
from jexplicit.lm.core.model import pytree, static

EMPTY, UNKNOWN = 0, 1  # nodes of every trie: of no character, and of all strings that it does not have
_deepest = 24  # characters of the longest string of a trie
_largest_table = 1 << 28  # cells


def letters_of(tokenizer: Tokenizer) -> Bool[np.ndarray, " N"] | None:
    """[N] which tokens are letters, an apostrophe among them; None where tokens are no characters.

    Example:
        >>> from jexplicit.data.tokenizers import train_tokenizer
        >>> letters_of(train_tokenizer(["a b'"], kind="char")).sum()
        np.int64(3)
    """
    if tokenizer.kind != "char":
        return None
    pieces = [tokenizer.piece(i) for i in range(tokenizer.vocab_size)]
    return np.array([len(piece) == 1 and (piece.isalpha() or piece == "'") for piece in pieces])


def line_ends(N: int, tokenizer: Tokenizer | None) -> Bool[np.ndarray, " N"]:
    """[N] which tokens end a line or a document."""
    return np.array([i == PAD or tokenizer is not None and tokenizer.piece(i) == "\n" for i in range(N)])


@pytree
class LineView:
    """How long the line of a context of characters is so far, and its nearest two characters.

    ends: [N] which tokens end a line or a document.
    radius: characters that are read; longer lines count as one of so many.

    Example:
        >>> LineView(jnp.array([True, False, False]), 4)(jnp.array([2, 1, 0, 0])).tolist()
        [2, 2, 1]
    """

    ends: Any
    radius: int = static(80)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many numbers each column of a view has."""
        return self.radius + 1, len(self.ends), len(self.ends)

    def __call__(self, context: Integer[Array, " K"]) -> Int[Array, " columns"]:
        """Numbers of: characters since the end of the last line, the nearest one, the one before."""
        near = context[: self.radius].astype(jnp.int32)
        width = jnp.argmax(jnp.append(jnp.asarray(self.ends)[near], True))
        return jnp.stack([width.astype(jnp.int32), near[0], near[1]])


@pytree
class WordView:
    """What a context of characters says of words.

    child: [nodes, N] the node that a character leads to, of all strings of a text that begin where a word, or what separates
        two words, begins.
    letters: [N] which tokens are letters.
    classes: tables [nodes] of classes of words, for each clustering.
    radius: characters that are read.
    """

    child: Any
    letters: Any
    classes: tuple[Any, ...] = ()
    radius: int = static(48)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many numbers each column of a view has."""
        nodes, N = self.child.shape
        words = (nodes, nodes, nodes, nodes)
        return (*words, *(int(np.max(np.asarray(c))) + 1 for c in self.classes for _ in range(2)))

    def __call__(self, context: Integer[Array, " K"]) -> Int[Array, " columns"]:
        """Numbers of: what stands since the end of the last word, the part of the current word, the word before, the word
        before that, and the classes of these two for each clustering."""
        child, letters = jnp.asarray(self.child), jnp.asarray(self.letters)

        def step(state: Any, i: Array) -> tuple[Any, None]:
            since, part, one, two = state
            letter, start = letters[i], part == EMPTY
            ended = ~letter & ~start
            since = child[jnp.where(ended, EMPTY, since), i]
            one, two = jnp.where(ended, part, one), jnp.where(ended, one, two)
            part = jnp.where(letter, child[part, i], EMPTY)
            return jax.tree.map(lambda n: jnp.where(i == PAD, EMPTY, n).astype(jnp.int32), (since, part, one, two)), None

        state = (jnp.int32(EMPTY),) * 4
        (since, part, one, two), _ = jax.lax.scan(step, state, context[: self.radius][::-1].astype(jnp.int32))
        classes = [jnp.asarray(c)[word].astype(jnp.int32) for c in self.classes for word in (one, two)]
        return jnp.stack([since, part, one, two, *classes])


def word_view(stream: Integer[np.ndarray, " L"], letters: Bool[np.ndarray, " N"], *, radius: int = 48) -> WordView:
    """The view whose trie has the strings of a text, up to 24 characters of each.

    Args:
        stream: [L] token ids.
        letters: [N] which of them are letters.
        radius: characters of a context that it reads.

    Raises:
        ValueError: a trie too large to be a table, or no letter.

    Example:
        >>> a, space = 1, 2
        >>> view = word_view(np.array([0, a, a, space, a, 0]), np.array([False, True, False]), radius=5)
        >>> since, part, one, two = view(jnp.array([a, space, a, a, 0])).tolist()
        >>> one == view(jnp.array([a, a, 0, 0, 0])).tolist()[1], two  # the word before is "aa"
        (True, 0)
    """
    N, tokens = len(letters), stream.astype(np.int64)
    if not letters.any():
        raise ValueError("no token is a letter: rows of words need a text of characters")
    inside = letters[tokens]
    place = np.arange(len(tokens))
    begins = tokens == PAD
    word_begins = inside & ~np.concatenate([[False], inside[:-1]])
    gap_begins = ~inside & np.concatenate([[True], inside[:-1]]) | np.concatenate([[True], begins[:-1]])
    starts = [np.maximum.accumulate(np.where(begun, place, 0)) for begun in (gap_begins, word_begins)]
    wanted = [tokens != PAD, inside]
    place = np.concatenate([place[w] for w in wanted])
    depth = place - np.concatenate([start[w] for start, w in zip(starts, wanted, strict=True)])
    edges, nodes = [], 2
    # a string is that of the place before and a character: places are numbered depth by depth
    node_at = {False: np.full(len(tokens), EMPTY), True: np.full(len(tokens), EMPTY)}
    is_word = np.arange(len(place)) >= int(wanted[0].sum())
    for d in range(_deepest):
        at = {kind: place[(depth == d) & (is_word == kind)] for kind in (False, True)}
        parents = {kind: node_at[kind][at[kind] - 1] if d else np.full(len(at[kind]), EMPTY) for kind in at}
        keys = np.concatenate([parents[kind] * N + tokens[at[kind]] for kind in at])
        if not len(keys):
            break
        found, number = np.unique(keys, return_inverse=True)
        for kind, n in zip(at, np.split(number, [len(at[False])]), strict=True):
            node_at[kind][at[kind]] = nodes + n
        edges.append((found, nodes + np.arange(len(found))))
        nodes += len(found)
    if nodes * N > _largest_table:
        raise ValueError(f"{nodes} strings of words and {N} characters: rows of words are for texts of fewer")
    child = np.full((nodes, N), UNKNOWN, np.int32)
    for found, numbers in edges:
        child[found // N, found % N] = numbers
    return WordView(jnp.asarray(child), jnp.asarray(letters), (), radius)
