"""launch.beside: the losses of its table, the model that it saves, and what it refuses."""

import numpy as np
import pytest
from reference import sentences
from run_folders import rows

import jexplicit
from jexplicit.data.tokenizers import encode_documents
from jexplicit.lm.core.past import read_text
from jexplicit.lm.evaluation import evaluate, score
from jexplicit.lm.fits.mixtures.beside import beside
from launch.beside import __main__ as command
from launch.beside.run import halves

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A mixture, a bigram model of other sentences, and a text, in files."""
    folder = tmp_path_factory.mktemp("models")
    first = jexplicit.fit(sentences(0, 150), tokenizer="word", rows=("contexts-4",), history="none")
    second = jexplicit.fit(sentences(1, 150), "bigram", tokenizer=first.tokenizer)
    other = jexplicit.fit(sentences(0, 150), "bigram", tokenizer="char")
    paths = {name: folder / f"{name}.safetensors" for name in ("first", "second", "other", "reading")}
    reading = jexplicit.fit(sentences(1, 150), tokenizer=first.tokenizer, rows=("contexts-4",), history="adaptive")
    for name, model in {"first": first, "second": second, "other": other, "reading": reading}.items():
        model.save(paths[name])
    text = folder / "text.txt"
    text.write_text("\n".join(sentences(2, 80)))
    return {**paths, "text": text}


def flags(files, second="second", **more):
    return ["--first", str(files["first"]), "--second", str(files[second]), "--text", str(files["text"]), "--out", more["out"]]


def test_two_models_become_one_that_loads(tmp_path, files):
    out = tmp_path / "both"
    assert command.main(flags(files, out=str(out))) == 0
    found = {row["which"]: row for row in rows(out)}
    first, second = (jexplicit.load_model(files[name]) for name in ("first", "second"))
    stream = encode_documents(first.tokenizer, files["text"].read_text().splitlines())
    for name, model in (("first", first), ("second", second)):
        assert found[name]["loss"] == pytest.approx(evaluate(model.model, stream).loss, rel=1e-5)  # float32
    document = np.cumsum(stream == 0)[:-1][stream[1:] != 0]  # 1, 2, ...: of every prediction
    even = document % 2 == 0
    half = score(beside(first.model, second.model, stream, part=np.flatnonzero(~even)), stream)[even]
    assert found["both"]["half_2"] == pytest.approx(-half.mean(), abs=1e-4)  # fits end within their tolerance
    both = jexplicit.load_model(out)
    assert both.about["method"] == "beside" and len(both.generate("the", 3, seed=0))
    fitted = evaluate(both.model, stream).loss
    assert fitted <= min(found["first"]["loss"], found["second"]["loss"]) + 1e-6
    assert "| both as one |" in (out / "report.md").read_text() and np.isfinite(found["both"]["loss"])


def test_models_of_other_tokens_and_missing_files_are_refused(tmp_path, files, capsys):
    assert command.main(flags(files, "other", out=str(tmp_path / "a"))) == 2
    assert "have different tokenizers: fit both with the same one" in " ".join(capsys.readouterr().err.split())
    assert command.main(flags(files, "reading", out=str(tmp_path / "c"))) == 2  # before the text is read
    assert "give it first, and the one beside it second" in " ".join(capsys.readouterr().err.split())
    missing = {**files, "second": tmp_path / "nothing.safetensors"}
    assert command.main(flags(missing, out=str(tmp_path / "b"))) == 2
    assert "nothing.safetensors" in "".join(capsys.readouterr().err.split())


def test_one_document_has_a_first_and_a_second_half_and_one_token_has_none(files, tmp_path, capsys):
    past = read_text(np.array([0, 4, 5, 6, 7, 0]), 1).past
    assert halves(past).tolist() == [True, True, False, False]
    past = read_text(np.array([0, 4, 5, 0, 6, 0, 7, 0]), 1).past
    assert halves(past).tolist() == [True, True, False, True]
    short = tmp_path / "short.txt"
    short.write_text("the\n")
    assert command.main(flags({**files, "text": short}, out=str(tmp_path / "d"))) == 2
    assert "--text of 1 tokens to predict" in " ".join(capsys.readouterr().err.split())


def test_few_positions_are_enough_for_the_exponents(files, tmp_path):
    out = tmp_path / "few"
    assert command.main([*flags(files, out=str(out)), "--calibration-positions", "50"]) == 0
    found = {row["which"]: row for row in rows(out)}
    assert found["both"]["loss"] < max(found["first"]["loss"], found["second"]["loss"])
