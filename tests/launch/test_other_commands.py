"""Commands without a model of a run: data, classify-text, bench; and launch/gke.yaml, whose command launch.lm takes."""

import hashlib
import json
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import yaml
from run_folders import rows
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.naive_bayes import MultinomialNB

from launch import bench, classify_text, data
from launch.kit.command import parse
from launch.kit.views import only
from launch.lm import Config

ROOT = Path(__file__).parents[2]
WORDS = np.array([*"abcdefgh"])
FIELDS = {"case", "size", "seconds", "peer", "peer_seconds", "ratio", "repeats", "skipped"}


def test_files_are_the_same_different_or_missing(tmp_path, capsys, monkeypatch):
    """A set of two files, in the place of the real sets, whose checksums the page has."""
    page = (ROOT / "docs" / "data.md").read_text()
    sums = [line.split()[2] for line in data.SETS.strip().splitlines()]
    assert len(sums) > 10 and not [sha256 for sha256 in sums if f"`{sha256[:8]}…" not in page]
    for name, text in (("b.txt", "two\n"), ("a.txt", "one\n")):
        (tmp_path / name).write_text(text)
    sha256 = hashlib.sha256(b"one\ntwo\n").hexdigest()
    monkeypatch.setattr(data, "SETS", f"2 8 {sha256} *.txt")
    monkeypatch.setenv("JEXPLICIT_DATA_DIR", str(tmp_path))

    for change, flags, status, said in (
        (lambda: None, [], 0, "the same"),
        (lambda: (tmp_path / "a.txt").write_text("One\n"), [], 2, "*.txt are not the files of the results"),
        ((tmp_path / "a.txt").unlink, [], 2, "1 of 2 files"),
        ((tmp_path / "b.txt").unlink, ["--folder", str(tmp_path)], 0, "missing"),
        (lambda: monkeypatch.delenv("JEXPLICIT_DATA_DIR"), [], 2, "give --folder DIR"),
        (lambda: None, ["--folder", str(tmp_path / "none")], 2, "is no folder"),
    ):
        change()
        assert data.main(flags) == status and said in "".join(capsys.readouterr())


def drawn(seed: int, texts: int) -> tuple[list[str], np.ndarray]:
    """Texts of 6 words, in two classes with other frequencies of them."""
    rng, Y = np.random.default_rng(seed), np.arange(texts) % 2
    p = np.array([np.arange(1, 9), np.arange(8, 0, -1)]) / 36
    return [" ".join(rng.choice(WORDS, 6, p=p[y])) for y in Y], Y


def test_texts_of_equal_length_have_the_probabilities_of_naive_bayes():
    (train, Y), (test, Y_test) = drawn(0, 100), drawn(1, 40)
    (prior, solved, trained), p = classify_text.measure(train, Y, test, Y_test, [*test, "new"])
    counter = CountVectorizer(token_pattern=r"\w+").fit(train)
    expected = MultinomialNB().fit(counter.transform(train), Y).predict_proba(counter.transform(test))
    np.testing.assert_allclose(p[:-1], expected, rtol=1e-5)
    np.testing.assert_allclose(p[-1], 0.5)  # of a text without a known word: the prior
    assert solved["model"] == "explicit solution, K = 6" and prior["accuracy"] == 0.5
    assert solved["accuracy"] == pytest.approx((expected.argmax(axis=1) == Y_test).mean())
    assert solved["loss"] == pytest.approx(-np.log(expected[np.arange(40), Y_test]).mean(), rel=1e-5)
    assert prior["loss"] == pytest.approx(np.log(2)) and trained["accuracy"] > 0.6


def test_labelled_texts_are_read_and_new_ones_classified(tmp_path, capsys):
    lines = [f"{text},{('good', 'bad')[y]}" for text, y in zip(*drawn(0, 60), strict=True)]
    for name, own in (("train", lines), ("test", lines[:8]), ("new", ["a,ugly"])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *own]) + "\n")
    flags = f"--train {tmp_path}/train.csv --field text --label label --text".split()
    assert classify_text.main([*flags, "h h h h"]) == 0
    assert "54 training texts, 6 test texts" in capsys.readouterr().out
    assert classify_text.main([*flags, "h h h h", "--test", f"{tmp_path}/test.csv", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"][0]["accuracy"] == 0.5 and found["texts"][0]["label"] == "good"
    assert classify_text.main([*flags, "h", "--test", f"{tmp_path}/new.csv"]) == 2
    assert "--test has the label 'ugly', which --train has not" in " ".join(capsys.readouterr().err.split())


@pytest.fixture
def benched(monkeypatch, tmp_path):
    """`benched(flags)` runs the bench without any program or module that may be installed. No speed is asserted."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(bench, "optional", lambda name: None)
    return lambda flags, out: bench.main(["--preset", "tiny", "--repeats", "1", "--out", str(out), *flags.split()])


@pytest.mark.slow
def test_the_tiny_bench_has_a_row_for_every_case_and_names_missing_peers(benched, tmp_path):
    assert benched("", tmp_path) == 0
    found, report = rows(tmp_path), (tmp_path / "report.md").read_text()
    assert [row["case"] for row in found] == list(get_args(bench.Case))
    for row in found:
        assert row.keys() - {"perplexity"} == FIELDS and row["seconds"] > 0 and f"| {row['case']} |" in report
        assert ("perplexity" in row) == row["case"].endswith("-fit")
    assert {row["peer"] for row in found if row["ratio"]} == {"numpy.bincount"}
    missing = {"ngram-fit": "lmplz is not on PATH", "ngram-scoring": "kenlm is not installed"}
    assert {case: only(found, case=case)["skipped"] for case in missing} == missing


def test_results_of_both_sides_of_a_bench_are_equal_before_they_are_timed(benched, tmp_path, monkeypatch, capsys):
    assert benched("--cases counting --sizes 200", tmp_path / "run") == 0
    (row,) = rows(tmp_path / "run")
    assert row["ratio"] == pytest.approx(row["seconds"] / row["peer_seconds"])
    tables = bench.bincount_tables
    monkeypatch.setattr(bench, "bincount_tables", lambda x, N: tables(x, N)[::-1])
    assert benched("--cases counting", tmp_path / "other") == 2
    assert "counting: results of up to" in capsys.readouterr().err and not (tmp_path / "other" / "results.json").exists()


def test_the_processes_of_the_job_find_each_other_and_their_text():
    service, job = yaml.safe_load_all((ROOT / "launch" / "gke.yaml").read_text())
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert spec["completionMode"] == "Indexed" and spec["parallelism"] == spec["completions"]  # all at once
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    (container,), (volume,) = pod["containers"], pod["volumes"]
    line = [*container["command"], *container["args"]]
    for index in range(spec["completions"]):
        flags = [flag.replace("$(JOB_COMPLETION_INDEX)", str(index)) for flag in line[3:]]
        config = parse(Config, flags, default=None, prog="lm", description="", presets=())
        assert (config.process_id, config.num_processes, config.resume) == (index, spec["completions"], True)
        first = f"{job['metadata']['name']}-0.{pod['subdomain']}"  # the pod with index 0
        assert str(config.coordinator).partition(":")[0] == first and pod["subdomain"] == service["metadata"]["name"]
        (mount,) = (own["mountPath"] for own in container["volumeMounts"] if own["name"] == volume["name"])
        assert config.out.startswith(f"{mount}/") and config.corpus.startswith(f"shards:{mount}/")  # that all pods share
