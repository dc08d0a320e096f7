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
# How far do counts go where small transformers are usually trained? *Context mixing* counts what followed every context of a
# text, turns the counts into evidence, and weighs the evidence by numbers that Newton's method finds: no backpropagation, no
# learning rate. This notebook fits such a model on an embedded text and looks at what each context says.

# %%
import glob, runpy, sys

sys.path += ["..", "../..", *sorted(glob.glob("jexplicit-*-any.whl"))[-1:]]
# If this fails: open this notebook in a clone of its repository, or put the wheel of `make dist` beside it (Colab: upload it)
_ = runpy.run_module("jexplicit.notebook", run_name="__main__")

# %%
import os

import matplotlib.pyplot as plt
import numpy as np

import jexplicit as jx
from jexplicit.data.corpus.docstrings import docs_corpus
from jexplicit.lm.counted.columns import Context
from jexplicit.lm.counted.model import fit_counted

TINY = bool(os.environ.get("TINY"))  # seconds instead of minutes

corpus = docs_corpus(keep=True)
documents, dev_documents = (corpus.train[:20], corpus.dev[:2]) if TINY else (corpus.train[:120], corpus.dev[:15])
tokenizer = jx.data.train_tokenizer(documents, kind="char")
train, dev = (jx.data.encode_documents(tokenizer, part) for part in (documents, dev_documents))
N = tokenizer.vocab_size
print(f"{np.count_nonzero(train):,} train and {np.count_nonzero(dev):,} dev characters, {N} different ones")

# %% [markdown]
# ## Decisions
#
# A token is a path of yes-or-no decisions through a tree. The log-odds of a decision are a sum over contexts,
#
# $$p(\mathrm{token}) = \prod_d \sigma(\pm a_d), \qquad a_d = \sum_c w_c x_c$$
#
# where $x_c$ is what the context $c$ has seen before the same decision, less what a simpler model expected there. A *context*
# is some facts about the text before: the last $k$ characters, the part of the word that is there, the words before it. Each
# line adds contexts to those above; no weights depend on the place yet (`gates=()`):

# %%
ladder = {"Kneser-Ney 5-gram": jx.evaluate(jx.lm.fit_model("ngram", jx.lm.TrainingText(train, N)).model, dev).loss}
kinds = {
    "last character": (Context(), Context(1)),
    "2 and 3 characters": (Context(1, 2), Context(1, 2, 3)),
    "4 to 6 characters": (Context(1, 2, 3, 4), Context(1, 2, 3, 4, 5), Context(1, 2, 3, 4, 5, 6)),
    "words": (Context("part"), Context("part", "word"), Context("part", "word", "word before")),
}
contexts = ()
for name, added in kinds.items():
    contexts += added
    ladder[f"+ {name}" if len(contexts) > 2 else name] = jx.evaluate(
        fit_counted(train, N, tokenizer, contexts=contexts, gates=()), dev
    ).loss
for name, loss in ladder.items():
    print(f"{name:20} {loss:.4f} nats per character")

# %% [markdown]
# ## Histories
#
# What followed the same characters a moment ago is likely to follow them again. A history says what the model sees beside the
# counts of the training text: nothing, the last 256 characters, the document so far, or all that it reads, which it then goes
# on counting. Here are all contexts of characters, with gates: weights that depend on the place in the word and in the tree.

# %%
models = {}
for history in ("none", "window:256", "adaptive"):
    models[history] = jx.fit(documents, tokenizer=tokenizer, history=history)
    ladder[f"all, history {history}"] = jx.evaluate(models[history].model, dev).loss
plt.figure(figsize=(7, 3))
plt.plot(list(ladder.values()), list(ladder), "o")
for name, loss in ladder.items():
    plt.text(loss, name, f"  {loss:.3f}", va="center")
plt.margins(x=0.15)
plt.grid(axis="y", alpha=0.4)
plt.gca().invert_yaxis()
plt.xlabel("dev loss (nats per character)")
plt.show()

# %% [markdown]
# ## Why a character is likely
#
# The log-odds of each decision are a sum, so the share of every context in $\log p$ is exact. In nats, from even odds on:

# %%
model, text = models["none"], "Return the number"
why = model.explain(text)
for character, evidence, log_p in list(zip(text, why.evidence, why.log_probability))[-6:]:
    strongest = ", ".join(f"{why.names[g]} {evidence[g]:+.2f}" for g in np.argsort(-evidence)[:3])
    print(f"{character!r}  p = {np.exp(log_p):.3f}   {strongest}")
print(f"evidence adds up to log p: {np.allclose(why.evidence.sum(1), why.log_probability, atol=1e-4)}")

# %% [markdown]
# ## The next character, and text

# %%
for prompt in ("Return the numb", "Return the number of "):
    print(f"{prompt!r:25}", ", ".join(f"{token!r} {p:.2f}" for token, p in model.next_token(prompt, top=4)))
prompt = "Return the "
print(prompt + models["window:256"].generate(prompt, 40 if TINY else 200, temperature=0.7).rstrip())

# %% [markdown]
# Next: on a text of yours: `jexplicit lm --preset shakespeare --train input.txt --out runs/mine`. In one call: `jx.fit(texts)`.
