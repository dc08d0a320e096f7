"""Models that count what they read, against a loop over the text.

Tolerances: a logit is a sum of some 20 float32 rows of up to 10 with float32 exponents, right to 5e-5.
"""

import functools
from dataclasses import replace
from typing import get_args
from unittest import mock

import numpy as np
import pytest

import jexplicit
from jexplicit.data.tokenizers import encode_documents, train_tokenizer
from jexplicit.lm.core.model import LanguageModel
from jexplicit.lm.core.names import AdaptiveKind
from jexplicit.lm.core.past import read_text
from jexplicit.lm.evaluation import log_distributions, score
from jexplicit.lm.fits.estimator import fit
from jexplicit.lm.fits.fit import fit_model
from jexplicit.lm.fits.mixtures.adaptive_mixture import chain
from jexplicit.lm.reading import init, load_state, predict, read, save_state
from jexplicit.lm.rows.ngrams import CONFIDENCES
from jexplicit.lm.rows.past import adaptive
from jexplicit.lm.rows.past.adaptive import Adaptive, AdaptiveRows
from jexplicit.lm.rows.past.keys import CONTEXTS, Block
from jexplicit.lm.training_text import Options, TrainingText, Watch

pytestmark = pytest.mark.slow

ATOL = 5e-5
RNG = np.random.default_rng(0)
WORDS = "to be or not that is the question whether nobler in mind suffer".split()
TEXTS = [" ".join(RNG.choice(WORDS, 14)) + "\n" + " ".join(RNG.choice(WORDS, 5)) for _ in range(24)]
NEW = [" ".join(RNG.choice(WORDS[::-1], 12)) for _ in range(4)]
ROWS = ("contexts-4", "words", "confidence", "selectors")
FEW = (
    *chain((1, 2, 4)),
    *chain((1, 3), "begun"),
    Adaptive("word part"),
    Adaptive("line", "begun"),
    Adaptive("last 2", "indirect"),
    Adaptive("last 2", "recency"),
    Adaptive("last 1", "observed-expected"),
)


@functools.cache
def fitted():
    """A mixture whose adaptive rows are few; its exponents are fitted."""
    with mock.patch("jexplicit.lm.fits.mixtures.adaptive_mixture.CHARACTER_CONTEXTS", FEW):
        return fit(TEXTS, rows=(*ROWS, *get_args(AdaptiveKind)), tokenizer="char", history="adaptive")


def stream():
    return encode_documents(fitted().tokenizer, NEW)


@functools.cache
def whole():
    return score(fitted().model, stream())


def rows_by_hand(kind: AdaptiveRows, tokens: np.ndarray, log_p: np.ndarray) -> list[list[tuple[np.ndarray, int]]]:
    """[M][rows] the dense row, up to a constant, and the bucket, of every prediction of a stream."""
    N, D, text = kind.vocabulary, kind.discount, kind.text

    known = {}

    def key(name, own, m):
        if (name, id(own)) not in known:
            X = np.stack([read_text_at(own, j, kind.radius) for j in range(len(own))])
            known[name, id(own)] = CONTEXTS[name](Block(X, np.asarray(kind.letters), np.asarray(kind.ends), {})).tolist()
        return known[name, id(own)][m]

    def history(name, m, begun):
        """What followed the context before, the training text first."""
        found = []
        for own, end, counts in ((text, len(text), begun), (tokens, m, True)):
            here = [j for j in range(1, end) if counts and own[j] != 0]
            found += [int(own[j]) for j in here if key(name, own, j) == key(name, tokens, m)]
        return found

    out, places = [], [m for m in range(1, len(tokens)) if tokens[m] != 0]
    for which, m in enumerate(places):
        b, q_of, rows = np.exp(log_p[which].astype(np.float64)), {}, []
        for row in kind.rows:
            if row.kind == "recency":
                seen = history(row.context, m, True)
                repeats = 0
                while repeats < len(seen) and seen[-1 - repeats] == seen[-1]:
                    repeats += 1
                dense = np.zeros(N)
                if seen:
                    dense[seen[-1]] = 1
                rows.append((dense, sum(repeats >= n for n in (2, 3, 4, 6, 11))))
            elif row.kind == "observed-expected":
                same = [n for n, j in enumerate(places[:which]) if key(row.context, tokens, j) == key(row.context, tokens, m)]
                observed = np.bincount([int(tokens[places[n]]) for n in same] or [0], minlength=N) * bool(same)
                expected = sum((np.exp(log_p[n].astype(np.float64)) for n in same), np.zeros(N))
                rows.append((np.log((observed + kind.prior) / (expected + kind.prior)), 0))
            else:
                if row.kind == "indirect":
                    seen = indirect(kind, tokens, row.context, m, key)
                else:
                    seen = history(row.context, m, row.kind == "begun")
                base = q_of[row.kind, row.over] if row.over else b
                c, n = np.bincount(seen or [0], minlength=N) * bool(seen), len(seen)
                d = int((c > 0).sum())
                q = (np.maximum(c - D, 0) + D * d * base) / n if n else base
                q_of[row.kind, row.context] = q
                bucket = 2 * sum(n >= t for t in (2, 4, 11, 51)) + (d > 1)
                rows.append((np.log(q / base), bucket))
        out.append(rows)
    return out


