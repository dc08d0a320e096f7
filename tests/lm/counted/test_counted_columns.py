"""Columns of texts and trees of tokens against slow loops."""

import functools

import numpy as np
import pytest
from scipy.sparse import csr_array

from jexplicit.data.tokenizers import encode_documents, train_tokenizer
from jexplicit.lm.counted.contexts import (
    COLUMNS,
    Context,
    Text,
    agglomerate,
    as_tree,
    bisect,
    follower,
    grow,
    singular_vectors,
    spelling,
    window_of,
)

_play = (
    "First Man:\nTo be, or not.  Is't?\nOh NO! we\n\nKing:\nwe, two\nbe it\n\n\nFirst Man:\nSo\n",
    "a line\n\nKing:\nTo be? it's two; NO\n\nFirst Man:\nOh\n\nKing:\n-",
    "\nwe\nbe",
)


@functools.cache
def tokenizer():
    return train_tokenizer(_play, kind="char")


def stream(n, seed=0):
    return encode_documents(tokenizer(), [_play[i % 3] for i in np.random.default_rng(seed).integers(0, 3, n)])


_all = (1, 3, *COLUMNS, follower(Context(1)), "4:2")


def text(ids, history="none"):
    own = spelling(tokenizer(), tokenizer().vocab_size)
    classes = {4: np.arange(tokenizer().vocab_size) % 4}
    return Text(ids, own._replace(classes=classes), history)


def facts(ids, t):
    """The columns of place t by a loop over the characters before it, in the document."""
    own, pieces = spelling(tokenizer(), tokenizer().vocab_size), [tokenizer().piece(i) for i in range(tokenizer().vocab_size)]
    begin = max(i for i in range(t) if ids[i] == 0)
    before = [pieces[i] for i in ids[begin + 1 : t]]
    words, part, since, line, lines, opens, in_line, begun, mark, shape = [], [], [], [], [], [], 0, 0, None, []
    for piece, i in zip(before, ids[begin + 1 : t], strict=True):
        if not own.inside[i] and part:
            words, part, since, in_line = [*words, "".join(part)], [], [], in_line + 1
        since.append(piece)
        if own.inside[i]:
            begun += not part
            part.append(piece)
        elif piece not in ("▁", "\n"):
            mark = piece
        begun *= piece not in (".", "!", "?")
        kind = 1 + (piece.isupper()) if own.inside[i] else {"▁": 3, "\n": 4}.get(piece, 5 if piece in (".", "!", "?") else 6)
        shape += [] if shape[-1:] == [1] and kind == 1 else [kind]
        line.append(piece)
        if piece == "\n":
            opens += [line] if len(line) > 1 and (not lines or lines[-1] == "\n") else []
            lines, line, in_line = [*lines, "".join(line)], [], 0
    word = [*([None] * 3), *words]
    return {
        1: ids[t - 1],
        3: ids[t - 3] if t - 3 >= begin else None,
        "part": "".join(part),
        "word": word[-1],
        "word before": word[-2],
        "since": "".join(since),
        "line": "".join(line),
        "width": len(line),
        "speaker": "".join(opens[-1]) if opens else None,
        "speaker before": "".join(opens[-2]) if len(opens) > 1 else None,
        "paragraph": (not lines or lines[-1] == "\n") * (2 - bool(line)),
        "first": line[0] if line else None,
        "words in line": in_line,
        "width before": len(lines[-1]) if lines else 0,
        "line end": (lines[-1][-2:-1] or ("\n" if len(lines) > 1 else "start")) if lines else None,
        "sentence": begun,
        "punctuation": mark,
        "shape": tuple(shape[-8:]),
        "folded part": "".join(part).lower(),
        "folded word": word[-1] and word[-1].lower(),
        "4:2": None if t - 2 < begin else ids[t - 2] % 4,
    }


def test_columns_tell_places_apart_as_slow_facts_do():
    ids = stream(3)
    own, slow = text(ids), [facts(ids, t) for t in range(1, len(ids))]
    for name in slow[0]:
        numbers, known = own[name][1:], {}
        for number, fact in zip(numbers.tolist(), (fact[name] for fact in slow), strict=True):
            assert known.setdefault(number, fact) == fact, name
        assert len(known) == len({fact[name] for fact in slow}), name


def test_no_column_sees_the_future_or_beyond_a_window():
    ids, far = stream(3), stream(6)
    for t in (1, 40, 121, len(ids) - 2):
        other = np.concatenate([ids[:t], stream(3, seed=7)[: len(ids) - t]])
        for history in ("none", "all"):
            one, two = text(ids, history), text(other, history)
            for column in _all:
                np.testing.assert_array_equal(one[column][: t + 1], two[column][: t + 1], err_msg=f"{column}")
    for t in (60, 140, len(far) - 1):
        other = np.append(np.resize(stream(9, seed=7), t - 32), far[t - 32 :])
        one, two = (text(own, "window:32") for own in (far, other))
        for column in (*_all[:-2], "4:2"):
            assert one[column][t] == two[column][t], (column, t)


