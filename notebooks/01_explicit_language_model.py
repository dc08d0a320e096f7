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
# # The explicit language model
#
# This notebook fits a single-layer softmax language model without training it. One pass over the text counts which token
# follows which, $k$ places back, and a closed form turns the counts into the parameters:
#
# $$U_{j,i} = \log F_{j,i} - \frac{K-1}{K} \log \sum_d F_{d,i}, \qquad F = H^\top Y .$$
#
# $H$ are the inputs of the layer (the last $K$ tokens, one-hot), $Y$ the one-hot targets, and $F$ their co-occurrences.

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
from jexplicit.lm.rows.explicit import target_counts
from jexplicit.lm.scaling_assumption import fit_scaling, log_mean_cooccurrences

TINY = bool(os.environ.get("TINY"))  # seconds instead of half a minute

# %% [markdown]
# ## Text to tokens
#
# The corpus is the documentation that comes with Python, so there is nothing to download. Tokens are subwords (BPE). The token
# `<pad>` separates documents, and a context never crosses it.

# %%
corpus = docs_corpus(keep=True)
documents, held_out = (corpus.train[:300], corpus.dev[:30]) if TINY else (corpus.train, corpus.dev)
tokenizer = jx.data.train_tokenizer(documents, vocab_size=512 if TINY else 4098)
train, dev = (jx.data.encode_documents(tokenizer, part) for part in (documents, held_out))
print(f"{len(train):,} train and {len(dev):,} dev tokens, vocabulary {tokenizer.vocab_size:,}")
print([tokenizer.piece(int(i)) for i in tokenizer.encode("Return the number of items.")])

# %% [markdown]
# ## One counting pass
#
# `counts[k-1][j, i]` is how often token `i` came `k` places after token `j`. The models below need nothing but these integers.
# Counts of two texts add up to the counts of both (`jx.counts.merge_counts`), so a corpus can be counted in parts, on many
# machines.

# %%
counts = jx.count(train, radius=4, vocab_size=tokenizer.vocab_size)
the, of = (int(tokenizer.encode(word)[0]) for word in ("the", "of"))
print(f"'of' directly before 'the' {counts[0][of, the]:,} times, two places before it {counts[1][of, the]:,} times")

# %% [markdown]
# ## The closed form
#
# *Sum* features share one table among the $K$ tokens of context; *Cat* features have a table for each offset. At $K = 1$ both
# are the same model, and it is the exact optimum: the relative frequencies of bigrams, smoothed by the noise model.
# `jx.lm.fit_model` fits any kind of language model by its name (`jx.lm.METHODS`), and `jx.evaluate` measures it.

# %%
text = jx.lm.TrainingText(train, tokenizer.vocab_size, counts=counts)
models, perplexity = {}, {}
for features in ("sum", "cat"):
    for K in (1, 2, 4):
        model = jx.lm.fit_model("explicit", text, jx.lm.Options(features=features, radius=K)).model
        models[features, K] = model
        perplexity[features, K] = [jx.evaluate(model, stream, sample=20_000).perplexity for stream in (train, dev)]
        print(f"{features}  K = {K}:  train {perplexity[features, K][0]:8.1f}   dev {perplexity[features, K][1]:8.1f}")

# %%
fig, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True)
for ax, part, title in zip(axes, (0, 1), ("train", "dev")):
    for features in ("sum", "cat"):
        ax.plot((1, 2, 4), [perplexity[features, K][part] for K in (1, 2, 4)], "o-", label=features.capitalize())
    ax.set(xlabel="tokens of context, K", xticks=(1, 2, 4), title=title, yscale="log")
axes[0].set_ylabel("perplexity")
axes[1].legend()
plt.show()

# %% [markdown]
# The train perplexity of Cat falls with every token of context, and its dev perplexity rises. The paper's noise model is worth
# about one pseudo-count for each row, far too little smoothing for so many parameters. The model is naive Bayes: it multiplies
# the evidence of tokens that are not independent, and it is as sure as raw counts. Notebook 04 repairs this.
#
# ## The assumption behind it
#
# The derivation assumes that the mean co-occurrence of an output grows in proportion to its count. That is slope 1 in this plot
# (dashed). The fitted slopes lie above it.

# %%
fig, axes = plt.subplots(1, 3, figsize=(11, 3))
for ax, K in zip(axes, (1, 2, 4)):
    X, _ = jx.contexts(train, K)
    f = target_counts(counts)
    log_means = log_mean_cooccurrences(models["cat", K], f, X[:: max(1, len(X) // 5000)])
    line = fit_scaling(f, log_means)
    ax.loglog(f[f > 0], np.exp(log_means[f > 0]), ".", markersize=2, alpha=0.5)
    ends = np.array([1, f.max()])
    ax.loglog(ends, np.exp(line.intercept) * ends**line.slope, "C1", label=f"fit, slope {line.slope:.2f}")
    ax.loglog(ends, np.exp(np.mean((log_means - np.log(f))[f > 0])) * ends, "k--", linewidth=1, label="slope 1")
    ax.set(title=f"Cat, K = {K}", xlabel="token count $f_i$", ylabel=r"$\langle E_G[F_i] \rangle$")
    ax.legend(loc="upper left", fontsize=8)
fig.tight_layout()
plt.show()

# %% [markdown]
# ## Why did it predict that?
#
# The logits are a sum over the tokens of the context, so the contribution of each token is exact. *Evidence* is the
# contribution minus its mean under the prediction. It is positive where a token of the context speaks for the token that came.
# The nearest token stands first.

# %%
model = models["cat", 2]
X, Y = jx.contexts(jx.data.encode_documents(tokenizer, ["Return the number of items in the list."]), 2)
why = jx.explain(model, X, Y)
for x, y, evidence, log_p in zip(X, Y, why.evidence, why.log_probability):
    parts = ", ".join(f"{tokenizer.piece(int(j))} {e:+.2f}" for j, e in zip(x, evidence))
    print(f"{tokenizer.piece(int(y)):>12}  p = {np.exp(log_p):.3f}   {parts}")

# %% [markdown]
# ## What comes next?
#
# The distribution of the next token, and texts sampled from it token by token:

# %%
prompt = "Return the"
log_p = jx.lm.next_token(model, np.array(tokenizer.encode(prompt)))
print(", ".join(f"{tokenizer.piece(int(i))} {np.exp(log_p[i]):.3f}" for i in np.argsort(-log_p)[:8]))
for continuation in jx.lm.generate_text(jax.random.key(0), model, tokenizer, [prompt] * 3, 30, temperature=0.7, top_k=40):
    print("---", prompt + continuation, sep="\n")

# %% [markdown]
# Next: the same on your own text, `jexplicit lm --train FILES --out runs/mine`. Then `jexplicit sample`, `score`, `explain` and
# `export` work on the models that it saved (`--run runs/mine`). In Python, `jx.fit(texts)` does it in one call.