def read_text_at(stream, m, K):
    x = [int(t) for t in stream[max(0, m - K) : m][::-1]]
    x = x[: x.index(0)] if 0 in x else x
    return np.array(x + [0] * (K - len(x)))


def indirect(kind, tokens, name, m, key):
    """What followed the same context with the same two latest tokens, in the training text and in the text."""
    text = kind.text
    events = [(key(name, text, j), int(text[j])) for j in range(1, len(text)) if text[j] != 0]
    events += [(key(name, tokens, j), int(tokens[j])) for j in range(1, m) if tokens[j] != 0]
    latest, seen = {}, {}
    for k, token in events:
        last, before = latest.get(k, (-1, -1))
        seen.setdefault((k, last, before), []).append(token)
        latest[k] = (token, last)
    k = key(name, tokens, m)
    return seen.get((k, *latest.get(k, (-1, -1))), [])


def test_rows_are_those_of_a_loop_over_the_text():
    model = fitted().model
    kind = replace(model.rows[1], text=np.asarray(model.rows[1].text)[:90])
    tokens = np.append(stream()[:60], 0)
    text = read_text(tokens, model.radius)
    log_p = log_distributions(model.rows[0].model, text.X, past=text.past)
    found, wanted = kind.log_tables(text.X, text.past, log_p), rows_by_hand(kind, tokens, log_p)
    for g, (table, own, _, buckets) in enumerate(found):
        assert own.tolist() == list(range(len(text.Y)))
        for m, rows in enumerate(wanted):
            dense = np.zeros(kind.vocabulary)
            if isinstance(table, np.ndarray):
                dense = table[m]
            else:
                at = slice(table.start[m], table.start[m + 1])
                dense[table.outputs[at]] = table.values[at]
            row, bucket = rows[g]
            np.testing.assert_allclose(dense - dense[0], row - row[0], atol=ATOL, err_msg=kind.names[g])
            assert buckets[m] == bucket or not row.any(), kind.names[g]


def test_changing_the_future_moves_nothing():
    tokens, half = stream(), len(stream()) // 2
    other = tokens.copy()
    other[half:-1] = np.where(other[half:-1] == 0, 0, np.roll(other[half:-1], 3) % 5 + 2)
    before = np.count_nonzero(tokens[1:half] != 0)
    np.testing.assert_allclose(score(fitted().model, other)[:before], whole()[:before], atol=ATOL)  # sums of other lengths


