"""TensorFlow Datasets without TensorFlow: text and images that a builder of the test's own has prepared, read offline."""

import importlib.util
import io
import socket
import sys
import time

import numpy as np
import pytest
import tensorflow_datasets
from jexplicit.data.text import split_documents, tfds_corpus
from PIL import Image
from tables import refuse
from tensorflow_datasets.core.data_sources.base import BaseDataSource

from jexplicit.data.images import read_images
from launch.shards import main as shards

ROWS = {
    "train": [f"line {n}\nof text é".encode() for n in range(130)] + [b" \n"],
    "test": [b"test one", b"test two"],
    "validation": [b"dev one", b"", b"dev two"],
}
RNG = np.random.default_rng(0)
X = {part: RNG.integers(2, 256, (M, 8, 8), np.uint8) for part, M in (("train", 130), ("test", 6))}
SHAPES = ("square", "circle")
COLOURS = RNG.integers(2, 255, (8, 8, 3), np.uint8)


def prepare(folder, data_set: str, features, **splits) -> None:
    """Write a data set as TFDS does, rows in the order given."""

    class PreparedTables(tensorflow_datasets.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tensorflow_datasets.core.Version("1.0.0")
        name = data_set

        def _info(self):
            features_dict = tensorflow_datasets.features.FeaturesDict(features)
            return tensorflow_datasets.core.DatasetInfo(builder=self, features=features_dict, disable_shuffling=True)

        def _split_generators(self, dl_manager):
            return {split: enumerate(rows) for split, rows in splits.items()}

        def _generate_examples(self):
            raise NotImplementedError

    PreparedTables(data_dir=str(folder), file_format="array_record").download_and_prepare()


def prepare_images(folder, name: str, channels: int, label, **parts) -> None:
    def png(array: np.ndarray) -> io.BytesIO:
        Image.fromarray(array).save(file := io.BytesIO(), "PNG")
        file.seek(0)
        return file

    features = {"image": tensorflow_datasets.features.Image(shape=(8, 8, channels)), "label": label}
    rows = {part: [{"image": png(x), "label": y} for x, y in pairs] for part, pairs in parts.items()}
    prepare(folder, name, features, **rows)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder of data sets."""
    folder, text = tmp_path_factory.mktemp("tfds"), {"text": tensorflow_datasets.features.Text(), "label": np.int64}
    tensorflow_datasets.disable_progress_bar()
    sets = {"small": ROWS, "two_splits": {part: ROWS[part] for part in ("train", "test")}, "no_train": {"test": ROWS["test"]}}
    for name, parts in {**sets, "train_alone": {"train": ROWS["train"]}, "latin": {"train": [b"good", b"\xff"]}}.items():
        prepare(folder, name, text, **{part: [{"text": row, "label": 0} for row in rows] for part, rows in parts.items()})
    for name, label, low in (("shapes", tensorflow_datasets.features.ClassLabel(names=SHAPES), 0), ("bytes", np.int64, 255)):
        grey = {part: [(x, low + n % 2) for n, x in enumerate(images)] for part, images in X.items()}
        prepare_images(folder, name, 1, label, **grey)
    prepare_images(folder, "coloured", 3, np.int64, **{part: [(COLOURS + n, n) for n in (0, 1)] for part in X})
    return folder


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    def unreachable(*args, **kwargs):
        raise OSError("no network")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    monkeypatch.setattr(socket.socket, "connect", unreachable)


def texts(split: str) -> list[str]:
    return [text for row in ROWS[split] if (text := row.decode()).strip()]


def test_text_is_read_by_name_and_by_folder_when_it_is_asked_for_and_split_without_validation(prepared, monkeypatch):
    named, two, alone = (tfds_corpus(name, data_dir=prepared) for name in ("small", "two_splits", "train_alone"))
    for corpus in (named, tfds_corpus(str(prepared / "small")), tfds_corpus(str(prepared / "small/1.0.0"))):
        for _ in range(2):
            read = (corpus.name, list(corpus.train), list(corpus.dev))
            assert read == ("tfds:small/1.0.0", texts("train"), texts("validation"))
        assert corpus.identity == named.identity != two.identity  # wherever the files lie
    assert list(two.dev) == texts("test")
    assert (list(alone.train), list(alone.dev)) == split_documents(texts("train"))
    rows_read, read_row = [], BaseDataSource.__getitem__
    monkeypatch.setattr(BaseDataSource, "__getitem__", lambda rows, n: rows_read.append(n) or read_row(rows, n))
    few = tfds_corpus("small", data_dir=prepared).limit(30)
    assert not rows_read and len(list(few.train)) == len(rows_read) == 30


def test_images_are_read_by_name_and_by_folder_and_colours_averaged_to_the_nearest_grey_level(prepared):
    for data in (read_images("tfds:shapes", prepared), read_images(f"tfds:{prepared / 'shapes'}")):
        assert (data.name, data.classes, data.levels) == ("tfds:shapes/1.0.0", SHAPES, 256)
        for part, images in X.items():
            np.testing.assert_array_equal(getattr(data, f"{part}_images"), images)
            np.testing.assert_array_equal(getattr(data, f"{part}_labels"), np.arange(len(images)) % 2)
    images = read_images("tfds:coloured", prepared).train_images
    np.testing.assert_array_equal(images[0], (COLOURS.sum(axis=2, dtype=int) + 1) // 3)  # thirds: a half never occurs
    assert "tensorflow" not in sys.modules


def test_refusals(prepared, monkeypatch, tmp_path, capsys):
    (tmp_path / "lm1b/1.1.0").mkdir(parents=True)  # of an interrupted download
    monkeypatch.setattr(time, "sleep", None)  # offline, nothing waits
    refuse(
        [
            ("no feature 'story': name one of .*text", lambda: tfds_corpus("small", feature="story", data_dir=prepared)),
            (r"tfds:latin .* \(UnicodeDecodeError: .*train=FILES", lambda: list(tfds_corpus("latin", data_dir=prepared).train)),
            ("has the splits test, but no train", lambda: tfds_corpus("no_train", data_dir=prepared)),
            ("labels from 255 to 256: only 0 .. 255", lambda: read_images("tfds:bytes", prepared)),  # no byte wraps
            (r"tfds:small could not be read \(KeyError: 'image'\)", lambda: read_images("tfds:small", prepared)),
            ("holds several data sets: name one of .*small/1.0.0", lambda: tfds_corpus(str(prepared))),
            ("no dataset_info.json there: name the folder", lambda: tfds_corpus(str(prepared / "small/1.0.0/gone"))),
            ("cannot be reached.*train=FILES.*corpus docs", lambda: tfds_corpus("lm1b", data_dir=tmp_path)),
            ("cannot be reached.*data_dir=DIR", lambda: read_images("tfds:mnist", tmp_path)),
        ]
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert shards(["--out", str(tmp_path), "--corpus", "tfds:lm1b"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "tfds:lm1b needs tensorflow_datasets" in error and "pip install 'jexplicit[tfds]'" in error
