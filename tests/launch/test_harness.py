"""lm-evaluation-harness with a model of this project, against our own scores, on local tasks and without a network."""

import json
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from refusals import refused

from jexplicit import fit, score
from jexplicit.data import encode_documents
from jexplicit.data.text import read_pairs, text_sizes
from jexplicit.lm.evaluation import init, judgement, predict, preferences, read, spelling
from launch.harness import __main__ as harness

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of lm_eval's own imports

WORDS = "the a one cat dog bird sat ran sang on under by mat tree house".split()
RNG = np.random.default_rng(0)
SENTENCES = [" ".join(RNG.choice(WORDS, RNG.integers(4, 9))) for _ in range(60)] + ["the cat sat on the mat"] * 20
NEW = ["the dog ran under a tree", "one zebra sat", "a bird sang by the house on the mat"]
KINDS: dict[str, Any] = {  # of the text before and of ends of documents, one that counts what it reads, and bigrams
    "past": {"history": "all", "eos": True, "gates": 1, "stages": 1},
    "online": {"history": "online", "gates": 1, "stages": 1},
    "quick": {"method": "bigram"},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Any]:
    """Exported models, as lm_eval makes them."""
    pytest.importorskip("lm_eval")
    from launch.harness.model import JexplicitModel

    folder, own, found = tmp_path_factory.mktemp("models"), {"batch_size": 1, "device": None}, {}
    for name, options in KINDS.items():
        fit(SENTENCES, tokenizer="word", **options).save(folder / f"{name}.safetensors")
        found[name] = JexplicitModel.create_from_arg_string(f"run={folder}/{name}.safetensors", own)
    return {**found, "folder": folder}


def ask(*arguments):
    return [SimpleNamespace(args=own) for own in arguments]


@pytest.mark.parametrize("kind", ["past", "online"])
def test_loglikelihoods_are_those_of_a_loop_over_tokens_and_rolling_ones_our_scores_of_documents(models, kind):
    """Sums of a few float32 log-probabilities in nats, to 1e-4."""
    lm = models[kind]
    tokenizer, model = lm.saved.tokenizer, lm.saved.model
    (likely,) = lm.generate_until(ask(("the cat", {"until": [], "max_gen_toks": 2})))
    pairs = [("the cat", " sat on the mat"), ("the cat ", "sat on the mat"), ("", "a zebra"), ("one", ""), ("the cat", likely)]
    found = lm.loglikelihood(ask(*pairs))
    for (context, continuation), (log_p, greedy) in zip(pairs, found, strict=True):
        ids, before = tokenizer.encode(context + continuation), len(tokenizer.encode(context))
        state, expected, likeliest = init(model), 0.0, []
        for m, token in enumerate(ids):
            row = predict(model, state).copy()
            row[tokenizer.unk_id] = -np.inf
            likeliest += [row.argmax()] * (m >= before)
            (own,), state = read(model, state, [int(token)])
            expected += float(own) * (m >= before)
        assert log_p == pytest.approx(expected, abs=1e-4) and greedy == (likeliest == ids[before:].tolist())
    assert found[-1][1] and likely
    again = lm.loglikelihood(ask(*pairs[::-1]))[::-1]  # in any company
    np.testing.assert_allclose([p for p, _ in again], [p for p, _ in found], atol=1e-5)
    rolling = lm.loglikelihood_rolling(ask(*((text,) for text in [*NEW, ""])))
    for text, log_p in zip(NEW, rolling, strict=False):
        ids = tokenizer.encode(text)
        own = score(model, encode_documents(tokenizer, [text]))[: len(ids)]  # not its end
        assert log_p == pytest.approx(own.sum() - spelling(tokenizer, ids, text_sizes([text])), abs=1e-4)
    assert rolling[-1] == 0


def test_options_of_generation_are_those_of_lm_eval_and_samples_are_different_draws(models):
    def say(name="quick", number=20, **options):
        return models[name].generate_until(ask(*[("the cat", {"until": [], **options})] * number))

    (whole,), (cut,) = (say("past", 1, until=until, max_gen_toks=5) for until in ([], ["\n", " the", " a"]))
    assert whole.startswith(cut) and " the" not in cut and " a" not in cut
    greedy = say(max_gen_toks=4)
    assert len(set(greedy)) == 1 and say(max_new_tokens=4, do_sample=False, temperature=1.0) == greedy
    assert say(max_gen_toks=4, temperature=1.0, top_k=0) == say(max_gen_toks=4, temperature=1.0)
    said = say(number=130, temperature=5.0, max_gen_toks=20)
    assert len(set(said)) > 125 and say(number=1, temperature=5.0, max_gen_toks=20) == said[:1]  # whatever else is asked for
    refused("option num_beams: leave it out", say, num_beams=4)
    refused("at least one token", say, max_gen_toks=0)


def test_the_command_reports_our_own_numbers(models, tmp_path, monkeypatch):
    unsorted = [s for s in SENTENCES[:12] if s.split() != sorted(s.split())]
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(json.dumps({"sentence_good": s, "sentence_bad": " ".join(sorted(s.split()))}) for s in unsorted))
    task = {
        "task": "own_pairs",
        "output_type": "multiple_choice",
        "test_split": "test",
        "doc_to_text": "",
        "doc_to_target": 0,
    }
    task |= {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(path)}}, "metric_list": [{"metric": "acc"}]}
    task |= {"doc_to_choice": "{{[sentence_good, sentence_bad]}}"}
    (tmp_path / "pairs.yaml").write_text(json.dumps(task))  # JSON is YAML
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(sys, "argv", ["lm_eval"])
    flags = f"--model jexplicit --model_args run={models['folder']}/past.safetensors,history=all"
    flags += f" --tasks own_pairs --include_path {tmp_path} --output_path {tmp_path}/out"
    assert harness.main(["run", *flags.split()]) == 0
    (written,) = (tmp_path / "out").rglob("results_*.json")
    without_ends = models["past"].saved.model._replace(eos=False)  # lm_eval scores no end of a sentence
    found = judgement(preferences(without_ends, models["past"].saved.tokenizer, read_pairs(path)))
    results = json.loads(written.read_text())["results"]
    assert found.ties == 0 and results["own_pairs"]["acc,none"] == pytest.approx(found.accuracy)
