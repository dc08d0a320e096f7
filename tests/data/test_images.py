"""Images: the embedded digits, idx files, pictures, files of NumPy, and everything about them that is refused."""

import gzip
import zipfile
from typing import Any

import numpy as np
import reference
from files import idx_bytes
from PIL import Image
from refusals import refused
from sklearn.datasets import load_digits
from tables import refuse

from jexplicit.data import images as module
from jexplicit.data.images import FILES, pixel_features, read_grey_images, read_image, read_images, read_parts

RNG = np.random.default_rng(0)
X = {part: RNG.integers(2, 256, (M, 5, 4), np.uint8) for part, M in (("train", 6), ("test", 3))}
Y = {"train": np.array([0, 0, 1, 1, 2, 2], np.uint8), "test": np.array([0, 2, 2], np.uint8)}
PARTS = dict(zip(FILES, (X["train"], Y["train"], X["test"], Y["test"]), strict=True))


def write(folder, compressed: bool = True, /, **changed: bytes) -> None:
    """The four files of a small data set, some of them with other bytes."""
    folder.mkdir(exist_ok=True)
    for part, file in FILES.items():
        content = changed.get(part, idx_bytes(PARTS[part]))
        (folder / (f"{file}.gz" if compressed else file)).write_bytes(gzip.compress(content) if compressed else content)


def write_image(path, array, mode: str | None = None):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(array)
    (image.convert(mode) if mode else image).save(path)
    return path


def write_folders(folder, labels=("9", "10", "11")):
    for part in ("train", "test"):
        for n, (image, label) in enumerate(zip(X[part], Y[part], strict=True)):
            write_image(folder / part / labels[label] / f"{n}.png", image)
    (folder / "train" / ".hidden").mkdir()
    return folder


def arrays(**changed) -> dict[str, Any]:
    return {"x_train": X["train"], "y_train": Y["train"], "x_test": X["test"], "y_test": Y["test"], **changed}


def labelled(data):
    """Labels and images of each part, sorted."""
    parts = [(getattr(data, f"{part}_labels"), getattr(data, f"{part}_images")) for part in ("train", "test")]
    return [sorted(zip(labels, map(bytes, images), strict=True)) for labels, images in parts]


# Data sets


def test_idx_files_come_back_as_they_were_written_and_the_hash_covers_every_pixel_and_label(tmp_path, monkeypatch):
    monkeypatch.setenv("JEXPLICIT_DATA_DIR", str(tmp_path))
    for compressed in (True, False):
        write(tmp_path / str(compressed), compressed)
        data = read_images("mnist", tmp_path / str(compressed))
        assert data.levels == 256 and data.outputs == 3
        assert (named := read_images(str(compressed))).name == str(compressed) and named.sha256 == data.sha256
        for part, expected in PARTS.items():
            np.testing.assert_array_equal(getattr(data, part), expected)
            changed = expected.copy()
            changed[-1] ^= 1
            assert data._replace(**{part: changed}).sha256 != data.sha256


def test_the_embedded_digits_are_scikit_learns_cut_in_two_and_pixel_features_the_papers():
    data, (whole, labels) = read_images("digits"), load_digits(return_X_y=True)
    np.testing.assert_array_equal(np.concatenate([data.train_images, data.test_images]).reshape(-1, 64), whole)
    np.testing.assert_array_equal(np.concatenate([data.train_labels, data.test_labels]), labels)
    assert (len(data.train_labels), len(data.test_labels), data.levels) == (1437, 360, 17)
    for dtype, levels in ((np.float64, 256), (np.float32, 17)):
        images = np.random.default_rng(0).integers(0, levels, (7, 3, 4), np.uint8)
        H = pixel_features(images, levels, dtype)
        assert H.dtype == dtype and 0 < H.min() and H.max() <= 1
        np.testing.assert_allclose(H, reference.pixel_features(images, levels), rtol=2 * float(np.finfo(dtype).eps))
    assert pixel_features(np.array([[[0, 1]]]), 2).tolist() == [[0.5, 1.0]]  # black and white


