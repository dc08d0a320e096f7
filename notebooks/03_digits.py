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
# # Digits
#
# The same closed form on numeric features, here images of digits: scikit-learn's 8x8 digits, or MNIST where the environment
# variable `JEXPLICIT_DATA_DIR` names a folder with its files. Then two ways to the optimum without backpropagation.

# %%
import glob, runpy, sys

sys.path += ["..", "../..", *sorted(glob.glob("jexplicit-*-any.whl"))[-1:]]
# If this fails: open this notebook in a clone of its repository, or put the wheel of `make dist` beside it (Colab: upload it)
_ = runpy.run_module("jexplicit.notebook", run_name="__main__")

# %%
import functools
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import jexplicit as jx
from jexplicit import solvers
from jexplicit.nn.networks import SoftmaxStack
from jexplicit.nn.parts.objectives import objective
from jexplicit.nn.steps import initial_state, training_step, variables_of
from jexplicit.nn.training import train
from jexplicit.solvers.layerwise import random_decoders
from jexplicit.solvers.priming import fit_intercept, intercept_logits, log_intercept

TINY = bool(os.environ.get("TINY"))  # seconds instead of a minute
mnist = Path(os.environ.get("JEXPLICIT_DATA_DIR", "nowhere"), "mnist").is_dir() and not TINY

# %%
data = jx.data.read_images("mnist" if mnist else "digits")
both = data.train_images, data.test_images
H, H_test = (jnp.asarray(jx.data.pixel_features(X, data.levels)) for X in both)  # (X + 1)/levels
Y = jnp.asarray(jx.data.one_hot(data.train_labels, data.outputs))
labels, labels_test = (jnp.asarray(part, jnp.int32) for part in (data.train_labels, data.test_labels))
F, K = solvers.dense_cooccurrence(H, Y), float(solvers.priming_number(H))  # all that the solution needs, in one pass
print(f"{data.name}: H {H.shape}, F {F.shape}, mean L1 norm K = {K:.2f}")

# %% [markdown]
# ## The closed form, and its priming number
#
# $U_{j,i} = \log F_{j,i} - \frac{K-1}{K} \log \sum_d F_{d,i}$. The features of $K$ tokens have norm $K$; the norms of images
# differ, and the paper takes their mean, the *priming number*. A scan over all $K$ is one compiled call.

# %%
U = jx.explicit_solution(F, K)
print(f"explicit: {solvers.accuracy(H_test @ U, labels_test):.4f} of the test images right")
scan = solvers.priming_scan(H_test, F, labels_test, jnp.arange(1, H.shape[1] + 1, dtype=H.dtype))
plt.figure(figsize=(4.5, 2.8))
plt.semilogx(scan.K, scan.accuracy)
plt.axvline(K, color="tab:orange", ls="--", label="mean norm")
plt.gca().set(xlabel="priming number K", ylabel="test accuracy")
plt.legend()
plt.show()

# %% [markdown]
# ## The separate intercept
#
# $H U = H \log F + \|H\|_1 \log w$ with $\log w_i = -\frac{K-1}{K} \log \sum_d F_{d,i}$: a fixed matrix of co-occurrences and
# one number for each class, scaled by the norm of an image. Both forms give the same logits up to rounding. The best $w$ for
# the fixed matrix is little better than that of the solution.

# %%
separate = intercept_logits(H_test, F, log_intercept(F, K))
difference, size = jnp.abs(separate - H_test @ U).max(), jnp.abs(separate).max()
print(f"largest difference of a logit: {difference:.1e}, for logits up to {size:.0f}")
fit = fit_intercept(H, Y, F, K=K, sweeps=100)
print(f"best intercept: {solvers.accuracy(fit.logits(H_test), labels_test):.4f}")

# %% [markdown]
# ## More layers, forward only
#
# Each layer is solved for the same targets from its own inputs: the second layer reads the softmax of the first. On these
# images a second layer helps little, and a third does not.

# %%
for layers in (1, 2, 3):
    params = jx.solve_layers(H, Y, [solvers.SoftmaxLayer()] * layers).params
    print(f"layers {layers}: test accuracy {solvers.accuracy(solvers.stack_logits(params, H_test), labels_test):.4f}")

# %% [markdown]
# ## Warm and cold
#
# Adagrad from the solution and from random parameters. Training stops when the loss on a drawn tenth of the training images,
# which the solution has not seen either, has not improved for three epochs. Both starts end near the same layer, from
# different sides. The warm start saves nothing: it takes as many epochs as the cold one and ends no higher. On MNIST it takes
# more, for the same accuracy.

