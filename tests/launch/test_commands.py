"""The commands that use a model of a run: score, sample, next, explain, export, compare and judge, all on one run."""

import io
import json
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from lm_runs import DEV, SMALL, TRAIN, finished, run, text_flags
from run_folders import rows

import jexplicit
from jexplicit import contexts, load_model
from jexplicit.data import encode_documents
from launch import combine, compare, explain, export, judge, next, sample, score
from launch.kit.command import visible

pytestmark = pytest.mark.slow

MEASURES = ("log_probability", "perplexity", "bits_per_byte", "bits_per_character", "word_perplexity")
CHOSEN = ["--method", "explicit", "--features", "cat", "--radius", "2"]


@pytest.fixture
def call(capsys):
    """`call(command, ...)` runs a command on a run, and returns what it prints on both outputs."""

    def call(command, *flags, source: Path | None = None, status: int = 0) -> tuple[str, str]:
        chosen = ["--run", str(source or finished())]
        capsys.readouterr()
        assert command.main([*chosen, *map(str, flags)]) == status
        printed = capsys.readouterr()
        return printed.out, printed.err

    return call


@pytest.fixture
def scored(call):
    """`scored(...)` has the lines of documents or tokens, and the summary."""

    def lines(*flags, source: Path | None = None) -> list[dict]:
        printed, said = call(score, *flags, source=source)
        return [json.loads(line) for line in (*printed.splitlines(), said.splitlines()[-1])]

    return lines


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The dev text as lines, and as records; minimal pairs of three paradigms."""
    path = tmp_path_factory.mktemp("text")
    (path / "dev.txt").write_text("\n\n".join(DEV))
    (path / "dev.jsonl").write_text("".join(json.dumps({"body": text, "id": f"d{n}"}) + "\n" for n, text in enumerate(DEV)))
    for n, (paradigm, field) in enumerate((("order", "syntax"), ("number", "morphology"), ("gender", "morphology"))):
        pairs = [
            {"sentence_good": line, "sentence_bad": " ".join(sorted(line.split())), "field": field, "UID": paradigm}
            for line in DEV[10 * n : 10 * n + 10 + n]
        ]
        (path / f"{paradigm}.jsonl.pairs").write_text("\n".join(map(json.dumps, pairs)))
    return path


def test_scores_have_tokens_lines_and_ids(files, scored):
    *plain, whole = scored(*CHOSEN, "--text", files / "dev.txt")
    *records, also = scored(*CHOSEN, "--text", files / "dev.jsonl", "--field", "body", "--keep-fields")
    *tokens, third = scored(*CHOSEN, "--text", files / "dev.txt", "--per", "token")
    assert whole == also == third and "file" not in plain[0] and whole["unknown_tokens"] == 2
    for n, (text, line, record) in enumerate(zip(DEV, plain, records, strict=True)):
        assert (line["line"], record["line"], record["id"]) == (2 * n + 1, n + 1, f"d{n}")
        assert line["log_probability"] == record["log_probability"] and line["token_count"] == len(line["tokens"])
        assert n == len(DEV) - 1 or "".join(line["tokens"]) == "".join(f"▁{word}" for word in text.split())
        # the printed numbers are rounded to 1e-6 each
        assert sum(line["log_probabilities"]) == pytest.approx(line["log_probability"], abs=1e-6 * 60)
    assert [(token["line"], token["token"], token["log_probability"]) for token in tokens] == [
        (line["line"], *of_one) for line in plain for of_one in zip(line["tokens"], line["log_probabilities"], strict=True)
    ]
    twice = scored(*CHOSEN, "--text", files / "dev.txt", files / "dev.txt")
    assert twice[-1]["documents"] == 2 * len(DEV) and {line["file"] for line in twice[:-1]} == {str(files / "dev.txt")}


def test_records_are_passed_through_and_filtered_and_standard_input_is_scored(tmp_path, scored, monkeypatch):
    texts = [DEV[0], None, "", " ", "zebra " * 9]
    records = [{"body": text, "stars": n} for n, text in enumerate(texts)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    flags = [*CHOSEN, "--text", tmp_path / "a.jsonl", "--field", "body", "--keep-fields", "--no-text"]
    *lines, whole = scored(*flags, "--max-perplexity", 1e9, "--kept", tmp_path / "kept.jsonl")
    assert [line["stars"] for line in lines] == [line["document"] for line in lines] == list(range(5))
    assert [line["token_count"] > 0 for line in lines] == [True, False, False, False, True] and whole["documents"] == 5
    assert not {"tokens", "body", "log_probabilities"} & set(lines[0])
    kept = [json.loads(line) for line in (tmp_path / "kept.jsonl").read_text().splitlines()]
    assert kept == [record for record, line in zip(records, lines, strict=True) if (line["perplexity"] or 1e99) <= 1e9]

    def piped(data: bytes, *flags) -> list[dict]:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))
        return scored(*CHOSEN, "--text", "-", *flags)

    found = piped(b'\n{"t": "the cat", "n": [7]}\n', "--field", "t", "--keep-fields")
    assert [(line["line"], line["n"]) for line in found[:-1]] == [(2, [7])]
    assert piped(b"the cat\nsat\n\nthe dogs\n", "--documents", "paragraph")[1]["line"] == 4


def test_sample_continues_a_prompt_and_next_gives_probabilities_that_sum_to_one(call):
    def text(*more) -> str:
        return call(sample, *CHOSEN, "--prompt", "the cat", "--length", "8", *more)[0]

    assert text().startswith("the cat") and text("--seed", "3") == text("--seed", "3")
    assert text("--temperature", "0", "--seed", "1") == text("--temperature", "0", "--seed", "2")
    assert len(text("--count", "3").splitlines()) == 3
    printed, said = call(next, "--prompt", "the 漢", "--top", "2")
    best = min(rows(finished()), key=lambda row: row["dev_perplexity"])  # by default
    assert f"model {best['method']}_" in said and "never seen ['漢']" in said and "│" in printed
    found = json.loads(call(next, "--prompt", "the", "--top", "1000", "--json")[0])["next"]
    p = [token["probability"] for token in found]
    assert p == sorted(p, reverse=True) and sum(p) == pytest.approx(1, abs=1e-5)  # float32 log-probabilities
    assert found[0]["log_probability"] == pytest.approx(np.log(p[0]))


def test_explain_prints_the_exact_parts_of_each_logit(call):
    text = "the cat [bold] sat"
    printed, _ = call(explain, *CHOSEN, "--text", text)
    model, tokenizer, _ = load_model(finished(), method="explicit", features="cat", radius=2)
    X, Y = contexts(encode_documents(tokenizer, [text]), 2)
    parts = [f"{float(model.tables[k][int(X[0, k]), int(Y[0])]):.2f}" for k in (0, 1)]
    assert all(part in printed for part in [*parts, "1 back", "2 back", "│ ▁cat "])
    assert visible("\n") == "\\n" and visible("▁é") == "▁é"
    counted = ["--method", "context-mixing", "--history", "all", "--text", "the cat sat on", "--json"]
    found = json.loads(call(explain, *counted)[0])
    assert {"last 1", "even odds"} <= set(found["rows"])
    assert np.shape([token["evidence"] for token in found["predictions"]]) == (4, len(found["rows"]))


def test_an_export_scores_as_its_run_does_and_an_arpa_file_holds_an_ngram_model(files, tmp_path, call, scored):
    out, arpa = tmp_path / "model.safetensors", tmp_path / "lm.arpa.gz"
    assert "MB" in call(export, "--method", "context-mixing", "--out", out)[0]
    text = ["--text", files / "dev.txt"]
    assert scored(*text, source=out) == scored("--method", "context-mixing", *text)
    assert "holds one model, with method" in " ".join(call(sample, "--method", "cold", source=out, status=2)[1].split())
    assert load_model(out).about == load_model(finished(), method="context-mixing").about
    assert "fitted without --eos" in call(export, "--method", "ngram", "--out", arpa)[1]
    one, other = scored("--method", "ngram", *text)[-1], scored(*text, source=arpa)[-1]
    assert one == {**other, **{name: pytest.approx(other[name], rel=1e-5) for name in MEASURES}}
    assert call(sample, "--prompt", "the cat", "--length", "3", source=arpa)[0].startswith("the cat")
    said = call(export, "--method", "context-mixing", "--out", tmp_path / "mixed.arpa", status=2)[1]
    assert "is no n-gram model, which an ARPA file holds: choose the method ngram" in " ".join(said.split())
    assert not (tmp_path / "mixed.arpa").exists()


def test_models_of_two_tokenizers_are_compared_on_a_new_text(files, tmp_path, call):
    flags = [*text_flags(), *SMALL, "--tokenizer", "char", "--features", "cat", "--samples", "0", "--methods", "unigram"]
    assert run(tmp_path / "char", *flags) == 0
    found = json.loads(call(compare, tmp_path / "char", "--text", files / "dev.txt", "--json")[0])
    for out, row in zip((finished(), tmp_path / "char"), found["rows"], strict=True):
        best = min(rows(out), key=lambda row: row["dev_perplexity"])
        for field in ("bits_per_byte", "bits_per_character", "word_perplexity", "unknown_share"):
            assert row[field] == pytest.approx(best[field], rel=1e-5), field  # the same text, summed in another order
        assert row["perplexity"] == pytest.approx(best["dev_perplexity"], rel=1e-5) and row["positions"] == best["dev_tokens"]
    one, other = found["rows"]
    assert (one["difference"], found["documents"]) == (None, len(DEV)) and 0 < other["standard_error"] < 2
    assert other["difference"] == pytest.approx(other["bits_per_byte"] - one["bits_per_byte"])
    (tmp_path / "one.txt").write_text("the cat sat on a mat\n")
    assert "±" not in call(compare, "--method", "explicit", "unigram", "--text", tmp_path / "one.txt")[0]  # one document


def test_counts_are_combined_with_another_model_beside_counts_that_are_refitted_alone(tmp_path, call):
    half, out, other = DEV[:30], tmp_path / "combined", tmp_path / "ngram.safetensors"
    (tmp_path / "fit.txt").write_text("\n".join(half))
    (tmp_path / "test.txt").write_text("\n".join(DEV[30:58]))
    call(export, "--method", "ngram", "--out", other)
    texts = ["--dev", tmp_path / "fit.txt", "--test", tmp_path / "test.txt", "--out", out]
    call(combine, "--other", other, *texts, "--history", "none")
    found = {row["model"]: row for row in rows(out)}
    assert {row["history"] for row in rows(out)} == {"none"} and found["counts, refitted"]["difference"] == 0
    assert found["other"]["perplexity"] == pytest.approx(load_model(other).perplexity(DEV[30:58]), rel=1e-5)
    best = min(found["other"]["loss"], found["counts, refitted"]["loss"])
    assert found["both"]["loss"] < best + 0.02 and found["both"]["difference_se"] > 0
    (tmp_path / "fit.txt").write_text("\n".join(half[1:]))
    said = call(combine, "--other", other, *texts, "--history", "none", "--resume", status=2)[1]
    assert "started on another text" in " ".join(said.split())


def test_pairs_are_judged_by_model_paradigm_and_field(files, tmp_path, call):
    out = tmp_path / "judge"
    given = ["--pairs", f"{files}/*.pairs", "--out", out]
    printed = json.loads(call(judge, *given, "--method", "explicit", "--features", "cat", "--json")[0])
    found = rows(out)
    assert [(row["radius"], row["paradigm"], row["field"], row["pairs"]) for row in found] == [
        (K, *paradigm)
        for K in (1, 2)
        for paradigm in (("gender", "morphology", 12), ("number", "morphology", 11), ("order", "syntax", 10))
    ]
    for model in printed["models"]:  # over pairs
        own = [row for row in found if row["radius"] == model["radius"]]
        assert model["accuracy"] == pytest.approx(sum(row["accuracy"] * row["pairs"] for row in own) / 33)
        assert model["fields"]["morphology"] == pytest.approx((12 * own[0]["accuracy"] + 11 * own[1]["accuracy"]) / 23)
        assert model["fields"]["syntax"] == own[2]["accuracy"] and 0 <= model["ties"] <= 1 and model["pairs"] == 33
    report = (out / "report.md").read_text()
    assert "| gender | morphology | 12 |" in report and f"| {100 * printed['models'][0]['accuracy']:.1f} |" in report
    call(judge, *given, "--resume", "--method", "explicit", "unigram", "--features")
    assert rows(out)[: len(found)] == found
    assert {(row["method"], row["features"]) for row in rows(out)[len(found) :]} == {("unigram", "none"), ("explicit", "sum")}


def test_the_last_space_of_a_prompt_stands_once():
    """Prompt and continuation are the text of the tokens. Behind subwords, the next one brings the space."""
    for kind in ("bpe", "word", "char"):
        model = jexplicit.fit(TRAIN, "bigram", tokenizer=kind)
        for prompt in ("", "the", "the ", "the cat  "):
            tokens, first = jexplicit.lm.generation.prompt_ids(model.tokenizer, prompt)
            ids = jexplicit.generate(jax.random.key(0), model.model, [tokens] * 2, 3, banned=(1,), first=[first] * 2)
            for text, drawn in zip(model.generate([prompt] * 2, 3), ids, strict=True):
                whole = model.tokenizer.decode([*tokens, *drawn])
                assert (f"{prompt.rstrip()} {text}" if kind == "word" and prompt.endswith(" ") else prompt + text) == whole
            assert isinstance(model.generate(prompt, 3), str)
        pieces = [token for token, p in model.next_token("the ", top=1000) if p > 0]
        assert kind != "bpe" or pieces and all(piece.startswith("\N{LOWER ONE EIGHTH BLOCK}") for piece in pieces)
