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
# **Idea.** One pass over a text counts which token follows which. A closed form turns the counts into the parameters of a
# softmax language model, and nothing is trained. **You need** Python, logarithms and the softmax.

# %%
import jexplicit as jx  # not found? docs/lessons.md says how to install it

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
from pydoc_data.topics import topics

TINY = bool(os.environ.get("TINY"))  # a small vocabulary: the lesson runs in seconds

# %% [markdown]
# ## Text to tokens
#
# The text is Python's own help, which every installation has: 60 topics to count, and 8 others to test predictions on. Tokens
# are subwords. The token `<pad>` separates documents, and a context never crosses it.

# %%
texts = list(topics.values())
tokenizer = jx.data.train_tokenizer(texts[:60], vocab_size=300 if TINY else 1024)
train, dev = (jx.data.encode_documents(tokenizer, part) for part in (texts[:60], texts[68:76]))
N = tokenizer.vocab_size
print(f"{len(train):,} train and {len(dev):,} validation tokens, vocabulary N = {N:,}")
print([tokenizer.piece(int(i)) for i in tokenizer.encode("Return the number of items.")])

# %% [markdown]
# ## One counting pass
#
# `counts[k - 1][j, i]` is how often token `i` came `k` places after token `j`. The models below need only these integers.

# %%
counts = jx.count(train, context=4, vocab_size=N)
the, of = (int(tokenizer.encode(word)[0]) for word in ("the", "of"))
print(f"'of' directly before 'the' {counts[0][of, the]:,} times, two places before it {counts[1][of, the]:,} times")

# %% [markdown]
# ## The closed form
#
# A row of $H$ holds the last $K$ tokens, each one-hot, so its entries add up to $K$. $Y$ holds the next token. A softmax layer
# $P = \mathrm{softmax}(H U)$ has the explicit solution
#
# $$U_{j,i} = \log F_{j,i} - \frac{K-1}{K} \log \sum_d F_{d,i}, \qquad F = H^\top Y .$$
#
# *Cat* features have a table $U$ for each place in the context. *Sum* features share one table among all places. A pseudo-count
# for each token keeps the logarithm finite.

# %%
text = jx.lm.TrainingText(train, N, counts=counts)
contexts, models, perplexity = (1, 2, 4), {}, {}
for features in ("sum", "cat"):
    for K in contexts:
        model = jx.lm.fit_model("explicit", text, jx.lm.Options(features=features, context=K)).model
        models[features, K] = model
        perplexity[features, K] = [jx.evaluate(model, stream, sample=20_000).perplexity for stream in (train, dev)]
        print(f"{features}  K = {K}:  train {perplexity[features, K][0]:8.1f}   validation {perplexity[features, K][1]:8.1f}")

# %%
fig, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True)
for part, title in enumerate(("train", "validation")):
    for features in ("sum", "cat"):
        axes[part].plot(contexts, [perplexity[features, K][part] for K in contexts], "o-", label=features.capitalize())
    axes[part].set(xlabel="tokens of context, K", xticks=contexts, title=title, yscale="log")
axes[0].set_ylabel("perplexity")
axes[1].legend()
plt.show()

# %% [markdown]
# Each token of context lowers the train perplexity of Cat and raises its validation perplexity. The model is naive Bayes: it
# multiplies the evidence of tokens that are not independent, and trusts counts of one. Lesson 03 repairs both.
#
# ## Why did it predict that?
#
# Logits are a sum over the tokens of the context, so the contribution of each token is exact. *Evidence* is a contribution
# minus its mean under the prediction: it is positive where a token speaks for the token that came. The nearest token stands
# first.

# %%
model = models["cat", 2]
X, Y = jx.contexts(jx.data.encode_documents(tokenizer, ["Return the number of items in the list."]), 2)
why = jx.explain(model, X, Y)
for x, y, evidence, log_p in zip(X, Y, why.evidence, why.log_probability):
    parts = ", ".join(f"{tokenizer.piece(int(j))} {e:+.2f}" for j, e in zip(x, evidence))
    print(f"{tokenizer.piece(int(y)):>12}  p = {np.exp(log_p):.3f}   {parts}")

# %% [markdown]
# ## Exercises
#
# 1. On paper: count the text `a b a a b` with $K = 1$. Write down $F$, and the probability that `b` follows `a`. Which entry of
#    $F$ makes trouble, and how is it mended?
# 2. Count the topics 0 to 29 and 30 to 59 separately and add the counts (`jx.counts.merge_counts`). How far is the sum from
#    `counts`?
# 3. How many parameters does Cat have at $K = 4$ for each token of the training text?
# 4. Compare `jx.lm.next_token` of Sum at $K = 2$ after "of the" and after "the of". Do the same with Cat. What does Sum not
#    know?
#
# Homework: read [the whole model of counts in one file of NumPy](../docs/recipes/counted_in_one_file.py), and run it on a
# text of yours.

# %% [markdown]
# ## Answers

# %%
halves = [jx.count(jx.data.encode_documents(tokenizer, part), context=4, vocab_size=N) for part in (texts[:30], texts[30:60])]
print("2:", max(int(abs(a - b).max()) for a, b in zip(jx.counts.merge_counts(*halves), counts)))
print(f"3: {4 * N * N / len(train):.0f}")
for features in ("sum", "cat"):
    after = [jx.lm.next_token(models[features, 2], np.array(order)) for order in ([of, the], [the, of])]
    print(f"4: {features}, largest difference of log p {abs(after[0] - after[1]).max():.2f}")

# %% [markdown]
# 1. $F_{aa} = 1$, $F_{ab} = 2$, $F_{ba} = 1$, $F_{bb} = 0$. At $K = 1$ the second term vanishes: $U = \log F$, and the softmax
#    of row `a` is $(1/3, 2/3)$, the relative frequencies. $\log F_{bb}$ is infinite; a pseudo-count makes it finite.
# 2. The integers are the same, because a context never crosses a document. So a text can be counted in parts, on many machines.
# 3. About fifty. So many numbers remember the training text; that is why validation suffers.
# 4. Sum does not know the order of the tokens: both contexts have the same row of $H$.
