"""lm-evaluation-harness with a model of this project, against our own scores, on local tasks and without a network."""

import importlib.util
import json
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from jexplicit import fit, score
from jexplicit.data import encode_documents
from jexplicit.data.corpora import text_sizes
from jexplicit.data.inputs import read_pairs
from jexplicit.lm import next_token
from jexplicit.lm.evaluation import comparable_measures, judgement, preferences, spelling
from jexplicit.lm.reading import init, predict, read
from launch.harness import __main__ as harness

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of lm_eval's own imports

WORDS = "the a one cat dog bird sat ran sang on under by mat tree house".split()
RNG = np.random.default_rng(0)
SENTENCES = [" ".join(RNG.choice(WORDS, RNG.integers(4, 9))) for _ in range(60)]
MEASURES, GENERATION = ("word_perplexity", "bits_per_byte"), {"generation_kwargs": {"until": ["\n"], "max_gen_toks": 4}}
FEW: Any = {"gates": 1, "stages": 1}
NEW = ["the dog ran under a tree", "one zebra sat", "a bird sang by the house on the mat"]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """An exported model that sees the text before and predicts the ends of documents."""
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    fit(SENTENCES, tokenizer="word", history="all", eos=True, **FEW).save(path)
    return path


@pytest.fixture(scope="module")
def lm(file):
    pytest.importorskip("lm_eval")
    from launch.harness.model import JexplicitModel

    return JexplicitModel.create_from_arg_string(f"run={file},history=all", {"batch_size": 1, "device": None})


def ask(*arguments):
    return [SimpleNamespace(args=own) for own in arguments]


def test_loglikelihoods_are_those_of_a_loop_over_tokens(lm):
    tokenizer, model = lm.saved.tokenizer, lm.saved.model
    pairs = [("the cat", " sat on the mat"), ("the cat ", "sat on the mat"), ("", "a zebra"), ("one dog", "")]
    likely = "the cat"
    for _ in range(2):  # what greedy generation says, with neither <unk> nor the end of a document
        row = next_token(model, tokenizer.encode(likely)).copy()
        row[tokenizer.unk_id] = -np.inf
        likely += " " + tokenizer.decode([row.argmax()]) if row.argmax() else ""
    pairs.append(("the cat", likely.removeprefix("the cat")))
    found = lm.loglikelihood(ask(*pairs))
    for (context, continuation), (log_p, greedy) in zip(pairs, found, strict=True):
        ids, before = tokenizer.encode(context + continuation), len(tokenizer.encode(context))
        rows = [next_token(model, ids[:n]) for n in range(before, len(ids))]
        # sums of a few float32 log-probabilities
        assert log_p == pytest.approx(sum(row[i] for row, i in zip(rows, ids[before:], strict=True)), abs=1e-4)
        banned = [np.where(np.arange(len(row)) == tokenizer.unk_id, -np.inf, row) for row in rows]
        assert greedy == all(row.argmax() == i for row, i in zip(banned, ids[before:], strict=True))
    assert found[-1][1] and found[0][0] == pytest.approx(found[1][0], abs=1e-5)  # the same tokens at another place of a stream
    # each request on its own, in any order and company; float32 sums
    again = lm.loglikelihood(ask(*pairs[::-1]))[::-1]
    np.testing.assert_allclose([p for p, _ in again], [p for p, _ in found], atol=1e-5)


def test_rolling_loglikelihoods_are_our_scores_of_documents_on_their_own(lm):
    tokenizer, model = lm.saved.tokenizer, lm.saved.model
    found = lm.loglikelihood_rolling(ask(*((text,) for text in [*NEW, ""])))
    for text, log_p in zip(NEW, found, strict=False):
        price = spelling(tokenizer, tokenizer.encode(text), text_sizes([text]))
        own = score(model, encode_documents(tokenizer, [text]))[:-1].sum()  # not its end
        assert log_p == pytest.approx(own - price, abs=1e-4)
    assert found[-1] == 0


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """A model that samples in one compiled call."""
    pytest.importorskip("lm_eval")
    from launch.harness.model import JexplicitModel

    of_file: Any = JexplicitModel
    fit(SENTENCES, "bigram", tokenizer="word").save(path := tmp_path_factory.mktemp("quick") / "m.safetensors")
    return of_file(str(path))


def test_options_of_generation_are_those_of_lm_eval_and_samples_are_different_draws(lm, quick):
    def say(model=quick, number=20, **options):
        return model.generate_until(ask(*[("the cat", {"until": [], **options})] * number))

    (whole,), (cut,) = (say(lm, 1, until=until, max_gen_toks=5) for until in ([], ["\n", " the", " a"]))
    assert whole.startswith(cut) and " the" not in cut and " a" not in cut
    greedy = say(max_gen_toks=4)
    assert len(set(greedy)) == 1 and say(max_gen_toks=4, do_sample=False, temperature=1.0) == greedy
    assert len(set(say(max_gen_toks=4, do_sample=True))) > 1 and say(max_new_tokens=4) == say(max_tokens=4) == greedy
    assert say(max_gen_toks=4, temperature=1.0, top_k=0) == say(max_gen_toks=4, temperature=1.0)
    said = say(number=130, temperature=5.0, max_gen_toks=20)
    assert len(set(said)) > 125 and say(number=1, temperature=5.0, max_gen_toks=20) == said[:1]  # whatever else is asked for
    with pytest.raises(ValueError, match="generation option num_beams: leave it out"):
        say(num_beams=4)
    with pytest.raises(ValueError, match="max_gen_toks 0: generate at least one token"):
        say(max_gen_toks=0)


