"""BLUR: learned learning algorithms.

rule = icl.blur.learner("digits")
state = rule.init(jax.random.key(0), (64, 32, 10))
state, logits = rule.update(x, y, state)  # one update on a minibatch

Source: Sandler et al., Meta-Learning Bidirectional Update Rules, ICML 2021.
"""

from typing import TYPE_CHECKING

from jexplicit.runs.files import lazy_names

if TYPE_CHECKING:
    from icl.blur.baselines import *  # noqa: F403
    from icl.blur.design import *  # noqa: F403
    from icl.blur.learning import *  # noqa: F403
    from icl.blur.rules import *  # noqa: F403
    from icl.blur.search import *  # noqa: F403

_names = {
    "baselines": "curl descent_curves sgd_difference sgd_genome sgd_rules update_jacobian",
    "design": "Rules",
    "learning": "image_sets learner learning_curves minibatches xor",
    "rules": "init_synapses learn load_genome predict random_genome shipped_genomes",
    "search": "FAMILIES MetaRecipe Stage meta_train",
}
__getattr__, __dir__ = lazy_names(__name__, _names)
