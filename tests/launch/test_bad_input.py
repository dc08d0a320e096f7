"""Bad input to every command ends in one line with the remedy and exit status 2, before any long work."""

import contextlib
import importlib
import itertools
import re
import shlex

import jax
import pytest
from files import put
from tables import compiled, each_row

from jexplicit.runs.files import find_bounds
from launch import cli
from launch.kit.command import flags

TEXT = [f"{a} {b} sat on the {c}" for a in ("the", "one") for b in ("cat", "dog", "bird") for c in ("mat", "hill", "roof")] * 3
TRAIN = "--train {text} --tokenizer word"
TRANSFORMER = f"networks transformer-lm {TRAIN} --window 32 --width 8 --layers 1 --steps 6 --warmup 2 --batch-size 4"

# command line | part of the message; {names} are files and folders of the fixture
SECOND = "--coordinator localhost:1 --num-processes 2 --process-id 1"
LINES = f"""
lm --train {{text}} --corpus shards:x | --train with --corpus shards:x: give one of the two
lm --corpus shards:{{tmp}} --tokenizer word | --tokenizer with --corpus shards:
lm --corpus shards:{{tmp}} --limit 30 | give these flags to jexplicit shards
lm --corpus shards:nowhere --methods cold | --methods cold with --corpus shards:DIR: use --methods unigram bigram explicit ngram
lm --corpus shards:nowhere | nowhere/tokenizer.model: choose bpe
lm --corpus books | choose docs, text or shards:DIR
lm --corpus text | --corpus text without --train
lm --dev {{text}} | dev files go with --train
lm {TRAIN} --context 500 --dry-run | --context 500: the longest document has 6 tokens
lm {TRAIN} --context | --context without a value
lm {TRAIN} --memory 0.001GB --tables dense | --memory 0.0GB: counting with tables of
lm {TRAIN} --methods context-mixing --memory 0.1GB | tokens takes about 0.6 GB and may have 0.1 GB
lm {TRAIN} --methods ngram --context 7 --features cat | --context 7 with --methods ngram, which do not use it
lm {TRAIN} --methods cold --tables sparse | --methods cold with sparse tables
lm --train {{two}} | give more text
lm {TRAIN} --process-id 1 | --process-id 1 without --coordinator
lm --train missing.txt {SECOND} --methods explicit cold | --methods cold with --coordinator: use --methods unigram bigram
lm --split end | it splits the files of --train
lm --preset nothing | choose one of tiny, demo
lm {TRAIN} --radius 3 | --radius: this flag is --context now
lm {TRAIN} --methods context-mixing --history adaptive | all, online or online:document
lm --out {{run}} {TRAIN} | already holds a run: add --resume
lm --out {{run}} --resume --vocab-size 7 | was run with vocab_size = None (now 7)
sample --run {{run}} --context 7 | has no model with context 7: it has unigram_1
next --run {{run}} --context 0 | has no model with context 0
sample --run {{text}} | is no model that can be read
score --run {{run}} --text {{text}} --max-perplexity 3 | --max-perplexity and --kept go together
score --run {{run}} --text {{text}} --max-perplexity 3 --kept {{text}} | is read by --text
runs {{tmp}} | no run in
lm --methods bigram --epochs 3 --out {{tmp}}/x | do not use it; methods that do: cold, warm
score --run {{run}} --text - - | --text - -: standard input can be read only once
explain --run {{run}} --text '  ' | give at least one word to explain
explain --run {{run}} --text 'the cat' --html {{tmp}}/x.png | give a name that ends in .html
judge --run {{run}} --pairs {{pairs}} --out {{run}} | choose another --out
compare --run {{run}} --text {{pairs}} | name the one that holds the text, --field NAME
combine --run {{run}} --other {{run}} --dev {{text}} --test {{two}} | give a run with models of context mixing
classify --run {{run}} --images x.png | this command reads runs of
classify-text --train {{reviews}} --field text --label y --text ' ' | --text ' ': give at least one word to classify
classify-text --train {{reviews}} --field text --label one | --label one: --train has 1 labels; give texts of two labels or more
classify-text --train {{reviews}} --field text --label y | fewer than 10 texts of every label: give more, or name --test
classify-text --train {{blank}} --field text --label y | blank.csv, line 3: text or y is empty; fill it
feature-machine modular --operation divide | invalid choice 'divide'
networks mlp_ml | choose one of mlp-lm
networks mlp-lm --dev {{text}} | --dev and --test go together
networks mlp-lm --train {{two}} | use a text of 3 or more lines
networks autoencoder --data nothing | name that of its files, --data-dir DIR
networks compare colours | normalisation
icl one-step --dim 100000 | --dim 100000: use at least 1 and at most 1000
digits --methods | need at least one value each
digits --methods kernel --frequencies 500000 | 4 matrices of 1000000 x 1000000 numbers take 16,000 GB
blur train --unroll 1 2 --meta-steps 1 | give each flag one number per stage
blur nothing | choose one of train, tasks
lm --field text | --field text without --train
lm --train {{pairs}} --field text | line 1 has no field 'text'
lm --train {{pairs}} | name the one that holds the text
lm --tokenizer syllable | no tokenizer at syllable: choose bpe, word or char
export --run {{run}} --out {{tmp}}/model.pt | give a file name that ends in .safetensors
lm {TRAIN} --methods optimum --context 4 | --methods optimum with --context 4
lm {TRAIN} --history all | only --methods context-mixing reads
lm --train {{text}} --test {{text}} | is in train and in test: remove it from one
lm --train {{text}} --test {{two}} {SECOND} | give it to the finished run, --resume --test FILES
lm --train {{text}} --split dev-test --limit 50 | --limit with --split dev-test, which fits models again on dev
lm --train {{text}} --split dev-test --methods cold | --methods cold with --split dev-test
{TRANSFORMER} --heads 3 | --width 8 with --heads 3: the width is a multiple of the heads
{TRANSFORMER} --start none induction | --start induction: add --no-tied and --positions learned
{TRANSFORMER} --devices 3 | --batch-size 4 on 3 devices: give a multiple of 3
icl --experiment copy softmax | --experiment: choose one of one-step
blur train --data xor --families boolean --side 4 | --data xor: it has four points, no images
bench --cases ngram-fit --sizes 10_000_000 | tokens have no two parts of this size; name more text (--train)
"""
# what commands that read text share
SHARED = [line for line in LINES.splitlines() if re.match(r"lm --(field|documents|tokenizer|train {pairs})", line)]
LINES += "".join(f"{command}{line[2:]}\n" for command in ("shards", "networks mlp-lm") for line in SHARED)
CASES = [tuple(line.split(" | ")) for line in LINES.strip().splitlines()]
WITH_OUT = "lm networks icl digits blur bench shards judge combine feature-machine".split()  # into a new folder


