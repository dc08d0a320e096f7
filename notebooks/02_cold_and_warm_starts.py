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
# # Cold and warm starts
#
# How far is the explicit solution from what optimisation reaches? The same single-layer model is trained by Adagrad from random
# tables (*cold*) and from the explicit solution (*warm*). The problem is convex, and sweeps without a learning rate go to its
# optimum.

# %%
import glob, runpy, sys

sys.path += ["..", "../..", *sorted(glob.glob("jexplicit-*-any.whl"))[-1:]]
# If this fails: open this notebook in a clone of its repository, or put the wheel of `make dist` beside it (Colab: upload it)
_ = runpy.run_module("jexplicit.notebook", run_name="__main__")

# %%
import os

import matplotlib.pyplot as plt

import jexplicit as jx
from jexplicit.data.corpus.docstrings import docs_corpus
from jexplicit.lm.fits.gradient import kkt_residual

TINY = bool(os.environ.get("TINY"))  # seconds instead of minutes

# %%
corpus = docs_corpus(keep=True)
documents, held_out = (corpus.train[:100], corpus.dev[:20]) if TINY else (corpus.train[:2000], corpus.dev[:200])
tokenizer = jx.data.train_tokenizer(documents, vocab_size=300 if TINY else 1026)
train, dev = (jx.data.encode_documents(tokenizer, part) for part in (documents, held_out))
N, K = tokenizer.vocab_size, 2
X, Y = jx.contexts(train, K)
print(f"{len(Y):,} positions, {N:,} tokens, {K * N * N:,} parameters")

# %% [markdown]
# ## The two starts
#
# The layer reads noisy embeddings, $\tilde U = E U$ with $E$ diagonal plus rank one, so the gradient with respect to $U$ is
# $E^\top H^\top (P - Y)$, where $P$ are the predicted probabilities. It is computed exactly, from gathered rows. Training keeps
# the epoch with the lowest dev loss.

# %%
text, events = jx.lm.TrainingText(train, N), []
watch = jx.lm.Watch(dev=dev, log=lambda **event: events.append(event))
epochs, sweeps = (3, 5) if TINY else (16, 60)
steps = {"batch_size": 1024, "epochs": epochs, "learning_rate": 0.1, "patience": 3}  # ten times the paper's rate: steps are few
options = jx.lm.Options(features="cat", radius=K, discount=0.0, sweeps=sweeps, **steps)
models = {"explicit": jx.lm.fit_model("explicit", text, options).model}
for start in ("cold", "warm"):
    models[start], info = jx.lm.fit_model(start, text, options, watch)
    print(f"{start}: of {info['epochs']} epochs, epoch {info['best_epoch']} has the lowest dev loss")

# %%
plt.figure(figsize=(5, 3.6))
for start, line in (("cold", "--"), ("warm", "-")):
    entries = [event for event in events if event["event"] == "epoch" and event["method"] == start]
    x = [max(entry["epoch"], 0.5) for entry in entries]
    for part, colour in (("train", "C1"), ("dev", "C0")):
        y = [entry[f"{part}_perplexity"] for entry in entries]
        plt.loglog(x, y, line, color=colour, marker=".", label=f"{start}, {part}")
plt.xlabel("epoch (before training at 0.5)")
plt.ylabel("perplexity")
plt.legend(loc="upper left", bbox_to_anchor=(1, 1))
plt.show()

# %% [markdown]
# ## How near is near-optimal?
#
# The loss is convex in $U$, and its gradient vanishes at the optimum. The residual is $\|H^\top (Y - P)\|_1 / (K M)$, for $M$
# predictions: half of it is the share of co-occurrences that a model misplaces. A sweep of iterative scaling,
# $U \leftarrow U + \log(F / H^\top P) / K$, never raises the training loss, and the sweeps here begin at the explicit solution.
# On new text they make it *worse*, and a cold start that is stopped where its dev loss is lowest is better than both: what the
# explicit solution lacks is not a lower training loss, but generalisation.

# %%
models["sweeps"] = jx.lm.fit_model("iterative-scaling", text, options).model
for name, model in models.items():
    train_perplexity, dev_perplexity = (jx.evaluate(model, stream).perplexity for stream in (train, dev))
    residual = kkt_residual(model, X, Y, mesh=text.mesh)
    print(f"{name:>8}: train {train_perplexity:7.1f}, dev {dev_perplexity:7.1f}, residual {residual:.3f}")

# %% [markdown]
# Next: the same for $K$ = 1, 2 and 4 in one command, with curves against epochs and against seconds:
# `jexplicit lm --preset starts --out runs/starts`.
