"""The commands that use a model of a run: score, sample, next, explain, export, compare, combine and judge, all on one run."""

import io
import json
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest
from lm_runs import DEV, SMALL, TRAIN, finished, run, text_flags
from run_folders import rows

import jexplicit
from jexplicit import contexts, load_model
from jexplicit.data import encode_documents
from launch import combine, compare, explain, export, judge, next, sample, score
from launch.kit.text import visible

pytestmark = pytest.mark.slow

CHOSEN = ["--method", "explicit", "--features", "cat", "--context", "2"]


@pytest.fixture
def call(capsys):
    """`call(command, ...)` runs a command on a run, and returns what it prints on both outputs."""

    def call(command, *flags, source: Path | None = None, status: int = 0) -> tuple[str, str]:
        chosen = ["--run", str(source or finished())]
        capsys.readouterr()
        assert command.main([*chosen, *map(str, flags)]) == status
        printed = capsys.readouterr()
        return printed.out, " ".join(printed.err.split()) if status else printed.err

    return call


@pytest.fixture
def scored(call):
    """`scored(...)` has the lines of documents or tokens, and the summary."""

    def lines(*flags, source: Path | None = None) -> list[dict]:
        printed, said = call(score, *flags, source=source)
        return [json.loads(line) for line in (*printed.splitlines(), said.splitlines()[-1])]

    return lines


@pytest.fixture(scope="module")
def dev(tmp_path_factory):
    """The dev text, a line between its documents."""
    path = tmp_path_factory.mktemp("text") / "dev.txt"
    path.write_text("\n\n".join(DEV))
    return path


def test_scores_have_tokens_and_lines(dev, scored):
    *plain, whole = scored(*CHOSEN, "--text", dev)
    *tokens, also = scored(*CHOSEN, "--text", dev, "--per", "token")
    assert whole == also and "file" not in plain[0] and whole["unknown_tokens"] == 2
    for n, (text, line) in enumerate(zip(DEV[:-1], plain, strict=False)):
        assert line["line"] == 2 * n + 1 and line["token_count"] == len(line["tokens"])
        assert "".join(line["tokens"]) == "".join(f"▁{word}" for word in text.split())
        # the printed numbers are rounded to 1e-6 each
        assert sum(line["log_probabilities"]) == pytest.approx(line["log_probability"], abs=1e-6 * 60)
    assert [(token["line"], token["token"], token["log_probability"]) for token in tokens] == [
        (line["line"], *of_one) for line in plain for of_one in zip(line["tokens"], line["log_probabilities"], strict=True)
    ]
    twice = scored(*CHOSEN, "--text", dev, dev)
    assert twice[-1]["documents"] == 2 * len(DEV) and {line["file"] for line in twice[:-1]} == {str(dev)}


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

    found = piped(b'\n{"t": "the cat", "id": "d"}\n', "--field", "t", "--keep-fields")
    assert [(line["line"], line["id"]) for line in found[:-1]] == [(2, "d")]
    assert piped(b"the cat\nsat\n\nthe dogs\n", "--documents", "paragraph")[1]["line"] == 4


def test_sample_continues_a_prompt_and_explain_prints_the_exact_parts_of_each_logit(call):
    def text(*more) -> str:
        return call(sample, *CHOSEN, "--prompt", "the cat", "--length", "8", *more)[0]

    assert text().startswith("the cat") and text("--seed", "3") == text("--seed", "3")
    assert text("--temperature", "0", "--seed", "1") == text("--temperature", "0", "--seed", "2")
    assert len(text("--count", "3").splitlines()) == 3
    printed, said = call(next, "--prompt", "the 漢", "--top", "2")
    best = min(rows(finished()), key=lambda row: row["dev_perplexity"])  # by default
    assert f"model {best['method']}_" in said and "never seen ['漢']" in said and "│" in printed
    printed, _ = call(explain, *CHOSEN, "--text", "the cat [bold] sat")
    model, tokenizer, _ = load_model(finished(), method="explicit", features="cat", context=2)
    X, Y = contexts(encode_documents(tokenizer, ["the cat [bold] sat"]), 2)
    parts = [f"{float(model.tables[k][int(X[0, k]), int(Y[0])]):.2f}" for k in (0, 1)]
    assert all(part in printed for part in [*parts, "1 back", "2 back", "│ ▁cat "])
    assert visible("\n") == "\\n" and visible("▁é") == "▁é"


def test_an_export_scores_as_its_run_does_and_an_arpa_file_holds_an_ngram_model(dev, tmp_path, call, scored):
    out, arpa = tmp_path / "model.safetensors", tmp_path / "lm.arpa.gz"
    assert "MB" in call(export, "--method", "context-mixing", "--out", out)[0]
    assert scored("--text", dev, source=out) == scored("--method", "context-mixing", "--text", dev)
    assert "holds one model, with method" in call(sample, "--method", "cold", source=out, status=2)[1]
    assert load_model(out).about == load_model(finished(), method="context-mixing").about
    assert "fitted without --eos" in call(export, "--method", "ngram", "--out", arpa)[1]
    one, other = scored("--method", "ngram", "--text", dev)[-1], scored("--text", dev, source=arpa)[-1]
    assert one.keys() == other.keys() and one["perplexity"] == pytest.approx(other["perplexity"], rel=1e-5)
    said = call(export, "--method", "context-mixing", "--out", tmp_path / "mixed.arpa", status=2)[1]
    assert "is no n-gram model, which an ARPA file holds: choose the method ngram" in said
    assert not (tmp_path / "mixed.arpa").exists()


