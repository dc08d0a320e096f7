"""The installed command: what it lists, that it starts fast and anywhere, and what it prints where."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import jexplicit
from launch import cli

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[1])}
NAMES = "lm score next sample explain export judge compare combine digits classify icl shards beam bench".split()
NAMES += ["networks compare", "feature-machine modular", "blur train"]
# as the console script of an installation: its folder, and not the current one, is on sys.path
EACH = """
import sys; sys.path.remove('')
import contextlib, io, json
from launch.cli import main
for name in ["", *sys.argv[1:]]:
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        main([*name.split(), "--help"])
    print(json.dumps([name, printed.getvalue(), [*sys.modules]]))
"""


@pytest.fixture(autouse=True)
def _own_program(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["pytest"])


def test_help_does_not_import_jax_and_a_folder_with_another_launch_does_not_matter(tmp_path):
    for name in ("launch.py", "jexplicit.py", "tyro.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong module')")
    line = [sys.executable, "-c", EACH, *NAMES]
    answer = subprocess.run(line, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    assert answer.returncode == 0 and len(answer.stdout.splitlines()) == 1 + len(NAMES), answer.stderr
    slow = {"jax", "flax", "scipy", "sklearn", "matplotlib", "orbax", "optax", "pandas", "seaborn", "jexplicit.api", "icl.api"}
    for name, printed, imported in map(json.loads, answer.stdout.splitlines()):
        assert f"usage: jexplicit {name}".strip() in printed and not slow & set(imported), name
        assert ("tyro" in imported) == bool(name) and (name or not {"numpy", "jexplicit"} & set(imported))


def test_the_command_lists_every_command_and_has_the_version_of_the_package_and_suggests_the_nearest_name(capsys):
    assert cli.main([]) == cli.main(["--help"]) == cli.main(["-h"]) == cli.main(["--version"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("Try first:") == 3 and printed.splitlines()[-1] == f"jexplicit {jexplicit.__version__}"
    assert all(f"  {name} " in printed for name in cli.COMMANDS)
    for words, said in (
        ("scroe", "did you mean score?"),
        ("xyz", "choose one of lm, "),
        ("networks mlp-ml", "networks mlp-ml: choose one of mlp-lm"),
    ):
        assert cli.main(words.split()) == 2 and said in capsys.readouterr().err


def test_help_of_a_command_names_it_and_groups_its_flags(capsys):
    groups = {"lm": ("run", "text", "models", "processes"), "networks mlp-lm": ()}
    for name, titles in groups.items():
        for flag, lines, said in (("--help", 60, [f"\n{title} " for title in (*titles, "general")]), ("--help-all", 999, [])):
            with pytest.raises(SystemExit) as end:
                cli.main([*name.split(), flag])
            printed = capsys.readouterr().out
            assert end.value.code == 0 and len(printed.splitlines()) <= lines and f"usage: jexplicit {name}" in printed
            assert "--json" in printed and "python -m" not in printed and "launch." not in printed
            assert all(title in printed for title in said), name
