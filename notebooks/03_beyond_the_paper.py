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
# # Beyond the paper: counts that generalise
#
# **Idea.** Smooth the counts, then give each feature one weight. The closed form fails on new text for two reasons, and each
# has a remedy that needs no gradient descent. **You need** lesson 01, or this: logits are sums of logarithms of counts, one for
# each of the last $K$ tokens.

# %%
import jexplicit as jx  # not found? docs/lessons.md says how to install it

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
from pydoc_data.topics import topics

TINY = bool(os.environ.get("TINY"))  # little text and K up to 2: the lesson runs in seconds
texts = list(topics.values())  # Python's own help
parts = (texts[:10], texts[60:61], texts[68:69]) if TINY else (texts[:60], texts[60:68], texts[68:76])
tokenizer = jx.data.train_tokenizer(parts[0], vocab_size=300 if TINY else 1024)
train, held_out, dev = (jx.data.encode_documents(tokenizer, part) for part in parts)
N, contexts = tokenizer.vocab_size, (1, 2) if TINY else (1, 2, 4)
counts = jx.count(train, context=contexts[-1], vocab_size=N)
text = jx.lm.TrainingText(train, N, counts=counts)
print(f"{len(train):,} tokens are counted, {len(held_out):,} fit weights, {len(dev):,} measure; vocabulary {N:,}")


def dev_perplexity(model):
    return jx.evaluate(model, dev).perplexity


# %% [markdown]
# ## The model
#
# $$\log p(i | x) = \mu \log p_i + \sum_{k=1}^{K} \lambda_k \log \frac{P_k(i | x_k)}{p_i} + \mathrm{const}$$
#
# $P_k(i | j)$ is the smoothed frequency of token $i$, $k$ places after token $j$, and $p_i$ that of token $i$ anywhere. With
# all weights equal to 1 this is naive Bayes.
#
# ## Smoothing alone, then weights
#
# Kneser-Ney smoothing subtracts a discount from every count and gives it to tokens that follow many others. The $K + 1$ weights
# are fitted by Newton's method on text that was not counted: the loss is convex in them, and there is no learning rate.

# %%
scores, weights = {}, {}
for K in contexts:
    features = jx.lm.offset_rows(counts, features="cat", context=K)  # log(P_k / p), smoothed by Kneser and Ney
    weights[K] = np.asarray(jx.lm.fit_weights(features, *jx.contexts(held_out, K)).weights)
    found = {
        "explicit solution": jx.lm.fit_model("explicit", text, jx.lm.Options(context=K)).model,
        "smoothed, all weights 1": jx.lm.log_linear_model(features, np.ones(K + 1)),
        "smoothed, fitted weights": jx.lm.log_linear_model(features, weights[K]),
    }
    for name, model in found.items():
        scores.setdefault(name, []).append(dev_perplexity(model))
for name, values in scores.items():
    print(f"{name:25}", "  ".join(f"K = {K}: {value:8.1f}" for K, value in zip(contexts, values)))

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
for name, values in scores.items():
    left.loglog(contexts, values, "o-", label=name)
left.set(xlabel="tokens of context, K", ylabel="validation perplexity", xticks=contexts, xticklabels=contexts)
left.minorticks_off()
left.legend()
right.bar(range(len(weights[contexts[-1]])), weights[contexts[-1]])
right.set(xlabel="place k (0: the unigram)", ylabel=f"fitted weight, K = {contexts[-1]}")
plt.show()

# %% [markdown]
# Smoothing repairs $K = 1$, where nothing is counted twice. From $K = 2$ on it is not enough: the tokens of a context repeat
# each other's evidence, and weights below 1 take the repetition out.
#
# ## Longer contexts
#
# Two to four tokens *together* are one more feature each. A Kneser-Ney n-gram model backs off from the longest that was
# counted.

# %%
model = jx.lm.fit_model("ngram", text).model
print(f"5-gram: {dev_perplexity(model):.1f}")

# %% [markdown]
# ## Exercises
#
# 1. Use each token twice: fit weights of the features of $K = 1$ and a copy of them. What do you expect of the two weights?
# 2. Fit the weights on the text that was counted, at $K = 2$. What happens to the weights and to the validation perplexity, and
#    why?
# 3. Smooth by `smoothing="add-alpha"` at $K = 2$. Some weights come out above 1. What do they make up for?
# 4. Sweeps of iterative scaling move all entries of the tables instead of $K + 1$ weights:
#    `jx.lm.fit_model("iterative-scaling", text, jx.lm.Options(context=2))`. Are two million fitted numbers better than three?

# %% [markdown]
# ## Answers

# %%
X, Y = jx.contexts(held_out, 1)
once = jx.lm.offset_rows(counts, features="cat", context=1)
twice = once._replace(tables=once.tables * 2)
fits = [jx.lm.fit_weights(rows, X[:, [0] * len(rows.tables)], Y).weights for rows in (once, twice)]
print("1:", *(np.asarray(fit[1:]).round(2) for fit in fits))
for number, smoothing, stream in ((2, "kneser-ney", train), (3, "add-alpha", held_out)):
    features = jx.lm.offset_rows(counts, features="cat", context=2, smoothing=smoothing)
    fitted = np.asarray(jx.lm.fit_weights(features, *jx.contexts(stream, 2)).weights)
    print(f"{number}: weights {fitted.round(2)}, {dev_perplexity(jx.lm.log_linear_model(features, fitted)):.1f}")
print(f"4: {dev_perplexity(jx.lm.fit_model('iterative-scaling', text, jx.lm.Options(context=2)).model):.1f}")

# %% [markdown]
# 1. Only the sum of the two weights matters for the prediction, and it is the weight of the single feature.
# 2. The counts know the answers of their own text, so all weights rise towards 1 and above, and new text is predicted far
#    worse. Weights need text that was not counted.
# 3. Add-alpha makes rare contexts too flat, and weights above 1 sharpen all of them alike. A discount flattens only where
#    counts are small, which no weight can imitate.
# 4. No: the three weights already take out most of what is counted twice.
