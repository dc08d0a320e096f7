"""Models in a forked process, which has none of JAX's threads."""

import multiprocessing
from collections.abc import Callable

import pytest

import jexplicit
from jexplicit.runs.devices import check_threads

TEXTS = ["the cat sat on the mat", "the dog sat on the log"] * 10
pytestmark = [
    pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this system"),
    pytest.mark.filterwarnings("ignore:os.fork"),
]


def in_child(question: Callable[[], object]) -> object:
    """The answer of a forked process, or its RuntimeError."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)

    def ask():
        try:
            there.send(question())
        except RuntimeError as error:
            there.send(str(error))

    child = context.Process(target=ask)
    child.start()
    there.close()
    try:
        assert here.poll(20), "the child waits"
        return here.recv()
    finally:
        child.kill()
        child.join()


def test_a_counted_model_and_its_tokenizer_read_in_a_forked_process():
    model = jexplicit.fit(TEXTS, tokenizer="word")
    assert in_child(lambda: model.perplexity(TEXTS[:2])) == model.perplexity(TEXTS[:2])
    assert in_child(lambda: model.next_token("the")) == model.next_token("the")
    assert in_child(lambda: model.tokenizer.encode(TEXTS[0]).tolist()) == model.tokenizer.encode(TEXTS[0]).tolist()


def test_what_jax_computes_is_refused_in_a_forked_process_and_goes_on_in_its_parent():
    ngram = jexplicit.fit(TEXTS, "ngram", tokenizer="word")
    adaptive = jexplicit.fit(TEXTS, tokenizer="word", history="adaptive")
    expected = ngram.perplexity(TEXTS[:2])
    for question in (
        lambda: ngram.perplexity(TEXTS[:2]),
        lambda: ngram.score(TEXTS[:2]),
        lambda: ngram.next_token("the"),
        lambda: ngram.generate("the", 2),
        lambda: adaptive.perplexity(TEXTS),
        lambda: jexplicit.fit(TEXTS, "explicit", tokenizer="word"),
        lambda: jexplicit.fit(TEXTS, "bigram", tokenizer="word"),
    ):
        assert 'get_context("spawn")' in str(in_child(question))
    check_threads()
    assert ngram.perplexity(TEXTS[:2]) == expected
