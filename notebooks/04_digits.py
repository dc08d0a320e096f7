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
# **Idea.** The same closed form classifies images, and two things improve it without backpropagation: sweeps to the optimum,
# and better features. The features matter more. **You need** the softmax and matrix products.

# %%
import jexplicit as jx  # not found? docs/lessons.md says how to install it

# %%
import os

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

TINY = bool(os.environ.get("TINY"))  # few sweeps: the lesson runs in seconds

# %% [markdown]
# ## Features and counts
#
# The images are scikit-learn's digits of 8 x 8 pixels. A row of $H$ is an image, $Y$ holds the labels, one-hot, and $K$ is the
# mean sum of a row of $H$. All that the closed form needs is $F = H^\top Y$: how much ink each pixel has in each class.

# %%
data = jx.data.read_images("digits")
H, H_test = (jnp.asarray(jx.data.pixel_features(X, data.levels)) for X in (data.train_images, data.test_images))
Y, labels = jnp.asarray(jx.data.one_hot(data.train_labels, data.outputs)), jnp.asarray(data.test_labels, jnp.int32)
F, K = jx.solvers.dense_cooccurrence(H, Y), float(jx.solvers.priming_number(H))
print(f"H {H.shape}, F {F.shape}, mean L1 norm K = {K:.2f}")

# %% [markdown]
# ## The closed form
#
# $$U_{j,i} = \log F_{j,i} - \frac{K-1}{K} \log \sum_d F_{d,i}$$

# %%
U = jx.explicit_solution(F, K)
print(f"explicit: {jx.solvers.accuracy(H_test @ U, labels):.4f} of {len(labels)} test images right")

# %% [markdown]
# ## To the optimum, without backpropagation
#
# The loss is convex in $U$, and its gradient is $H^\top P - F$, where $P$ holds the predicted probabilities. Newton's method
# would invert its curvature. The curvature is never above $H^\top H / 2$, so $U \leftarrow U + 2 (H^\top H)^{-1} (F - H^\top
# P)$ always lowers the loss, with a matrix that is inverted once (Böhning 1992).

# %%
sweeps = 5 if TINY else 150
pixels = jx.solvers.curvature_bound_sweeps(H, Y, U, sweeps=sweeps)
print(f"after {sweeps} sweeps on pixels: {jx.solvers.accuracy(pixels.logits(H_test), labels):.4f}")

# %% [markdown]
# The columns of $U$, one for each class, minus their mean over the classes. Red pixels are evidence for a class, blue ones
# against it.

# %%
fig, axes = plt.subplots(2, data.outputs, figsize=(data.outputs, 2.2))
for row, (name, table) in zip(axes, {"explicit": U, "sweeps": pixels.U}.items()):
    centred = np.asarray(table - table.mean(axis=1, keepdims=True))
    limit = np.quantile(np.abs(centred), 0.99)
    for ax, column in zip(row, centred.T):
        ax.imshow(column.reshape(8, 8), cmap="RdBu_r", vmin=-limit, vmax=limit)
        ax.set(xticks=[], yticks=[])
    row[0].set_ylabel(name)
plt.show()

# %% [markdown]
# ## Better features
#
# Scattering is not trained either: the sizes of the responses to small waves, of two scales and six directions, and of the
# responses to these again, are averaged over 16 cells of the image. The same two methods:

# %%
bank = jx.features.wavelets((8, 8), octaves=2, angles=6, grid=4)
both = (np.float32(images / (data.levels - 1)) for images in (data.train_images, data.test_images))
Z, Z_test = (jx.features.scattering_pools(X, bank) for X in both)
explicit = jx.explicit_solution(jx.solvers.dense_cooccurrence(Z, Y), float(jx.solvers.priming_number(Z)))
waves = jx.solvers.curvature_bound_sweeps(Z, Y, sweeps=sweeps)
bars = {
    "pixels, explicit": H_test @ U,
    "pixels, sweeps": pixels.logits(H_test),
    "scattering, explicit": Z_test @ explicit,
    "scattering, sweeps": waves.logits(Z_test),
}
accuracies = {name: jx.solvers.accuracy(logits, labels) for name, logits in bars.items()}
print("   ".join(f"{name} {accuracy:.4f}" for name, accuracy in accuracies.items()))
plt.figure(figsize=(5, 2))
plt.barh(list(accuracies), list(accuracies.values()))
plt.xlim(0.8, 1)
plt.xlabel("test accuracy")
plt.show()

# %% [markdown]
# ## Exercises
#
# 1. Shuffle the pixels of all images in the same way. What happens to the accuracy of the closed form, and what would happen to
#    scattering?
# 2. Compare with scikit-learn's `MultinomialNB`, naive Bayes. Why are the numbers so near?
# 3. Use $K = 1$ in `jx.explicit_solution`, which leaves $U = \log F$. Which digit does it prefer, and why?
# 4. Start the sweeps on pixels from zeros instead of from the closed form. Does the start matter for the end?

# %% [markdown]
# ## Answers

# %%
order = np.random.default_rng(0).permutation(H.shape[1])
shuffled = jx.explicit_solution(jx.solvers.dense_cooccurrence(H[:, order], Y), K)
print(f"1: {jx.solvers.accuracy(H_test[:, order] @ shuffled, labels):.4f}")

from sklearn.naive_bayes import MultinomialNB

print(f"2: {MultinomialNB().fit(np.asarray(H), data.train_labels).score(np.asarray(H_test), labels):.4f}")
guesses = (H_test @ jx.explicit_solution(F, 1.0)).argmax(axis=1)
print("3: guesses minus images of each digit", np.bincount(guesses, minlength=10) - np.bincount(labels, minlength=10))
print("   ink of each class, in percent", np.asarray(100 * F.sum(axis=0) / F.sum(), float).round(1))
print(f"4: {jx.solvers.accuracy(jx.solvers.curvature_bound_sweeps(H, Y, sweeps=sweeps).logits(H_test), labels):.4f}")

# %% [markdown]
# 1. Nothing happens: the closed form does not know which pixels are neighbours. Waves do, so shuffled images would lose them.
# 2. The closed form *is* naive Bayes, with the mean norm $K$ in place of each image's own and without a prior of the classes.
# 3. The 8, which has the most ink: a class's ink counts once for each of an image's 22 units of ink, and is not divided
#    out.
# 4. No: the loss is convex, so there is one optimum. After as many sweeps both starts differ by an image or two of 360.