def test_folders_of_pngs_and_npz_files_are_the_images_with_their_labels(tmp_path):
    expected = [sorted(zip(Y[part], map(bytes, X[part]), strict=True)) for part in ("train", "test")]
    for labels in (("9", "10", "11"), ("a", "b", "c")):  # by number, and by name
        folder = write_folders(tmp_path / labels[0] / "shapes", labels)
        for data in (read_images("shapes", folder), read_images(f"{folder}/")):
            assert (data.name, data.classes, data.levels, data.outputs) == ("shapes", labels, 256, 3)
            assert labelled(data) == expected
            assert data.train_labels.tolist() != sorted(data.train_labels)  # any part has several classes
            np.testing.assert_array_equal(read_images(str(folder), limit=5).train_images, data.train_images[:5])
    keras: dict[str, Any] = {"x_train": X["train"][..., None], "y_train": Y["train"][:, None].astype(np.int64)}  # of other data
    for changed in ({}, keras, {"x_test": X["test"].astype(np.int32)}):
        np.savez_compressed(tmp_path / "shapes.npz", **arrays(**changed))
        data = read_images(str(tmp_path / "shapes.npz"))
        assert data.name == "shapes" and labelled(data) == expected
    (tmp_path / "shapes.npz").rename(tmp_path / "a.NPZ")
    assert read_images("other", tmp_path / "a.NPZ").name == "other"


