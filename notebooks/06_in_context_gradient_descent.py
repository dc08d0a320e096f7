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
# **Idea.** A layer of linear self-attention can be a step of gradient descent on the pairs $(x_i, y_i)$ of its context (von
# Oswald et al., ICML 2023). Its best weights have a closed form, and training finds the same layer. **You need** attention and
# the gradient of least squares.

# %%
import icl  # not found? docs/lessons.md says how to install it

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

TINY = bool(os.environ.get("TINY"))  # few tasks and steps: the lesson runs in seconds
d, N = 10, 10
tasks = icl.Tasks(dim=d, context=N)  # x ~ U(-1/2, 1/2), w ~ N(0, I), y = w x
test = icl.sample_tasks(jax.random.key(5), tasks, 2_000 if TINY else 50_000)

# %% [markdown]
# ## One layer is one step
#
# Tokens are $(x_j, y_j)$. Keys and queries are the $x$ of a token, values are $W_0 x - y$, and the projection is $(\eta / N)
# I$. Attention then adds $-\Delta W x_j$ to every $y_j$: exactly one step on the squared error of the context, for any $W_0$.

# %%
one = icl.sample_tasks(jax.random.key(0), tasks)
W0 = jax.random.normal(jax.random.key(1), (1, d))
W1 = W0 - 0.3 * jax.grad(icl.squared_error)(W0, one.X, one.Y)
layer = icl.descent_layers(d, N, 0.3, W0=W0)
print(f"attention {icl.predict(layer, one, W0=W0)[0]:.6f}, gradient step {(W1 @ one.x_q)[0]:.6f}")

# %% [markdown]
# ## The best layer in closed form
#
# A layer predicts $x_q^\top G X^\top y / N$ for the query $x_q$, and its loss is quadratic in $G$. For $d$ independent
# coordinates of variance $s$ and kurtosis $\kappa$ the optimum is one step of gradient descent with $\eta = N / (s (\kappa + d
# + N - 2))$.

# %%
eta = icl.optimal_rate(tasks)
print(f"eta = {eta:.4f}, loss {icl.one_step_loss(tasks, eta):.6f}")
G = icl.optimal_solution(icl.sampled_moments(jnp.moveaxis(test.X, -1, 0)))  # the same from sampled inputs
rest = jnp.abs(G - jnp.diag(jnp.diagonal(G))).max()
print(f"from sampled inputs: {jnp.diagonal(G).mean():.3f}, off the diagonal at most {rest:.3f}")

# %% [markdown]
# ## A trained layer
#
# Two seeds train at once from random weights, and each step samples 2048 fresh tasks.

# %%
steps, seeds = (300, [0]) if TINY else (2000, [0, 1])
start = [icl.init_layers(jax.random.key(seed), d + 1) for seed in seeds]
start = jax.tree.map(lambda *leaves: jnp.stack(leaves), *start)


@jax.jit
def losses(params):
    return jax.lax.map(lambda layers: jnp.mean(icl.predictions(lambda b: icl.predict_batch(layers, b), test).loss), params)


def evaluate(params):
    return {"loss": np.asarray(losses(params)).tolist()}


run = icl.train_layers(start, icl.Regression(tasks), icl.Recipe(), steps=steps, seeds=seeds, evaluate=evaluate)
step = icl.predictions(icl.vmap_tasks(lambda s: icl.gradient_descent(s, eta)[-1]), test)
plt.figure(figsize=(4.5, 2.8))
plt.plot([h["step"] for h in run.history], [h["loss"] for h in run.history], label=[f"trained, seed {seed}" for seed in seeds])
plt.axhline(float(step.loss.mean()), color="k", ls="--", label="one step of descent")
plt.gca().set(xlabel="training step", ylabel="test loss")
plt.legend()
plt.show()
trained = jax.tree.map(lambda leaf: leaf[0], run.params)
difference = icl.difference(icl.predictions(lambda b: icl.predict_batch(trained, b), test), step)
print(f"cosine of sensitivities {difference.cosine:.4f}, prediction difference {difference.prediction_difference:.4f}")

# %% [markdown]
# The trained weights are those of the construction: keys and queries compare the $x$ of two tokens, and values move $y$ alone.

# %%
keys_queries, values = icl.head_maps(trained)
scale = jnp.diagonal(keys_queries[0, 0])[:d].mean()
maps = {"keys and queries": keys_queries[0, 0] / scale, "values, projected": values[0, 0] * scale}
fig, axes = plt.subplots(1, 2, figsize=(6, 2.6))
for ax, (name, entries) in zip(axes, maps.items()):
    fig.colorbar(ax.imshow(entries, cmap="RdBu_r", vmin=-jnp.abs(entries).max(), vmax=jnp.abs(entries).max()), ax=ax)
    ax.set(title=name, xticks=[], yticks=[])
plt.show()

# %% [markdown]
# ## Exercises
#
# 1. Put $\eta = 0$ and $W_0 = 0$ into the construction. What does the layer predict, and what is its loss?
#    (`icl.one_step_loss`)
# 2. Use normal inputs of the same variance: `icl.Tasks(dim=10, context=10, inputs="normal")`. Is the best step longer or
#    shorter? The kurtosis is 9/5 for uniform inputs and 3 for normal ones.
# 3. How do the best step and its loss change with contexts of 20, 100 and 1000 pairs? What do they tend to?
# 4. Stack two layers, two steps of descent, with the same rate: what is the best rate, and how much does the second layer help?
#    (`icl.spectral_law`, `icl.optimal_polynomials` with `plus_plus=False`.) GD++ also shrinks the inputs between the steps,
#    $x \leftarrow (I - \gamma X^\top X) x$ (`plus_plus=True`). What is that worth?

# %% [markdown]
# ## Answers

# %%
print(f"1: {icl.one_step_loss(tasks, 0.0):.4f}")
normal = icl.Tasks(dim=d, context=N, inputs="normal")
print(f"2: eta = {icl.optimal_rate(normal):.3f} for normal inputs, {eta:.3f} for uniform ones")
for size in (20, 100, 1000):
    many = icl.Tasks(dim=d, context=size)
    print(f"3: N = {size}: eta = {icl.optimal_rate(many):.2f}, loss {icl.one_step_loss(many, icl.optimal_rate(many)):.4f}")
law = icl.spectral_law(jax.random.key(0), tasks, 1_000 if TINY else 10_000)
for plus_plus in (False, True):
    best = icl.optimal_polynomials(law, tasks, layers=2, tied=True, plus_plus=plus_plus)[-1]
    print(f"4: {'GD++' if plus_plus else 'GD'}: eta {best.eta[0]:.2f}, gamma {best.gamma[0]:.3f}, loss {best.loss:.4f}")

# %% [markdown]
# 1. It predicts 0, and half of the variance of $y$ is the loss: $d s / 2 = 10 / 24$.
# 2. Shorter: the kurtosis stands in the denominator, because inputs that vary in length are overshot more often.
# 3. $\eta$ tends to $1 / s = 12$, which inverts the covariance of the inputs, and the loss to 0.
# 4. The second layer and the shrinking of the inputs each lower the loss; see the numbers above. A layer of GD++ fits more of
#    the spectrum of $X^\top X$ than a step of descent.
