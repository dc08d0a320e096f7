"""Check a folder of data against the sets that the pages of results use.

python -m launch.data
python -m launch.data --folder data
"""

import hashlib
import os
from dataclasses import dataclass
from typing import Any

from jexplicit.runs.files import local_path
from jexplicit.runs.progress import show
from launch.kit.command import entry_point
from launch.kit.views import Column, rich_table

# sets of files: their number, bytes, and the SHA-256 of all by name
SETS = """
1 1115394 86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed tinyshakespeare/input.txt
1 228145 0a30b5557f192f32ab962680889aac5f6fda0f4cecf40a6d0b5694f58ea8cc4d names/names.txt
11 54205433 adb8e6c73991367e77898089df39a2071f8bec5dc0ee68746dc213578835336b babylm_like/train/*.train
1 6390117 7f26c970d2a3d962217644fef7c9739ef85f8bf818734fbf03241ed7be599453 babylm_like/train/wikipedia.train
1 1073068 87a56699c25e28852443bc0bbaf33e56e4f5470d4c43983d60727ede4a3458ab babylm_like/dev/mixed_2024.dev
1 1777198 1ad5434489dea06d5102fc279a20d227610e0e502a0e1fedca1859aa44429a0f babylm_like/dev/aochildes.dev
1 1182697 b28c46bb0986a04943f2eac750b367fda372d43b9ca521789fa0a493888cd100 babylm_like/dev/cbt.dev
1 1407153 392db320a3939432fd046a36a91139a6bfaf0d9caae62fcee9dd688217ff6032 babylm_like/dev/children_stories.dev
1 670013 79af957ba53629be2fb9db09ff012f400198573a7750c9d3aded173d7fcfba46 babylm_like/dev/switchboard.dev
67 5910483 48773fb23601bb79324faa3ff07500af811216784b965a82dc630fdebafe95e3 blimp/*.jsonl
1 9912422 440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609 mnist/train-images-idx3-ubyte.gz
1 28881 3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c mnist/train-labels-idx1-ubyte.gz
1 1648877 8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6 mnist/t10k-images-idx3-ubyte.gz
1 4542 f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6 mnist/t10k-labels-idx1-ubyte.gz
"""
COLUMNS = (Column("files", "pattern"), Column("bytes", "bytes", ",d"), Column("state", "state"))


@dataclass(frozen=True)
class Config:
    folder: str | None = None
    """Folder to check. Default: the one that JEXPLICIT_DATA_DIR names."""


def run(config: Config) -> dict[str, Any]:
    """Show a line for every set."""
    if not (name := config.folder or os.environ.get("JEXPLICIT_DATA_DIR")):
        raise ValueError("no folder to check: give --folder DIR, or set JEXPLICIT_DATA_DIR to the folder of the data")
    if not (folder := local_path(name, "--folder")).is_dir():
        raise ValueError(f"--folder {name} is no folder: make it, and put the files into it as docs/data.md says")
    rows = []
    for files, size, sha256, pattern in map(str.split, SETS.strip().splitlines()):
        found, digest = sorted(folder.glob(pattern)), hashlib.sha256()
        for path in found:
            digest.update(path.read_bytes())
        state = "the same" if digest.hexdigest() == sha256 else "different"
        if len(found) != int(files):
            state = f"{len(found)} of {files} files" if found else "missing"
        rows.append({"files": int(files), "bytes": int(size), "sha256": sha256, "pattern": pattern, "state": state})
    show(rich_table(COLUMNS, rows))
    if wrong := [row["pattern"] for row in rows if row["state"] not in ("the same", "missing")]:
        raise ValueError(f"{name}: {', '.join(wrong)} are not the files of the results: fetch them again (docs/data.md)")
    return {"folder": str(folder), "rows": rows}


main = entry_point(run, Config, __doc__, module=__name__)
