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
# Training may begin with what counting knows. This notebook trains one small transformer on characters from four places: random
# weights; a table of bigrams; two layers that are constructed to copy (induction heads); and over a counted mixture, whose
# log-probabilities are added to its logits. Then a trained network becomes one more row of the mixture.

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
from jexplicit.lm.rows.network import network_model
from jexplicit.nn.networks import init_variables
from jexplicit.nn.residual import Residual
from jexplicit.nn.sequences import sequence_loss, sequence_optimizer, stream_log_probabilities, window_batch, window_order
from jexplicit.nn.starts import bigram_start, induction_start
from jexplicit.nn.steps import initial_state, training_step, variables_of
from jexplicit.nn.transformer import Transformer

TINY = bool(os.environ.get("TINY"))  # seconds instead of minutes

corpus = docs_corpus(keep=True)
documents, dev_documents = (corpus.train[:10], corpus.dev[:1]) if TINY else (corpus.train[:200], corpus.dev[:10])
tokenizer = jx.train_tokenizer(documents, kind="char")
train, dev = (jx.encode_documents(tokenizer, part) for part in (documents, dev_documents))
N, window, batch_size, steps = tokenizer.vocab_size, 64, 4 if TINY else 16, 4 if TINY else 600
print(f"{np.count_nonzero(train):,} train and {np.count_nonzero(dev):,} dev characters, {N} different ones")

# %% [markdown]
# ## A counted base
#
# Over a base, the network's logits are what is missing:
#
# $$z_t = a \,\log p_{\mathrm{counted}}(\cdot\,|\,w_{\le t}) + \mathrm{network}(w_{\le t})$$
#
# The base of the training text must not have counted what it predicts, or the network learns to trust a base that knows the
# answers. `cross_fit` leaves out one fold of the text after the other:

# %%
options = jx.Options(rows=("contexts-8",), calibration_positions=500 if TINY else 10_000)
crossed = jx.cross_fit(jx.TrainingText(train, N), options, folds=2 if TINY else 4)


def of_all_places(log_p, length, at_once=1 << 14):
    """log p of all tokens at every place of a text, [L, N]."""
    out = np.zeros((length, N), np.float16)
    for first in range(1, length, at_once):
        places = np.arange(first, min(first + at_once, length))
        out[places] = log_p(places)
    return out


base = of_all_places(crossed.base_at, len(train))
dev_base = of_all_places(lambda places: jx.base_at(crossed.whole, dev, places), len(dev))
counted = jx.evaluate(crossed.whole, dev).loss
print(f"the mixture alone: {counted:.3f} nats per character")

# %% [markdown]
# ## One network, four starts
#
# All networks have the same weights: two layers, learned positions, output weights of their own, and a table of logits by the
# last character, which is 0 but for the start from bigrams.

# %%
network = Transformer(vocab_size=N, width=64, layers=2, heads=2, window=window, positions="learned", tied=False, direct=True)
tokens = np.zeros((1, window), np.int32)
random = init_variables(network, jax.random.key(0), tokens)
(bigram,) = jx.fit_model("bigram", jx.TrainingText(train, N)).model.tables
residual = Residual(network=network)
starts = {
    "random weights": (network, random, None, None),
    "bigrams": (network, bigram_start(random, np.asarray(bigram)), None, None),
    "induction heads": (network, induction_start(network, random), None, None),
    "over the mixture": (
        residual,
        init_variables(residual, jax.random.key(0), (tokens, np.zeros((1, window, N), np.float32))),
        base.__getitem__,
        dev_base.__getitem__,
    ),
}


def dev_loss(model, variables, of_dev):
    """Mean loss in windows side by side, nats per character."""
    log_p = stream_log_probabilities(model, variables, dev, window=window, stride=window, base=of_dev)
    return -float(log_p[dev[1:] != 0].mean())


def trained(model, variables, of_train, of_dev):
    """Variables after training, and dev losses by step."""
    optimizer = sequence_optimizer(2e-3, steps, warmup=max(1, steps // 20), decay=0.1)
    state, step = initial_state(variables, optimizer), training_step(model, sequence_loss(False), optimizer)
    batch = window_batch(train, window, base=of_train)
    order = window_order(len(train), window, steps * batch_size)(0, 1).reshape(steps, batch_size)
    losses = {}
    for n, windows in enumerate(order):
        if n % max(1, steps // 10) == 0:
            losses[n] = dev_loss(model, variables_of(state), of_dev)
        state, _ = step(state, batch(windows))
    losses[steps] = dev_loss(model, variables_of(state), of_dev)
    return variables_of(state), losses


ends, curves = {}, {}
for name, start in starts.items():
    ends[name], curves[name] = trained(*start)
    first, *_, last = curves[name].values()
    print(f"{name:17} {first:.3f} before training, {last:.3f} after {steps} steps")

# %%
plt.figure(figsize=(7, 4))
for name, losses in curves.items():
    plt.plot(list(losses), list(losses.values()), label=name)
plt.axhline(counted, color="grey", linestyle="--", label="the mixture alone")
plt.xlabel("step")
plt.ylabel("dev loss (nats per character)")
plt.legend()
plt.show()

# %% [markdown]
# Of the networks without a mixture, the one with the table of bigrams is the best before the first step, and the worst after
# some three hundred: what is easy to learn is there already, and its gradient with it. The constructed heads are ahead of
# random weights from the start: the first shows each position the character before, which random weights need long to find, and
# the second copies (the documentation has a control: on characters the first is what counts). Over the mixture there is little
# left to learn.
#
# ## Beside the counts
#
# A network that was trained alone is one more row of the mixture. The weights of both are fitted on the first half of the dev
# text, and measured on the second:

# %%
alone = network_model(network, jax.tree.map(np.asarray, ends["induction heads"]), eos=False)
half = (len(dev) - 1) // 2
mixed = jx.beside(crossed.whole, alone, dev, part=slice(0, half))
for name, model in (("the mixture", crossed.whole), ("the network", alone), ("both", mixed)):
    print(f"{name:12} {-jx.score(model, dev)[half:].mean():.3f} nats per character")