def test_models_of_two_tokenizers_are_compared_on_a_new_text(dev, tmp_path, call):
    flags = [*text_flags(), *SMALL, "--tokenizer", "char", "--features", "cat", "--samples", "0", "--methods", "unigram"]
    assert run(tmp_path / "char", *flags) == 0
    found = json.loads(call(compare, tmp_path / "char", "--text", dev, "--json")[0])
    for out, row in zip((finished(), tmp_path / "char"), found["rows"], strict=True):
        best = min(rows(out), key=lambda row: row["dev_perplexity"])
        for field in ("bits_per_byte", "bits_per_character", "word_perplexity", "unknown_share"):
            assert row[field] == pytest.approx(best[field], rel=1e-5), field  # the same text, summed in another order
    one, other = found["rows"]
    assert (one["difference"], found["documents"]) == (None, len(DEV)) and 0 < other["standard_error"] < 2
    assert other["difference"] == pytest.approx(other["bits_per_byte"] - one["bits_per_byte"])
    (tmp_path / "one.txt").write_text("the cat sat on a mat\n")
    assert "±" not in call(compare, "--method", "explicit", "unigram", "--text", tmp_path / "one.txt")[0]  # one document


def test_counts_are_combined_with_another_model_beside_counts_that_are_refitted_alone(tmp_path, call):
    out, other = tmp_path / "combined", tmp_path / "ngram.safetensors"
    (tmp_path / "fit.txt").write_text("\n".join(DEV[:30]))
    (tmp_path / "test.txt").write_text("\n".join(DEV[30:58]))
    call(export, "--method", "ngram", "--out", other)
    flags = ["--other", other, "--dev", tmp_path / "fit.txt", "--test", tmp_path / "test.txt", "--out", out]
    flags += ["--history", "none"]
    call(combine, *flags)
    found = {row["model"]: row for row in rows(out)}
    assert {row["history"] for row in rows(out)} == {"none"} and found["counts, refitted"]["difference"] == 0
    assert found["other"]["perplexity"] == pytest.approx(load_model(other).perplexity(DEV[30:58]), rel=1e-5)
    best = min(found["other"]["loss"], found["counts, refitted"]["loss"])
    assert found["both"]["loss"] < best + 0.02 and found["both"]["difference_se"] > 0
    (tmp_path / "fit.txt").write_text("\n".join(DEV[1:30]))
    assert "started on another text" in call(combine, *flags, "--resume", status=2)[1]


def test_pairs_are_judged_by_model_paradigm_and_field(tmp_path, call):
    for n, (paradigm, field) in enumerate((("order", "syntax"), ("number", "morphology"), ("gender", "morphology"))):
        lines = DEV[10 * n : 10 * n + 10 + n]
        pairs = [{"sentence_good": line, "sentence_bad": " ".join(sorted(line.split())), "field": field} for line in lines]
        (tmp_path / f"{paradigm}.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    out = tmp_path / "judge"
    given = ["--pairs", f"{tmp_path}/*.jsonl", "--out", out]
    printed = json.loads(call(judge, *given, "--method", "explicit", "--features", "cat", "--json")[0])
    paradigms = [("gender", "morphology", 12), ("number", "morphology", 11), ("order", "syntax", 10)]
    found = [(row["context"], row["paradigm"], row["field"], row["pairs"]) for row in rows(out)]
    assert found == [(K, *paradigm) for K in (1, 2) for paradigm in paradigms]
    for n, model in enumerate(printed["models"]):  # over pairs
        gender, number, order = (row["accuracy"] for row in rows(out)[3 * n : 3 * n + 3])
        assert model["accuracy"] == pytest.approx((12 * gender + 11 * number + 10 * order) / 33) and model["pairs"] == 33
        assert model["fields"] == {"morphology": pytest.approx((12 * gender + 11 * number) / 23), "syntax": order}
    report = (out / "report.md").read_text()
    assert "| gender | morphology | 12 |" in report and f"| {100 * printed['models'][0]['accuracy']:.1f} |" in report
    call(judge, *given, "--resume", "--method", "explicit", "unigram", "--features")
    added = {(row["method"], row["features"]) for row in rows(out)[6:]}
    assert added == {("unigram", "none"), ("explicit", "sum")}


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
        pieces = [token for token, p in model.next_token("the ", top=1000) if p > 0]
        assert kind != "bpe" or pieces and all(piece.startswith("\N{LOWER ONE EIGHTH BLOCK}") for piece in pieces)
