# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Counted, not trained: a language model of characters
#
# How far do counts go where small transformers are usually trained? A mixture of counted rows, with hundreds of exponents
# from a convex problem and no backpropagation, reaches 1.408 nats per character on the Shakespeare of nanoGPT, in windows
# like those in which nanoGPT has 1.4697, and less where it always sees the last 256 characters. Its tables are larger than
# nanoGPT's weights, and its rows were developed on that text (see the page *Counted, not trained* of the documentation). This
# notebook builds such a model, row by row, on an embedded text.

# %%
import glob, runpy, sys

sys.path += ["..", "../..", *sorted(glob.glob("jexplicit-*-any.whl"))[-1:]]
# If this fails: open this notebook in a clone of its repository, or put the wheel of `make dist` beside it (Colab: upload it)
_ = runpy.run_module("jexplicit.notebook", run_name="__main__")

# %%
import os

import jax
import matplotlib.pyplot as plt
import numpy as np

import jexplicit as jx
from jexplicit.data.corpus.docstrings import docs_corpus
from jexplicit.lm.rows.views import view_contexts
from jexplicit.lm.rows.words import letters_of, word_view

TINY = bool(os.environ.get("TINY"))  # seconds instead of minutes

corpus = docs_corpus(keep=True)
documents, dev_documents = (corpus.train[:20], corpus.dev[:2]) if TINY else (corpus.train[:1200], corpus.dev[:120])
tokenizer = jx.train_tokenizer(documents, kind="char")
train, dev = (jx.encode_documents(tokenizer, part) for part in (documents, dev_documents))
text = jx.TrainingText(train, tokenizer.vocab_size, letters=letters_of(tokenizer))
positions = 300 if TINY else 20_000
print(f"{np.count_nonzero(train):,} train and {np.count_nonzero(dev):,} dev characters, {tokenizer.vocab_size} different ones")


def nats(rows, history="none"):
    """Dev loss of a mixture, nats per character, and its fitted numbers."""
    options = jx.Options(rows=rows, history=history, calibration_positions=positions)
    model, info = jx.fit_model("mixture", text, options)
    return model, jx.evaluate(model, dev).loss, info["scalars"]


# %% [markdown]
# ## The rows, one kind after the other
#
# $$\mathrm{logits}(x) = \sum_g a_g r_g(x), \qquad r_g[i] = \log (P(i | h_g) / (\gamma(h_g) P(i | h_g')))$$
#
# A row $r_g$ says what a context $h_g$ adds to the shorter one $h_g'$ that it backs off to with the weight $\gamma$. With
# exponents of 1 on the contexts of 1 to 8 characters this is a Kneser-Ney model. The exponents $a_g$ are fitted on text that
# was held out of the counts. Each line adds one kind of row to those above:

# %%
ladder = {"Kneser-Ney 5-gram": (jx.evaluate(jx.fit_model("ngram", text).model, dev).loss, 0)}
kinds = ("contexts-8", "words") if TINY else ("contexts-8", "confidence", "skips", "words", "word-classes")
rows = ()
for kind in kinds:
    rows = (*rows, kind)
    model, loss, scalars = nats(rows)
    ladder[f"+ {kind}" if len(rows) > 1 else kind] = (loss, scalars)
for name, (loss, scalars) in ladder.items():
    print(f"{name:20} {loss:.4f} nats per character, {scalars} fitted numbers")

# %% [markdown]
# ## The recent past
#
# What followed the same few characters a moment ago is likely to follow them again. With the history `window:256` a prediction
# sees the last 256 characters, too.

# %%
model, loss, scalars = nats(rows, history="window:256")
ladder["+ window:256"] = (loss, scalars)
plt.figure(figsize=(7, 3))
names, losses = list(ladder), [loss for loss, _ in ladder.values()]
plt.plot(losses, names, "o")
for name, loss in zip(names, losses):
    plt.text(loss, name, f"  {loss:.3f}", va="center")
plt.margins(x=0.15)
plt.grid(axis="y", alpha=0.4)
plt.gca().invert_yaxis()
plt.xlabel("dev loss (nats per character)")
plt.show()

# %% [markdown]
# ## What a context says of words
#
# A word is a run of letters. Every context is read as four numbers: one for what stands since the end of the last word, one for
# the part of the current word, and one for each of the two words before. Equal numbers mean equal strings: these two contexts
# differ in one word, and in one number.

# %%
view = word_view(train, letters_of(tokenizer))
for prompt in ("the number of it", "the length of it"):
    x = np.zeros((1, view.radius), np.int32)
    ids = tokenizer.encode(prompt)[::-1]
    x[0, : len(ids)] = ids
    print(f"{prompt!r:20}", dict(zip(("since", "part", "before", "before that"), view_contexts(view, x)[0].tolist())))

# %% [markdown]
# ## Text
#
# The recent past is part of the state of a generation, so these rows work there, too.

# %%
prompt = "Return the "
print(prompt + jx.generate_text(jax.random.key(0), model, tokenizer, prompt, 60 if TINY else 300, temperature=0.7).rstrip())

# %% [markdown]
# ## Subwords, and what each kind of row buys
#
# With words or subwords a context is seldom seen twice. The rows `classes` therefore also cluster the tokens by what stands
# beside them: they count contexts of classes, and the class of the next token. With `history="all"` a prediction sees the whole
# text before it, too.

# %%
from jexplicit.lm.core.names import CLASS_ROWS
from jexplicit.lm.fits.mixtures.ablation import kind_name
from jexplicit.lm.training_text import Watch

subwords = jx.train_tokenizer(documents, vocab_size=200 if TINY else 2000)
train, dev = (jx.encode_documents(subwords, part) for part in (documents, dev_documents))
text = jx.TrainingText(train, subwords.vocab_size)
class_rows = ("contexts-4", "classes") if TINY else CLASS_ROWS
five_gram = jx.evaluate(jx.fit_model("ngram", text).model, dev).perplexity
print(f"Kneser-Ney 5-gram: dev perplexity {five_gram:.1f}")


def without_kinds(history):
    """Held-out perplexity of a mixture without each kind of its rows; None for nothing left out."""
    found, options = {}, jx.Options(rows=class_rows, history=history, calibration_positions=300 if TINY else 15_000)

    def log(event, held_out_perplexity, without=None, **more):
        if event == "ablation":
            found[without] = held_out_perplexity

    model, info = jx.fit_model("mixture", text, options, Watch(log=log))
    perplexity = jx.evaluate(model, dev).perplexity
    print(f"mixture, history {history}: dev perplexity {perplexity:.1f}, {info['scalars']} fitted numbers")
    return found


left_out = {history: without_kinds(history) for history in ("none", "all")}

# %% [markdown]
# Which rows does the mixture need? Each kind is left out once, and the exponents of the others are fitted anew. All numbers are
# perplexities on the same positions of held-out text. Kinds that say the same can stand in for each other, so a small increase
# does not mean that a kind alone is worth little.

# %%
print(f"{'left out':38}" + "".join(f"{f'history {history}':>20}" for history in left_out))
for kind in left_out["all"]:
    cells = []
    for found in left_out.values():
        more = f" ({found[kind] / found[None] - 1:+.1%})" if kind and kind in found else ""
        cells.append(f"{found[kind]:.2f}{more}" if kind in found else "")
    print(f"{kind_name(kind) if kind else 'nothing':38}" + "".join(f"{cell:>20}" for cell in cells))

# %% [markdown]
# Next: on a text of yours, by characters: `jexplicit lm --preset shakespeare --train input.txt --out runs/mine`. In one call
# from Python, by subwords: `jx.fit(texts)`.
