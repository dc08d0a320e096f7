"""Measures that compare across tokenizers, against the definitions of lm-evaluation-harness."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jexplicit import encode_documents, evaluate, score, train_tokenizer
from jexplicit.data.corpora import TextSizes, text_sizes
from jexplicit.lm.core.model import token_model
from jexplicit.lm.measures import comparable_measures, document_losses, positions_in_all, unknown_share

DOCUMENTS = ["to be or not", "to be", "what ïs"]


def uniform(N: int, eos: bool = False):
    return token_model([jnp.full((N, N), -math.log(N))], "cat", eos)


@pytest.mark.parametrize("kind", ["char", "word"])
@pytest.mark.parametrize("eos", [False, True])
def test_measures_are_those_of_a_loop_over_documents(kind, eos):
    tokenizer = train_tokenizer(DOCUMENTS[:2], kind=kind)
    stream, N = encode_documents(tokenizer, DOCUMENTS), tokenizer.vocab_size
    tokens = sum(len(tokenizer.encode(document)) + eos for document in DOCUMENTS)
    log_p = -tokens * math.log(N)
    found = comparable_measures(-float(score(uniform(N, eos), stream).sum()), text_sizes(DOCUMENTS))
    # rel=1e-6: log-probabilities are float32
    assert found["bits_per_byte"] == pytest.approx(-log_p / math.log(2) / sum(len(d.encode()) for d in DOCUMENTS), rel=1e-6)
    assert found["bits_per_character"] == pytest.approx(-log_p / math.log(2) / sum(map(len, DOCUMENTS)), rel=1e-6)
    assert found["word_perplexity"] == pytest.approx(math.exp(-log_p / sum(len(d.split()) for d in DOCUMENTS)), rel=1e-5)
    assert positions_in_all(stream, eos=eos) == tokens == evaluate(uniform(N, eos), stream).positions
    unknown = [int(i == tokenizer.unk_id) for document in DOCUMENTS for i in tokenizer.encode(document)]
    assert unknown_share(stream) == sum(unknown) / len(unknown) > 0


def test_a_uniform_model_of_bytes_has_8_bits_per_byte_and_256_per_byte_word():
    sizes = text_sizes(["a b c"])
    found = comparable_measures(5 * math.log(256), sizes)
    assert found["bits_per_byte"] == found["bits_per_character"] == pytest.approx(8)
    assert found["word_perplexity"] == pytest.approx(256 ** (5 / 3))


def test_what_is_not_known_or_not_representable_is_none():
    assert set(comparable_measures(1.0, None).values()) == {None}
    assert comparable_measures(1e6, TextSizes(1, 900, 300, 1))["word_perplexity"] is None
    json.dumps(comparable_measures(1e6, TextSizes(1, 900, 300, 1)), allow_nan=False)


@pytest.mark.parametrize("eos", [False, True])
def test_losses_of_documents_are_sums_of_their_scores_and_a_single_one_is_cut_in_blocks(eos):
    U = jax.device_put(np.asarray(np.random.default_rng(0).normal(size=(7, 7)), np.float32))
    model, stream = token_model([U], "cat", eos), np.array([0, 2, 3, 2, 0, 4, 0, 5, 6, 5, 0])
    log_p = score(model, stream).tolist()
    expected, positions = [], []
    for length in (3, 1, 3):  # a loop over documents, with their ends where these are predicted
        own = [log_p.pop(0) for _ in range(length + eos)]
        expected.append(-sum(own))
        positions.append(len(own))
    found = document_losses(model, stream, block=2)
    assert found.nll == pytest.approx(expected) and found.positions.tolist() == positions and not log_p
    one = np.array([0, 2, 3, 2, 4, 0])
    blocks = document_losses(model, one, block=3)
    assert blocks.positions.tolist() == ([3, 2] if eos else [3, 1])
    assert blocks.nll.tolist() == pytest.approx([-score(model, one)[:3].sum(), -score(model, one)[3:].sum()])
    assert document_losses(model, one).positions.tolist() == [4 + eos]
