"""The page of `launch.explain --html`: what it says adds up, text stays text, and it works in a browser, where there is one."""

import functools
import json
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jexplicit.data.tokenizers import encode_documents
from jexplicit.lm.fit import fit
from jexplicit.lm.model import network_model, read_text, token_model
from jexplicit.nn.networks import MLPLanguageModel, init_variables
from launch import explain

pytestmark = pytest.mark.slow

TEXT = 'the cat </script><b>sat</b>\n\ton "the" mat\\n & \u202ecat\'s <!-- {{explained}} 😀'
WORDS = ["the cat sat on the mat", "a cat on a mat ran", "the mat sat"]
ROUNDING = 1e-4  # of log-probabilities in float32, some 10 in size, of a sum over some 20 rows


@functools.cache
def fitted(kind):
    """A model of characters; one has fewer tokens than a page shows, and two of them cannot occur."""
    if kind == "absent":
        table = jnp.log(jnp.array([[0, 0, 0.75, 0.25]] * 4, jnp.float32))
        return fit(["ab", "ba"], "unigram", tokenizer="char")._replace(model=token_model([table, table / 2], "cat", False))
    options: dict[str, Any] = {"method": "explicit"} if kind == "explicit" else {"history": kind, "gates": 1, "stages": 1}
    return fit([f"{words} {TEXT}" for words in WORDS for _ in range(2)], tokenizer="char", **options)


def written(kind, text, folder):
    """The page of a text, and what it has embedded."""
    model = fitted(kind)
    read = read_text(encode_documents(model.tokenizer, [text]), model.model.context)
    explain.write_page(folder / "page.html", explain.explain_alternatives(model, read))
    found = (folder / "page.html").read_text(encoding="utf-8")
    (embedded,) = re.findall(r'<script type="application/json" id="explained">(.*?)</script>', found, re.DOTALL)
    return found, json.loads(embedded)


@pytest.mark.parametrize("kind", ["absent", "explicit", "document", "online"])
def test_the_rows_less_the_log_partition_function_are_log_p(kind, tmp_path):
    model, text = fitted(kind), {"absent": "abba", "explicit": TEXT}.get(kind, TEXT[:14])
    _, explained = written(kind, text, tmp_path)
    found, rounding = [], ROUNDING
    for _, gate in getattr(model.model, "gates", ()):  # its sums multiply the rounding of float32 numbers
        rounding = max(rounding, 1.2e-7 * model.model.tree.length.max() * np.abs(gate.U).sum(axis=0).max())
    for of_one, log_p in zip(explained["predictions"], model.score([text])[0], strict=True):
        for rows, own in zip(of_one["rows"], of_one["log_p"], strict=True):
            assert len(rows) == len(explained["rows"]) == len(explained["back"])
            if own is None:
                assert None in rows
            else:
                assert sum(rows) - of_one["log_Z"] == pytest.approx(own, abs=1e-9)  # both have six digits
        known = np.array([-np.inf if own is None else own for own in of_one["log_p"]])
        assert known[of_one["observed"]] == pytest.approx(log_p, abs=rounding)
        assert np.exp(known).sum() <= 1 + rounding
        least, most = (1 + (known > log_p + sign * rounding).sum() for sign in (1, -1))  # likely texts have tokens that tie
        assert of_one["rank"] > 10 or least <= of_one["rank"] <= most
        found.append(of_one["tokens"][of_one["observed"]])
    assert np.exp(explained["loss"]) == pytest.approx(model.perplexity([text]), rel=rounding)
    assert "".join(found).replace("▁", " ").strip().replace("\\u202e", "\u202e") == text
    absent = any(None in of_one["log_p"] for of_one in explained["predictions"])
    assert absent == (kind == "absent") and explained["vocabulary"] == model.model.vocab_size


def test_a_text_of_tags_is_a_text_and_long_texts_and_networks_are_refused(tmp_path, monkeypatch, capfd):
    found, _ = written("explicit", TEXT, tmp_path)
    assert found.count("</script>") == 2 and "<b>" not in found and "\u202e" not in found
    assert not re.search(r"\b(src|href)=|url\(|@import|https?:", found)  # nothing from elsewhere
    (tmp_path / "page.html").unlink()
    monkeypatch.setattr(explain, "_most_tokens", 3)
    fitted("explicit").save(tmp_path / "m.safetensors")
    flags = ["--run", str(tmp_path / "m.safetensors"), "--html", str(tmp_path / "page.html")]
    assert explain.main([*flags, "--text", "the cat"]) == 2
    assert "a page holds 3; give a shorter --text, or leave out --html" in " ".join(capfd.readouterr().err.split())
    assert not (tmp_path / "page.html").exists()
    assert explain.main([*flags, "--text", "the"]) == 0
    network = MLPLanguageModel(vocab_size=fitted("explicit").tokenizer.vocab_size, embedding=3, hidden=(5,), direct="embedding")
    model = network_model(network, init_variables(network, jax.random.key(0), jnp.zeros((1, 2), int)), context=2)
    with pytest.raises(ValueError, match="its logits are no sum over tokens"):
        explain.explain_alternatives(fitted("explicit")._replace(model=model), read_text(np.array([0, 2, 3, 0]), 2))
