"""BLUR: learned learning algorithms.

rule = icl.blur.learner("digits")
state = rule.init(jax.random.key(0), (64, 32, 10))
state, logits = rule.update(x, y, state)  # one update on a minibatch

Source: Sandler et al., Meta-Learning Bidirectional Update Rules, ICML 2021.
"""

from typing import TYPE_CHECKING

from jexplicit.runs import lazy_names

if TYPE_CHECKING:
    from icl.blur.baselines import curl as curl
    from icl.blur.baselines import descent_curves as descent_curves
    from icl.blur.baselines import sgd_difference as sgd_difference
    from icl.blur.baselines import sgd_genome as sgd_genome
    from icl.blur.baselines import sgd_rules as sgd_rules
    from icl.blur.baselines import update_jacobian as update_jacobian
    from icl.blur.design import Rules as Rules
    from icl.blur.learning import image_sets as image_sets
    from icl.blur.learning import learner as learner
    from icl.blur.learning import learning_curves as learning_curves
    from icl.blur.learning import minibatches as minibatches
    from icl.blur.learning import xor as xor
    from icl.blur.rules import init_synapses as init_synapses
    from icl.blur.rules import learn as learn
    from icl.blur.rules import load_genome as load_genome
    from icl.blur.rules import predict as predict
    from icl.blur.rules import random_genome as random_genome
    from icl.blur.rules import shipped_genomes as shipped_genomes
    from icl.blur.search import FAMILIES as FAMILIES
    from icl.blur.search import MetaRecipe as MetaRecipe
    from icl.blur.search import Stage as Stage
    from icl.blur.search import meta_train as meta_train

_names = {
    "baselines": "curl descent_curves sgd_difference sgd_genome sgd_rules update_jacobian",
    "design": "Rules",
    "learning": "image_sets learner learning_curves minibatches xor",
    "rules": "init_synapses learn load_genome predict random_genome shipped_genomes",
    "search": "FAMILIES MetaRecipe Stage meta_train",
}
__getattr__, __dir__ = lazy_names(__name__, _names)
