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
# # Trained where counting ends
#
# Training may begin with what counting knows. This notebook trains one small transformer on characters from three places:
# random weights, a table of bigrams, and two layers that are constructed to copy (induction heads). A counted model of the
# same text says how far counting alone gets.

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
from jexplicit.nn.networks import init_variables
from jexplicit.nn.sequences import sequence_loss, sequence_optimizer, stream_log_probabilities, window_batch, window_order
from jexplicit.nn.starts import bigram_start, induction_start
from jexplicit.nn.steps import initial_state, training_step, variables_of
from jexplicit.nn.transformer import Transformer

TINY = bool(os.environ.get("TINY"))  # seconds instead of minutes

corpus = docs_corpus(keep=True)
documents, dev_documents = (corpus.train[:10], corpus.dev[:1]) if TINY else (corpus.train[:200], corpus.dev[:10])
tokenizer = jx.data.train_tokenizer(documents, kind="char")
train, dev = (jx.data.encode_documents(tokenizer, part) for part in (documents, dev_documents))
N, window, batch_size, steps = tokenizer.vocab_size, 64, 4 if TINY else 16, 4 if TINY else 600
print(f"{np.count_nonzero(train):,} train and {np.count_nonzero(dev):,} dev characters, {N} different ones")

# %% [markdown]
# ## Counted
#
# Context mixing: counts of contexts of characters, parts of words and lines, weighed by Newton's method.

# %%
counted = jx.evaluate(jx.fit(documents, tokenizer=tokenizer, history="none").model, dev).loss
print(f"context mixing: {counted:.3f} nats per character")

# %% [markdown]
# ## One network, three starts
#
# All networks have the same weights: two layers, learned positions, output weights of their own, and a table of logits by the
# last character, which is 0 but for the start from bigrams.

# %%
network = Transformer(vocab_size=N, width=64, layers=2, heads=2, window=window, positions="learned", tied=False, direct=True)
tokens = np.zeros((1, window), np.int32)
random = init_variables(network, jax.random.key(0), tokens)
(bigram,) = jx.lm.fit_model("bigram", jx.lm.TrainingText(train, N)).model.tables
starts = {
    "random weights": random,
    "bigrams": bigram_start(random, np.asarray(bigram)),
    "induction heads": induction_start(network, random),
}


def dev_loss(variables):
    """Mean loss in windows side by side, nats per character."""
    log_p = stream_log_probabilities(network, variables, dev, window=window, stride=window)
    return -float(log_p[dev[1:] != 0].mean())


def losses_of(variables):
    """Dev losses by step, from these variables on."""
    optimizer = sequence_optimizer(2e-3, steps, warmup=max(1, steps // 20), decay=0.1)
    state, step = initial_state(variables, optimizer), training_step(network, sequence_loss(False), optimizer)
    batch = window_batch(train, window)
    order = window_order(len(train), window, steps * batch_size)(0, 1).reshape(steps, batch_size)
    losses = {}
    for n, windows in enumerate(order):
        if n % max(1, steps // 10) == 0:
            losses[n] = dev_loss(variables_of(state))
        state, _ = step(state, batch(windows))
    losses[steps] = dev_loss(variables_of(state))
    return losses


curves = {}
for name, variables in starts.items():
    curves[name] = losses_of(variables)
    first, *_, last = curves[name].values()
    print(f"{name:17} {first:.3f} before training, {last:.3f} after {steps} steps")

# %%
plt.figure(figsize=(7, 4))
for name, losses in curves.items():
    plt.plot(list(losses), list(losses.values()), label=name)
plt.axhline(counted, color="grey", linestyle="--", label="context mixing")
plt.xlabel("step")
plt.ylabel("dev loss (nats per character)")
plt.legend()
plt.show()

# %% [markdown]
# The network with the table of bigrams is the best before the first step, and the worst after some three hundred: what is easy
# to learn is there already, and its gradient with it. The constructed heads are ahead of random weights from the start: the
# first shows each position the character before, which random weights need long to find, and the second copies (the
# documentation has a control: on characters the first is what counts). The counted model is ahead of all of them.
