"""Bad input to every command ends in one line with the remedy and exit status 2, before any long work."""

import ast
import contextlib
import importlib
import itertools
import json
import re
import shlex
import shutil
from inspect import unwrap
from pathlib import Path

import jax
import numpy as np
import pytest
from files import idx_bytes
from tables import compiled, each_row, refuse

import jexplicit
from icl.blur.learning import image_sets
from jexplicit import lm
from jexplicit.counts.pairs import counted_radius
from jexplicit.data.contexts import check_stream
from jexplicit.features.random import random_directions
from jexplicit.lm.fits.log_linear import offset_rows
from jexplicit.lm.rows import unigram_model
from jexplicit.runs.bounds import find_bounds
from launch import cli
from launch.kit.command import flags

TEXT = [f"{a} {b} sat on the {c}" for a in ("the", "one") for b in ("cat", "dog", "bird") for c in ("mat", "hill", "roof")] * 3
LARGE = 2**63
TRAIN = "--train {text} --tokenizer word"
TRANSFORMER = f"networks transformer-lm {TRAIN} --window 32 --width 8 --layers 1 --steps 6 --warmup 2 --batch-size 4"

# command line | part of the message; {names} are files and folders of the fixture
SECOND = "--coordinator localhost:1 --num-processes 2 --process-id 1"
LINES = f"""
lm --train {{text}} --corpus installed | --train with --corpus installed: give one of the two
lm --corpus shards:{{tmp}} --tokenizer word | --tokenizer with --corpus shards:
lm --corpus shards:{{tmp}} --limit 30 | give these flags to launch.shards
lm --corpus shards:nowhere --methods cold | --methods cold with --corpus shards:DIR: use --methods unigram bigram explicit ngram
lm --corpus shards:nowhere | nowhere/tokenizer.model cannot be read
lm --corpus books | choose docs, installed, text, shards:DIR or tfds:NAME
lm --corpus text | --corpus text without --train
lm --dev {{text}} | dev files go with --train
lm {TRAIN} --radius 500 | --radius 500: the longest document has 6 tokens
lm {TRAIN} --radius 0 | --radius 0: use at least 1
lm {TRAIN} --radius | --radius without a value
lm {TRAIN} --methods cold --optimizer chain | optimizer 'chain': optax has no plain optimiser
lm {TRAIN} --methods cold --optimizer adagrat | try adagrad, sgd, adam or rmsprop
lm {TRAIN} --methods cold --learning-rate inf | --learning-rate inf: use above 0
lm {TRAIN} --memory 0.001GB --tables dense | --memory 0.0GB: counting with tables of
lm {TRAIN} --methods context-mixing --memory 0.1GB | tokens takes about 0.6 GB and may have 0.1 GB
lm {TRAIN} --seed {LARGE} | use whole numbers below 2^63
lm --out gs://bucket/x {TRAIN} | give a path on this machine
lm {TRAIN} --methods ngram --radius 7 --features cat | --radius 7 with --methods ngram, which do not use it
lm {TRAIN} --methods bigram --features sum | --features sum with --methods bigram, which do not use it
lm {TRAIN} --methods cold --tables sparse --dry-run | --methods cold with sparse tables
lm {TRAIN} --vocab-size 100000 --dry-run | more than the text allows
lm {TRAIN} --methods context-mixing --history window:{LARGE} | in up to 9 digits
lm --train {{two}} | give more text
lm --train {{empty}} | holds no text
lm --train {{binary}} | is a binary file
lm --train {{latin}} | is not UTF-8 text
lm --train missing.txt | no such file: 'missing.txt'
lm --train 'missing*' | no file matches
lm --train {{text}} --dev {{text}} | is in train and in dev
lm {TRAIN} --vocab-size 100000 | more than the text allows
lm --train {{text}} --vocab-size 3 | too small for the characters
lm {TRAIN} --vocab-size 2 | holds no more than <pad> and <unk>
lm {TRAIN} --memory much | memory 'much': give a number and a unit
lm {TRAIN} --devices 0 | 0 devices requested
lm {TRAIN} --process-id 1 | --process-id 1 without --coordinator
lm {TRAIN} --coordinator nowhere --num-processes 2 --process-id 0 | give HOST:PORT
lm {TRAIN} --coordinator localhost:1234 --num-processes 2 --process-id 2 | --process-id 2 of 2 processes
lm --train missing.txt {SECOND} --methods explicit cold | --methods cold with --coordinator: use --methods unigram bigram
lm --split end | it splits the files of --train
lm --preset nothing | choose one of tiny, demo
lm {TRAIN} --methods nothing | invalid choice
lm {TRAIN} --radios 3 | --radius
lm --out {{tmp}} {TRAIN} | is not the folder of a run and holds
lm --out {{run}} {TRAIN} | already holds a run: add --resume
lm --out {{run}} --resume --vocab-size 7 | was run with vocab_size = None (now 7)
lm --out {{digits}} --resume | is a run of launch.digits
lm --out {{damaged}} --resume | config.json is damaged
lm --out {{cut}} --resume | results.json is damaged
lm --out '' {TRAIN} | give a path, such as runs/demo
sample --run {{run}} --top-p 0 | keep a probability in (0, 1]
sample --run {{run}} --radius 7 | has no model with radius 7: it has unigram_1
sample --run {{run}} --method warm | has no model with method warm
sample --run nowhere | nowhere: pass the folder of a run
sample --run {{tmp}} | no run at
sample --run {{text}} | is no model that can be read
next --run {{run}} --radius 0 | has no model with radius 0
feature-machine modular --train-share 1 | --train-share 1.0: use above 0 and below 1
feature-machine modular --kernel cubic | invalid choice 'cubic'
feature-machine tables --data | --data needs at least one table
digits --methods feature-machine --powers | --powers needs at least one value
score --run {{run}} --text missing.txt | no such file
score --run {{run}} --text {{text}} --max-perplexity 3 | --max-perplexity and --kept go together
score --run {{run}} --text {{text}} --max-perplexity 3 --kept {{text}} | is read by --text
runs {{tmp}} | no run in
lm --methods bigram --epochs 3 --out {{tmp}}/x | do not use it; methods that do: cold, warm
score --run {{run}} --text - - | --text - -: standard input can be read only once
score --run {{run}} --text {{text}} --id-field id | --id-field id without --field
score --run {{run}} --text {{pairs}} | name the one that holds the text
score --run {{run}} --text {{pairs}} --field text | line 1 has no field 'text': it has
score --run {{run}} --text {{pairs}} --field sentence_bad --id-field ids | has no field 'ids'
score --run {{run}} --text {{text}} --field body | is plain text, which has no field 'body'
explain --run {{run}} --text '  ' | give at least one word to explain
explain --run {{run}} --text 'the cat' --figure {{tmp}} | it is a folder; give the file to write
explain --run {{run}} --text 'the cat' --figure {{tmp}}/x.foo | give a name that ends in .png, .pdf or .svg
explain --run {{run}} --text 'the cat' --figure '' | give a path
explain --run {{run}} --text 'the cat' --html {{tmp}}/x.png | give a name that ends in .html
judge --run {{run}} --pairs {{empty}} | has no pair: give JSON lines
judge --run {{run}} --pairs {{text}} | is not JSON
judge --run {{run}} --pairs | name one or more files
judge --run {{run}} --pairs {{pairs}} --out {{run}} | choose another --out
compare --run {{run}} --text {{pairs}} | name the one that holds the text, --field NAME
compare --run {{run}} --text {{pairs}} --field story | story
classify --run {{run}} --images x.png | this command reads runs of
classify --run {{run}} --images | --images needs at least one file or folder
classify-text --train {{reviews}} --field text --label y --norm 1e300 | --norm 1e+300: use at least 1 and at most
classify-text --train {{reviews}} --field text --label y --text ' ' | --text ' ': give at least one word to classify
classify-text --train {{reviews}} --field body --label y | line 2 has no field 'body': it has 'text', 'y', 'one'
classify-text --train {{reviews}} --field text --label stars | line 2 has no field 'stars': it has 'text', 'y', 'one'
classify-text --train {{reviews}} --field text --label one | --label one: --train has 1 labels; give texts of two labels or more
classify-text --train {{reviews}} --field text --label y | fewer than 10 texts of every label: give more, or name --test
classify-text --train {{reviews}} --field text --label text --test {{pairs}} | line 1 has no field 'text'
classify-text --train {{pairs}} --field sentence_bad --label sentence_good --norm 0 | --norm 0.0: use at least 1
classify-text --train {{text}} --field text --label y | text.txt, line 1, is not JSON
classify-text --train {{empty}} --field text --label y | --train has 0 labels
classify-text --train {{blank}} --field text --label y | blank.csv, line 3: text or y is empty; fill it
networks mlp_ml | choose one of mlp-lm
networks mlp-lm --dev {{text}} | --dev and --test go together
networks mlp-lm --train {{two}} | use a text of 3 or more lines
networks fcnn --data nothing | name that of its files, --data-dir DIR
networks fcnn --data digits --data-dir {{tmp}} | with the data set digits, which is embedded
networks fcnn --data mnist --data-dir nowhere | nowhere
networks fcnn --preset nothing | choose one of tiny
networks autoencoder --anomaly 10 --limit 60 | the classes are 0 .. 9
networks compare colours | activations
networks sorting | sorting
icl one-step --dim 100000 | --dim 100000 --context 10 --batch-size 2048: tokens and weights take
icl one-step --context 100000000 | use smaller values
icl function-classes --transformer 10 2 3 | use a width that is a multiple of the heads
digits --methods | need at least one value each
digits --layers 9 | --layers 9: use at least 1 and at most 8
digits --data colour --data-dir {{colour}} | colour
digits --data digits --data-dir x | embedded
digits --preset nothing | mnist
digits --methods kernel --grid 9 | --grid 9 of images 8 pixels wide: use at most 8
digits --methods kernel --frequencies 500000 | 4 matrices of 1000000 x 1000000 numbers take 16,000 GB
blur train --unroll 1 2 --meta-steps 1 | give each flag one number per stage
blur train --rates | --rates: give at least one
blur train --states 0 | 0 states: neurons have at least 2
blur train --genome nowhere.json | nowhere.json
blur nothing | choose one of train, tasks
cache list --foo | --foo
cache nothing | choose one of list, clear
lm --field text | --field text without --train
lm --documents file | --documents file without --train
lm --train {{pairs}} --field text | line 1 has no field 'text'
lm --train {{pairs}} | name the one that holds the text
lm --tokenizer syllable | no tokenizer at syllable: choose bpe, word or char
lm --tokenizer {{text}} | no SentencePiece model
lm --train {{pairs}} --field id | field 'id' holds int '0', not text
export --run {{run}} --out {{run}} | has a config.json of a run or of another program: choose another folder
export --run {{run}} --out {{tmp}}/model.pt | give a folder, or a file name that ends in .safetensors
export --run {{run}} --out {{text}}/x.safetensors | cannot be written
shards --train missing.txt | no such file
lm {TRAIN} --methods optimum --radius 4 | --methods optimum with --radius 4
lm {TRAIN} --methods cold --optimizer lbfgs | optimizer 'lbfgs': optax has no plain optimiser
lm {TRAIN} --tables sparse --methods cold | --methods cold with sparse tables
lm {TRAIN} --history all | only --methods context-mixing reads
lm {TRAIN} --methods context-mixing --history window:3 | choose none, document, window:W
lm --train {{text}} --test {{text}} | is in train and in test: remove it from one
lm --train {{text}} --dev {{two}} --test {{two}} | is in dev and in test: remove it from one
lm --train {{text}} --test {{empty}} | holds no text
lm --train {{text}} --test {{two}} {SECOND} | give it to the finished run, --resume --test FILES
lm --train {{text}} --split dev-test --limit 50 | --limit with --split dev-test, which fits models again on dev
lm --train {{text}} --split dev-test --methods cold | --methods cold with --split dev-test
lm --train {{text}} --split dev-test --test {{two}} --memory 1GB | --test --memory with --split dev-test
judge --run {{run}} --pairs {{pairs}} --method warm | has no model with method warm
explain --run {{run}} --text 'the cat' --html {{tmp}}/x.html --figure {{tmp}}/x.png | leave one of them out
compare --run --text {{text}} | --run without a value
networks compare optimizers --rates | --rates needs at least one value
{TRANSFORMER} --heads 3 | --width 8 with --heads 3: the width is a multiple of the heads
{TRANSFORMER} --heads 8 | --positions rotary with 1 numbers in a head: give an even number
{TRANSFORMER} --warmup 6 | --warmup 6 of 6 steps: warm up for fewer
{TRANSFORMER} --start words | --start words: choose from none, embedding, induction, output, bigram, or join two by +
{TRANSFORMER} --start bigram+output --direct | join one of embedding, induction with one of output, bigram
{TRANSFORMER} --start none+output --no-tied | --start none+output: join one of
{TRANSFORMER} --start none bigram | --start bigram: add --direct
{TRANSFORMER} --start output | --start output: add --no-tied
{TRANSFORMER} --start induction --no-tied | --start induction: add --positions learned
{TRANSFORMER} --window 20000 | windows of 20000: give a longer text, or use shorter windows
{TRANSFORMER} --devices 3 | --batch-size 4 on 3 devices: give a multiple of 3
icl one-step --devices 99 | 99 devices requested, 8 available: use --devices 8 or fewer
icl task-diversity --dims | --dims without a value: leave the flag out, or give some, such as 2 5 10
icl task-diversity --dims 2000 | --dims 2000: task-diversity takes
icl noisy --noise-levels -1.0 | levels
icl multi-step --preset nothing | two-steps
icl --experiment copy softmax | --experiment: choose one of one-step
digits --methods kernel --octaves 3 | --octaves 3 of images 8 pixels wide: use at most 2
blur train --data mnist --data-dir nowhere | nowhere holds neither
blur train --batch-size 2000 | batches of 2000 out of
blur train --classes 3 | --classes 3: give at least two classes, each once
blur train --classes 3 10 | classes 3 10 of digits: use at least two of 0 .. 9, each once
blur train --networks 16xx | --networks 16xx: write the widths
blur train --data xor | --data xor: give --data xor and --families boolean together
blur train --data xor --families boolean --side 4 | --data xor with --side 4: it has four points and no images
blur train --families boolean | --data digits --families boolean: give --data xor and --families boolean together
blur train --families digits --limit 400 | examples: use at least one of each, and fewer than the examples
blur train --average | average with synapse_norm
blur tasks --tasks wine | tasks wine: choose some of mnist@7
blur tasks --tasks mnist@7 | leave them out, and name the other tasks: iris moons
bench --cases ngram-fit --sizes 10_000_000 | tokens have no two parts of this size; name more text (--train)
bench --train missing.txt | no such file: 'missing.txt'
"""
# what commands that read text share
SHARED = [line for line in LINES.splitlines() if re.match(r"lm --(field|documents|tokenizer|train {pairs})", line)]
LINES += "".join(f"{command}{line[2:]}\n" for command in ("shards", "networks mlp-lm") for line in SHARED)
CASES = [tuple(line.split(" | ")) for line in LINES.strip().splitlines()]
LATE = "--optimizer 20000 2000 400 wine".split()  # refused once data are read, where small functions are compiled
WITH_OUT = "lm networks icl digits blur bench shards judge feature-machine".split()  # into a new folder


