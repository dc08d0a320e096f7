"""Remedies that messages give: each is done, and its result is read."""

import io
import json
import re

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from PIL import Image

import jexplicit
from jexplicit import solvers
from jexplicit.data.images import read_png
from jexplicit.runs.checks import key_of_seed
from jexplicit.runs.progress import json_line

TEXTS = ["the cat sat on the mat", "a dog ran to the log"] * 10


def refusal(call, *args, **options):
    with pytest.raises(ValueError) as caught:
        call(*args, **options)
    return str(caught.value)


def transparent_stroke():
    image = np.zeros((8, 8, 4), np.uint8)  # black everywhere, and seen in the middle alone
    image[2:6, 3:5, 3] = 255
    return Image.fromarray(image)


@pytest.mark.parametrize(
    ("image", "levels"),
    [
        (transparent_stroke(), [0, 255]),
        (Image.fromarray(np.tile(np.array([10, 20, 30], np.uint8), (4, 4, 1))), [18]),
        (transparent_stroke().convert("LA"), [0, 255]),
    ],
)
def test_an_image_of_another_mode_is_read_after_the_conversion_of_the_message(tmp_path, image, levels):
    file, new_file = tmp_path / "a.png", tmp_path / "b.png"
    image.save(file)
    before = file.read_bytes()
    told = refusal(read_png, file).partition("with Pillow: ")[2]
    exec(told, {"Image": Image, "file": file, "new_file": new_file})
    assert np.unique(read_png(new_file)).tolist() == levels
    assert file.read_bytes() == before


def test_grey_with_a_transparent_level_is_refused(tmp_path):
    Image.fromarray(np.arange(16, dtype=np.uint8).reshape(4, 4)).save(tmp_path / "a.png", transparency=3)
    assert "with transparency" in refusal(read_png, tmp_path / "a.png")


@pytest.mark.parametrize(
    "name", ["lm.safetensors", *(pytest.param(n, marks=pytest.mark.slow) for n in ("lm.arpa", "lm.arpa.gz"))]
)
def test_a_model_is_read_from_the_file_that_save_wrote(tmp_path, name):
    model = jexplicit.fit(TEXTS, "ngram", tokenizer="word")
    model.save(tmp_path / name)
    again = jexplicit.load_model(tmp_path / name)
    assert again.perplexity(TEXTS) == pytest.approx(model.perplexity(TEXTS), rel=1e-4)  # ARPA has seven digits
    told = refusal(model.save, tmp_path / "lm.pt")
    assert name.partition(".")[2] in told and not (tmp_path / "lm.pt").exists()


@pytest.mark.parametrize("make", [dict, lambda table: pytest.importorskip("pandas").DataFrame(table)])
def test_a_table_is_refused_with_the_column_that_can_be_fitted(make):
    table = make({"id": [*range(len(TEXTS))], "text": TEXTS})
    told = refusal(jexplicit.fit, table, "bigram", tokenizer="word")
    [column] = re.findall(r"table\['(.*)'\]", told)
    assert jexplicit.fit(table[column], "bigram", tokenizer="word").tokenizer.vocab_size == 12


def test_a_set_of_texts_is_refused():
    assert "sorted(texts)" in refusal(jexplicit.fit, set(TEXTS), "bigram")
    jexplicit.fit(sorted(set(TEXTS)), "bigram", tokenizer="word")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_every_name_can_be_printed_as_json(monkeypatch, encoding):
    out = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr("sys.stdout", out)
    name = "caf\N{LATIN SMALL LETTER E WITH ACUTE} b\ud83d"
    print(json_line({"id": name}), file=out, flush=True)
    assert json.loads(out.buffer.getvalue().decode(encoding)) == {"id": name}


def test_a_seed_that_no_random_key_has_is_refused():
    model = jexplicit.fit(TEXTS, "bigram", tokenizer="word")
    for seed in (2**63, -1):
        assert f"seed {seed}: use a whole number from 0 to 2^63 - 1" in refusal(model.generate, "the", 2, seed=seed)
    assert "seed -1: use a whole number" in refusal(jexplicit.fit, TEXTS, "context-mixing", seed=-1)
    assert model.generate("the", 2, seed=2**63 - 1)


def test_every_seed_has_a_key_of_its_own():
    seeds = [0, 1, 5, 2**31, 2**32 - 1, 2**32, 2**32 + 5, 2**40, 2**62 + 5, 2**63 - 1]
    keys = [tuple(jax.random.key_data(key_of_seed(seed)).tolist()) for seed in seeds]
    assert len(set(keys)) == len(seeds)
    assert keys[:5] == [tuple(jax.random.key_data(jax.random.key(seed)).tolist()) for seed in seeds[:5]]
    assert key_of_seed(np.int64(5)) == key_of_seed(5) == key_of_seed(jax.random.key(5)) == jax.jit(key_of_seed)(np.uint32(5))


def test_an_animation_is_refused_and_the_orientation_of_a_photograph_is_followed(tmp_path):
    frames = [Image.fromarray(np.full((4, 4), level, np.uint8)) for level in (1, 2)]
    frames[0].save(tmp_path / "a.png", save_all=True, append_images=frames[1:])
    assert "has 2 frames" in refusal(read_png, tmp_path / "a.png")
    exif = Image.Exif()
    exif[274] = 6  # to be turned by a quarter clockwise
    stored = np.arange(6, dtype=np.uint8).reshape(2, 3)
    Image.fromarray(stored).save(tmp_path / "b.png", exif=exif)
    np.testing.assert_array_equal(read_png(tmp_path / "b.png"), np.rot90(stored, -1))


@pytest.mark.slow
def test_features_without_a_factor_are_fitted_as_the_message_says():
    identity = jax.tree_util.Partial(lambda X: X)
    targets = jnp.eye(2, dtype="f4")[jnp.arange(20) % 2]
    plain = jnp.asarray(np.random.default_rng(0).random((20, 3)), "f4")

    def least_squares(X):
        return solvers.gram_least_squares(solvers.gram_matrix(solvers.split_examples(X, targets), identity))

    for X in (plain + 1e6, plain * 1e-30):
        assert "standardise" in refusal(least_squares, X)
        wide = np.asarray(X, np.float64)
        assert np.isfinite(least_squares(jnp.asarray((wide - wide.mean(axis=0)) / wide.std(axis=0), "f4")).U).all()


def test_targets_and_labels_are_read_after_what_the_messages_say(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as in a user's program
    logits = jnp.array([[1.0, 0.0], [0.0, 2.0]])
    for measure in (solvers.accuracy, solvers.mean_loss):
        assert "divide each row" in refusal(measure, logits, 3 * jnp.eye(2))
        assert measure(logits, jnp.eye(2)) == measure(logits, jnp.array([0, 1]))


@pytest.mark.slow
def test_layers_are_solved_after_unit_rows():
    H = Y = jnp.eye(2)[jnp.arange(12) % 2]
    layers = [solvers.SoftmaxLayer()] * 2
    assert "unit_rows" in refusal(jexplicit.solve_layers, H, Y, layers)
    solved = jexplicit.solve_layers(jexplicit.features.unit_rows(H), Y, layers)
    logits = solvers.stack_logits(solved.params, jexplicit.features.unit_rows(H))
    assert solvers.accuracy(logits, Y.argmax(axis=1)) == 1


def test_a_document_is_begun_as_the_message_says():
    model = jexplicit.fit(TEXTS, "bigram", tokenizer="word").model
    assert "[[]]" in refusal(jexplicit.generate, jax.random.key(0), model, [], 2)
    assert jexplicit.generate(jax.random.key(0), model, [[]], 2).shape == (1, 2)