@pytest.mark.parametrize("size", [1 << 13, 7, 40])
def test_blocks_of_any_size_give_the_same_numbers(size):
    with mock.patch.object(adaptive, "_block", size):
        again = score(replace(fitted().model), stream())
    np.testing.assert_allclose(again, whole(), atol=ATOL)


def test_a_text_read_in_pieces_is_the_text_read_at_once():
    model, tokens = fitted().model, stream()
    state, found = init(model), []
    for part in np.split(tokens[1:], [1, 2, 30, 31, 90]):
        log_p, state = read(model, state, part)
        found.append(log_p[part != 0])
    np.testing.assert_allclose(np.concatenate(found), whole(), atol=ATOL)
    assert state.tokens.tolist() == tokens.tolist()


def test_a_device_reads_the_same_and_its_state_is_saved(tmp_path):
    model, tokens = replace(fitted().model), stream()
    with mock.patch.object(adaptive, "on_accelerator", lambda: True):
        np.testing.assert_allclose(score(model, tokens), whole(), atol=ATOL)
        log_p, state = read(model, init(model), tokens[1:80])
        later, _ = read(model, state, tokens[80:])
        save_state(tmp_path / "state.safetensors", state)
    np.testing.assert_allclose(np.concatenate([log_p, later])[tokens[1:] != 0], whole(), atol=ATOL)
    on_host, _ = read(model, load_state(tmp_path / "state.safetensors"), tokens[80:])
    np.testing.assert_allclose(on_host, later, atol=ATOL)


def test_positions_out_of_order_are_refused():
    model, tokens = fitted().model, stream()
    text = read_text(tokens, model.radius)
    for m in (np.array([5, 4]), np.array([60, 2, 61])):
        with pytest.raises(ValueError, match="goes forward; sort them"):
            log_distributions(model, text.X[m], past=text.past.take(m))


def test_a_state_is_not_changed_by_reading_on():
    model, tokens = fitted().model, stream()
    _, state = read(model, init(model), tokens[1:50])
    one = predict(model, state)
    read(model, state, tokens[50:90])
    np.testing.assert_array_equal(predict(model, state), one)
    log_p, _ = read(model, state, tokens[50:51])
    np.testing.assert_allclose(log_p[0], one[tokens[50]], atol=ATOL)
    np.testing.assert_allclose(np.exp(one.astype(np.float64)).sum(), 1, atol=1e-5)


def test_a_saved_state_goes_on_where_it_was(tmp_path):
    model, tokens = fitted().model, stream()
    _, state = read(model, init(model), tokens[1:80])
    save_state(tmp_path / "state.safetensors", state)
    again = load_state(tmp_path / "state.safetensors")
    np.testing.assert_array_equal(read(model, again, tokens[80:120])[0], read(model, state, tokens[80:120])[0])
    np.testing.assert_array_equal(predict(model, again), predict(model, state))
    with pytest.raises(ValueError, match="read the text with this model"):
        predict(model.rows[0].model, state)
    with pytest.raises(ValueError, match="give a file that save_state wrote"):
        load_state(tmp_path / "nothing.safetensors")
    (tmp_path / "other").write_bytes(b"no such file")
    with pytest.raises(ValueError, match="give a file that save_state wrote"):
        load_state(tmp_path / "other")


def test_exponents_of_0_give_back_the_base():
    model = fitted().model
    a = np.zeros_like(model.exponents)
    a[0] = 1
    same = LanguageModel(model.rows, a, model.features, model.eos, model.selectors)
    np.testing.assert_allclose(score(same, stream()), score(model.rows[0].model, stream()), atol=ATOL)


def test_documents_alone_are_read_as_if_each_were_the_only_one():
    model = fitted()
    separate = [model.score([text])[0] for text in NEW]
    np.testing.assert_allclose(score(model.model, stream(), separate=True), np.concatenate(separate), atol=ATOL)
    assert abs(whole() - np.concatenate(separate)).max() > 1e-2  # documents before matter otherwise


