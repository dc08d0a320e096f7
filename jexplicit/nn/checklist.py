"""Why a network does not learn: the verdicts of the training checklist.

First a network with one hidden layer and no biases has to fit a single example: mean squared error below 1e-4 within a thousand
steps. One that does not has a bug, or one of a few common faults, which its losses, its gradient and its input tell apart. Then
it is trained on all examples, where it has to beat the best constant answer by far.

Source: Radhakrishnan 2024, "Training tips for fully connected neural networks".
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

FITTED = 1e-4  # the loss of a single example that counts as fitted
_share_of_constant = 0.5  # of the loss of the best constant answer that is left when a network has learnt from all examples
_still_falling = 0.99  # the last tenth of the steps lowered the loss to less than this share


class Verdict(NamedTuple):
    """Whether a step of the checklist passed, and why or why not."""

    passed: bool
    reason: str


def one_example_verdict(losses: Sequence[float], *, input_norm: float, gradient_norm: float, bias: bool) -> Verdict:
    """Whether a network fits one example, and if not, why.

    Args:
        losses: by step, the first before training.
        input_norm: of the example.
        gradient_norm: of the parameters' gradient before training.
        bias: whether the network has biases.

    Raises:
        ValueError: no losses.

    Example:
        >>> one_example_verdict([1.0, 0.1, 1e-5], input_norm=1.0, gradient_norm=2.0, bias=False).passed
        True
        >>> one_example_verdict([1.0, 1.0], input_norm=0.0, gradient_norm=0.0, bias=False).reason
        'the input is 0, which a network without biases maps to 0 whatever its weights: use another example, or biases'
    """
    if not len(losses):
        raise ValueError("no losses: train for at least one step")
    first, last = losses[0], losses[-1]
    if last < FITTED:
        step = next(n for n, loss in enumerate(losses) if loss < FITTED)
        return Verdict(True, f"loss {last:.1e} < {FITTED:g}, reached at step {step}")
    if input_norm == 0 and not bias:
        why = "the input is 0, which a network without biases maps to 0 whatever its weights: use another example, or biases"
    elif gradient_norm == 0:
        why = "the gradient is 0 at the start: weights that are all 0 never move, and units that are all dead do not either"
    elif not np.isfinite(last) or last > first:
        why = f"the loss rises from {first:.2g} to {last:.2g}: shrink the learning rate"
    elif last < _still_falling * losses[-max(2, len(losses) // 10)]:
        why = f"the loss still falls, {last:.2g} after {len(losses) - 1} steps: more steps, or a higher learning rate"
    else:
        why = f"the loss is stuck at {last:.2g}: look for a bug in the gradient or in the step"
    return Verdict(False, why)


def all_examples_verdict(train_loss: float, constant_loss: float) -> Verdict:
    """Whether a network has learnt from all examples: its loss against that of the best constant answer, the targets' mean.

    Example:
        >>> all_examples_verdict(0.1, 0.45).reason
        'loss 0.1, 22 % of the 0.45 of the best constant answer'
    """
    share = train_loss / constant_loss if constant_loss else np.inf
    told = f"loss {train_loss:.2g}, {100 * share:.0f} % of the {constant_loss:.2g} of the best constant answer"
    return Verdict(share < _share_of_constant, told if share < _share_of_constant else f"{told}: train longer or faster")