# %%
order = np.random.default_rng(0).permutation(len(H))
held_out, used = order[: len(H) // 10], order[len(H) // 10 :]
H_used, Y_used = np.asarray(H[used]), np.asarray(Y[used])
optimizer = optax.adagrad(0.1, initial_accumulator_value=0.0, eps=1e-30)
step = training_step(SoftmaxStack(data.outputs), objective("softmax_cross_entropy"), optimizer)
cold = random_decoders(jax.random.key(0), *U.shape, 1)
warm = jx.solve_layers(H_used, Y_used, [solvers.SoftmaxLayer(K)]).params
trained = {}
for name, (start,) in {"warm": warm, "cold": cold}.items():
    curve = []

    def held_out_loss(variables, curve=curve):
        W = variables["params"]["layer_1"]["kernel"]
        curve.append(solvers.accuracy(H_test @ W, labels_test))
        return solvers.mean_loss(H[held_out] @ W, Y[held_out])

    done = train(
        initial_state({"params": {"layer_1": {"kernel": start}}, "batch_stats": {}}, optimizer),
        step,
        lambda indices: (H_used[indices], Y_used[indices]),
        held_out_loss,
        params=variables_of,
        size=len(H_used),
        batch_size=128,
        epochs=5 if TINY else 60,
        patience=3,
    )
    trained[name] = done.params["params"]["layer_1"]["kernel"]
    print(f"{name}: {done.epochs} epochs, test accuracy {curve[done.best_epoch]:.4f}")

# %% [markdown]
# The columns of $U$, one for each class, minus their mean over the classes: before training, after it, and from a cold start.
# Red pixels are evidence for the class, blue ones against it.

# %%
fig, axes = plt.subplots(3, data.outputs, figsize=(data.outputs, 3.3))
for row, (name, columns) in zip(axes, {"explicit": U, **trained}.items()):
    columns = np.asarray(columns) - np.asarray(columns).mean(axis=1, keepdims=True)
    limit = np.quantile(np.abs(columns), 0.99)
    for ax, column in zip(row, columns.T):
        ax.imshow(column.reshape(data.train_images.shape[1:]), cmap="RdBu_r", vmin=-limit, vmax=limit)
        ax.set(xticks=[], yticks=[])
    row[0].set_ylabel(name)
plt.show()

# %% [markdown]
# ## Without backpropagation
#
# Iterative scaling adds $\log (F / H^\top P) / K$ to $U$ in every sweep, where $P$ are the predicted probabilities. It has no
# learning rate, and every sweep lowers the loss ($F - H^\top P$ is minus its gradient). On features of whitened patches, which
# are not trained either, it beats every layer on pixels. A bound on the curvature in place of the logarithm, with steps
# $2 (H^\top H)^{-1} (F - H^\top P)$, needs only a few sweeps.

# %%
size, sweeps = (6, 60) if mnist else (3, 20 if TINY else 150)
filters = jx.features.patch_filters(data.train_images, data.levels, size=size, number=32)
Z, Z_test = (jx.features.unit_rows(jx.features.patch_features(X, data.levels, filters, grid=3, threshold=1.0)) for X in both)
start = jx.explicit_solution(solvers.dense_cooccurrence(Z, Y), 1.0)
results = {
    "scaling, pixels": (solvers.iterative_scaling_sweeps(H, Y, U, sweeps=sweeps), H_test),
    "scaling, patches": (solvers.iterative_scaling_sweeps(Z, Y, start, sweeps=sweeps), Z_test),
    "curvature bound, patches": (solvers.curvature_bound_sweeps(Z, Y, sweeps=10), Z_test),
}
plt.figure(figsize=(4.5, 2.8))
for name, (model, inputs) in results.items():
    print(f"{name}: test accuracy {solvers.accuracy(model.logits(inputs), labels_test):.4f}")
    plt.loglog(np.maximum(np.arange(len(model.losses)), 0.5), model.losses, label=name)
plt.gca().set(xlabel="sweep (start at 0.5)", ylabel="train loss (nats)")
plt.legend(loc="upper left", bbox_to_anchor=(1, 1))
plt.show()

# %% [markdown]
# ## A kernel, in closed form
#
# A *descriptor* of an image: the moduli of its wavelets, and of the wavelets of these, averaged over a grid and projected to
# their principal axes. Cosines of the descriptor at random frequencies have inner products that approach a Gaussian kernel, so
# least squares on them is kernel least squares. All that it keeps of the images are $H^\top H$ and $H^\top Y$, summed over
# blocks.

# %%
octaves, grid = (3, 7) if mnist else (2, 4)
bank = jx.features.wavelets(data.train_images.shape[1:], octaves=octaves, angles=6, grid=grid)
pools = functools.partial(jx.features.scattering_pools, bank=bank)
axes = jx.features.fit_axes(pools, data.train_images, data.levels, dimensions=200)
D, D_test = (jx.features.describe(pools, axes, X, data.levels) for X in both)
W = jx.features.fourier_directions(jax.random.key(0), D.shape[1], 200 if TINY else 1024, scale=0.7)
features = jax.tree_util.Partial(jx.features.fourier_features, W=W)
fit = solvers.gram_least_squares(solvers.gram_matrix(solvers.split_examples(D, Y), features), ridge=0.1)
scores = solvers.streamed_logits(fit, D_test, features)
print(f"kernel least squares: {solvers.accuracy(scores, labels_test):.4f} of the test images right")

# %% [markdown]
# Next: all of it as one command, `jexplicit digits --out runs/digits`, or on your own images,
# `jexplicit digits --data ./DIR --out runs/mine`, with grey PNGs in DIR/train/LABEL and DIR/test/LABEL.