def test_a_model_of_documents_sees_none_before():
    model = fitted()
    within = replace(model.model, rows=(model.model.rows[0], replace(model.model.rows[1], within_documents=True)))
    first = len(model.tokenizer.encode(NEW[0]))
    np.testing.assert_allclose(score(within, stream())[:first], whole()[:first], atol=ATOL)


def test_a_chain_with_exponents_of_1_is_absolute_discounting_over_the_model():
    """Which is normalised as it is; and it has learned a strange text by its second time."""
    model = fitted().model
    kind = model.rows[1]
    own = 1 + len(CONFIDENCES) * len(kind.rows)
    a = np.zeros_like(model.exponents)
    a[0] = a[1 : 1 + 3 * len(CONFIDENCES)] = 1
    assert kind.names[:3] == ("adaptive last 1", "adaptive last 2", "adaptive last 4") and len(a) > own
    whole_chain = LanguageModel(model.rows, a, model.features, model.eos, model.selectors)
    tokens = np.append(stream()[:60], 0)
    text = read_text(tokens, model.radius)
    log_p = log_distributions(model.rows[0].model, text.X, past=text.past)
    rows = rows_by_hand(replace(kind, text=np.zeros(2, int), rows=kind.rows[:3]), tokens, log_p)
    wanted = [log_p[m, y] + sum(row[y] for row, _ in rows[m]) for m, y in enumerate(text.Y)]  # log q of the longest context
    np.testing.assert_allclose(score(whole_chain, tokens), wanted, atol=ATOL)
    strange = [fitted().tokenizer.encode(text) for text in ("bt bt qs wb bt qs",) * 2]
    once, again = np.split(score(whole_chain, np.array([0, *strange[0], 0, *strange[1], 0])), 2)
    assert again.mean() > once.mean() + 0.5


def test_it_is_saved_and_writes(tmp_path):
    model = fitted()
    model.save(tmp_path / "m.safetensors")
    same = jexplicit.load_model(tmp_path / "m.safetensors")
    np.testing.assert_allclose(score(same.model, stream()), whole(), atol=ATOL)
    written = model.generate(["to be ", "the "], 6, seed=1)
    assert written == same.generate(["to be ", "the "], 6, seed=1) and len(written) == 2
    assert model.generate("to be ", 4, temperature=0) == model.generate("to be ", 4, temperature=0)
    likeliest = model.next_token("to b", top=1)[0]
    assert likeliest[0] == "e" and 0 < likeliest[1] <= 1
    why, log_p = model.explain("to be or not"), model.score(["to be or not"])[0]
    np.testing.assert_allclose(why.log_probability, log_p, atol=ATOL)
    assert why.names[0] == "model" and why.logits.shape == (len(log_p), len(model.model.names))


def test_words_have_rows_of_their_own_and_no_counts_of_the_training_text_when_it_is_large():
    texts = [" ".join(RNG.choice(WORDS, 20)) for _ in range(40)]
    model = fit(texts, rows=("contexts-4", "adaptive", "begun", "recency"), tokenizer="word", history="adaptive")
    assert {name.split()[0] for name in model.model.rows[1].names} == {"adaptive", "begun", "recency"}
    assert len(model.model.selectors) == 1 and not model.model.rows[0].model.selectors  # which adaptive rows always have
    with mock.patch("jexplicit.lm.fits.mixtures.adaptive_mixture._most_counted", 100):
        model = fit(texts, rows=("contexts-4", "adaptive", "recency"), tokenizer="word", history="adaptive")
    kinds = {name.split()[0] for name in model.model.rows[1].names}
    assert kinds == {"adaptive", "recency"} and model.model.rows[1].text is None
    alone = fit(texts, rows=("contexts-4",), tokenizer="word", history="adaptive:document")
    assert alone.model.rows[1].within_documents and np.isfinite(alone.perplexity(texts[:2]))