def main(line: list[str]) -> int:
    """The exit status of a command line, run in this process."""
    try:
        return importlib.import_module(cli.COMMANDS[line[0]].module).main(line[1:])
    except SystemExit as end:  # tyro's, for flags that do not exist
        return int(end.code or 0)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Files and folders, good and bad, by name; one small run."""
    base = tmp_path_factory.mktemp("places")
    contents = {"text": "\n".join(TEXT).encode(), "two": b"ab\nef\n", "empty": b"", "binary": b"\0\1\2", "latin": b"caf\xe9\n"}
    for name, content in contents.items():
        (base / f"{name}.txt").write_bytes(content)
    found = {name: base / f"{name}.txt" for name in contents} | {"tmp": base / "tmp", "colour": base / "colour"}
    for folder in ("tmp", "colour"):
        (base / folder).mkdir()
    (base / "tmp" / "other.txt").write_text("a file of no run")
    for part in ("train", "t10k"):
        (base / "colour" / f"{part}-images-idx4-ubyte").write_bytes(idx_bytes(np.zeros((100, 8, 8, 3))))
        (base / "colour" / f"{part}-labels-idx1-ubyte").write_bytes(idx_bytes(np.arange(100) % 10))
    found["pairs"] = base / "pairs.jsonl"
    found["pairs"].write_text('{"sentence_good": "the cat sat", "sentence_bad": "cat the sat", "id": 0}')
    for name, lines in {"reviews": "text,y,one\nfine,5,1\ndull,1,1\n", "blank": "text,y\nfine,5\ndull,\n"}.items():
        found[name] = base / f"{name}.csv"
        found[name].write_text(lines)
    run = base / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JEXPLICIT_CACHE_DIR", str(base / "cache"))
        flags = "--tokenizer word --methods unigram --radius 1 --features cat --samples 0"
        assert main(["lm", "--train", str(found["text"]), "--out", str(run), *flags.split()]) == 0
    for name, file in (("cut", "results.json"), ("damaged", "config.json"), ("digits", "config.json")):
        path = shutil.copytree(run, base / name) / file
        path.write_bytes(path.read_bytes()[:-50])
        found[name] = base / name
    (base / "digits" / "config.json").write_text(
        json.dumps({**json.loads((run / "config.json").read_text()), "launcher": "digits"})
    )
    return {**found, "run": run, "cache": base / "cache"}


@pytest.fixture
def of_users(places, monkeypatch):
    """Wide lines, and no data."""
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setenv("JEXPLICIT_CACHE_DIR", str(places["cache"]))
    monkeypatch.delenv("JEXPLICIT_DATA_DIR", raising=False)


def test_bad_input_is_refused_in_one_line_with_the_remedy_before_anything_is_compiled(places, of_users, tmp_path, capfd):
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
        assert not programs or {*LATE} & {*arguments}, f"compiled before the refusal: {programs}"

    each_row(check, CASES)


def test_every_number_that_a_command_takes_has_bounds():
    free = {"top_p", "devices", "num_processes", "process_id", "radius"}  # which are checked where they are used
    for name in {line.split()[0] for line, _ in CASES} - {"icl", "blur"}:
        module = importlib.import_module(cli.COMMANDS[name].module)
        kinds = getattr(module, "COMMANDS", None) or {name: module}
        for flag in (flag for kind in kinds.values() for flag in flags(getattr(kind, "config", None) or kind.Config)):
            number = {"int", "float"} & set(re.findall(r"\w+", str(flag.hint)))
            assert not number or flag.name in free or list(find_bounds(flag.hint)), (name, flag.name)


def test_at_least_a_hundred_lines_over_all_commands():
    assert len(CASES) >= 100 and {line.split()[0] for line, _ in CASES} >= set(cli.COMMANDS) - {"beam", "harness"}


def test_unknown_characters_to_explain_and_to_continue_are_named(places, tmp_path, monkeypatch, capfd):
    figure = str(tmp_path / "x.png")
    for line in (["explain", "--text", "the zebra", "--figure", figure], ["next", "--prompt", "zebra"]):
        assert main([line[0], "--run", str(places["run"]), *line[1:]]) == 0
        assert "never seen ['zebra']" in " ".join(capfd.readouterr().err.split())
    assert main(["explain", "--run", str(places["run"]), "--text", str(places["text"]), "--figure", figure]) == 0
    assert f'to explain what is in it, give --text "$(cat {places["text"]})"' in " ".join(capfd.readouterr().err.split())


@pytest.mark.slow
def test_training_that_diverges_leaves_a_report_on_the_models_before(places, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("JEXPLICIT_CACHE_DIR", str(places["cache"]))
    out, training = tmp_path / "run", "--methods cold --optimizer sgd --learning-rate 3e38 --epochs 2 --batch-size 50"
    flags = f"--tokenizer word --features cat --radius 2 --samples 0 --out {out} {training}".split()
    assert main(["lm", "--train", str(places["text"]), *flags]) == 2
    assert "lower the learning rate" in " ".join(capfd.readouterr().err.split())
    assert "| unigram |" in (out / "report.md").read_text()


# Where the tests check types too, a function is called without those checks: `unwrap`.
STREAM = np.array([0, 1, 2, 1, 0])
ZEROS, NANS = (np.zeros((3, 3), np.int32),), (np.full((3, 3), np.nan),)
API = {
    "count of a list": (lambda: unwrap(check_stream)([0, 1, 0]), "pass an array"),
    "counts that are zero": (lambda: lm.explicit_language_model(ZEROS, features="cat"), "counts with a sum of 0"),
    "counts that are NaN": (lambda: unwrap(counted_radius)(NANS, None), "counts with a sum of nan"),
    "rows of zero counts": (lambda: offset_rows(ZEROS, features="cat"), "counts with a sum of 0"),
    "baseline of zero counts": (lambda: unigram_model(ZEROS), "counts with a sum of 0"),
    "no counts": (lambda: lm.explicit_language_model((), features="cat", radius=None), "no counts: count a text first"),
    "radius 0": (
        lambda: lm.explicit_language_model(jexplicit.count(STREAM, radius=1, vocab_size=3), features="cat", radius=0),
        "use a radius of at least 1",
    ),
    "an int as key": (lambda: random_directions(0, 3, 4), r"random key 0: pass jax.random.key\(0\)"),
    "an infinite temperature": (
        lambda: jexplicit.generate(
            jax.random.key(0),
            unigram_model(jexplicit.count(STREAM, radius=1, vocab_size=3)),
            np.array([1]),
            3,
            temperature=np.inf,
        ),
        "temperature inf: use 0",
    ),
    "images of side 0": (lambda: image_sets(jexplicit.data.read_images("digits"), side=0), "to a side of 0"),
    "an optimiser that is none": (
        lambda: lm.fit_model("optimum", lm.TrainingText(STREAM, 3), lm.Options(radius=3)),
        "optimum with radius 3: only K = 1",
    ),
}


def test_bad_arguments_are_refused_in_words_of_the_api():
    refuse(((message, call) for call, message in API.values()), of_values=True)


def test_errors_of_the_library_speak_no_flags():
    """Except jexplicit.runs and launch.kit, the infrastructure of commands."""
    root, found = Path(jexplicit.__file__).parents[1], []
    for path in [*root.glob("jexplicit/**/*.py"), *root.glob("icl/**/*.py")]:
        name = path.relative_to(root).as_posix()
        if name.startswith(("jexplicit/runs/", "launch/kit/")):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and re.search(r"[ (']--[a-z]", ast.unparse(node)):
                found.append(f"{name}:{node.lineno}")
    assert not found
