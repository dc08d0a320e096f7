"""The installed command: what it lists, that it starts fast and anywhere, and what it prints where."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import jexplicit
from launch import cli

ROOT = Path(cli.__file__).parents[1]
# what the console script of an installation does: the folder of the script, and not the current one, is on sys.path
SCRIPT = "import sys; sys.path.remove(''); from launch.cli import main; sys.exit(main())"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", SCRIPT, *arguments]


@pytest.fixture(autouse=True)
def _own_program(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["pytest"])


def test_help_lists_every_command_and_version_is_that_of_the_package(capsys):
    assert cli.main([]) == cli.main(["--help"]) == cli.main(["-h"]) == 0
    assert cli.main(["--version"]) == 0
    printed = capsys.readouterr().out
    for (
        name
    ) in "lm sample score next explain export judge compare combine classify digits networks icl blur bench data".split():
        assert f"  {name} " in printed and "Try first:" in printed
    assert printed.splitlines()[-1] == f"jexplicit {jexplicit.__version__}"


def test_help_does_not_import_jax_and_a_folder_with_another_launch_does_not_matter(tmp_path):
    (tmp_path / "launch.py").write_text("raise SystemExit('the wrong launch')")
    (tmp_path / "jexplicit").mkdir()
    (tmp_path / "jexplicit" / "__init__.py").write_text("raise SystemExit('the wrong jexplicit')")
    code = f"{SCRIPT.replace('sys.exit(main())', 'main()')}; assert not {{'jax', 'numpy', 'jexplicit'}} & set(sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code, "--help"], cwd=tmp_path, env=ENVIRONMENT, capture_output=True)
    assert answer.returncode == 0 and b"usage: jexplicit" in answer.stdout and not answer.stderr


EACH = """
import contextlib, io, json, sys
from launch.cli import main
for name in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        main([*name.split(), "--help"])
    print(json.dumps([name, printed.getvalue(), [*sys.modules]]))
"""


def test_help_of_a_command_does_not_import_jax():
    names = "lm score next sample explain export judge compare combine digits classify icl shards beam bench".split()
    names += ["networks compare", "feature-machine modular", "blur train"]
    answer = subprocess.run([sys.executable, "-c", EACH, *names], env=ENVIRONMENT, capture_output=True, text=True)
    assert answer.returncode == 0 and len(answer.stdout.splitlines()) == len(names), answer.stderr
    slow = {"jax", "flax", "scipy", "sklearn", "matplotlib", "orbax", "optax", "pandas", "seaborn", "jexplicit.api", "icl.api"}
    for name, printed, imported in map(json.loads, answer.stdout.splitlines()):
        assert f"usage: jexplicit {name}" in printed
        assert "tyro" in imported and not slow & set(imported), name


def test_a_typo_suggests_the_nearest_name(capsys):
    assert cli.main(["scroe"]) == 2
    assert "did you mean score?" in capsys.readouterr().err
    assert cli.main(["xyz"]) == 2
    assert "choose one of lm, " in capsys.readouterr().err
    assert cli.main(["networks", "mlp-ml"]) == 2
    assert "networks mlp-ml: choose one of mlp-lm" in capsys.readouterr().err


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
    with pytest.raises(SystemExit):
        cli.main(["runs", "--help"])
    assert "  FOLDERS " in capsys.readouterr().out  # which stand by their place
