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
# # A neural language model
#
# The explicit solution competes with networks that are trained by gradients: embeddings of $K$ tokens, a hidden layer and a
# softmax (Bengio et al. 2003). This notebook trains one.

# %%
import glob, runpy, sys

sys.path += ["..", "../..", *sorted(glob.glob("jexplicit-*-any.whl"))[-1:]]
# If this fails: open this notebook in a clone of its repository, or put the wheel of `make dist` beside it (Colab: upload it)
_ = runpy.run_module("jexplicit.notebook", run_name="__main__")

# %%
import os
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np

import jexplicit as jx
from jexplicit.data.corpora import split_in_three
from jexplicit.data.corpus.docstrings import docs_corpus
from jexplicit.data.text import read_documents
from jexplicit.nn.diagnostics import hockey_stick
from jexplicit.nn.networks import MLPLanguageModel, init_variables
from jexplicit.nn.optimizers import make_optimizer, make_schedule
from jexplicit.nn.parts.objectives import objective
from jexplicit.nn.steps import initial_state, scorer, training_step, variables_of
from jexplicit.nn.training import train

TINY = bool(os.environ.get("TINY"))  # seconds instead of a minute

# %% [markdown]
# The text is the words of Python's documentation, read as characters. Where the environment variable `JEXPLICIT_DATA_DIR` names
# a folder with `names/names.txt`, it is these names. Each line is a document, and its end is predicted, too.

# %%
names = Path(os.environ.get("JEXPLICIT_DATA_DIR", "nowhere"), "names", "names.txt")
if names.is_file() and not TINY:
    lines = read_documents(str(names))
else:
    lines = sorted({word for text in docs_corpus(keep=True).train[:400] for word in text.split() if word.isalpha()})
train_lines, dev_lines, test_lines = split_in_three(lines[:2000] if TINY else lines)
tokenizer = jx.data.train_tokenizer(train_lines, kind="char")
parts = train_lines, dev_lines, test_lines
train_stream, dev_stream, test_stream = (jx.data.encode_documents(tokenizer, part) for part in parts)
K, N = 3, tokenizer.vocab_size
(X, Y), dev = ([part.astype(np.int32) for part in jx.contexts(stream, K, eos=True)] for stream in (train_stream, dev_stream))
print(f"{len(lines):,} lines, {N} tokens, {len(Y):,} training positions; log N = {np.log(N):.3f} nats")

# %% [markdown]
# ## Initialisation
#
# With a small last layer the loss starts at $\log N$, that of a uniform guess over $N$ tokens. With a large one it starts far
# above, and the loss curve looks like a hockey stick: the first steps only undo the initialisation.

# %%
goal, key = objective("softmax_cross_entropy"), jax.random.key(0)
for scale in (0.1, 10.0):
    model = MLPLanguageModel(vocab_size=N, embedding=10, hidden=(200,), output_scale=scale)
    variables = init_variables(model, key, X[:2])
    first = scorer(model, goal)(variables, *dev).loss
    stick = hockey_stick(first, N)
    print(f"scale {scale}: first loss {first:.2f}, {stick.excess:.2f} above log N; hockey stick: {stick.detected}")
model = MLPLanguageModel(vocab_size=N, embedding=10, hidden=(200,))

# %% [markdown]
# ## Trained, beside models that are counted
#
# `jx.lm.network_model` makes a language model of a trained network, and all functions for language models work on it.

# %%
text = jx.lm.TrainingText(train_stream, N, eos=True)
epochs, score, batch_size = 2 if TINY else 10, scorer(model, goal), 256
optimizer = make_optimizer("adam", make_schedule("cosine", 5e-3, epochs * -(-len(Y) // batch_size)))
done = train(
    initial_state(init_variables(model, key, X[:2]), optimizer),
    training_step(model, goal, optimizer),
    lambda drawn: (X[drawn], Y[drawn]),
    lambda variables: score(variables, *dev).loss,
    params=variables_of,
    size=len(Y),
    batch_size=batch_size,
    epochs=epochs,
)
curve, network = [entry["dev_loss"] for entry in done.history], jx.lm.network_model(model, done.params, context=K)
print(f"network: dev {min(curve):.4f}, test {jx.evaluate(network, test_stream).loss:.4f} nats")
plt.figure(figsize=(4.5, 2.8))
plt.plot(curve, "o-", label="network")
counted = {
    "explicit": jx.lm.fit_model("explicit", text, jx.lm.Options(features="cat", radius=K)).model,
    "Kneser-Ney 5-gram": jx.lm.fit_model("ngram", text).model,
}
counted["context mixing"] = jx.fit(train_lines, tokenizer=tokenizer, history="none", eos=True).model
for (name, found), line in zip(counted.items(), (":", "-.", "--")):
    loss = jx.evaluate(found, dev_stream).loss
    print(f"{name}: dev {loss:.4f}, test {jx.evaluate(found, test_stream).loss:.4f} nats")
    plt.axhline(loss, color="k", ls=line, label=name)
plt.gca().set(xlabel="epoch", ylabel="dev loss (nats)")
plt.legend()
plt.show()

# %% [markdown]
# After one epoch the network is ahead of the explicit model of the same three characters. The other lines are models that are
# counted, too. The Kneser-Ney 5-gram and context mixing see more than three characters, and predict better than the network.
#
# ## Samples
#
# Ten words from the network:

# %%
print(", ".join(jx.lm.generate_text(jax.random.key(1), network, tokenizer, [""] * 10, 20)))

# %% [markdown]
# Next: all of this in one command, `jexplicit networks mlp-lm --train names.txt --tokenizer char --out runs/names`, and other
# networks in notebook 08.
