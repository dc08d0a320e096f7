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
# # Features by solving
#
# Networks learn features, and that is thought to make them good. This notebook learns features with no network, no
# backpropagation and no learning rate. A kernel machine is solved; its gradients with respect to the *inputs* say which
# directions matter; they become its metric, and it is solved again. On modular arithmetic that shows what is called grokking:
# for ten solves nothing is understood, and then everything.

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

from jexplicit.solvers.feature_machine import FeatureMachine, agop, feature_machine, metric_power, predict, solve

TINY = bool(os.environ.get("TINY"))  # seconds instead of minutes
p, solves = (11, 4) if TINY else (61, 24)

# %% [markdown]
# ## One solve
#
# With a metric $M$ and a kernel $K_M$, here the quadratic one, $K_M(x, z) = (x^\top M z)^2$, kernel regression has the solution
#
# $$\alpha = (K_M + \lambda I)^{-1} Y, \qquad f(x) = \sum_i \alpha_i K_M(x, x_i).$$
#
# The examples are the entries of a table of $a + b$ modulo $p$: $a$ and $b$ are one-hot, and so is the result. Half of it is
# given.

# %%
a, b = np.divmod(np.arange(p * p), p)
X = np.concatenate([np.eye(p)[a], np.eye(p)[b]], axis=1).astype("float32")
y = (a + b) % p
train, test = np.split(np.random.default_rng(0).permutation(p * p), [p * p // 2])
X_train, X_test, Y_train = jnp.asarray(X[train]), jnp.asarray(X[test]), jnp.asarray(np.eye(p, dtype="float32")[y[train]])


def share_right(machine: FeatureMachine, inputs: jax.Array, labels: np.ndarray) -> float:
    return float((np.asarray(predict(machine, inputs)).argmax(axis=1) == labels).mean())


machine = solve(X_train, Y_train, jnp.eye(2 * p))
print(f"given half {share_right(machine, X_train, y[train]):.2f}, other half {share_right(machine, X_test, y[test]):.2f}")

# %% [markdown]
# The given half is solved exactly. Of the other half it knows nothing: a kernel that treats all directions alike has no way to
# see that $(1, 3)$ and $(2, 2)$ have the same sum.
#
# ## The metric from the gradients
#
# $$M \leftarrow \Big(\frac1n \sum_j \nabla f(x_j)^\top \nabla f(x_j)\Big)^{1/2}$$
#
# has a closed form for a kernel. A check that it is what automatic differentiation gives:

# %%
few = machine._replace(X=machine.X[:30], alpha=machine.alpha[:30])  # any machine will do
J = jax.vmap(jax.jacrev(lambda x: predict(few, x[None])[0]))(few.X)  # [n, outputs, inputs]
by_jax = jnp.einsum("ncd,nce->de", J, J) / len(few.X)
print(f"largest difference {float(abs(by_jax - agop(few)).max()):.1e} of {float(abs(by_jax).max()):.1e}")
M = metric_power(agop(machine), 0.5)
print(f"with one such metric {share_right(solve(X_train, Y_train, M), X_test, y[test]):.2f} of the other half")

# %% [markdown]
# ## Again and again

# %%
metrics = {}


def measure(machine: FeatureMachine) -> dict[str, float]:
    metrics[len(metrics) + 1] = np.asarray(machine.M)
    return {"given": share_right(machine, X_train, y[train]), "other": share_right(machine, X_test, y[test])}


machine, history = feature_machine(X_train, Y_train, solves=solves, measure=measure)
figure, ax = plt.subplots(figsize=(5, 3))
for name in ("given", "other"):
    ax.plot([entry["solve"] for entry in history], [entry[name] for entry in history], label=f"{name} half")
ax.set(xlabel="solve", ylabel="accuracy")
ax.legend()
plt.show()
print(f"after {solves} solves {history[-1]['other']:.4f} of the other half")

# %% [markdown]
# ## What has been learned
#
# The block of the metric that joins $a$ and $b$ comes to depend on $a - b$ alone. Such a matrix is *circulant*: its
# eigenvectors are Fourier modes. The machine has found that addition modulo $p$ is a matter of frequencies, which is also what
# trained networks find.

# %%
shown = (2, solves // 2 + 1, solves)
figure, axes = plt.subplots(1, len(shown), figsize=(3.2 * len(shown), 3))
for ax, solve_number in zip(axes, shown, strict=True):
    block = metrics[solve_number][:p, p:]
    ax.imshow(block, cmap="RdBu_r", vmin=-abs(block).max(), vmax=abs(block).max())
    ax.set(title=f"solve {solve_number}", xlabel="b", ylabel="a")
plt.show()

# %% [markdown]
# Try it: multiplication instead of addition (is the block circulant? In which order of the numbers would it be?), a third of
# the table instead of half, `kernel="gaussian"`.
