"""A flax network as a language model, behind the same functions as all others."""

from typing import Any

import numpy as np

from jexplicit.lm.core.model import LanguageModel, pytree, static
from jexplicit.nn.networks import MLPLanguageModel, TokenStack, network_outputs


@pytree
class NetworkRows:
    """The logits of a network, as one row.

    variables: parameters and running statistics of the network.
    network: the flax module, [B, K] token ids -> [B, N] logits.
    context: K.
    """

    variables: Any
    network: MLPLanguageModel | TokenStack = static()
    context: int = static()

    names = property(lambda self: ("network",))
    tokens = property(lambda self: (None,))
    radius = property(lambda self: self.context)
    history = property(lambda self: 0)
    vocab_size = property(lambda self: self.network.vocab_size)

    def read(self, context, history=None):
        return [network_outputs(self.network, self.variables, context[None])[0]]


def network_model(network: MLPLanguageModel | TokenStack, variables: Any, *, context: int, eos: bool = True) -> LanguageModel:
    """The language model of a network.

    Args:
        network: a flax module, [B, K] token ids -> [B, N] logits.
        variables: of the network.
        context: K, the tokens that it reads.
        eos: whether it predicts the end of a document.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from jexplicit.nn.networks import init_variables
        >>> network = MLPLanguageModel(vocab_size=4, embedding=2, hidden=(3,))
        >>> model = network_model(network, init_variables(network, jax.random.key(0), jnp.zeros((1, 2), int)), context=2)
        >>> model.logits(jnp.array([1, 3])).shape
        (4,)
    """
    return LanguageModel((NetworkRows(variables, network, context),), np.ones(1, np.float32), "none", eos)
