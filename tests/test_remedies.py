"""Remedies that messages give: each is done, and its result is read."""

import io
import json
import re

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import jexplicit
from jexplicit import solvers
from jexplicit.runs.checks import key_of_seed
from jexplicit.runs.progress import json_line

TEXTS = ["the cat sat on the mat", "a dog ran to the log"] * 10


def refusal(call, *args, **options):
    with pytest.raises(ValueError) as caught:
        call(*args, **options)
    return str(caught.value)


def test_a_model_is_read_from_the_file_that_save_wrote(tmp_path):
    model = jexplicit.fit(TEXTS, "ngram", tokenizer="word")
    told = refusal(model.save, tmp_path / "lm.pt")
    assert not (tmp_path / "lm.pt").exists()
    for name in ("lm.safetensors", "lm.arpa.gz"):
        model.save(tmp_path / name)
        again = jexplicit.load_model(tmp_path / name)
        assert again.perplexity(TEXTS) == pytest.approx(model.perplexity(TEXTS), rel=1e-4)  # ARPA has seven digits
        assert name.partition(".")[2] in told


def test_a_table_or_a_set_is_refused_with_what_can_be_fitted():
    table = {"id": [*range(len(TEXTS))], "text": TEXTS}
    [column] = re.findall(r"table\['(.*)'\]", refusal(jexplicit.fit, table, "bigram", tokenizer="word"))
    assert jexplicit.fit(table[column], "bigram", tokenizer="word").tokenizer.vocab_size == 12
    assert "sorted(texts)" in refusal(jexplicit.fit, set(TEXTS), "bigram")


def test_every_name_can_be_printed_as_json():
    name = "caf\N{LATIN SMALL LETTER E WITH ACUTE} b\ud83d"
    for encoding in ("utf-8", "ascii"):
        with pytest.MonkeyPatch.context() as patch:
            out = io.TextIOWrapper(io.BytesIO(), encoding)
            patch.setattr("sys.stdout", out)
            print(json_line({"id": name}), file=out, flush=True)
        assert json.loads(out.buffer.getvalue().decode(encoding)) == {"id": name}


def test_a_seed_that_no_random_key_has_is_refused():
    model = jexplicit.fit(TEXTS, "bigram", tokenizer="word")
    for seed in (2**63, -1):
        assert f"seed {seed}: use a whole number from 0 to 2^63 - 1" in refusal(model.generate, "the", 2, seed=seed)
    assert "seed -1: use a whole number" in refusal(jexplicit.fit, TEXTS, "context-mixing", seed=-1)
    assert model.generate("the", 2, seed=2**63 - 1)


def test_every_seed_has_a_key_of_its_own():
    seeds = [0, 1, 5, 2**31, 2**32 - 1, 2**32, 2**32 + 5, 2**40, 2**62 + 5, 2**63 - 1]
    keys = [tuple(jax.random.key_data(key_of_seed(seed)).tolist()) for seed in seeds]
    assert len(set(keys)) == len(seeds)
    assert keys[:5] == [tuple(jax.random.key_data(jax.random.key(seed)).tolist()) for seed in seeds[:5]]
    assert key_of_seed(np.int64(5)) == key_of_seed(5) == key_of_seed(jax.random.key(5)) == jax.jit(key_of_seed)(np.uint32(5))


def test_targets_and_labels_are_read_after_what_the_messages_say(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as in a user's program
    logits = jnp.array([[1.0, 0.0], [0.0, 2.0]])
    for measure in (solvers.accuracy, solvers.mean_loss):
        assert "divide each row" in refusal(measure, logits, 3 * jnp.eye(2))
        assert measure(logits, jnp.eye(2)) == measure(logits, jnp.array([0, 1]))


def test_a_document_is_begun_as_the_message_says():
    model = jexplicit.fit(TEXTS, "bigram", tokenizer="word").model
    assert "[[]]" in refusal(jexplicit.generate, jax.random.key(0), model, [], 2)
    assert jexplicit.generate(jax.random.key(0), model, [[]], 2).shape == (1, 2)
