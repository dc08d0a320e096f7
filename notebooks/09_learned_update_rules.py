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
# # Learned update rules
#
# A learning algorithm can be learned, too (Sandler et al., ICML 2021). Neurons have several states, and synapses are updated by
# a rule of fewer than a hundred numbers, the *genome*. The rule has no loss and no gradient in it. The genome is what is
# learned.

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
from icl import blur
from icl.blur.judging import descent_flops, nearest_neighbour_accuracies, rule_flops

TINY = bool(os.environ.get("TINY"))  # under a minute instead of two
jax.config.update("jax_disable_most_optimizations", TINY)  # less time for compilation
sets = blur.image_sets(jx.data.read_images("digits"))
key = jax.random.key(0)

# %% [markdown]
# ## One update
#
# An update is a forward pass, a backward pass that starts from the labels, and a Hebbian step of each synapse, from the states
# before and after it. The labels are written to state 1 of the last layer. For $k$ states the genome has four $k \times k$
# matrices and 23 scalars, not all of which every rule reads; it is the same for all layers. The learned rule `hebbian` on
# scikit-learn's 8x8 digits:

# %%
rule = blur.load_genome("hebbian")
print(f"{rule.rules.states} states, {sum(np.size(leaf) for leaf in rule.genome)} numbers")
synapses = blur.init_synapses(key, rule.genome, rule.rules, (64, 32, 10))
update = jax.jit(lambda synapses, x, y: blur.learn(rule.genome, rule.rules, synapses, x, y))
predict = jax.jit(lambda synapses, x: blur.predict(rule.genome, rule.rules, synapses, x))
X, Y = map(jnp.asarray, sets.train)
for n, batch in enumerate(blur.minibatches(0, len(X), steps=10, batch_size=64), 1):
    synapses, _ = update(synapses, X[batch], Y[batch])
    correct = predict(synapses, jnp.asarray(sets.test.X)).argmax(axis=1) == sets.test.Y.argmax(axis=1)
    if n in (1, 2, 5, 10):
        print(f"updates: {n:2}, {100 * correct.mean():.1f} % of the test images right")

# %% [markdown]
# ## Gradient descent is such a rule
#
# It needs two states, and a backward pass that multiplies the second one. This is the largest difference of any weight from
# descent with `jax.grad`, when both start from the same weights and take 50 steps of their own:

# %%
cases = (("tanh", "cross_entropy"), ("relu", "cross_entropy"), ("sigmoid", "squared_error"))
for hidden, loss in cases[: 1 if TINY else 3]:
    sizes = (12, 16, 5) if TINY else (12, 16, 14, 10, 5)
    difference = blur.sgd_difference(blur.sgd_rules(hidden, loss), sizes).all_steps
    print(f"{hidden:>7}, {loss}: {difference:.1e}")

# %% [markdown]
# ## Comparison with descent at many learning rates
#
# Descent is run plain and with the normalisation of the learned rule, which accounts for part of the rule's lead. The genome
# `digits` is a second learned rule: each layer takes a step towards the ridge regression of its minibatch, from the first layer
# to the last.

# %%
steps, seeds = (10, (0,)) if TINY else (60, tuple(range(5)))
rates = (1.0,) if TINY else tuple(np.geomspace(0.03, 10, 8).tolist())
rules = {"Hebbian rule": rule, "ridge rule": blur.load_genome("digits")}
learned = {
    name: blur.learning_curves(one.genome, one.rules, (32,), sets.train, sets.test, steps=steps, seeds=seeds)
    for name, one in rules.items()
}
descents = []
fig, axes = plt.subplots(1, 2, figsize=(9, 3), sharey=True)
for ax, normalised in zip(axes, (True,) if TINY else (False, True)):
    descent = blur.descent_curves("sgd", rates, (32,), sets.train, sets.test, normalised=normalised, steps=steps, seeds=seeds)
    descents.append(descent.mean(axis=1))  # [rates, updates]
    label = f"descent, rates {rates[0]:.2g} to {rates[-1]:.2g}"
    for accuracy in descents[-1]:
        ax.semilogx(np.arange(1, steps + 1), accuracy[1:], color="grey", alpha=0.6, label=label)
        label = None  # one entry in the legend for all rates
    for name, curves in learned.items():
        ax.semilogx(np.arange(1, steps + 1), curves.mean(axis=0)[1:], linewidth=2, label=name)
    ax.set(title="normalised" if normalised else "plain", xlabel="updates", ylim=(0.3, 1))
