"""The design of a learner, apart from its genome; does not import JAX."""

import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from icl.names import BackwardMode, Feedback, Normalisation, Output, Over, Pre, Update
from jexplicit.nn.names import Activation


@dataclass(frozen=True)
class Design:
    """The fields of `Rules` that are flags of the same name."""

    states: int = 4
    """Number of states per neuron, k."""
    backward: BackwardMode = "additive"
    """How a neuron combines the backward input with its states. additive: by adding (Eq. 6). multiplicative_second_state: by
    multiplying, with the first state unchanged."""
    multistate: bool = True
    """Whether a synapse has one weight per state. Otherwise all states share one weight, updated as that of the first state."""
    normalise: Normalisation = "both"
    """Passes in which the pre-activations of hidden layers are normalised."""
    normalise_output: bool = True
    """Whether the pre-activations of the output layer are normalised."""
    over: Over = "batch"
    """Set that each neuron is normalised over. batch: the minibatch. mixed: in the first hidden layer also its neurons, which
    keep different offsets and scales."""
    synapse_norm: bool = False
    """Whether the weights into a neuron are scaled to unit norm when they are read."""
    update: Update = "hebbian"
    """Update of a synapse. hebbian: the product of the states before and after it. ridge: the least-squares fit of the
    minibatch."""
    aging: bool = False
    """Learning rates decay with the number of updates."""
    average: bool = False
    """Predict with synapses that are averaged over updates."""
    pre: Pre = "backward"
    """States before a synapse that its update uses. backward: those after that pass. sequential: layers are updated from first
    to last, each with the states that the updated synapses below it give."""
    backward_activation: Activation | None = None
    """Activation of the hidden layers in the backward pass. Default: that of the forward pass."""
    derivative: bool = False
    """The second state of the forward pass is the derivative of the activation; normalised errors have mean 0 and variance 1
    then."""
    feedback: Feedback = "label"
    """Signal that the output layer feeds back: the label, or the derivative of a loss."""

    def __post_init__(self) -> None:
        check_states(self.states)
        if self.average and self.synapse_norm:
            raise ValueError("average with synapse_norm: synapses of unit norm are stored at any scale; choose one of the two")


@dataclass(frozen=True)
class Rules(Design):
    """The design of a learner. Hashable: a static argument of compiled functions.

    Stored synapses are not normalised under `synapse_norm`: once the largest entry of a state exceeds 1e6, that state is
    divided by a scalar, which does not change the normalised weights. Logits are state 0 of the output layer before its
    activation.
    """

    hidden: Activation = "tanh"
    """Activation of the hidden layers, in both passes."""
    output: Output = "tanh"
    """Activation of the output layer's state."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for field, hint in typing.get_type_hints(Rules).items():
            if (choices := list(_choices(hint))) and getattr(self, field) not in choices:
                raise ValueError(f"{field} {getattr(self, field)!r}: choose one of {', '.join(map(str, choices))}")


def check_states(states: int) -> None:
    """Refuse fewer than two states."""
    if states < 2:
        raise ValueError(f"{states} states: neurons have at least 2, one for the input and one for the feedback")


def _choices(hint: Any) -> Iterator[Any]:
    """The members of a `Literal`, or of a union of literals."""
    for part in typing.get_args(hint):
        yield from [part] if isinstance(part, str) else [None] if part is type(None) else _choices(part)
