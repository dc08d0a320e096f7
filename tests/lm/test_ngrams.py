"""N-grams: rows against Kneser-Ney from dictionaries; ARPA files against their recursion in plain Python.

Tolerances: rows are float32, logarithms of at most 10, right to 1e-6, and five add up. Five log10 probabilities and weights of
at most 10, written with eight digits, are right to 5e-7 each: SUM.
"""

import gzip
import math
import re

import jax
import numpy as np
import pytest
from reference import Chain, random_documents, stream_of, windows
from refusals import refused
from tables import each_row

from jexplicit.data.tokenizers import Tokenizer, encode_documents, train_tokenizer
from jexplicit.lm import ngram
from jexplicit.lm.evaluation import evaluate, score
from jexplicit.lm.fit import fit_model
from jexplicit.lm.model import LanguageModel, read_text
from jexplicit.lm.ngram import arpa_words, read_arpa, smoothed_ngrams, write_arpa
from jexplicit.lm.text_model import load_model
from jexplicit.lm.training_text import TrainingText

SUM = 5e-6
N = 12
DOCUMENTS = [*random_documents(seed=3, number=60, vocab_size=N - 2, longest=12), []]  # two tokens are never seen
NEW = [*random_documents(seed=4, number=12, vocab_size=N, longest=12), [N - 1], [1, 3, 1, 1, 4, 5]]  # 1 is <unk>
WORDS = Tokenizer("\n".join(f"w{i}" for i in range(2, N)).encode(), "words")
ORDERS = [(1, True), (2, False), (3, True), (5, False)]


X, Y = windows(DOCUMENTS, 4)
OTHERS, _ = windows(NEW[:5], 4)  # most long contexts are new, and a token
CONTEXTS = np.concatenate([X[:30], OTHERS])


def ngrams_of(order):
    return smoothed_ngrams(X[:, :order], Y, vocab_size=N)


by_softmax = jax.jit(jax.vmap(lambda model, x: jax.nn.log_softmax(model.logits(x)), in_axes=(None, 0)))


def test_the_softmax_of_rows_is_kneser_ney_from_dictionaries_of_contexts_seen_or_not():
    for order in (1, 4):
        model, slow = LanguageModel(ngrams_of(order), "none", False), Chain(X[:, :order], Y, N)
        P = np.exp(by_softmax(model, jax.device_put(CONTEXTS[:, :order].astype(np.int32))))
        contexts = [tuple(map(int, x[:order])) for x in CONTEXTS]
        expected = [[slow.P(context, i) for i in range(N)] for context in contexts]
        np.testing.assert_allclose(P, expected, rtol=2e-5, atol=0)  # logits are right to 1e-5
        assert 0 < len(set(contexts) - {context for context, _ in slow.counts[order]}) < len(contexts) or order == 1


