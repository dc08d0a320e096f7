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
# # In-context learning after 2023
#
# What papers have found since "attention is a step of gradient descent" (von Oswald et al. 2023), each with a closed form
# beside it: depth, Newton's iteration, looped layers, few pretraining tasks, layers that estimate online, and Markov chains.

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
from icl.models.causal import attention_maps, next_outputs
from icl.models.induction import cache_row, induction_model
from icl.problems.markov import Chains, bigram_posterior
from icl.solvers.newton import newton_residual
from icl.solvers.polynomials import residual

TINY = bool(os.environ.get("TINY"))  # seconds instead of minutes
plt.rcParams["figure.figsize"] = 6, 3.6

# %% [markdown]
# ## Depth: GD++ is a Chebyshev polynomial
#
# Let the eigenvalues of the context be $\lambda = \Lambda \sin^2 \theta$. Layer $l$ = 0, 1, ... of GD++ with the rates
# $\eta / N = \gamma = (4 / (3 \Lambda)) 9^l$ triples the angle $\theta$, because
# $\sin 3\theta = 3 \sin \theta - 4 \sin^3 \theta$. After $K$ layers the share $\sin(3^K \theta) / (3^K \sin \theta)$ is not
# fitted yet. The plot compares these rates with the best ones, which are fitted by least squares to the eigenvalues of many
# contexts: a pair for each layer, or one pair for all layers. Chebyshev's rates are the best only as depth grows; beyond six
# layers no search is made, and separate rates are Chebyshev's.

# %%
tasks = icl.Tasks(dim=10, context=10)
law = icl.spectral_law(jax.random.key(0), tasks, 2_000 if TINY else 50_000)
fresh = icl.context_eigenvalues(jax.random.key(1), tasks, 2_000 if TINY else 50_000)
depth = 3 if TINY else 10
for name, tied in (("separate rates", False), ("one pair of rates", True)):
    solved = icl.optimal_polynomials(law, tasks, layers=depth, tied=tied)
    plt.semilogy(range(1, depth + 1), [icl.evaluate_polynomial(fresh, p, tasks).loss for p in solved], "o-", label=name)
chebyshev = [icl.Polynomial(*icl.chebyshev_rates(law.bound, 10, K), np.nan) for K in range(1, depth + 1)]
plt.semilogy(range(1, depth + 1), [icl.evaluate_polynomial(fresh, p, tasks).loss for p in chebyshev], "kx:", label="Chebyshev")
plt.gca().set(xlabel="layers", ylabel="loss on fresh contexts")
plt.legend()
plt.show()

# %% [markdown]
# ## A layer is worth three steps of Newton's iteration
#
# Fu et al. (2023) saw that a layer of a transformer does the work of about three steps of Newton's iteration for the inverse of
# $X^\top X$. Each further step fits eigenvalues half as large, each further layer of GD++ eigenvalues a ninth as large, and
# $\log_2 9 = 3.17$. The plot has the mean square of what is not fitted. Both lines have the same slope.

# %%
eigenvalues = jnp.asarray(fresh[:5000])
newton = [float(jnp.mean(newton_residual(eigenvalues, k) ** 2)) for k in range(16)]
layers = [float(jnp.mean(residual(eigenvalues, jnp.asarray(p.eta), jnp.asarray(p.gamma), 10) ** 2)) for p in chebyshev[:5]]
plt.semilogy(np.arange(16) / np.log2(9), newton, ".-", label="Newton's steps, divided by 3.17")
plt.semilogy(range(1, len(layers) + 1), layers, "o-", label="layers")
plt.gca().set(xlabel="layers, or steps / 3.17", ylabel="mean square not fitted")
plt.legend()
plt.show()

# %% [markdown]
# ## Looped: run past the depth it was solved for
#
# One layer of GD whose rate was solved for five loops diverges when it runs on, because the rate is too large for the largest
# eigenvalues. One layer of GD++ shrinks its inputs as it goes, and keeps improving.

# %%
loops = range(1, 21)
for name, plus_plus in (("GD", False), ("GD++", True)):
    one = icl.optimal_polynomials(law, tasks, layers=5, tied=True, plus_plus=plus_plus)[-1]
    runs = [icl.Polynomial(np.full(n, one.eta[0]), np.full(n, one.gamma[0]), np.nan) for n in loops]
    plt.semilogy(loops, [icl.evaluate_polynomial(fresh, run, tasks).loss for run in runs], label=f"{name}, solved for 5")
