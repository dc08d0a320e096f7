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
# **Idea.** A machine can learn features without a network, backpropagation or a learning rate. Kernel regression is solved; its
# gradients with respect to the *inputs* say which directions matter; they become its metric, and it is solved again. Modular
# arithmetic then shows sudden understanding, known as grokking. **You need** least squares and eigenvectors.

# %%
from jexplicit.solvers import feature_machine as fm  # not found? docs/lessons.md says how to install it

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

TINY = bool(os.environ.get("TINY"))  # a small table and four solves: the lesson runs in seconds
p, solves = (11, 4) if TINY else (61, 24)


def table(operation, share=0.5):
    """A share of the table of an operation modulo p, and the rest of it: inputs (a, b), one-hot, and results."""
    a, b = np.divmod(np.arange(p * p), p)
    X, y = np.concatenate([np.eye(p)[a], np.eye(p)[b]], axis=1).astype("float32"), operation(a, b) % p
    given, other = np.split(np.random.default_rng(0).permutation(p * p), [int(share * p * p)])
    return (X[given], y[given]), (X[other], y[other])


def accuracy(machine, X, y):
    return float((np.asarray(fm.predict(machine, jnp.asarray(X))).argmax(axis=1) == y).mean())


# %% [markdown]
# ## One solve
#
# With a metric $M$ and the quadratic kernel $\kappa_M(x, z) = (x^\top M z)^2$, kernel regression has the solution
#
# $$\alpha = (\kappa_M(X, X) + \lambda I)^{-1} Y, \qquad f(x) = \sum_i \alpha_i \kappa_M(x, x_i).$$
#
# Half of the table of $a + b$ modulo $p$ is given.

# %%
given, other = table(lambda a, b: a + b)
X, Y = jnp.asarray(given[0]), jnp.asarray(np.eye(p, dtype="float32")[given[1]])
machine = fm.solve(X, Y, jnp.eye(2 * p))
print(f"given half {accuracy(machine, *given):.2f}, other half {accuracy(machine, *other):.2f}")

# %% [markdown]
# The given half is fitted exactly, and nothing is known of the other half: a kernel that treats all directions alike cannot see
# that $(1, 3)$ and $(2, 2)$ have the same sum.
#
# ## The metric from the gradients
#
# $$M \leftarrow \Big(\frac1n \sum_j \nabla f(x_j)^\top \nabla f(x_j)\Big)^{1/2}$$
#
# The average has a closed form. A check that automatic differentiation gives the same:

# %%
few = machine._replace(X=machine.X[:30], alpha=machine.alpha[:30])  # any machine will do
J = jax.vmap(jax.jacrev(lambda x: fm.predict(few, x[None])[0]))(few.X)  # [n, outputs, inputs]
by_jax = jnp.einsum("ncd,nce->de", J, J) / len(few.X)
print(f"largest difference {float(abs(by_jax - fm.agop(few)).max()):.1e} of {float(abs(by_jax).max()):.1e}")

# %% [markdown]
# ## Again and again

# %%
metrics = []


def measure(machine):
    metrics.append(np.asarray(machine.M))
    return {"given half": accuracy(machine, *given), "other half": accuracy(machine, *other)}


machine, history = fm.feature_machine(X, Y, solves=solves, measure=measure)
plt.figure(figsize=(5, 3))
for name in ("given half", "other half"):
    plt.plot([entry["solve"] for entry in history], [entry[name] for entry in history], label=name)
plt.xlabel("solve")
plt.ylabel("accuracy")
plt.legend()
plt.show()
print(f"after {solves} solves {history[-1]['other half']:.4f} of the other half")

# %% [markdown]
# ## What has been learned
#
# The block of the metric that joins $a$ and $b$ comes to depend on $a - b$ alone. Such a matrix is *circulant*, and its
# eigenvectors are Fourier modes. The machine treats addition as a matter of frequencies; trained networks do the same.

# %%
figure, axes = plt.subplots(1, 3, figsize=(9.6, 3), layout="tight")
for ax, n in zip(axes, (2, solves // 2 + 1, solves)):
    block = metrics[n - 1][:p, p:]
    ax.imshow(block, cmap="RdBu_r", vmin=-abs(block).max(), vmax=abs(block).max())
    ax.set(title=f"solve {n}", xlabel="b", ylabel="a")
plt.show()

# %% [markdown]
# ## Exercises
#
# 1. Give three quarters of the table, then a third. When does the accuracy on the rest rise, and how far does it come?
# 2. Learn $a - b$ instead. The block is not circulant any more: what does it depend on?
# 3. Learn $a \cdot b$. The block looks like noise. In which order of the numbers is it circulant?
# 4. After a few solves the given half is fitted and the other half is not. Could a validation set tell that understanding is
#    near? Measure `circulant_share`, below, of the metrics by solve.

# %% [markdown]
# ## Answers


# %%
def learn(operation, share=0.5):
    """The accuracies on the rest of a table by solve, and the last metric's block that joins a and b."""
    (X, y), rest = table(operation, share)
    Y = jnp.asarray(np.eye(p, dtype="float32")[y])
    last, entries = fm.feature_machine(jnp.asarray(X), Y, solves=solves, measure=lambda m: {"accuracy": accuracy(m, *rest)})
    return [round(entry["accuracy"], 2) for entry in entries], np.asarray(last.M)[:p, p:]


def circulant_share(block):
    """The share of a matrix's variance that depends on the difference of row and column alone."""
    n = len(block)
    diagonals = [[block[i, (i - d) % n] for i in range(n)] for d in range(n)]
    return 1 - np.var(diagonals, axis=1).mean() / block.var()


for share in (3 / 4, 1 / 3):
    print(f"1: {share:.2f} given:", *learn(lambda a, b: a + b, share)[0][7::4])
minus, times = learn(lambda a, b: a - b)[1], learn(lambda a, b: a * b)[1]
print(f"2: {circulant_share(minus):.3f}, with b reversed {circulant_share(minus[:, ::-1]):.3f}")
powers = [pow(2, n, p) for n in range(p - 1)]  # 2 generates all numbers but 0, modulo 11 and modulo 61
print(f"3: {circulant_share(times):.3f}, in the order of powers of 2 {circulant_share(times[np.ix_(powers, powers)]):.3f}")

print("4: solves 2, 4, 6, ...:", *(f"{circulant_share(metric[:p, p:]):.2f}" for metric in metrics[1::2]))

# %% [markdown]
# 1. With three quarters the rise comes earlier and reaches everything; with a third it comes late and stays low within 24
#    solves.
# 2. On $a + b$: the block with the columns reversed is circulant.
# 3. In the order of the powers of a generator: multiplication modulo $p$ adds exponents.
# 4. No: the accuracy is zero for ten solves. The metric already is nine tenths circulant by then.
