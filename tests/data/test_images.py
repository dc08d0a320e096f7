"""Images: the embedded digits, idx files, and everything about them that is refused."""

import gzip
import importlib.util

import numpy as np
import pytest
import reference
from files import idx_bytes
from sklearn.datasets import load_digits

from jexplicit.data.images import FILES, check_images, pixel_features, read_images


def some_images(M: int, seed: int = 0, shape=(5, 4), classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(1, 256, (M, *shape), np.uint8), (np.arange(M) % classes).astype(np.uint8)


def write(folder, *, compressed: bool = True, **changed: bytes) -> None:
    """The four files of a small data set, some of them with other bytes."""
    folder.mkdir(exist_ok=True)
    (X, Y), (X_test, Y_test) = some_images(12), some_images(6, seed=1)
    parts = {"train_images": X, "train_labels": Y, "test_images": X_test, "test_labels": Y_test}
    for part, file in FILES.items():
        content = changed.get(part, idx_bytes(parts[part]))
        if compressed:
            (folder / f"{file}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / file).write_bytes(content)


@pytest.mark.parametrize("compressed", [True, False])
def test_idx_files_come_back_as_they_were_written(tmp_path, compressed):
    write(tmp_path, compressed=compressed)
    data = read_images("mnist", tmp_path)
    for (X, Y), part in ((some_images(12), "train"), (some_images(6, seed=1), "test")):
        np.testing.assert_array_equal(getattr(data, f"{part}_images"), X)
        np.testing.assert_array_equal(getattr(data, f"{part}_labels"), Y)
    assert data.levels == 256 and data.outputs == 3
    assert check_images(data._replace(name="letters", train_labels=np.arange(12, dtype=np.uint8))).outputs == 12


def test_a_data_set_is_found_by_its_name_in_the_data_folder(tmp_path, monkeypatch):
    write(tmp_path / "letters")
    monkeypatch.setenv("JEXPLICIT_DATA_DIR", str(tmp_path))
    assert read_images("letters").name == "letters"
    assert read_images("letters").sha256 == read_images("other", tmp_path / "letters").sha256  # named by its content


def test_the_hash_covers_every_pixel_and_label(tmp_path):
    write(tmp_path)
    data = read_images("mnist", tmp_path)
    for part in range(1, 5):
        name = data._fields[part]
        changed = getattr(data, name).copy()
        changed[-1] ^= 1
        assert data._replace(**{name: changed}).sha256 != data.sha256


def test_the_embedded_digits_are_scikit_learns_cut_in_two():
    data, (X, Y) = read_images("digits"), load_digits(return_X_y=True)
    np.testing.assert_array_equal(np.concatenate([data.train_images, data.test_images]).reshape(-1, 64), X)
    np.testing.assert_array_equal(np.concatenate([data.train_labels, data.test_labels]), Y)
    assert (len(data.train_labels), len(data.test_labels), data.levels) == (1437, 360, 17)


def test_mnist_is_mnist(data_dir):
    data = read_images("mnist", f"{data_dir}/mnist")
    assert data.train_images.shape == (60_000, 28, 28) and data.test_images.shape == (10_000, 28, 28)
    assert np.bincount(data.train_labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    # the mean L1 norm with the paper's preprocessing, measured elsewhere as 105.10; half a unit of the last digit
    assert pixel_features(data.train_images, 256, np.float64).sum(axis=1).mean() == pytest.approx(105.10, abs=0.005)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("levels", [256, 17])
def test_pixel_features_are_the_papers(levels, dtype):
    X = np.random.default_rng(0).integers(0, levels, (7, 3, 4), np.uint8)
    H = pixel_features(X, levels, dtype)
    assert H.dtype == dtype and 0 < H.min() and H.max() <= 1
    assert pixel_features(np.array([[[0, 1]]]), 2).tolist() == [[0.5, 1.0]]  # black and white
    assert pixel_features(np.zeros((1, 1, 2), np.uint8), 256).tolist() == [[1 / 256] * 2]
    np.testing.assert_allclose(H, reference.pixel_features(X, levels), rtol=2 * float(np.finfo(dtype).eps))  # one division


IMAGES, LABELS = map(idx_bytes, some_images(12))
BAD_FILES = [
    ({"train_images": IMAGES[:-1]}, r"is truncated.*\(12, 5, 4\) values and 239 follow"),
    ({"train_images": IMAGES[:9]}, "is truncated"),
    ({"test_labels": LABELS + b"\0"}, "has extra bytes"),
    ({"test_labels": b""}, "magic number 0"),
    ({"test_labels": b"\0\0\x0d\x01" + LABELS[4:]}, "magic number 3329"),
    ({"train_images": idx_bytes(np.ones((12, 5, 4, 3)))}, "train-images.*four dimensions, as of colour images: only grey"),
    ({"train_images": LABELS, "train_labels": IMAGES}, r"magic number 2049, that of labels; expected 2051.*swapped"),
]


@pytest.mark.parametrize(("changed", "message"), BAD_FILES)
def test_a_truncated_or_foreign_idx_file_is_refused(tmp_path, changed, message):
    write(tmp_path, **changed)
    with pytest.raises(ValueError, match=message):
        read_images("mnist", tmp_path)


def test_damaged_and_missing_files_and_folders_are_named(tmp_path, monkeypatch):
    def refused(said, name="mnist", folder=tmp_path):
        with pytest.raises(ValueError, match=said):
            read_images(name, folder)

    write(tmp_path)
    path = tmp_path / f"{FILES['train_images']}.gz"
    data = path.read_bytes()
    for damaged in (data[:-20], IMAGES):
        path.write_bytes(damaged)
        refused("train-images.*is not a whole gzip file")
    path.write_bytes(data)
    (tmp_path / f"{FILES['test_labels']}.gz").unlink()
    refused("t10k-labels-idx1-ubyte")
    refused("nowhere", folder=tmp_path / "nowhere")
    refused("embedded", name="digits")
    monkeypatch.delenv("JEXPLICIT_DATA_DIR", raising=False)
    refused(r"without a folder.*data_dir=DIR.*JEXPLICIT_DATA_DIR", folder=None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    refused(r"tfds:mnist needs tensorflow_datasets.*pip install.*data set digits", name="tfds:mnist")