plt.gca().set(xlabel="loops run", xticks=range(0, 21, 5), ylabel="loss on fresh contexts", ylim=(1e-2, 10))
plt.legend()
plt.show()

# %% [markdown]
# ## Few pretraining tasks or many
#
# Pretraining draws from M fixed tasks. The Bayes optimum for these is a softmax over them; for fresh tasks it is ridge
# regression. The best layer of linear attention for M tasks follows from moments alone, so the whole curve over M needs no
# training. In closed form, the loss on fresh tasks comes within 5 % of its limit where the dotted line stands.

# %%
noisy = icl.Tasks(dim=10, context=10, inputs="normal", input_range=12**0.5, noise=0.5)  # x ~ N(0, I), as Raventós et al.
numbers = [2**k for k in range(1, 7 if TINY else 13)]
W = icl.FiniteTasks(noisy, max(numbers)).weights()
curve = icl.diversity_curve(noisy, W, numbers)
plt.semilogx(numbers, curve.one_head.pretraining, label="best layer, on the M tasks")
plt.semilogx(numbers, curve.one_head.fresh, label="best layer, on fresh tasks")
plt.axvline(icl.diversity_threshold(noisy), color="k", linestyle=":", label="threshold in closed form")
plt.gca().set(xlabel="pretraining tasks M", ylabel="loss")
plt.legend()
plt.show()

# %% [markdown]
# ## Layers that estimate while they read
#
# Linear attention, the delta rule and the mesa layer estimate the same map from one stream of keys and values. At every token
# the first takes a Hebbian step, the second a step of descent, and the third solves ridge regression. Dashed: expected losses
# in closed form.

# %%
streams = icl.Streams(dim=10, tokens=50 if TINY else 200, outputs=10)  # y = W x + noise
stream, targets = jax.vmap(streams.sample)(jax.random.split(jax.random.key(0), 20 if TINY else 300))
factors, hebb = icl.hebbian_losses(streams)  # the best factor at every position
rates, delta = icl.delta_losses(streams)  # the best rates of online gradient descent
estimators = {
    "linear attention": (lambda s: factors[:, None] * icl.linear_attention(s), hebb),
    "delta rule": (lambda s: icl.delta_rule(s, rates), delta),
    "mesa": (lambda s: icl.mesa_recursion(s, streams.penalty), icl.ridge_losses(streams)),
}
for n, (name, (layer, expected)) in enumerate(estimators.items()):
    losses = jnp.mean((jax.jit(jax.vmap(layer))(stream) - targets) ** 2, axis=(0, 2)) / 2
    plt.loglog(losses, color=f"C{n}", label=name)
    plt.loglog(expected, "--", color=f"C{n}")
plt.gca().set(xlabel="pairs seen", ylabel="half the mean square of an output")
plt.legend()
plt.show()

# %% [markdown]
# ## Markov chains: an induction head is a cache
#
# For a chain of $k$ states whose transitions have a Dirichlet prior, the Bayes prediction is
# $(n_{ij} + \alpha) / (n_i + k \alpha)$, where $n_{ij}$ counts how often state $j$ followed $i$, and $n_i$ is their sum. Two
# layers of attention compute it exactly: a head that reads the state before, and a head that attends to what followed the same
# state. The rows of the recent past in the language models of this project have the same counts.

# %%
chains = Chains(states=3, length=64, alpha=1.0)
x = chains.sample(jax.random.key(0), 1).x[:, 0]
model = induction_model(chains.states, chains.length, chains.alpha)
p = next_outputs(model, x)  # probabilities: no other read-out
print(f"distance to the posterior mean: {jnp.abs(p - bigram_posterior(x, 1.0, 3)).max():.1e}")
print(f"distance of the row of the recent past at the end: {jnp.abs(cache_row(x, 3).p - p)[-1].max():.1e}")
figure, axes = plt.subplots(1, 2, figsize=(8, 3.5))
for ax, a, title in zip(
    axes, attention_maps(model, x[:24])[:, 0], ("layer 1: the state before", "layer 2: after the same state")
):
    ax.imshow(a, cmap="Blues", vmin=0, vmax=1)
    ax.set(title=title, xlabel="attends to", ylabel="token")
plt.show()

# %% [markdown]
# Next: all of this beside trained layers, with figures: `jexplicit icl depths --out runs/icl_depths`, `looped`,
# `newton`, `task-diversity`, `mesa` and `markov`.
