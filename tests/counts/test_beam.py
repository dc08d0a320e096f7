"""The Beam pipeline's parts as plain functions, and the pipeline where Beam is installed."""

import gzip
import importlib.util
import pickle

import numpy as np
import pytest
from refusals import refused

from jexplicit.beam import Part, tokenise_part, write_stream_index
from jexplicit.counts import count, merge_counts, read_tables
from jexplicit.data.streams import read_shards
from jexplicit.data.text import Documents, files_documents, read_documents
from jexplicit.data.tokenizers import Tokenizer, encode_documents, train_tokenizer
from launch.beam import main
from launch.shards import main as shards_main

pytestmark = pytest.mark.slow


@pytest.fixture
def files(tmp_path) -> list[str]:
    def written(name: str, n: int, ending: str) -> str:
        text = "".join(f"line {line} of {n}, and {line * line % 97}{ending}" for line in range(n)) + f" {ending}last"
        data, path = ("\ufeff" + text).encode(), tmp_path / name
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return str(path)

    parts = [("a.txt", 150, "\n"), ("b.txt.gz", 40, "\n"), ("c.txt", 60, "\r\n"), ("d.txt", 20, "\r"), ("e.txt", 1, "\n")]
    return [written(*part) for part in parts]


def assert_counts(tables, expected) -> None:
    for C, D in zip(tables, expected, strict=True):
        np.testing.assert_array_equal(C.toarray(), D)


def test_tokenised_parts_are_the_stream_and_its_counts(files, tmp_path, monkeypatch):
    monkeypatch.setattr("jexplicit.data.tokenizers._encoding_batch", 16)
    documents, K = read_documents(files), 3
    tokenizer = train_tokenizer(documents, vocab_size=60)
    parts = [*(Part("train", n, Documents(files_documents, [file])) for n, file in enumerate(files)), Part("train", 99, [])]
    done = [tokenise_part(part, tokenizer, tmp_path, K) for part in reversed(pickle.loads(pickle.dumps(parts)))]
    write_stream_index(tmp_path / "train", [shard for _, shard, _ in done], tokenizer)
    stream, expected = read_shards(tmp_path / "train"), encode_documents(tokenizer, documents)
    np.testing.assert_array_equal(stream[:], expected)
    stream.verify()
    assert (stream.documents, stream.dtype) == (len(documents), expected.dtype)
    assert_counts(merge_counts(*(counts for *_, counts in done)), count(expected, context=K, vocab_size=60))


pipeline = pytest.mark.filterwarnings("ignore")  # of Beam's own


@pipeline
def test_the_pipeline_writes_what_one_process_writes(files, tmp_path):
    pytest.importorskip("apache_beam")
    text = ["--train", *files[:-2], "--dev", *files[-2:], "--vocab-size", "60"]
    out, alone = tmp_path / "beam", tmp_path / "alone"
    assert main(["--out", str(out), *text, "--context", "3"]) == 0
    assert shards_main(["--out", str(alone), *text]) == 0
    assert (out / "tokenizer.model").read_bytes() == (alone / "tokenizer.model").read_bytes()
    tokenizer = Tokenizer.load(out / "tokenizer.model")
    for part, own in (("train", files[:-2]), ("dev", files[-2:])):
        found = read_shards(out / part)
        np.testing.assert_array_equal(found[:], read_shards(alone / part)[:])
        np.testing.assert_array_equal(found[:], encode_documents(tokenizer, read_documents(own)))
    expected = count(read_shards(out / "train")[:], context=3, vocab_size=60)
    assert_counts(read_tables(out / "counts", tokenizer=tokenizer.sha256), expected)


@pipeline
def test_errors_are_one_line_and_leave_no_index_and_without_beam_the_way_to_install_it_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "a.txt").write_text("".join(f"line {n}\n" for n in range(200)))
    (tmp_path / "dev.txt").write_bytes(b"b\xe9d\n")  # the driver reads no dev text
    flags = ["--train", f"{tmp_path}/a.txt", "--dev", f"{tmp_path}/dev.txt", "--tokenizer", "char"]
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        assert main(["--out", str(tmp_path / "none"), *flags]) == 2
    assert "pip install 'jexplicit[beam]'" in " ".join(capsys.readouterr().err.split()) and not (tmp_path / "none").exists()
    pytest.importorskip("apache_beam")
    assert main(["--out", str(tmp_path / "out"), *flags]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "dev.txt is not UTF-8 text" in error and "while running" not in error
    refused("no shards", read_shards, tmp_path / "out/dev")
