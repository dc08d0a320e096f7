"""Why a network does not learn: the verdicts of the training checklist.

First, a network with one hidden layer and no biases must fit a single example: mean squared error below 1e-4 within a thousand
steps. Otherwise there is a bug or one of a few common faults, distinguished by losses, gradient and input. Then, trained on all
examples, it must clearly beat the best constant prediction.

Source: Radhakrishnan 2024, "Training tips for fully connected neural networks".
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

FIT_LOSS = 1e-4  # a single example with a lower loss counts as fitted
_share_of_constant = 0.5  # of the loss of the best constant prediction: a lower loss counts as learnt
_falling = 0.99  # the loss is falling if the last tenth of the steps reduced it below this share


class Verdict(NamedTuple):
    """Whether a step of the checklist passed, and the reason."""

    passed: bool
    reason: str


def one_example_verdict(losses: Sequence[float], *, input_norm: float, gradient_norm: float, bias: bool) -> Verdict:
    """Whether a network fits one example, and if not, why, from its losses by step, of which the first is before training.

    input_norm: of the example; gradient_norm: before training; bias: whether the network has biases.
    """
    if not len(losses):
        raise ValueError("no losses: train for at least one step")
    first, last = losses[0], losses[-1]
    if last < FIT_LOSS:
        step = next(n for n, loss in enumerate(losses) if loss < FIT_LOSS)
        return Verdict(True, f"loss {last:.1e} < {FIT_LOSS:g}, reached at step {step}")
    if input_norm == 0 and not bias:
        why = "the input is 0, which a network without biases maps to 0 for any weights: use another example, or biases"
    elif gradient_norm == 0:
        why = "the gradient is 0 at the start: all weights are 0, or all units are dead"
    elif not np.isfinite(last) or last > first:
        why = f"the loss rises from {first:.2g} to {last:.2g}: lower the learning rate"
    elif last < _falling * losses[-max(2, len(losses) // 10)]:
        why = f"the loss is still falling, {last:.2g} after {len(losses) - 1} steps: use more steps or a higher learning rate"
    else:
        why = f"the loss is stuck at {last:.2g}: look for a bug in the gradient or the step"
    return Verdict(False, why)


def all_examples_verdict(train_loss: float, constant_loss: float) -> Verdict:
    """Whether a network has learnt from all examples: its loss against that of the mean target, the best constant."""
    share = train_loss / constant_loss if constant_loss else np.inf
    reason = f"loss {train_loss:.2g}, {100 * share:.0f} % of the best constant prediction ({constant_loss:.2g})"
    passed = share < _share_of_constant
    return Verdict(passed, reason if passed else f"{reason}: train longer or with a higher learning rate")