def test_kinds_of_rows_are_chosen_by_name():
    few = fit(TEXTS, rows=("contexts-4", "adaptive", "recency"), tokenizer="char", history="adaptive:document")
    assert {name.split()[0] for name in few.model.rows[1].names} == {"adaptive", "recency"}
    with pytest.raises(
        ValueError, match="rows observed-expected, which this text has not: choose from adaptive, begun, recency"
    ):
        fit(TEXTS, rows=("contexts-4", "observed-expected"), tokenizer="word", history="adaptive")
    with pytest.raises(ValueError, match="no rows"):
        fit(TEXTS, rows=("adaptive",), history="adaptive")


def test_kinds_that_do_not_help_are_left_out_unless_they_are_named():
    """Of letters that know nothing of each other no row can help; of a text that says everything twice, many do."""
    letters, events = list("abcd"), []
    noise = ["".join(RNG.choice(letters, 60)) for _ in range(40)]
    watch = Watch(log=lambda **event: events.append(event))

    def kinds(texts, **options):
        tokenizer = train_tokenizer(texts, kind="char")
        text = TrainingText(encode_documents(tokenizer, texts), tokenizer.vocab_size, tokenizer=tokenizer)
        events.clear()
        model = fit_model("mixture", text, Options(rows=("contexts-4",), history="adaptive", **options), watch).model
        return {name.split()[0] for name in model.names} | ({"selectors"} if model.selectors else set())

    twice = [2 * "".join(RNG.choice(letters, 30)) for _ in range(40)]
    few, many = kinds(noise), kinds(twice)
    assert {event["kind"]: event["kept"] for event in events if event["event"] == "choice"}.keys() >= {"adaptive", "selectors"}
    assert all(event["kept"] == (event["worth"] > 0) for event in events if event["event"] == "choice")
    assert "model" in few and len(few) < len(many) and many & {"adaptive", "begun", "recency"}


def test_a_model_whose_adaptive_rows_are_all_left_out_is_its_base():
    kind = replace(fitted().model.rows[1], rows=())
    alone = LanguageModel((fitted().model.rows[0], kind), np.ones(1, np.float32), "cat", False)
    np.testing.assert_allclose(score(alone, stream()), score(fitted().model.rows[0].model, stream()), atol=ATOL)


def encode(model, tokens: np.ndarray) -> tuple[int, int]:
    """The bits of an arithmetic coder that knows the model, with integers of any length; and the text decoded from them."""
    low, width, whole_bits = 0, 1, 0
    state = init(model)
    ranges = []
    for token in tokens:
        cumulative = frequencies(predict(model, state))
        ranges.append((int(cumulative[token]), int(cumulative[token + 1]), int(cumulative[-1])))
        _, state = read(model, state, np.array([token]))
    for first, last, total in ranges:
        low, width = low * total + width * first, width * (last - first)
        whole_bits += total.bit_length() - 1
    bits = 0
    while True:  # the shortest binary fraction in [low, low + width) / 2^whole_bits
        bits += 1
        shift = whole_bits - bits
        code = -(-low >> shift) if shift >= 0 else low << -shift
        if shift < 0 or (code << shift) < low + width and (code << shift) >= low:
            return code, bits


