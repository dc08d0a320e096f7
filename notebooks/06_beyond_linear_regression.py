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
# # In-context learning beyond linear regression
#
# "Attention is a step of gradient descent" (von Oswald et al., ICML 2023) holds for linear attention on linear regression. What
# remains of it with softmax, with x and y in separate tokens, with noise that differs by task, on sine waves and on other
# functions?

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
from icl.problems import copying, function_classes, mixed_noise, sine_waves

TINY = bool(os.environ.get("TINY"))  # seconds instead of minutes
tasks = icl.Tasks(dim=10, context=10)
test = icl.sample_tasks(jax.random.key(5), tasks, 2_000 if TINY else 20_000)
eta = icl.optimal_rate(tasks)
gd = icl.predictions(icl.vmap_tasks(lambda s: icl.gradient_descent(s, eta)[-1]), test)


def loss(y):
    return float(icl.half_mse(y, test.y_q))


# %% [markdown]
# ## Two softmax heads are linear
#
# For small $\epsilon$, $\mathrm{softmax}(\epsilon z)_i = (1 + \epsilon (z_i - \bar z)) / N + O(\epsilon^2)$. Two heads of
# opposite signs cancel the even powers of $\epsilon$, the sharpness. What remains is a step of descent on centred inputs, the
# more exact the smaller $\epsilon$ is.

# %%
centred = test.X - test.X.mean(axis=0)
step = eta / 10 * jnp.einsum("nmb,ndb,db->mb", test.Y, centred, test.x_q)
predict = jax.jit(lambda layer: icl.predict_batch(layer, test, softmax=True))
for sharpness in (1.0, 0.3, 0.1, 0.03):
    y = predict(icl.softmax_descent_layer(10, 10, eta, sharpness=sharpness))
    print(f"sharpness {sharpness:4}: at most {jnp.abs(y - step).max():.1e} from the step, loss {loss(y):.4f}")
print(f"gradient descent {gd.loss.mean():.4f}")

# %% [markdown]
# ## Copying
#
# Now every $x_i$ is followed by a token of its own for $y_i$. A first layer can attend from each x to the token after it and
# copy its y next to x. With one-hot codes of the positions a linear layer does this exactly, and a second one takes the step of
# descent.

# %%
E = copying.add_codes(copying.separate_tokens(test), copying.unit_codes(10))
layers = copying.copying_layers(10, 10, eta)
gap = jnp.abs(jax.jit(copying.read_out)(layers, E) - gd.y).max()
print(f"tokens {E.shape[:2]}, two layers and one step of descent differ by at most {gap:.0e}")
first = jax.tree.map(lambda leaf: leaf[0], layers)
one = E[:, :, 0].T
fig, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True)
for ax, tokens, name in zip(axes, (one, one + icl.attend(first, one[:-1], one)), ("tokens", "after the first layer")):
    ax.imshow(tokens, cmap="RdBu_r", vmin=-1, vmax=1)
    ax.set(title=name, xlabel="channel")
axes[0].set_ylabel("token")
plt.show()

# %% [markdown]
# `jexplicit icl copy --out runs/icl_copy` trains two layers, the first with softmax, and they learn it.
#
# ## Noise levels that differ by task
#
# Each task has its own noise level $\sigma$. The best ridge regression has to know it. A *diagonal* layer updates its tokens by
# four scalars, and several such layers estimate $\sigma$ on the way; a layer of GD++ has two scalars. All are fitted by L-BFGS.
# The oracle is ridge regression that knows $\sigma$.

