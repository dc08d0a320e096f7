"""The recipe for lm-evaluation-harness against our own scores, and on a local task without a network."""

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from jexplicit import fit
from jexplicit.lm import next_token

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of lm_eval's own imports

SENTENCES = [f"{a} {b} sat on the {c}" for a in ("the", "one") for b in ("cat", "dog", "bird") for c in ("mat", "hill", "roof")]
RECIPE = Path(__file__).parents[2] / "docs" / "recipes" / "lm_eval_model.py"


def test_log_likelihoods_are_our_scores_and_a_task_has_them(tmp_path, monkeypatch):
    pytest.importorskip("lm_eval")
    spec = importlib.util.spec_from_file_location("recipe", RECIPE)
    assert spec and spec.loader
    spec.loader.exec_module(recipe := importlib.util.module_from_spec(spec))
    fit(SENTENCES, "bigram", tokenizer="word").save(path := tmp_path / "model.safetensors")
    lm = recipe.JexplicitModel(str(path))
    (log_p,) = lm.model.score(["the cat sat on"])
    pairs = [("the cat", " sat on"), ("the cat ", "sat on"), ("", "the cat sat on")]
    found = lm.loglikelihood([SimpleNamespace(args=pair) for pair in pairs])
    assert [p for p, _ in found] == pytest.approx([log_p[2:].sum(), log_p[2:].sum(), log_p.sum()], abs=1e-5)  # float32 sums
    (rolling,) = lm.loglikelihood_rolling([SimpleNamespace(args=("the cat sat on",))])
    assert rolling == pytest.approx(log_p.sum(), abs=1e-5)
    likeliest = lm.model.tokenizer.decode([next_token(lm.model.model, lm.model.tokenizer.encode("sat")).argmax()])
    requests = [SimpleNamespace(args=("sat", {"until": [" the"], "max_gen_toks": 3}))]
    assert lm.generate_until(requests) == [f" {likeliest}"] and lm.of_pair("sat", f" {likeliest}")[1]
    questions = [{"q": "the cat", "choices": [" sat on", " mat the"], "label": 0}] * 3
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, questions)))
    task = {
        "task": "own",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": f"{tmp_path}/q.jsonl"},
        "test_split": "train",
    }
    task |= {
        "output_type": "multiple_choice",
        "doc_to_text": "{{q}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{label}}",
    }
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(task | {"metric_list": [{"metric": "acc"}]}))
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    flags = f"run --model jexplicit --model_args run={path} --tasks own --include_path {tmp_path} --output_path {tmp_path}/out"
    monkeypatch.setattr(sys, "argv", ["lm_eval", *flags.split()])
    recipe.cli_evaluate()
    (written,) = (tmp_path / "out").rglob("results_*.json")
    assert json.loads(written.read_text())["results"]["own"]["acc,none"] == 1
