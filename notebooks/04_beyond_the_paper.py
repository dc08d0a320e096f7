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
# # Beyond the paper: an explicit solution that generalises
#
# The explicit solution fits its training text and fails on new text. How far does the same form go: counts, their logarithms as
# rows, and logits that are sums of rows? There is no backpropagation here, and a model has at most a few dozen fitted numbers.

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

TINY = bool(os.environ.get("TINY"))  # seconds instead of minutes

corpus = docs_corpus(keep=True)
documents, dev_documents = (corpus.train[:150], corpus.dev[:20]) if TINY else (corpus.train[:3000], corpus.dev[:300])
tokenizer = jx.data.train_tokenizer(documents, vocab_size=300 if TINY else 1026)
train, dev = (jx.data.encode_documents(tokenizer, part) for part in (documents, dev_documents))
N, radii, positions = tokenizer.vocab_size, (1, 2) if TINY else (1, 2, 4, 8), 1000 if TINY else 15_000
text = jx.lm.TrainingText(train, N, counts=jx.count(train, radius=8, vocab_size=N))  # one pass serves every model below
print(f"{np.count_nonzero(train):,} train and {np.count_nonzero(dev):,} dev tokens, vocabulary {N:,}")


def fit(method, watch=None, **options):
    return jx.lm.fit_model(method, text, jx.lm.Options(calibration_positions=positions, **options), watch)


def dev_perplexity(model):
    return jx.evaluate(model, dev).perplexity


# %% [markdown]
# ## The log-linear model: smoothed rows and one exponent per offset
#
# $$\log p(i | x) = \mu \log p_i + \sum_k \lambda_k \log (P_k(i | x_k) / p_i) + \mathrm{const}$$
#
# Smoothed rows $P_k$ replace the noise, best by Kneser-Ney's method. The $K + 1$ exponents $\mu$ and $\lambda_k$ are fitted by
# Newton's method on documents that `fit_model` holds out of the counts, a convex problem. The final rows are counted on the
# whole text.

# %%
explicit = [dev_perplexity(fit("explicit", radius=K).model) for K in radii]
plt.figure(figsize=(6, 4))
plt.loglog(radii, explicit, "o-", color="C3", label="explicit, with the paper's noise (Cat)")
for smoothing in ("add-alpha", "kneser-ney"):
    smoothed = [dev_perplexity(fit("log-linear", radius=K, smoothing=smoothing).model) for K in radii]
    plt.loglog(radii, smoothed, "o-", label=f"{smoothing}: {', '.join(f'{p:.1f}' for p in smoothed)}")
plt.xticks(radii, radii)
plt.minorticks_off()
plt.xlabel("K (tokens of context)")
plt.ylabel("dev perplexity")
plt.legend()
plt.show()

# %% [markdown]
# ## Attention for Sum
#
# Sum shares one table among its offsets, so a far token would count as much as a near one. An offset therefore reads the table
# with the weight $a_k(x) = I_k(x) / I_1(x)$. Here $I_k(x)$ is the Kullback-Leibler divergence of $P_k(\cdot | x)$ from $p$,
# from the same counts: what a token says about the one $k$ places on.

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
for features, line in (("sum", "s--"), ("cat", "o-")):
    fits = [fit("log-linear", features=features, radius=K) for K in radii]
    left.semilogx(radii, [dev_perplexity(fitted.model) for fitted in fits], line, label=features.capitalize())
    exponents = fits[-1].info["exponents"][1:]
    right.plot(range(1, radii[-1] + 1), exponents, line, label=f"{features.capitalize()}, K = {radii[-1]}")
left.set(xlabel="K", ylabel="dev perplexity", xticks=radii, xticklabels=radii)
left.minorticks_off()
right.set(xlabel="offset k", ylabel="fitted exponent")
left.legend()
right.legend()
plt.show()

# %% [markdown]
# ## Iterative scaling: where offsets disagree
#
# Each row is estimated on its own, so together they count shared evidence twice. Sweeps of iterative scaling start from the
# log-linear model and add $\log ((F - D) / E) / K$ to $U$, or $\log ((F + D) / E) / K$ where that is negative. They bring the
# expected co-occurrences $E$ within a discount $D$ of the observed ones, without backpropagation or a learning rate.

# %%
K, events = radii[-2], []
watch = jx.lm.Watch(dev=dev, log=lambda **event: events.append(event))
swept = fit("iterative-scaling", watch, radius=K, sweeps=3 if TINY else 8)
plt.figure(figsize=(6, 4))
for part in ("train", "dev"):
    values = [event[f"{part}_perplexity"] for event in events if event["event"] == "sweep"]
    plt.semilogy(values, ".-", label=f"{part}: {values[0]:.1f} to {values[-1]:.1f}")
plt.xlabel(f"sweep (Cat, K = {K}, D = {swept.info['discount']:.2f})")
plt.ylabel("perplexity")
plt.legend()
plt.show()

# %% [markdown]
# ## Contexts of several tokens
#
# A context of two to four tokens is one more feature. Its row stands over the row of the shorter context, as in a Kneser-Ney
# n-gram model, of which nothing is fitted.

# %%
model = fit("ngram").model
models = {f"log-linear, K = {radii[-1]}": fits[-1].model, f"iterative scaling, K = {K}": swept.model, "n-gram, K = 4": model}
plt.figure(figsize=(6, 2))
for name, found in models.items():
    perplexity = dev_perplexity(found)
    plt.barh(name, perplexity, color="C0")
    plt.text(perplexity, name, f" {perplexity:.1f}", va="center")
plt.margins(x=0.1)
plt.gca().invert_yaxis()
plt.xlabel("dev perplexity")
plt.show()

# %% [markdown]
# ## The same functions for every model
#
# An n-gram model is one more `LanguageModel`. Its logits are a sum over rows, so the evidence of each row is exact, whether
# the row belongs to one token or to several.

# %%
X, Y = jx.contexts(jx.data.encode_documents(tokenizer, ["Return the number of items in the list."]), model.radius)
why = jx.explain(model, X, Y)
for y, evidence, log_p in zip(Y, why.evidence, why.log_probability):
    strongest = ", ".join(f"{why.names[g]} {evidence[g]:+.2f}" for g in np.argsort(-np.abs(evidence))[:3])
    print(f"{tokenizer.piece(int(y)):>12}  p = {np.exp(log_p):.3f}   {strongest}")
prompt = "Return the"
for continuation in jx.lm.generate_text(jax.random.key(0), model, tokenizer, [prompt] * 3, 30, temperature=0.7, top_k=40):
    print("---", prompt + continuation, sep="\n")

# %% [markdown]
# Next: these models in one command, with a report, on your own text: `jexplicit lm --methods log-linear iterative-scaling ngram
# --train FILES --out DIR`. `jexplicit export` writes one of the models to a file that stands alone. Notebook 10 has a counted
# model of another form, which predicts better.