def main(line: list[str]) -> int:
    """The exit status of a command line, run in this process."""
    try:
        return importlib.import_module(cli.COMMANDS[line[0]].module).main(line[1:])
    except SystemExit as end:  # tyro's, for flags that do not exist
        return int(end.code or 0)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Files and folders by name; one small run."""
    base = tmp_path_factory.mktemp("places")
    found = {"tmp": base / "tmp", "run": base / "run"}
    for name, content in {
        **{"text.txt": "\n".join(TEXT), "two.txt": "ab\nef\n"},
        "pairs.jsonl": '{"sentence_good": "the cat sat", "sentence_bad": "cat the sat", "id": 0}',
        **{"reviews.csv": "text,y,one\nfine,5,1\ndull,1,1\n", "blank.csv": "text,y\nfine,5\ndull,\n"},
    }.items():
        found[name.partition(".")[0]] = put(base / name, content)
    put(base / "tmp/other.txt", "a file of no run")
    flags = f"--tokenizer word --methods unigram --context 1 --features cat --samples 0 --out {base}/run"
    assert main(["lm", "--train", str(found["text"]), *flags.split()]) == 0
    return found


def test_bad_input_is_refused_in_one_line_with_the_remedy_before_anything_is_compiled(places, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.delenv("JEXPLICIT_DATA_DIR", raising=False)
    jax.random.key(0)  # which compiles
    folders = (tmp_path / str(number) for number in itertools.count())

    def check(line: str, message: str) -> None:
        folder, arguments = next(folders), shlex.split(line.format(**places))
        folder.mkdir()
        if arguments[0] in WITH_OUT and "--out" not in arguments:
            arguments += ["--out", str(folder / "out")]
        with contextlib.chdir(folder), compiled() as programs:
            assert main(arguments) == 2
        said = " ".join(capfd.readouterr().err.split())
        assert message in said and "Traceback" not in said, said
        assert not (folder / "out" / ("." if arguments[0] == "digits" else "results.json")).exists()
        assert not [*folder.glob("*:")]  # no folder by the name of a remote store
        assert not programs, f"compiled before the refusal: {programs}"

    each_row(check, CASES)
    assert {line.split()[0] for line, _ in CASES} >= set(cli.COMMANDS) - {"beam", "data", "harness"}


def test_every_number_that_a_command_takes_has_bounds():
    free = {"top_p", "devices", "num_processes", "process_id", "context"}  # which are checked where they are used
    for name in {line.split()[0] for line, _ in CASES} - {"icl", "blur"}:
        module = importlib.import_module(cli.COMMANDS[name].module)
        kinds = getattr(module, "COMMANDS", None) or {name: module}
        for flag in (flag for kind in kinds.values() for flag in flags(getattr(kind, "config", None) or kind.Config)):
            number = {"int", "float"} & set(re.findall(r"\w+", str(flag.hint)))
            assert not number or flag.name in free or list(find_bounds(flag.hint)), (name, flag.name)


def test_unknown_characters_to_explain_are_named_and_a_file_is_not_read(places, capfd):
    for text, said in (("the zebra", "never seen ['zebra']"), (places["text"], f'give --text "$(cat {places["text"]})"')):
        assert main(["explain", "--run", str(places["run"]), "--text", str(text)]) == 0
        assert said in " ".join(capfd.readouterr().err.split())
