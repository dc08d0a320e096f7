"""The package: the wheel and the source archive, what is in them and that they run; one version in all files that name it."""

import datetime
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.metadata import Metadata

import jexplicit

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = ("icl", "jexplicit", "launch")
FOLDERS = (*PACKAGES, "docs", "notebooks", "tests", "tools")
FILES = (
    "CHANGELOG.md CITATION.cff CONTRIBUTING.md LICENSE MANIFEST.in Makefile README.md constraints.txt mkdocs.yml pyproject.toml"
)
DATA = {
    *("icl/py.typed", "jexplicit/py.typed", "launch/page.html"),
    *(f"icl/blur/genomes/{name}.json" for name in ("boolean", "digits", "hebbian", "mnist")),
}


def files_in(folder: Path) -> set[str]:
    """The files below a folder but the compiled ones, by their paths in it."""
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return {name for name in found if not re.search(r"\.pyc$|\.egg-info/", name)}


@pytest.mark.slow
def test_the_archives_have_the_packages_with_their_data_and_say_what_they_are_and_the_wheel_runs(tmp_path):
    """Built in a copy, so that the checkout stays clean, and without a package registry; the wheel from the source archive."""
    source, target = tmp_path / "source", tmp_path / "site"
    for name in FOLDERS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns(".*", "__pycache__"))
    for name in FILES.split():
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(source)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (sdist,) = (tmp_path / "dist").glob("*.whl"), (tmp_path / "dist").glob("*.tar.gz")
    modules = {f"{name}/{file}" for name in PACKAGES for file in files_in(ROOT / name) if file.endswith(".py")}
    about = f"jexplicit-{PROJECT['version']}.dist-info/"
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if not name.startswith(about)} == modules | DATA
        text, licence = (archive.read(about + part).decode() for part in ("METADATA", "licenses/LICENSE"))
    with tarfile.open(sdist) as archive:
        names = {name.removeprefix(f"jexplicit-{PROJECT['version']}/") for name in archive.getnames()}
    assert files_in(source) <= names and not [name for name in names if name.endswith(".pyc")]
    checked = Metadata.from_email(text.encode(), validate=True)
    assert (checked.name, str(checked.version), checked.summary) == ("jexplicit", PROJECT["version"], PROJECT["description"])
    assert set(checked.provides_extra or []) == set(PROJECT["optional-dependencies"])
    assert licence == (ROOT / "LICENSE").read_text() and wheel.name == f"jexplicit-{PROJECT['version']}-py3-none-any.whl"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    subprocess.run([*install, "--no-compile", "--target", str(target), str(wheel)], check=True, capture_output=True)
    assert (target / "bin" / "jexplicit").exists()

    def run(*arguments: str) -> str:
        environment = os.environ | {"PYTHONPATH": str(target), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-W", "error", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout

    files = run("-c", "import icl, jexplicit, launch\nfor package in (icl, jexplicit, launch): print(package.__file__)").split()
    assert files == [str(target / name / "__init__.py") for name in PACKAGES]
    first = "import jexplicit; print(jexplicit.fit(['to be or not to be'], 'explicit', tokenizer='char').next_token('t')[0][0])"
    assert run("-c", first).split() == ["o"]
    assert run("-m", "launch.cli", "--version").strip() == f"jexplicit {PROJECT['version']}"


def test_the_changelog_and_the_citation_are_of_this_version():
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    released = [heading for heading in headings if heading != "Unreleased"]
    version, date = released[0].split(" - ")
    assert headings.index(released[0]) <= 1  # only what is not released stands above
    assert version == PROJECT["version"] == jexplicit.__version__
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    for entry in (citation, citation["preferred-citation"]):
        assert (entry["version"], entry["date-released"]) == (version, datetime.date.fromisoformat(date))