def decode(model, code: int, bits: int, n: int) -> list[int]:
    state, out = init(model), []
    low, width, scale = 0, 1, 0
    for _ in range(n):
        cumulative = frequencies(predict(model, state))
        total = int(cumulative[-1])
        scale += total.bit_length() - 1
        low, width = low * total, width
        target = code << scale - bits if scale >= bits else code >> bits - scale
        token = int(np.searchsorted(cumulative, (target - low) // width, side="right")) - 1
        low, width = low + width * int(cumulative[token]), width * int(cumulative[token + 1] - cumulative[token])
        out.append(token)
        _, state = read(model, state, np.array([token]))
    return out


def frequencies(log_p: np.ndarray) -> np.ndarray:
    """Cumulative integer frequencies that add up to 2^24, each at least 1."""
    total, N = 1 << 24, len(log_p)
    f = np.floor(np.exp(log_p.astype(np.float64)) * (total - N)).astype(np.int64) + 1
    f[np.argmax(f)] += total - f.sum()
    return np.concatenate([[0], np.cumsum(f)])


def test_a_coder_needs_as_many_bits_as_the_model_says_and_gives_the_text_back():
    model, tokens = fitted().model, stream()[1:41]
    assert (tokens != 0).all()
    code, bits = encode(model, tokens)
    log_p, _ = read(model, init(model), tokens)
    assert abs(bits + log_p.sum() / np.log(2)) < 16
    assert decode(model, code, bits, len(tokens)) == tokens.tolist()


def test_contexts_tell_texts_apart_as_strings_do():
    """Every context function against the string that it stands for."""
    tokenizer = train_tokenizer(TEXTS, kind="char")
    letters = np.array([tokenizer.piece(i).isalpha() and len(tokenizer.piece(i)) == 1 for i in range(tokenizer.vocab_size)])
    ends = np.array([i == 0 or tokenizer.piece(i) == "\n" for i in range(tokenizer.vocab_size)])
    text = "\n".join(TEXTS[:3])
    ids = np.array(tokenizer.encode(text))
    X = np.stack([np.array([*ids[:m][::-1], *[0] * 48][:48]) for m in range(len(ids))])
    block = Block(X, letters, ends, {})

    def words(before):
        parts, rest = [], before[-48:]
        while rest:
            stripped = rest.rstrip("".join(c for c in set(rest) if not c.isalpha()))
            gap, rest = rest[len(stripped) :], stripped
            start = len(rest)
            while start and rest[start - 1].isalpha():
                start -= 1
            parts.append((gap, rest[start:]))
            rest = rest[:start]
        return parts

    def of_word(n, before):
        found = words(before)
        inside = bool(before) and before[-1].isalpha()
        found = [word for _, word in found]
        found = found if inside else ["", *found]
        return found[n] if n < len(found) else ""

    strings = {
        "last 3": lambda before: before[-3:],
        "part": lambda before: of_word(0, before),
        "word before": lambda before: (of_word(1, before), before[-1:]),
        "words part": lambda before: (of_word(0, before), of_word(1, before), of_word(2, before)),
        "second word": lambda before: (of_word(0, before), of_word(2, before)),
        "line": lambda before: before[-48:].rpartition("\n")[2],
        "column": lambda before: (len(before[-48:].rpartition("\n")[2]), before[-1:]),
        "gap 2-3": lambda before: before[-3:-1] if len(before) > 2 else before[:-1],
        "gap 1, 3": lambda before: (before[-1:], before[-3:-2] if len(before) > 2 else ""),
    }
    for name, string in strings.items():
        keys = CONTEXTS[name](block).tolist()
        wanted = [string(text[:m]) for m in range(len(ids))]
        assert len(set(zip(keys, wanted, strict=True))) == len(set(keys)) == len(set(wanted)), name


def test_a_context_of_ones_own_is_a_function_with_a_name():
    kind = replace(fitted().model.rows[1], rows=(Adaptive("mine"),))
    text = read_text(stream(), 48)
    log_p = np.full((len(text.Y), kind.vocabulary), -np.log(kind.vocabulary), np.float32)
    with pytest.raises(ValueError, match="put its function into"):
        kind.log_tables(text.X, text.past, log_p)
    with mock.patch.dict(CONTEXTS, mine=lambda block: CONTEXTS["last 2"](block)):
        (mine, *_), *_ = kind.log_tables(text.X, text.past, log_p)
    (last, *_), *_ = replace(kind, rows=(Adaptive("last 2"),)).log_tables(text.X, text.past, log_p)
    np.testing.assert_array_equal(mine.values, last.values)


def test_every_row_has_an_exponent_for_every_confidence():
    kind = fitted().model.rows[1]
    assert kind.exponents_per_row == (len(CONFIDENCES),) * len(FEW)
