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
# # Fully connected networks and autoencoders
#
# Initial weights and optimisers on images of digits. Then autoencoders, solved and trained, and wide ones as associative
# memories.

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

import jexplicit as jx
from jexplicit.nn.diagnostics import hidden_layers
from jexplicit.nn.networks import FullyConnected, init_variables
from jexplicit.nn.optimizers import make_optimizer, make_schedule
from jexplicit.nn.parts.objectives import objective
from jexplicit.nn.steps import initial_state, network_step, scorer, training_step, variables_of
from jexplicit.nn.studies.autoencoders import (
    add_noise,
    contraction,
    iterate_map,
    linear_autoencoder,
    recall,
    reconstruction_errors,
)
from jexplicit.nn.training import sampler, train

TINY = bool(os.environ.get("TINY"))  # seconds instead of a minute
data = jx.data.read_images("digits")
X, X_test = (jx.data.pixel_features(part, data.levels) for part in (data.train_images, data.test_images))
mean, scale = X.mean(axis=0), (X - X.mean(axis=0)).std()
X, X_test = (X - mean) / scale, (X_test - mean) / scale
Y, Y_test = jx.data.one_hot(data.train_labels, 10), jx.data.one_hot(data.test_labels, 10)
key = jax.random.key(0)

# %% [markdown]
# ## Initial weights
#
# Gradients in the layers of a deep tanh network, before training. Glorot initialisation keeps their scale. With weights ten
# times smaller they vanish layer by layer. With weights of zero nothing trains, because every gradient has a factor of zero.

# %%
goal = objective("softmax_cross_entropy")
fig, axes = plt.subplots(1, 2, figsize=(8, 2.6), sharex=True, sharey=True)
for ax, factor in zip(axes, (1.0, 0.1)):
    model = FullyConnected(hidden=(100,) * 5, outputs=10, activation="tanh", bias=False, weights="glorot_normal")
    variables = jax.tree.map(lambda W, factor=factor: factor * W, init_variables(model, key, X[:1]))
    for name, values in hidden_layers(model, variables, goal, X[:256], Y[:256]).items():
        ax.hist(np.log10(np.abs(np.asarray(values.gradient)).ravel() + 1e-12), bins=60, histtype="step", label=name)
    ax.set(title=f"Glorot x {factor}", xlabel="log10 |gradient|")
axes[0].set_ylabel("entries")
axes[0].legend(fontsize=7)
plt.show()

# %% [markdown]
# ## Training, with balanced batches
#
# Balanced batches have every class equally often, whatever the data. Three optimisers, in the training loop that all networks
# here share. A tenth of the training images is held out and chooses the epoch; the test images choose nothing:

# %%
epochs, model = (2 if TINY else 20), FullyConnected(hidden=(128,), outputs=10)
score = scorer(model, goal)
order = np.random.default_rng(0).permutation(len(X))
held_out, used = order[: len(X) // 10], order[len(X) // 10 :]
for name, rate in (("sgd", 0.1), ("adam", 1e-3), ("nadam", 1e-3)):
    optimizer = make_optimizer(name, rate)
    done = train(
        initial_state(init_variables(model, key, X[:1]), optimizer),
        training_step(model, goal, optimizer),
        lambda drawn: (X[used[drawn]], Y[used[drawn]]),
        lambda variables: score(variables, X[held_out], Y[held_out]).loss,
        params=variables_of,
        size=len(used),
        batch_size=64,
        epochs=epochs,
        order=sampler("balanced", data.train_labels[used]),
    )
    print(f"{name}: test accuracy {score(done.params, X_test, Y_test).accuracy:.4f}")

# %% [markdown]
# ## A linear autoencoder is solved, not trained
#
# The best linear autoencoder of width $k$ projects on the first $k$ singular vectors, so it takes one SVD.

# %%
for k in (2, 8, 16, 32):
    f = linear_autoencoder(jnp.asarray(X), k)
    print(f"k = {k}: test error {reconstruction_errors(f(jnp.asarray(X_test)), jnp.asarray(X_test)).mean():.3f}")

# %% [markdown]
# ## Memories
#
# An autoencoder much wider than its input, with small initial weights, is trained on ten images until it reproduces them. At
# each of the images its Jacobian has a spectral radius below 1, so the map contracts around them: iterated from a noisy image
# it returns to the original. It is an associative memory. Rows: originals, noisy images, and what 500 iterations make of them.

# %%
few, steps = jnp.asarray(X[:10]), 200 if TINY else 2000
model, goal = FullyConnected(hidden=(256,) * 4, outputs=64), objective("squared_error")
optimizer = make_optimizer("adam", make_schedule("cosine", 1e-3, steps))
state = initial_state(jax.tree.map(lambda W: 0.4 * W, init_variables(model, key, few)), optimizer)
step = network_step(model, goal, optimizer)
state, losses = jax.jit(lambda state: jax.lax.scan(lambda state, _: step(state, (few, few)), state, length=steps))(state)


def f(x):
    return model.apply(variables_of(state), x[None])[0]


noisy = add_noise(jax.random.key(1), few, 0.5, 1)
ends = iterate_map(f, noisy, 500)
print(f"loss {losses[-1] / 10:.1e}, spectral radius {contraction(f, few).spectral_radius.max():.3f}")
print(f"{np.diag(recall(ends, few)).sum()} of 10 come back")
fig, axes = plt.subplots(3, 10, figsize=(9, 2.8))
for row, images in zip(axes, (few, noisy, ends)):
    for ax, image in zip(row, images):
        ax.imshow(image.reshape(8, 8), cmap="gray_r")
        ax.set_axis_off()
plt.show()

# %% [markdown]
# Next: `jexplicit networks fcnn --out runs/fcnn`, and in its place `autoencoder` or `compare`.