axes[0].set_ylabel("test accuracy")
axes[0].legend(fontsize=8)
plt.show()

# %% [markdown]
# ## On equal terms
#
# The rule is fast in *updates*. One of its updates costs more than eight of descent, and it was meta-trained on these very
# images. With as many floating-point operations descent is ahead, at the best of its rates. So is the nearest neighbour among
# the images that the rule has seen:

# %%
n, rule = 1 if TINY else 5, rules["ridge rule"]
cost = rule_flops(rule.genome, rule.rules, (64, 32, 10), 64) / descent_flops((64, 32, 10), 64)
nearest = nearest_neighbour_accuracies(sets.train, sets.test, at=(n,), batch_size=64, seeds=seeds).mean()
best = descents[0].max(axis=0)  # of the plain networks
print(f"an update of the ridge rule costs {cost:.1f} of descent")
print(f"ridge rule, {n} updates: {100 * learned['ridge rule'].mean(axis=0)[n]:.1f} %")
print(f"descent, {n} updates: {100 * best[n]:.1f} %; {int(n * cost)} updates: {100 * best[int(n * cost)]:.1f} %")
print(f"nearest neighbour of the same {64 * n} images: {100 * nearest:.1f} %")

# %% [markdown]
# ## Meta-training
#
# Gradient descent on the genome lowers the loss after ten updates. It starts from two random genomes, because some never learn
# to learn. The plot has the dev accuracy of each after ten updates.

# %%
rules = blur.Rules(states=2 if TINY else 4, synapse_norm=True, output="softmax")
recipe = blur.MetaRecipe(hidden=(8,) if TINY else (32,), path=0.5, learning_rate=0.015)
genomes = jax.vmap(lambda key: blur.random_genome(key, rules.states))(jax.random.split(key, 2))
curriculum = (blur.Stage(3, 4),) if TINY else (blur.Stage(10, 600),)
found = blur.meta_train(
    genomes, rules, recipe, curriculum, sets.train, sets.dev, every=4 if TINY else 50, episodes=2 if TINY else 8
)
plt.figure(figsize=(5, 2.6))
accuracy = [entry["accuracy"] for entry in found.history]
plt.plot([entry["step"] for entry in found.history], accuracy, label=["genome 1", "genome 2"])
plt.xlabel("meta-step")
plt.ylabel("dev accuracy")
plt.legend()
plt.show()

# %% [markdown]
# ## Not a gradient
#
# The Jacobian of an update that follows a gradient is symmetric. On exclusive or, the Jacobian of descent is symmetric. That of
# a learned rule, which solves the task, is not: no loss has this rule as its gradient.

# %%
x, y = (jnp.asarray(part, jnp.float32) for part in blur.xor())
for name, genome, rules in (
    ("descent", blur.sgd_genome(0.25), blur.sgd_rules("tanh", "cross_entropy")),
    ("learned", *blur.load_genome("boolean")[:2]),
)[: 1 if TINY else 2]:
    synapses = blur.init_synapses(key, genome, rules, (2, 4 if TINY else 20, 2))
    jacobian = jax.jit(lambda synapses, genome=genome, rules=rules: blur.update_jacobian(genome, rules, synapses, x, y))(
        synapses
    )
    curl = blur.curl(jacobian)
    print(f"{name}: largest entry of J - Jᵀ {curl.largest:.2g}, relative norm {curl.relative:.2g}")

# %% [markdown]
# Next: `jexplicit blur train --preset digits` learns the rule `digits`, and `jexplicit blur tasks` measures rules.
