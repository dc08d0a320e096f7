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
# # In-context learning by gradient descent
#
# A layer of linear self-attention can be a step of gradient descent on the pairs $(x_i, y_i)$ of its context (von Oswald et
# al., ICML 2023). This notebook constructs such a layer, computes its optimal weights without training, and compares a trained
# layer with them.

# %%
import glob, runpy, sys

sys.path += ["..", "../..", *sorted(glob.glob("jexplicit-*-any.whl"))[-1:]]
# If this fails: open this notebook in a clone of its repository, or put the wheel of `make dist` beside it (Colab: upload it)
_ = runpy.run_module("jexplicit.notebook", run_name="__main__")

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import icl

TINY = bool(os.environ.get("TINY"))  # seconds instead of a minute
tasks = icl.Tasks(dim=10, context=10)  # x ~ U(-1/2, 1/2), w ~ N(0, I), y = w x
test = icl.sample_tasks(jax.random.key(5), tasks, 2_000 if TINY else 50_000)

# %% [markdown]
# ## One layer is one step
#
# Tokens are $(x_j, y_j)$. Keys and queries are the $x$ of a token, values are $W_0 x - y$, and the projection is
# $P = (\eta / N) I$. Attention then adds $-\Delta W x_j$ to every $y_j$: exactly one step on the squared error of the context,
# for any $W_0$.

# %%
one = icl.sample_tasks(jax.random.key(0), tasks)
W0 = jax.random.normal(jax.random.key(1), (1, 10))
W1 = W0 - 0.3 * jax.grad(icl.squared_error)(W0, one.X, one.Y)
layer = icl.descent_layers(10, 10, 0.3, W0=W0)
print(f"attention {icl.predict(layer, one, W0=W0)[0]:.6f}, gradient step {(W1 @ one.x_q)[0]:.6f}")

# %% [markdown]
# ## The best layer in closed form
#
# A layer predicts $x_q^\top G X^\top y / N$ for the query $x_q$, and its loss is quadratic in $G$. For $d$ independent
# coordinates of variance $s$ and kurtosis $\kappa$ the optimum is one step of gradient descent with
# $\eta = N / (s (\kappa + d + N - 2))$.

# %%
eta = icl.optimal_rate(tasks)
print(f"eta / N = {eta / 10:.5f}, loss {icl.one_step_loss(tasks, eta):.6f}")
X = jnp.moveaxis(test.X, -1, 0)
G = icl.optimal_solution(icl.sampled_moments(X))  # the same from sampled inputs, for any distribution
diagonal = jnp.diagonal(G)
rest = jnp.abs(G - jnp.diag(diagonal)).max()
print(f"from sampled moments: {diagonal.mean() / 10:.4f}, off the diagonal at most {rest / 10:.4f}")

# %% [markdown]
# ## A trained layer
#
# Two seeds train at once from random weights, and each step samples 2048 fresh tasks. Both reach the loss of gradient descent.

# %%
steps, seeds = (300, [0]) if TINY else (2000, [0, 1])
start = [icl.init_layers(jax.random.key(seed), 11) for seed in seeds]
start = jax.tree.map(lambda *leaves: jnp.stack(leaves), *start)


@jax.jit
def losses(params):
    return jax.lax.map(lambda layers: jnp.mean(icl.predictions(lambda b: icl.predict_batch(layers, b), test).loss), params)


def evaluate(params):
    return {"loss": np.asarray(losses(params)).tolist()}


run = icl.train_layers(start, icl.Regression(tasks), icl.Recipe(), steps=steps, seeds=seeds, evaluate=evaluate)
gd = icl.predictions(icl.vmap_tasks(lambda s: icl.gradient_descent(s, eta)[-1]), test)
plt.figure(figsize=(4.5, 2.8))
plt.plot([h["step"] for h in run.history], [h["loss"] for h in run.history], label=[f"trained, seed {seed}" for seed in seeds])
plt.axhline(float(gd.loss.mean()), color="k", ls="--", label="gradient descent")
plt.gca().set(xlabel="training step", ylabel="test loss")
plt.legend()
plt.show()
trained = jax.tree.map(lambda leaf: leaf[0], run.params)
difference = icl.difference(icl.predictions(lambda b: icl.predict_batch(trained, b), test), gd)
print(f"cosine of sensitivities {difference.cosine:.4f}, prediction difference {difference.prediction_difference:.4f}")

# %% [markdown]
# The trained weights are those of the construction: keys and queries compare the $x$ of two tokens, and values move $y$ alone.

# %%
M, R = icl.head_maps(trained)
b = jnp.diagonal(M[0, 0])[:10].mean()
fig, axes = plt.subplots(1, 2, figsize=(6, 2.6))
for ax, values, name in zip(axes, (M[0, 0] / b, R[0, 0] * b), ("$W_K^T W_Q$", "$P W_V$")):
    fig.colorbar(ax.imshow(values, cmap="RdBu_r", vmin=-jnp.abs(values).max(), vmax=jnp.abs(values).max()), ax=ax)
    ax.set(title=name, xticks=[], yticks=[])
plt.show()

# %% [markdown]
# ## More layers: GD++
#
# GD++ also transforms the inputs: $x$ becomes $(I - \gamma X^\top X) x$. What it does is a polynomial in every eigenvalue of
# $X^\top X$, so its best rates are fitted in seconds to the eigenvalues of many contexts. The trained transformers of the
# paper ended with $\gamma$ = 0.179 for $N$ = 10 and 0.099 for $N$ = 25.

# %%
for N in (10, 25):
    sized = icl.Tasks(dim=10, context=N)
    law = icl.spectral_law(jax.random.key(0), sized, 1_000 if TINY else 10_000)
    found = icl.optimal_polynomials(law, sized, layers=2, tied=True)[-1]
    print(f"N = {N}: gamma {found.gamma[0]:.4f}, eta {found.eta[0]:.2f}, loss {found.loss:.4f}")

# %% [markdown]
# Next: all of this beside trained layers, with figures: `jexplicit icl one-step`, `multi-step`, `depths` and `curvature`.