# %%
noise = mixed_noise.MixedNoise(dim=5, context=10, levels=3.0)
fitted, _ = mixed_noise.sample_mixed_noise(jax.random.key(0), noise, 1_000 if TINY else 10_000)
fresh, sigma = mixed_noise.sample_mixed_noise(jax.random.key(1), noise, 2_000 if TINY else 20_000)
oracle = jax.jit(mixed_noise.ridge_batch)(fresh, sigma**2)
predictors = mixed_noise.ridge_baselines(fitted, noise)
for K in (1,) if TINY else (1, 2, 3):
    start = mixed_noise.gd_plus_plus_rates(jax.random.key(2), noise, K, contexts=500)
    two = mixed_noise.fit_diagonal(fitted, start, plus_plus=True, steps=50)
    four = mixed_noise.fit_diagonal(fitted, two.rates, steps=50)
    for name, found in ((f"GD++, K = {K}", two), (f"diagonal, K = {K}", four)):
        predictors[name] = lambda batch, found=found: mixed_noise.predict_diagonal(
            jnp.asarray(found.rates, batch.X.dtype), batch
        )


def fresh_loss(y):
    return float(icl.half_mse(y, fresh.y_q))


for name, predictor in predictors.items():
    print(f"{name:20} {fresh_loss(jax.jit(predictor)(fresh)) - fresh_loss(oracle):.4f} above the oracle")

# %% [markdown]
# ## Sine waves
#
# An embedding and an MLP compute features of x, and attention descends on them. In the control the layer of attention is not
# trained: it *is* a step of descent, and only the features are learned.

# %%
problem = sine_waves.NonlinearRegression(sine_waves.Waves())
steps = 20 if TINY else 1500
recipe = icl.Recipe(256, 2e-3, gradient_clip=100.0, cooling="constant")  # so short a training gains nothing from decay
x = jnp.linspace(-5, 5, 100)
wave = sine_waves.sample_waves(jax.random.key(3), problem.tasks, 1)
zero = np.mean(sine_waves.sample_waves(jax.random.key(4), problem.tasks, 20_000).y_q ** 2) / 2
context = [jnp.repeat(leaf, 100, axis=-1) for leaf in (wave.X, wave.Y)]
shown = icl.Sequence(*context, x[None], jnp.zeros((1, 100)))
plt.figure(figsize=(5, 2.8))
for name in ("trained", "control"):
    start = sine_waves.init_network(jax.random.key(0), scale=0.1, layers=1 if name == "trained" else 0)
    run = icl.train_layers(jax.tree.map(lambda leaf: leaf[None], start), problem, recipe, steps=steps, seeds=[0])
    network = jax.tree.map(lambda leaf: leaf[0], run.params)
    print(f"{name}: loss {np.mean(run.losses[0, -100:]):.4f} (predicting zero: {zero:.4f})")
    plt.plot(x, problem.predict(network, shown)[0], label=name)
plt.plot(wave.X[:, 0, 0], wave.Y[:, 0, 0], "ko", label="context")
plt.gca().set(xlabel="x", ylabel="y")
plt.legend()
plt.show()

# %% [markdown]
# ## Other functions, at every prefix
#
# Garg et al. (2022) ask how well a transformer learns other functions in context. These are the baselines on noisy linear
# functions, by pairs seen. Later work found that the layers of a transformer resemble steps of Newton's iteration (notebook
# 11).

# %%
functions = function_classes.FunctionClass("noisy", dim=5, points=16)
prompts = jax.jit(jax.vmap(functions.sample))(jax.random.split(jax.random.key(0), 100 if TINY else 1000))
plt.figure(figsize=(5, 2.8))
for name, predictor in function_classes.function_baselines("noisy").items():
    y = jax.jit(jax.vmap(lambda prompt, p=predictor: function_classes.at_every_prefix(p, prompt)))(prompts)
    plt.plot(2 * function_classes.prefix_losses(y, prompts.y) / functions.power, label=name)
plt.gca().set(xlabel="pairs seen", ylabel="mean squared error / E[y²]", ylim=(0, 2))
plt.legend(loc="upper left", bbox_to_anchor=(1, 1))
plt.show()

# %% [markdown]
# Next: all of this trained, with figures: `jexplicit icl --help` lists the experiments.
