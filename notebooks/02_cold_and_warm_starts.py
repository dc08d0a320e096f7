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
# **Idea.** A softmax layer has one best fit to its training text. Training and sweeps lead there, and counting comes close in
# one pass. The best predictions of *new* text lie on the way. **You need** lesson 01,
# or this: counts $F = H^\top Y$ of the last $K$ tokens give a layer in closed form, the *explicit solution*.

# %%
import jexplicit as jx  # not found? docs/lessons.md says how to install it

# %%
import os

import matplotlib.pyplot as plt
from pydoc_data.topics import topics

TINY = bool(os.environ.get("TINY"))  # little text and two epochs: the lesson runs in seconds
texts = list(topics.values())  # Python's own help
parts = (texts[:10], texts[68:69]) if TINY else (texts[:60], texts[68:76])
tokenizer = jx.data.train_tokenizer(parts[0], vocab_size=300 if TINY else 1024)
train, dev = (jx.data.encode_documents(tokenizer, part) for part in parts)
text = jx.lm.TrainingText(train, tokenizer.vocab_size)
print(f"{len(train):,} train and {len(dev):,} validation tokens, vocabulary {tokenizer.vocab_size:,}")

# %% [markdown]
# ## Four fits of one layer
#
# *Explicit* is the closed form. *Cold* is trained by Adagrad from random tables, and *warm* by Adagrad from the explicit
# solution. *Sweeps* are iterative scaling, $U \leftarrow U + \log(F / H^\top P) / K$, from the explicit solution: no sweep
# raises the training loss. $P$ holds the predicted probabilities.

# %%
epochs = 2 if TINY else 16
adagrad = {"batch_size": 1024, "epochs": epochs, "learning_rate": 0.3}
settings = {"explicit": {}, "cold": adagrad, "warm": adagrad, "iterative-scaling": {"discount": 0.0, "sweeps": 4 * epochs}}


def curve(method, **options):
    """Train and validation perplexity of a fit, before its first epoch or sweep and after each."""
    events = []
    watch = jx.lm.Watch(dev=dev, log=lambda **event: events.append(event))
    model = jx.lm.fit_model(method, text, jx.lm.Options(**options), watch).model
    measured = [event for event in events if event["event"] in ("epoch", "sweep")]
    points = [(event["train_perplexity"], event["dev_perplexity"]) for event in measured]
    return points or [tuple(jx.evaluate(model, stream).perplexity for stream in (train, dev))]


curves = {(K, method): curve(method, context=K, **settings[method]) for K in (1, 2) for method in settings}
for (K, method), points in curves.items():
    best = min(perplexity for _, perplexity in points)
    print(f"K = {K}, {method:17} at the end {points[-1][0]:5.1f} / {points[-1][1]:6.1f}; lowest validation {best:6.1f}")

# %% [markdown]
# Each line below is one fit. It moves to the left as the training text is fitted better, and upwards as new text is predicted
# worse.

# %%
fig, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="tight")
for ax, K in zip(axes, (1, 2)):
    for method, style in (("cold", "o-"), ("warm", "s-"), ("iterative-scaling", ".-"), ("explicit", "k*")):
        points = curves[K, method][method == "cold" :]  # without the random tables
        ax.loglog(*zip(*points), style, label=method, markersize=14 if method == "explicit" else 4)
    ax.set(title=f"K = {K}", xlabel="train perplexity", ylabel="validation perplexity")
    ax.set_xticks((10, 30, 100), (10, 30, 100))
    ax.minorticks_off()
axes[0].legend()
plt.show()

# %% [markdown]
# At $K = 1$ the explicit solution is where training arrives, up to one pseudo-count for each token. At $K = 2$ it is not the
# optimum: all three other fits pass it on the training text. In both cases the cold start predicts new text best after two or
# three epochs, before it fits the training text as well as the explicit solution does. The warm start never finds that place:
# it starts beyond it.
#
# ## Exercises
#
# 1. Why is the explicit solution the optimum at $K = 1$ and not at $K = 2$? Look at a row of $H$.
# 2. Train cold with a third of the learning rate, 0.1, for 30 epochs at $K = 1$. After which epoch is the validation perplexity
#    lowest, and how low is it?
# 3. How many sweeps at $K = 2$ reach the train perplexity of the warm start after all its epochs?
# 4. A colleague reports a validation perplexity of 81 from the cold start and calls training better than counting. What do you
#    ask?

# %% [markdown]
# ## Answers

# %%
slower = curve("cold", context=1, batch_size=1024, learning_rate=0.1, epochs=2 if TINY else 30)
found = [perplexity for _, perplexity in slower]
print(f"2: {min(found):.1f} after epoch {found.index(min(found))}")
goal = curves[2, "warm"][-1][0]
print("3:", next((n for n, (perplexity, _) in enumerate(curves[2, "iterative-scaling"]) if perplexity <= goal), "more"))

# %% [markdown]
# 1. At $K = 1$ a row of $H$ has a single one, so each row of $U$ is fitted alone, and relative frequencies are its optimum. At
#    $K = 2$ two rows of $U$ add up to the logits, and the best value of one depends on the other.
# 2. See above: a smaller step takes many more epochs to nearly the same minimum.
# 3. See above: a few, because a sweep uses all of the text and needs no learning rate.
# 4. Which text chose the epoch? The validation text did, so the score needs a third text. And what does smoothing reach? The
#    weighted features of lesson 03 reach about 62 without training.