def test_data_sets_that_are_damaged_foreign_or_missing_are_named(tmp_path, monkeypatch):
    images, labels = idx_bytes(X["train"]), idx_bytes(Y["train"])
    bad: list[tuple[dict[str, bytes], str]] = [
        ({"train_images": images[:-1]}, r"is damaged: .*\(6, 5, 4\) values and 119 follow"),
        ({"test_labels": labels + b"\0"}, "is damaged"),
        ({"test_labels": b""}, r"begins with b''"),
        ({"train_images": idx_bytes(np.ones((12, 5, 4, 3)))}, r"train-images.*begins with b'.*x04', .* images are grey"),
        ({"train_images": labels, "train_labels": images}, r"begins with b'.*', not as an idx file of 3 dim.*swapped"),
    ]
    for changed, message in bad:
        write(tmp_path / "idx", **changed)
        refused(message, read_images, "mnist", tmp_path / "idx")
    path = tmp_path / "idx" / f"{FILES['train_images']}.gz"
    path.write_bytes(path.read_bytes()[:-20])
    refused("train-images.*is not a whole file", read_images, "mnist", tmp_path / "idx")
    monkeypatch.delenv("JEXPLICIT_DATA_DIR", raising=False)
    refused("nowhere", read_images, "mnist", tmp_path / "nowhere")
    refused("embedded", read_images, "digits", tmp_path)
    refused(r"without a folder.*data_dir=DIR.*JEXPLICIT_DATA_DIR", read_images, "mnist")
    for changed, message in [
        ({"x_train": X["train"] / 255}, r"x_train are float64 from .* use \(255 \* X\).round"),
        ({"x_train": np.ones((6, 5, 4, 3))}, r"x_train has the shape \(6, 5, 4, 3\).*average the colours"),
        ({"y_train": np.eye(6)}, r"y_train: float64 of the shape \(6, 6\): give one integer per image"),
        ({"y_test": np.array([0, 1, None])}, "cannot be read.*arrays of numbers"),
    ]:
        np.savez(tmp_path / "a.npz", allow_pickle=True, **arrays(**changed))
        refused(message, read_parts, tmp_path / "a.npz")
    (tmp_path / "b.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:100])
    refused("b.npz cannot be read", read_parts, tmp_path / "b.npz")
    np.savez(tmp_path / "keys.npz", images=X["train"], y_train=Y["train"])
    refused("holds images, y_train and no x_train, x_test, y_test: save images as x_train", read_parts, tmp_path / "keys.npz")
    folder = write_folders(tmp_path / "shapes")
    loose = write_image(folder / "train/loose.png", X["test"][0])
    refused("loose.png has no label: put it in a folder of its label", read_parts, folder)
    loose.unlink()
    (folder / "test/12").mkdir()
    refused("has no folder 12", read_parts, folder)
    (folder / "test/12").rmdir()
    write_image(folder / "train/9/8.png", X["test"][0].T.copy())
    refused(r"0.png is 5 x 4 and .*8.png is 4 x 5: all images need one size.*by resize=N", read_parts, folder)
    refused("holds neither train-images-idx3-ubyte nor .*train/LABEL/.*npz", read_parts, folder / "train/9")
    (tmp_path / "empty/train").mkdir(parents=True)
    refused(r"train holds no folder: put the images there as .*/LABEL/\*", read_parts, tmp_path / "empty")


VALID: dict[str, Any] = {**PARTS, "name": "shapes", "levels": 256}


def test_values_that_would_be_misread_are_refused():
    def images(part="", value=0, **changed):
        """A data set with other parts, or with another value in the last example of one of the arrays."""
        if part:
            changed[part] = VALID[part].copy()
            changed[part][-1] = value
        return lambda: module.check_images(module.Images(**{**VALID, **changed}))

    def pixels(values):
        return lambda: pixel_features(np.array(values), 256)

    refuse(
        [
            *((f"label {n} for 3 outputs", lambda n=n: module.one_hot(np.array([0, n, 2]), 3)) for n in (-1, 3)),
            ("6 train images and 5 labels", images(train_labels=Y["train"][:-1])),
            ("0 test images", images(test_images=X["test"][:0], test_labels=Y["test"][:0])),
            ("equal shapes", images(test_images=X["test"].swapaxes(1, 2))),
            (r"pixel \d+: grey levels are 0 .. 16", images(levels=17)),
            ("label 3 has no training image", images("train_labels", 10)),
            ("test label 3, and training labels are 0 .. 2", images("test_labels", 3)),
            ("at least two classes", images(train_labels=0 * Y["train"], test_labels=0 * Y["test"])),
            ("pixel -1: grey levels are 0 .. 255; rescale", pixels([[[-1, 3]]])),
            (r"float64 from 0 to 0.7, .*: use \(255 \* X\).round", pixels([[[0.0, 0.7]]])),
            (r"use X.round\(\).astype\(np.uint8\)", pixels([[[0.0, 200.5]]])),
            (r"shape \(1, 2, 2, 3\): give grey images", pixels(np.zeros((1, 2, 2, 3), np.uint8))),
        ]
    )


# Pictures


def test_images_of_any_mode_become_grey_on_white_as_they_are_shown(tmp_path):
    image, path = X["train"][0], tmp_path / "a.png"
    for mode in ("RGB", "P", "LA", "RGBA"):
        np.testing.assert_array_equal(read_image(write_image(path, image, mode)), image)
    np.testing.assert_array_equal(read_image(write_image(path, 257 * image.astype(np.uint16))), image)
    np.testing.assert_array_equal(read_image(write_image(path, image > 99)), 255 * (image > 99))
    stroke = np.zeros((8, 8, 4), np.uint8)  # black everywhere, and seen in the middle alone
    stroke[2:6, 3:5, 3] = 255
    np.testing.assert_array_equal(read_image(write_image(path, stroke)), 255 - stroke[..., 3])
    Image.fromarray(image).save(path, transparency=int(image[0, 0]))
    assert read_image(path)[0, 0] == 255
    exif = Image.Exif()
    exif[274] = 6  # to be turned by a quarter clockwise
    Image.fromarray(image).save(path, exif=exif)
    np.testing.assert_array_equal(read_image(path), np.rot90(image, -1))
    refused("of mode F: its grey levels have no known range", read_image, write_image(tmp_path / "a.tif", np.float32(image)))
    frames = [Image.fromarray(np.full((4, 4), level, np.uint8)) for level in (1, 2)]
    frames[0].save(tmp_path / "b.png", save_all=True, append_images=frames[1:])
    refused("has 2 frames", read_image, tmp_path / "b.png")
    whole = write_image(path, np.tile(image, (20, 20))).read_bytes()
    for damaged in (b"", b"no image", whole[:-2000], whole[:40], whole[:16] + b"x" + whole[17:]):
        path.write_bytes(damaged)
        refused(r"a.png cannot be read as an image \(", read_image, path)


def test_images_are_read_from_files_and_folders_of_every_kind_and_files_without_images_are_named(tmp_path):
    folder, expected = write_folders(tmp_path / "shapes"), X["test"]
    for name, array in {"one": expected[0], "all": expected, "flat": expected.reshape(-1), "none": expected[:0]}.items():
        np.save(tmp_path / f"{name}.npy", array)
    np.savez(tmp_path / "all.npz", **arrays())
    paths = [folder / "test", folder / "test/9/0.png", tmp_path / "one.npy", tmp_path / "all.npy", tmp_path / "all.npz"]
    names, images = zip(*read_grey_images(list(map(str, paths))), strict=True)
    assert names[3] == str(paths[1])  # one file twice
    assert names[4:] == (f"{paths[2]}[0]", *(f"{path}[{n}]" for path in paths[3:] for n in range(3)))
    order = [1, 2, 0, 0, 0, *range(3), *range(3)]  # paths in alphabetical order: 11 before 9
    np.testing.assert_array_equal(np.stack(images), expected[order])
    (tmp_path / "a.txt").write_text("no image")
    with zipfile.ZipFile(tmp_path / "text.npz", "w") as file:
        file.writestr("a.txt", "text")
    np.savez(tmp_path / "two.npz", a=expected, b=expected)
    for name, said in [
        *(("nowhere", "name images"), ("a.txt", "name images"), ("text.npz", "cannot be read")),
        *(("two.npz", "save the images alone"), ("flat.npy", "give grey images"), ("none.npy", "holds no image")),
    ]:
        refused(f"{name}.*{said}", read_grey_images, [str(tmp_path / name)])
    image = np.arange(20, dtype=np.uint8).reshape(5, 4) % 17  # of fewer levels
    for shown, most in ((15 * image, 1), (image, 0), (np.full((5, 4), 255, np.uint8), 0)):
        (_, read), *_ = read_grey_images([str(write_image(tmp_path / "a.png", shown))], levels=17)
        assert np.abs(read.astype(int) - (image if shown.min() == 0 else 16)).max() <= most and read.max() < 17


def test_photos_of_any_kind_and_size_are_read_where_they_are_resized(tmp_path):
    pets = tmp_path / "pets"
    for n, (height, width) in enumerate(np.random.default_rng(0).integers(5, 40, (20, 2))):
        path = pets / ("cat", "dog")[n % 2] / f"{n}.{('png', 'jpg', 'gif')[n % 3]}"
        write_image(path, np.full((height, width, 3), [200 - 9 * n, 0, 0], np.uint8))
    data, other = (read_images("pets", pets, resize=6, seed=seed) for seed in (0, 1))
    assert data.train_images.shape == (16, 6, 6) and data.test_images.shape == (4, 6, 6) and data.classes == ("cat", "dog")
    assert np.bincount(data.test_labels).tolist() == [2, 2] and data.sha256 != other.sha256
    grey = np.sort(np.concatenate([data.train_images, data.test_images])[:, 3, 3])
    np.testing.assert_allclose(grey, np.sort(0.299 * (200 - 9.0 * np.arange(20))), atol=3)  # as ITU-R 601-2 has it; JPEG
    assert read_grey_images([str(pets / "dog/1.jpg")], resize=4)[0][1].shape == (4, 4)
    refused("digits is embedded", read_images, "digits", resize=8)
    for place, size in ((pets, 0), (pets / "dog/1.jpg", 8)):
        said = f"resize={size} for {place}: name a folder of images and a size of 1 to 1024"
        refused(said, read_images, str(place), resize=size)
    (pets / "cat/a.HEIC").write_bytes(b"x")
    refused("a.HEIC cannot be read as an image", read_images, "pets", pets, resize=6)
