"""A flax network as a language model, behind the same functions as all others.

flax and optax are imported where a network is read: other models do without.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from jexplicit.data.contexts import PAD
from jexplicit.lm.core.model import NO_TOKEN, LanguageModel
from jexplicit.lm.core.tables import pytree, static

_overlaps = 4  # windows that read a token of a text


@pytree
class NetworkRows:
    """The logits of a network of K tokens, as one row.

    variables: parameters and running statistics of the network.
    network: the flax module, [B, K] token ids -> [B, N] logits.
    context: K.
    """

    variables: Any
    network: Any = static()
    context: int = static()

    names = property(lambda self: ("network",))
    tokens = property(lambda self: (None,))
    radius = property(lambda self: self.context)
    history = property(lambda self: 0)
    vocab_size = property(lambda self: self.network.vocab_size)

    def read(self, context, history=None):
        from jexplicit.nn.networks import network_outputs

        return [network_outputs(self.network, self.variables, context[None])[0]]


@pytree
class SequenceRows:
    """The logits of a network with a context of W tokens, as one row.

    variables: parameters of the network.
    network: the flax module, [B, T] token ids -> [B, T, N] logits; causal, and a `<pad>` begins a document.
    """

    variables: Any
    network: Any = static()

    names = property(lambda self: ("network",))
    tokens = property(lambda self: (None,))
    radius = 1
    history = property(lambda self: self.network.window)
    vocab_size = property(lambda self: self.network.vocab_size)

    def read(self, context, history: Any = None):
        """The row after a history, nearest token first, within its document."""
        from jexplicit.nn.networks import network_outputs

        W = self.history
        known = jnp.where(history == NO_TOKEN, PAD, history)
        n = jnp.argmax(jnp.append(known == PAD, True))  # tokens of the document
        tokens = jnp.roll(known[::-1], -jnp.maximum(W - n - 1, 0))  # the document comes first, from its `<pad>` on
        logits = network_outputs(self.network, self.variables, tokens[None])[0]
        return [logits[jnp.minimum(n, W - 1)]]

    def stream_log_probabilities(self, stream: Any, **options: Any) -> np.ndarray:
        """`log p` of every token of a stream but its first, by long windows."""
        from jexplicit.nn.sequences import stream_log_probabilities

        return stream_log_probabilities(self.network, self.variables, stream, **self._windows, **options)

    def stream_distributions(self, stream: Any, places: np.ndarray, **options: Any) -> np.ndarray:
        """`log p` of all tokens at some places, from the same windows."""
        from jexplicit.nn.sequences import stream_distributions

        return stream_distributions(self.network, self.variables, stream, places, **self._windows, **options)

    _windows = property(lambda self: {"window": self.history, "stride": -(-self.history // _overlaps)})


def network_model(network: Any, variables: Any, *, context: int = 0, eos: bool = True) -> LanguageModel:
    """The language model of a network.

    Args:
        network: a flax module, [B, K] token ids -> [B, N] logits; or [B, T] -> [B, T, N], with a `window`.
        context: K, the tokens that it reads, of a network of K tokens.
        eos: whether it predicts the end of a document.

    Example:
        >>> import jax
        >>> from jexplicit.nn.networks import MLPLanguageModel, init_variables
        >>> network = MLPLanguageModel(vocab_size=4, embedding=2, hidden=(3,))
        >>> model = network_model(network, init_variables(network, jax.random.key(0), jnp.zeros((1, 2), int)), context=2)
        >>> model.logits(jnp.array([1, 3])).shape
        (4,)
    """
    sequence = hasattr(network, "window")
    kind = SequenceRows(variables, network) if sequence else NetworkRows(variables, network, context)
    return LanguageModel(kind, "none", eos)
