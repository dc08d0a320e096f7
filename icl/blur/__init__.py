"""BLUR: learned learning algorithms.

rule = icl.blur.learner("digits")
state = rule.init(jax.random.key(0), (64, 32, 10))
state, logits = rule.update(x, y, state)  # one update on a minibatch

Source: Sandler et al., Meta-Learning Bidirectional Update Rules, ICML 2021.
"""

from typing import TYPE_CHECKING

from jexplicit.runs import lazy_names

if TYPE_CHECKING:
    from icl.blur.data import image_sets as image_sets
    from icl.blur.data import xor as xor
    from icl.blur.descent import curl as curl
    from icl.blur.descent import descent_curves as descent_curves
    from icl.blur.descent import sgd_difference as sgd_difference
    from icl.blur.descent import sgd_genome as sgd_genome
    from icl.blur.descent import sgd_rules as sgd_rules
    from icl.blur.descent import update_jacobian as update_jacobian
    from icl.blur.design import Rules as Rules
    from icl.blur.episodes import FAMILIES as FAMILIES
    from icl.blur.genome import load_genome as load_genome
    from icl.blur.genome import random_genome as random_genome
    from icl.blur.genome import shipped_genomes as shipped_genomes
    from icl.blur.learning import learner as learner
    from icl.blur.learning import learning_curves as learning_curves
    from icl.blur.learning import minibatches as minibatches
    from icl.blur.meta import MetaRecipe as MetaRecipe
    from icl.blur.meta import Stage as Stage
    from icl.blur.meta import meta_train as meta_train
    from icl.blur.rules import init_synapses as init_synapses
    from icl.blur.rules import learn as learn
    from icl.blur.rules import predict as predict

_names = {
    "data": "image_sets xor",
    "descent": "curl descent_curves sgd_difference sgd_genome sgd_rules update_jacobian",
    "design": "Rules",
    "episodes": "FAMILIES",
    "genome": "load_genome random_genome shipped_genomes",
    "learning": "learner learning_curves minibatches",
    "meta": "MetaRecipe Stage meta_train",
    "rules": "init_synapses learn predict",
}
__getattr__, __dir__ = lazy_names(__name__, _names)