def test_no_column_sees_another_document():
    ids = stream(2)
    pads, whole = np.flatnonzero(ids == 0), text(ids)
    for a, b in zip(pads[:-1], pads[1:], strict=True):
        own = text(ids[a : b + 1])
        for column in (1, 3, *COLUMNS, "4:2"):
            np.testing.assert_array_equal(whole[column][a + 1 : b + 1], own[column][1:], err_msg=f"{column}")


def test_trees_have_a_path_for_every_token():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 40, 3000) // 3
    pairs = csr_array((np.ones(2999, int), (ids[1:], ids[:-1])), shape=(14, 14))
    for tree in (
        grow(ids, 14)[0],
        bisect(singular_vectors([pairs, pairs.T.tocsr()], 3), np.bincount(ids, minlength=14)),
        bisect(np.zeros((14, 3)), np.ones(14, int)),  # vectors that say nothing
        agglomerate(rng.random((14, 5))),
    ):
        log_odds = rng.normal(size=(2, 13)) * 3
        np.testing.assert_allclose(np.exp(tree.log_probabilities(log_odds)).sum(axis=1), 1, atol=1e-12)
        assert np.bincount(tree.node[tree.within], minlength=13).min() >= 2


def test_tokens_that_follow_the_same_tokens_share_their_path():
    rng = np.random.default_rng(0)
    tree = grow(np.concatenate([[0, 1, rng.integers(3, 5), 2] for _ in range(300)]), 5)[0]
    assert tree.bit[3, : tree.length[3] - 1].tolist() == tree.bit[4, : tree.length[4] - 1].tolist()


def clustered(sizes: tuple[int, ...]) -> np.ndarray:
    """Unit vectors in well separated groups of these sizes."""
    rng = np.random.default_rng(0)
    centres = np.repeat(np.eye(len(sizes)) * 3, sizes, axis=0)
    x = centres + rng.normal(size=centres.shape) / 4
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_a_set_is_halved_between_its_clusters_and_each_half_keeps_its_share():
    def first_halves(tree):
        bits = tree.bit[:, 0]
        return {frozenset(np.flatnonzero(bits == bit).tolist()) for bit in (0, 1)}

    x = clustered((3, 9))  # the median would cut the larger cluster
    assert first_halves(bisect(x, np.ones(12, int))) == {frozenset(range(3)), frozenset(range(3, 12))}
    rare = bisect(clustered((1, 19)), np.ones(20, int))  # a twentieth is no share: others go with it
    assert min(map(len, first_halves(rare))) == 4
    often = bisect(x, np.array([100, *[1] * 11]))  # a token that has more than all others ends early
    assert often.length[0] <= 2 and often.length.max() < 12


def test_word_classes_are_the_groups_of_words_that_stand_in_the_same_places(monkeypatch):
    monkeypatch.setattr("jexplicit.lm.counted.contexts._merged", 10)
    monkeypatch.setattr("jexplicit.lm.counted.contexts._short", 1000)
    rng = np.random.default_rng(1)
    groups = np.arange(1, 31).reshape(3, 10)  # subjects, verbs, objects; token 31 never occurs
    ids = np.stack([rng.choice(group, 2000) for group in groups], axis=1).ravel()
    found = grow(ids, 32, (3, 40))[1]
    assert all(len(set(found[3][group].tolist())) == 1 for group in groups) and len(set(found[3][1:31].tolist())) == 3
    assert found[3][31] == found[3][0] == 0 and found[40].max() == 30  # no more classes than tokens
    again = grow(ids, 32, (3,))[1][3]
    np.testing.assert_array_equal(again, found[3])
    tree, cuts = grow(ids[:999], 32, (3,))
    np.testing.assert_array_equal(cuts[3], tree.classes(3, np.bincount(ids[:999], minlength=32)))
    monkeypatch.setattr("jexplicit.lm.counted.contexts._merged", 40)
    tree, found = grow(ids, 32, (3,))
    np.testing.assert_array_equal(found[3], tree.classes(3, np.bincount(ids, minlength=32)))


def test_trees_of_one_token_and_contexts_of_unknown_columns_are_refused():
    with pytest.raises(ValueError, match="at least two"):
        grow(np.zeros(4, int), 1)
    assert as_tree({2: (0, 1)}, 2, 2).length.tolist() == [1, 1]
    for history in ("some", "window:31", "none:document"):
        with pytest.raises(ValueError, match="choose none, document"):
            window_of(history)
    for column in (0, "parts", "60:0"):
        with pytest.raises(ValueError, match="give k >= 1"):
            Context(column)