def test_what_is_to_be_installed_is_said_in_one_line(monkeypatch, capsys):
    pytest.importorskip("lm_eval")
    monkeypatch.setattr(sys, "argv", [""])
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        assert harness.main() == 2
    assert "pip install 'jexplicit[eval]'" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were missing
    assert harness.main(["run", "--tasks", "blimp"]) == 2
    said = capsys.readouterr().err
    assert "error: lm_eval needs torch for this model or task: pip install torch, or choose --model jexplicit" in said


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """Tasks of local files: minimal pairs, perplexity, generation."""
    folder = tmp_path_factory.mktemp("tasks")
    unsorted = [s for s in SENTENCES[:12] if s.split() != sorted(s.split())]
    pairs = [{"sentence_good": s, "sentence_bad": " ".join(sorted(s.split()))} for s in unsorted]
    data = {"pairs": pairs, "text": [{"text": text} for text in NEW], "ask": [{"q": "the cat", "a": "sat"}]}
    metric, choice = {"aggregation": "mean", "higher_is_better": True}, "{{[sentence_good, sentence_bad]}}"
    kinds = {
        "pairs": ("multiple_choice", "", 0, {"doc_to_choice": choice, "metric_list": [{"metric": "acc", **metric}]}),
        "text": ("loglikelihood_rolling", "", "{{text}}", {"metric_list": [{"metric": name} for name in MEASURES]}),
        "ask": ("generate_until", "{{q}}", "{{a}}", {"metric_list": [{"metric": "exact_match", **metric}], **GENERATION}),
    }
    for name, (kind, question, target, more) in kinds.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, data[name])))
        config = {"output_type": kind, "doc_to_text": question, "doc_to_target": target, **more}
        shared = {"task": f"local_{name}", "dataset_path": "json", "test_split": "test"}
        files = {"dataset_kwargs": {"data_files": {"test": str(folder / f"{name}.jsonl")}}}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({**shared, **files, **config}))
    return folder


def test_the_command_reports_our_own_numbers(lm, file, tasks, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    names = "local_pairs,local_text,local_ask"
    flags = f"run --model jexplicit --model_args run={file} --tasks {names} --include_path {tasks} --output_path {tmp_path}/out"
    monkeypatch.setattr(sys, "argv", ["lm_eval", *flags.split()])
    assert harness.main() == 0
    (written,) = (tmp_path / "out").rglob("results_*.json")
    results = json.loads(written.read_text())["results"]
    log_p = sum(lm.loglikelihood_rolling(ask(*((text,) for text in NEW))))
    ours = comparable_measures(-log_p, text_sizes(NEW))
    for name in MEASURES:
        assert results["local_text"][f"{name},none"] == pytest.approx(ours[name], rel=1e-6)
    pairs = read_pairs(tasks / "pairs.jsonl")
    without_ends = lm.saved.model._replace(eos=False)  # lm_eval scores no end of a sentence
    found = judgement(preferences(without_ends, lm.saved.tokenizer, pairs))
    assert found.ties == 0 and results["local_pairs"]["acc,none"] == pytest.approx(found.accuracy)
    assert "exact_match,none" in results["local_ask"]


def test_a_model_that_counts_what_it_reads_reads_each_request_alone(tmp_path, monkeypatch):
    """Sums of some float32 log-probabilities in nats, to 1e-4."""
    pytest.importorskip("lm_eval")
    from launch.harness.model import JexplicitModel

    fit(SENTENCES[:12], tokenizer="word", history="adaptive", **FEW).save(tmp_path / "m.safetensors")
    of_file: Any = JexplicitModel
    lm = of_file(str(tmp_path / "m.safetensors"))
    tokenizer, model = lm.saved.tokenizer, lm.saved.model
    pairs = [("the cat", " sat"), ("", "one")]
    for (found, greedy), (context, continuation) in zip(lm.loglikelihood(ask(*pairs)), pairs, strict=True):
        ids, n = tokenizer.encode(context + continuation), len(tokenizer.encode(context))
        state, log_p, likeliest = init(model), [], []
        for m, token in enumerate(ids):
            likeliest += [int(np.argmax(predict(model, state)[2:])) + 2] * (m >= n)
            (own,), state = read(model, state, [int(token)])
            log_p.append(own)
        assert found == pytest.approx(sum(log_p[n:]), abs=1e-4)
        assert greedy == (likeliest == ids[n:].tolist())
    assert lm.generate_until(ask(("the", {"until": ["\n"], "max_gen_toks": 1})))[0]
