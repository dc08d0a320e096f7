"""Sums of the bidirectional update rules, straight from the paper, in plain NumPy. JAX is not imported here."""

import numpy as np
from scipy.special import softmax

SIGMA = {"tanh": np.tanh, "relu": lambda z: np.maximum(z, 0), "sigmoid": lambda z: 1 / (1 + np.exp(-z)), "linear": lambda z: z}
SLOPE = {"relu": lambda z: 1.0 * (z > 0), "tanh": lambda z: 1 - np.tanh(z) ** 2, "linear": np.ones_like}


def normalised(z: np.ndarray, m: float, s: float, over: str) -> np.ndarray:
    """z [B, n, k], every neuron's state over the minibatch, or every state over minibatch and layer."""
    axes = 0 if over == "batch" else (0, 1)
    return m * (z - z.mean(axis=axes, keepdims=True)) / np.sqrt(z.var(axis=axes, keepdims=True) + 1e-5) + s


def unit(W: np.ndarray) -> np.ndarray:
    """W [n_in, n_out, c], what enters a neuron of norm 1."""
    return W / np.sqrt((W**2).sum(axis=0) + 1e-9)


def activated(name: str, z: np.ndarray) -> np.ndarray:
    """σ of every entry, or the softmax over neurons."""
    return softmax(z, axis=1) if name == "softmax" else SIGMA[name](z)


def with_slopes(name: str, z: np.ndarray, r: dict) -> np.ndarray:
    """The activated states, the second of which is the derivative where the rules say so."""
    a = activated(name, z)
    if r["derivative"]:
        a[:, :, 1] = SLOPE[name](z[:, :, 1])
    return a


def step(g: dict, r: dict, Ws: list, x: np.ndarray, y: np.ndarray, age: float = 0.0) -> tuple[list, np.ndarray]:
    """One whole step: new synapses [n_in + 1, n_out, c], and logits."""
    k, B, L = r["states"], len(x), len(Ws)
    channels = k if r["multistate"] else 1

    def read(W: np.ndarray) -> np.ndarray:  # with a channel for each state
        W = g["rescale"] * unit(W) if r["synapse_norm"] else W
        return W if r["multistate"] else np.repeat(W, k, axis=2)

    def over(layer: int) -> str:
        return "layer" if r["over"] == "mixed" and layer == 1 else "batch"

    def with_bias(a: np.ndarray) -> np.ndarray:
        return np.concatenate([a, np.ones((B, 1, k))], axis=1)

    def forward_layer(W: np.ndarray, a: np.ndarray, below: int, last: bool) -> tuple[np.ndarray, np.ndarray]:  # Eq. 5
        z = g["eta"] * np.einsum("ijc,dc,bid->bjc", read(W), g["nu"], with_bias(a))
        if r["normalise_output"] if last else r["normalise"] in ("forward", "both"):
            z = normalised(z, g["m_output"] if last else g["m"], g["s"], over(below + 1))
        return with_slopes(r["output"] if last else r["hidden"], z, r), z[:, :, 0]

    def feed(a: np.ndarray, logits: np.ndarray) -> np.ndarray:
        fed = np.zeros_like(a)
        fed[:, :, 0] = a[:, :, 0]
        fed[:, :, 1] = np.where(y == 1, 1.0, -1.0)
        if r["feedback"] == "cross_entropy":
            fed[:, :, 1] = a[:, :, 1] * (softmax(logits, axis=1) - y)
        return fed

    a = [np.zeros((B, x.shape[1], k))]
    a[0][:, :, 0] = x
    logits = x
    for n, W in enumerate(Ws):
        states, logits = forward_layer(W, a[n], n, n == L - 1)
        a.append(states)
    a[L] = feed(a[L], logits)
    for n in range(L - 1, 0, -1):  # Eq. 6
        V = read(Ws[n][:-1].transpose(1, 0, 2))
        u = g["eta"] * np.einsum("jic,dc,bjd->bic", V, g["mu"], a[n + 1])
        z = g["f"] * a[n] + u if r["backward"] == "additive" else g["f"] * a[n] * u
        if r["normalise"] in ("backward", "both"):
            z = normalised(z, *((1.0, 0.0) if r["derivative"] else (g["m"], g["s"])), over(n))
        new = activated(r["backward_activation"] or r["hidden"], z)
        if r["backward"] == "multiplicative_second_state":
            new[:, :, 0] = a[n][:, :, 0]
        a[n] = new

    def ridge(before: np.ndarray, after: np.ndarray, c: int, lam: float, trust: float) -> np.ndarray:
        A, E = before @ g["pre"][:, c], after @ g["post"][c]
        alpha = np.mean([row @ row for row in A])
        H = A.T @ np.linalg.inv(A @ A.T / alpha + lam * np.eye(B)) @ E / np.sqrt(alpha)
        part = (((A @ H) ** 2).sum() / alpha + 1e-6) / ((E**2).sum() + 1e-6)
        return H / part ** (trust / 2)

    def updated(W: np.ndarray, before: np.ndarray, after: np.ndarray, neurons: int, last: bool) -> np.ndarray:  # Eq. 7
        rate = g["eta_synapse"]
        if r["aging"]:
            floor = g["floor_output" if last else "floor"]
            rate = rate * max(floor + (1 - floor) / (1 + g["aging"] * age), 0.01)
        if r["update"] != "ridge":
            H = np.einsum("bie,ec,cd,bjd->ijc", before, g["pre"], g["post"], after)[:, :, :channels] / B
            return g["f_synapse"] * W + rate * H
        rate = rate * (g["eta_output"] if last else neurons ** -g["width"] / (1 + g["depth"] * (L - 2) * neurons**0.5))
        lam, trust = (g["lam_output"], 0.0) if last else (g["lam"], g["trust"])
        H = np.stack([ridge(before, after, c, lam, trust) for c in range(channels)], axis=2)
        return (1 - abs(rate * g["decay"])) * W + rate * H

    new_W, below = [], a[0]
    for n in range(L):
        last, neurons = n == L - 1, Ws[n].shape[1]
        before, after = {"backward": a[n], "sequential": below}[r["pre"]], a[n + 1]
        if last and r["pre"] == "sequential":
            after = feed(*forward_layer(Ws[n], below, n, last))
        new_W.append(updated(Ws[n], with_bias(before), after, neurons, last))
        below = forward_layer(new_W[n], below, n, last)[0]
    return new_W, logits
