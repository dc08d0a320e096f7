"""Data sets of TensorFlow Datasets, images and text, by random access without TensorFlow.

Offline, TFDS retries for minutes, so likely failures are checked first, within seconds.
"""

import contextlib
import importlib.util
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jexplicit.data.corpora import Corpus, Documents, lazy_split
from jexplicit.runs.files import local_path

_host = ("storage.googleapis.com", 443)
_info_file = "dataset_info.json"  # of every version of a prepared data set
_dev_splits = ("validation", "test")
_text_way_out = "download the text and use train=FILES, or the corpus docs, which is embedded"


def prepared_builder(name: str, data_dir: str | os.PathLike | None, *, way_out: str) -> Any:
    """The builder of a TFDS data set or folder, downloaded if necessary.

    data_dir: default, `$TFDS_DATA_DIR` or `tensorflow_datasets` in the user's home.
    """
    missing = [module for module in ("tensorflow_datasets", "importlib_resources") if importlib.util.find_spec(module) is None]
    if missing:
        raise ValueError(f"tfds:{name} needs {' and '.join(missing)}: pip install 'jexplicit[tfds]', or {way_out}")
    prepared = _prepared_folder(name, f"tfds:{name}")
    home = local_path(data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets", "the folder of TFDS")
    folder = home / name.split("/")[0]
    if prepared is None and not any(folder.rglob(_info_file)) and not _reachable(*_host):
        raise ValueError(f"tfds:{name}: {_host[0]} cannot be reached, and {folder} holds no data set: {way_out}")
    import tensorflow_datasets as tfds  # pyright: ignore[reportMissingImports]

    try:
        if prepared is not None:
            return tfds.builder_from_directory(prepared)
        builder = tfds.builder(name, data_dir=data_dir and str(data_dir), file_format="array_record")
        with contextlib.redirect_stdout(sys.stderr):  # for progress
            builder.download_and_prepare()
    except Exception as error:  # of TFDS, its readers or the network
        raise unreadable(name, error, way_out=way_out) from error
    return builder


def _prepared_folder(name: str, what: str) -> Path | None:
    """The folder with the files of one version, if a name is a folder."""
    folder = local_path(name, what)
    versions = sorted(path.parent for path in folder.rglob(_info_file)) if folder.is_dir() else []
    if len(versions) > 1:
        raise ValueError(f"{what} holds several data sets: name one of {', '.join(map(str, versions))}")
    if not versions and name.startswith(("/", ".", "~")):
        raise ValueError(f"{what}: no {_info_file} there: name the folder of a data set that TFDS has prepared")
    return versions[0] if versions else None


def unreadable(name: str, error: Exception, *, way_out: str) -> ValueError:
    """The error of any failure while reading, with the remedy."""
    return ValueError(f"tfds:{name} could not be read ({type(error).__name__}: {error}): {way_out}")


class TfdsText(NamedTuple):
    """A prepared text data set.

    name: of the data set, or its folder.
    feature: the feature with the text.
    data_dir: the folder of the data sets.
    version: the data set's full name, including its version.
    dev: the split used as dev, or None if there is only train.
    sizes: number of documents in each split, including blank ones.
    bytes: of the files of each split.
    """

    name: str
    feature: str
    data_dir: str | None
    version: str
    dev: str | None
    sizes: dict[str, int]
    bytes: dict[str, int]

    def documents(self, split: str) -> Iterator[str]:
        """The documents of a split that are not blank, read lazily."""
        builder = prepared_builder(self.name, self.data_dir, way_out=_text_way_out)
        try:
            rows = builder.as_data_source(split=split)
            for n in range(len(rows)):
                value = rows[n][self.feature]
                text = value.decode("utf-8") if isinstance(value, bytes) else str(value)
                if text.strip():
                    yield text
        except Exception as error:
            raise unreadable(self.name, error, way_out=_text_way_out) from error


def tfds_text(name: str, *, feature: str = "text", data_dir: str | os.PathLike | None = None) -> TfdsText:
    """A text data set of TFDS; dev is validation, or else test."""
    builder = prepared_builder(name, data_dir, way_out=_text_way_out)
    features, splits = list(builder.info.features), list(builder.info.splits)
    if feature not in features:
        raise ValueError(f"tfds:{name} has no feature {feature!r}: name one of {', '.join(features)} (feature=NAME)")
    if "train" not in splits:
        raise ValueError(f"tfds:{name} has the splits {', '.join(splits)}, but no train: {_text_way_out}")
    dev = next((split for split in _dev_splits if split in splits), None)
    sizes = {split: int(about.num_examples) for split, about in builder.info.splits.items()}
    size = {split: int(about.num_bytes) for split, about in builder.info.splits.items()}
    return TfdsText(name, feature, None if data_dir is None else str(data_dir), str(builder.info.full_name), dev, sizes, size)


def tfds_corpus(name: str, *, feature: str = "text", data_dir: str | os.PathLike | None = None) -> Corpus[Documents]:
    """A lazy text data set of TFDS; without validation and test, `split_documents` splits train."""
    data = tfds_text(name, feature=feature, data_dir=data_dir)
    train = Documents(data.documents, "train")
    parts = lazy_split(train) if data.dev is None else (train, Documents(data.documents, data.dev))
    return Corpus(f"tfds:{data.version}", *parts, {"version": data.version, "bytes": data.bytes, "feature": data.feature})


def _reachable(host: str, port: int, seconds: float = 3.0) -> bool:
    try:
        with socket.create_connection((host, port), timeout=seconds):
            return True
    except OSError:
        return False