def test_neither_the_order_of_positions_nor_blocks_nor_narrow_integers_change_anything(monkeypatch):
    m, whole = np.random.default_rng(0).permutation(len(Y)), ngrams_of(4)
    narrow = smoothed_ngrams(X.astype(np.uint8), Y.astype(np.uint8), vocab_size=N)
    assert len(whole.children[-1].tokens) * N > 255  # keys do not fit in a byte
    monkeypatch.setattr(ngram, "_pairs_per_block", 7)
    for other in (narrow, smoothed_ngrams(X[m], Y[m], vocab_size=N), ngrams_of(4)):
        for mine, theirs in zip(jax.tree.leaves(other), jax.tree.leaves(whole), strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_look_ups_are_the_softmax_of_the_rows_with_ids_up_to_the_largest_of_uint8():
    """To 1e-5: five float32 rows that add up to at most some 20 nats."""
    for eos in (True, False):
        documents = ([[256 - i for i in document] for document in random_documents(seed, 30, 256, 25)] for seed in (2, 1))
        (X, Y, past), (seen, targets, _) = (read_text(stream_of(part, np.uint8), 4, eos=eos) for part in documents)
        model = LanguageModel(smoothed_ngrams(seen, targets, vocab_size=256), "none", eos)
        log_p = np.asarray(by_softmax(model, jax.device_put(X.astype(np.int32))))
        own = np.take_along_axis(log_p, Y[:, None].astype(int), axis=1)[:, 0]
        np.testing.assert_allclose(score(model, past.stream), own, rtol=0, atol=1e-5)
        assert evaluate(model, past.stream).loss == pytest.approx(-own.mean(), abs=1e-5) and Y.max() == 255


# ARPA files


def model_of(order: int, eos: bool) -> LanguageModel:
    """An n-gram model of 60 documents."""
    if order <= 2:
        return fit_model(["unigram", "bigram"][order - 1], TrainingText(stream_of(DOCUMENTS), N, eos=eos)).model
    X, Y = windows(DOCUMENTS, order - 1, eos=eos)
    return LanguageModel(smoothed_ngrams(X[:, : order - 1], Y, vocab_size=N), "none", eos)


class SlowArpa:
    """The recursion of ARPA from two dictionaries."""

    def __init__(self, path):
        self.p, self.weight = {}, {}
        text = path.read_text()
        for n, lines in re.findall(r"\\(\d)-grams:\n(.*?)\n\n", text, re.DOTALL):
            for line in lines.split("\n"):
                p, *gram = line.split()
                self.p[tuple(gram[: int(n)])] = float(p)
                self.weight[tuple(gram[: int(n)])] = float(gram[int(n)]) if len(gram) > int(n) else 0.0
        self.order = max(map(len, self.p))

    def log_p(self, context: tuple[str, ...], word: str) -> float:
        if (gram := (*context, word)) in self.p:
            return self.p[gram]
        return self.weight.get(context, 0.0) + self.log_p(context[1:], word)

    def scores(self, words: list[str], *, eos: bool) -> list[float]:
        text = ["<s>", *words, *["</s>"] * eos]
        return [self.log_p(tuple(text[max(0, t - self.order + 1) : t]), text[t]) for t in range(1, len(text))]


def assert_scores(found, model: LanguageModel, documents=NEW) -> None:
    """Of every token, as logarithms of base 10."""
    np.testing.assert_allclose(found, score(model, stream_of(documents)) / math.log(10), rtol=0, atol=SUM)


def test_a_file_gives_the_models_own_numbers_and_what_is_read_again_scores_alike(tmp_path):
    path, zipped = tmp_path / "lm.arpa", tmp_path / "lm.arpa.gz"
    for order, eos in ORDERS:
        model = model_of(order, eos)
        write_arpa(path, model, WORDS)
        write_arpa(zipped, model, WORDS)
        arpa = SlowArpa(path)
        found = [p for d in NEW for p in arpa.scores([arpa_words(WORDS)[i] for i in d], eos=eos)]
        assert_scores(found, model)
        assert ("-99\t</s>\t0\n" in path.read_text()) != eos
        read, tokenizer = read_arpa(zipped)
        assert sorted(tokenizer.pieces()) == sorted(WORDS.pieces())
        assert (read.eos, read.context) == (eos, max(1, order - 1))
        renamed = [tokenizer.encode(" ".join(arpa_words(WORDS)[i] for i in d)).tolist() for d in NEW]
        assert_scores(found, read, renamed)
        assert_scores(found, read_arpa(path, WORDS)[0])


FOREIGN = r"""
\data\
ngram 1=5
ngram 2=2
ngram 3=2

\1-grams:
0 <s> {s}
-0.30103 a {a}
-0.5228787 b
-1 </s>
-1 <unk>

\2-grams:
-0.04575749 a b
-0.2218487 <s> a 0.1461280

\3-grams:
-0.09691001 <s> a b
-1.2218487 <s> a <unk>

\end\
"""


def test_files_of_others_unsorted_with_spaces_and_pruned(tmp_path):
    # P(a) 1/2, P(b) 3/10, others 1/10. After <s>: a 6/10. After a: b 9/10. After <s> a: b 8/10, <unk> 0.06, of 0.1 weight w(a)
    text = FOREIGN.format(s=f"{math.log10(0.8):.7f}", a=f"{math.log10(0.1 / 0.7):.7f}")
    backed_off = 0.1 * 0.1 / 0.7  # of <unk> after a, which is no bigram
    text = text.replace("0.1461280", f"{math.log10((1 - 0.8 - 0.06) / (1 - 0.9 - backed_off)):.7f}")
    (tmp_path / "lm.arpa").write_text(text)
    model = load_model(tmp_path / "lm.arpa")
    found = np.concatenate(model.score(["a b", "b a b", "a zzz", "a a"]))
    after = (1 - 0.8 - 0.06) / (1 - 0.9 - backed_off)
    expected = [0.6, 0.8, 0.1, 0.8 * 0.3, 0.5, 0.9, 0.1, 0.6, 0.06, 0.1, 0.6, after * 0.1 / 0.7 * 0.5, 0.1 / 0.7 * 0.1]
    np.testing.assert_allclose(np.exp(found), expected, rtol=5e-6)  # seven digits in the file
    assert model.generate("a", 3, temperature=0).startswith(" b a")
    assert model.about["method"] == "ngram" and model.model.eos


def test_pieces_with_white_space_and_reserved_words(tmp_path):
    texts = ["a\u00a0b <s> c\n\\u000a x </s>", "<unk> ▁ a"] * 4
    for kind in ("word", "char"):
        tokenizer = train_tokenizer(texts, kind=kind)
        words = arpa_words(tokenizer)
        assert len(set(words)) == len(words) == tokenizer.vocab_size
        assert not [word for word in words if re.search(r"\s", word) or not word or word in ("<s>", "</s>")]
        stream = encode_documents(tokenizer, texts)
        model = fit_model("ngram", TrainingText(stream, tokenizer.vocab_size, eos=True)).model
        write_arpa(tmp_path / "lm.arpa", model, tokenizer)
        read, _ = read_arpa(tmp_path / "lm.arpa", tokenizer)
        np.testing.assert_allclose(score(read, stream), score(model, stream), rtol=0, atol=2 * SUM)
        again, own = read_arpa(tmp_path / "lm.arpa")
        write_arpa(tmp_path / "again.arpa", again, own)
        assert SlowArpa(tmp_path / "again.arpa").p.keys() == SlowArpa(tmp_path / "lm.arpa").p.keys()


def test_models_of_other_rows_are_refused(tmp_path):
    fits = (("explicit", N), ("unigram", 13))
    explicit, wide = (fit_model(name, TrainingText(stream_of(DOCUMENTS), n)).model for name, n in fits)
    (tmp_path / "file").touch()
    for said, path, model in (
        ("a model of TokenTables is no n-gram model.* choose the method ngram", "lm.arpa", explicit),
        ("a tokenizer of 12 tokens and a model of 13: use the model's own", "lm.arpa", wide),
        ("cannot be written .*choose another folder", "file/lm.arpa", model_of(2, True)),
    ):
        refused(said, write_arpa, tmp_path / path, model, WORDS)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


START = r"instead of \\data\\ of an ARPA file"
LOG10 = "instead of a log10 probability"
DAMAGE = [  # what is replaced once, by what, and what is said
    (r"\A", r"to be\n\\1-grams:\n", f"line 2: .*1-grams.* {START}"),
    ("ngram 1=13\n", "", "line 2: .* instead of `ngram 1=...`"),
    (r"\n[^\n]*\n[^\n]*\n[^\n]*\n\n\\3-grams:.*", "", "2 of the unigrams"),
    (r"\\end\\\n", "", r"'the end of the file' instead of \\end\\: it is cut short"),
    ("ngram 1=13", "ngram 1=12", r"line 19: .*instead of \\2-grams:.*counts other n-grams"),
    ("\tw4 ", r"\tw4 w4 w4 ", f"{LOG10} of at most 0, 2 of the unigrams"),
    (r"-[\d.]+\tw5\t", r"nan\tw5\t", f"line 13: 'nan.*{LOG10}"),
    ("\tw4 ", r"\tdog ", "dog.* instead of .* 2 of the unigrams"),
    (r"(\\2-grams:\n)([^\n]*)\n[^\n]*", r"\1\2\n\2", "a 2-gram stands in it twice"),
    (r"-[\d.]+(\tw3\t)", r"-0.01\1", "the unigrams sum to .*renorm"),
]


def test_bad_files_are_refused_with_file_line_and_remedy(tmp_path):
    path, zipped = tmp_path / "lm.arpa", tmp_path / "lm.arpa.gz"
    write_arpa(path, model_of(3, True), WORDS)
    good = path.read_text()
    for size, said in ((9, "has 'w10', unlike the tokenizer"), (13, "does not have 'w12', unlike the tokenizer")):
        refused(said, read_arpa, path, Tokenizer("\n".join(f"w{i}" for i in range(2, size)).encode(), "words"))

    def damaged(pattern, replacement, message):
        text = re.sub(pattern, replacement, good, count=1, flags=re.DOTALL)
        assert text != good
        path.write_text(text)
        assert str(path) in refused(message, read_arpa, path)

    each_row(damaged, DAMAGE)
    for data, said in [
        (b"mmap lm http://kheafield.com/code format version 5\n\0", "is a binary file of KenLM: give the ARPA file"),
        (good.encode() + b"more\n", "'more' instead of the end of the file"),
        (b"\\data\\\nngram 1=0\n\n\\1-grams:\n\n\\end\\\n", "instead of `ngram 1="),
        (
            FOREIGN.replace("2=2", "2=0").replace("-0.04575749 a b\n-0.2218487 <s> a 0.1461280", "").format(s=0, a=0),
            "of the order below",
        ),
    ]:
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        refused(said, read_arpa, path)
    zipped.write_bytes(gzip.compress(good.encode())[:-200])
    refused("not a whole file", read_arpa, zipped)
    refused("cannot be read", read_arpa, tmp_path / "none.arpa")
