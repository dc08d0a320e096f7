"""Slow NumPy loops of the bidirectional update rules, straight from the paper's sums. JAX is not imported here."""

import numpy as np

SIGMA = {"tanh": np.tanh, "relu": lambda z: max(z, 0.0), "sigmoid": lambda z: 1 / (1 + np.exp(-z)), "linear": lambda z: z}
SLOPE = {"relu": lambda z: float(z > 0), "tanh": lambda z: 1 - np.tanh(z) ** 2, "linear": lambda z: 1.0}


def normalised(z: np.ndarray, m: float, s: float, over: str) -> np.ndarray:
    """z [B, n, k], every neuron's state over the minibatch, or every state over minibatch and layer."""
    out = np.zeros_like(z)
    for c in range(z.shape[2]):
        for j in range(z.shape[1]):
            seen = z[:, j, c] if over == "batch" else z[:, :, c].ravel()
            out[:, j, c] = m * (z[:, j, c] - seen.mean()) / np.sqrt(seen.var() + 1e-5) + s
    return out


def unit(W: np.ndarray) -> np.ndarray:
    """W [n_in, n_out, c], what enters a neuron of norm 1."""
    out = np.zeros_like(W)
    for c in range(W.shape[2]):
        for j in range(W.shape[1]):
            out[:, j, c] = W[:, j, c] / np.sqrt((W[:, j, c] ** 2).sum() + 1e-9)
    return out


def activated(name: str, z: np.ndarray) -> np.ndarray:
    """σ of every entry, or the softmax over neurons."""
    if name == "softmax":
        e = np.exp(z - z.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)
    return np.vectorize(SIGMA[name], otypes=[float])(z)


def with_slopes(name: str, z: np.ndarray, r: dict) -> np.ndarray:
    """The activated states, the second of which is the derivative where the rules say so."""
    a = activated(name, z)
    if r["derivative"]:
        a[:, :, 1] = np.vectorize(SLOPE[name], otypes=[float])(z[:, :, 1])
    return a


def step(g: dict, r: dict, Ws: list, x: np.ndarray, y: np.ndarray, age: float = 0.0) -> tuple[list, np.ndarray]:
    """One whole step: new synapses [n_in + 1, n_out, c], and logits."""
    k, B, L = r["states"], len(x), len(Ws)
    channels = k if r["multistate"] else 1

    def read(W: np.ndarray, i: int, j: int, c: int) -> float:
        return W[i, j, c if r["multistate"] else 0]

    def seen(W: np.ndarray) -> np.ndarray:
        return g["rescale"] * unit(W) if r["synapse_norm"] else W

    def over(layer: int) -> str:
        return "layer" if r["over"] == "mixed" and layer == 1 else "batch"

    def forward_layer(W: np.ndarray, a: np.ndarray, below: int, last: bool) -> tuple[np.ndarray, np.ndarray]:  # Eq. 5
        n_out, with_bias = W.shape[1], np.concatenate([a, np.ones((B, 1, k))], axis=1)
        z = np.zeros((B, n_out, k))
        for b in range(B):
            for j in range(n_out):
                for c in range(k):
                    for i in range(W.shape[0]):
                        for d in range(k):
                            z[b, j, c] += g["eta"] * read(W, i, j, c) * g["nu"][d, c] * with_bias[b, i, d]
        if r["normalise_output"] if last else r["normalise"] in ("forward", "both"):
            z = normalised(z, g["m_output"] if last else g["m"], g["s"], over(below + 1))
        return with_slopes(r["output"] if last else r["hidden"], z, r), z[:, :, 0]

    def feed(a: np.ndarray, logits: np.ndarray) -> np.ndarray:
        fed = np.zeros_like(a)
        fed[:, :, 0] = a[:, :, 0]
        fed[:, :, 1] = np.where(y == 1, 1.0, -1.0)
        if r["feedback"] == "cross_entropy":
            fed[:, :, 1] = a[:, :, 1] * (activated("softmax", logits) - y)
        return fed

    a = [np.zeros((B, x.shape[1], k))]
    a[0][:, :, 0] = x
    logits = x
    for n, W in enumerate(map(seen, Ws)):
        states, logits = forward_layer(W, a[n], n, n == L - 1)
        a.append(states)
    a[L] = feed(a[L], logits)
    for n in range(L - 1, 0, -1):  # Eq. 6
        V = seen(Ws[n][:-1].transpose(1, 0, 2))
        u = np.zeros_like(a[n])
        for b in range(B):
            for i in range(a[n].shape[1]):
                for c in range(k):
                    for j in range(a[n + 1].shape[1]):
                        for d in range(k):
                            u[b, i, c] += g["eta"] * read(V, j, i, c) * g["mu"][d, c] * a[n + 1][b, j, d]
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
        out = np.zeros_like(W)
        rate = g["eta_synapse"]
        if r["aging"]:
            floor = g["floor_output" if last else "floor"]
            rate = rate * max(floor + (1 - floor) / (1 + g["aging"] * age), 0.01)
        if r["update"] == "ridge":
            rate = rate * (g["eta_output"] if last else neurons ** -g["width"] / (1 + g["depth"] * (L - 2) * neurons**0.5))
            lam, trust = (g["lam_output"], 0.0) if last else (g["lam"], g["trust"])
            for c in range(channels):
                out[:, :, c] = (1 - abs(rate * g["decay"])) * W[:, :, c] + rate * ridge(before, after, c, lam, trust)
            return out
        for i in range(W.shape[0]):
            for j in range(W.shape[1]):
                for c in range(channels):
                    H = 0.0
                    for b in range(B):
                        for e in range(k):
                            for d in range(k):
                                H += before[b, i, e] * g["pre"][e, c] * g["post"][c, d] * after[b, j, d] / B
                    out[i, j, c] = g["f_synapse"] * W[i, j, c] + rate * H
        return out

    new_W, below = [], a[0]
    for n in range(L):
        last, neurons = n == L - 1, Ws[n].shape[1]
        before, after = {"backward": a[n], "sequential": below}[r["pre"]], a[n + 1]
        if last and r["pre"] == "sequential":
            after = feed(*forward_layer(seen(Ws[n]), below, n, last))
        new_W.append(updated(Ws[n], np.concatenate([before, np.ones((B, 1, k))], axis=1), after, neurons, last))
        below = forward_layer(seen(new_W[n]), below, n, last)[0]
    return new_W, logits
