"""BLUR: learned learning algorithms.

rule = icl.blur.learner("digits")
state = rule.init(jax.random.key(0), (64, 32, 10))
state, logits = rule.update(x, y, state)  # one update on a minibatch

Source: Sandler et al., Meta-Learning Bidirectional Update Rules, ICML 2021.
"""

from typing import TYPE_CHECKING

from jexplicit.runs.api import public_names

if TYPE_CHECKING:
    from icl.blur.data import Examples as Examples
    from icl.blur.data import Sets as Sets
    from icl.blur.data import corners as corners
    from icl.blur.data import image_sets as image_sets
    from icl.blur.data import resize_images as resize_images
    from icl.blur.data import xor as xor
    from icl.blur.descent import curl as curl
    from icl.blur.descent import descent_curves as descent_curves
    from icl.blur.descent import sgd_difference as sgd_difference
    from icl.blur.descent import sgd_genome as sgd_genome
    from icl.blur.descent import sgd_rules as sgd_rules
    from icl.blur.descent import update_jacobian as update_jacobian
    from icl.blur.design import Rules as Rules
    from icl.blur.episodes import FAMILIES as FAMILIES
    from icl.blur.episodes import Family as Family
    from icl.blur.episodes import draw_episode as draw_episode
    from icl.blur.episodes import make_source as make_source
    from icl.blur.episodes import mean_scores as mean_scores
    from icl.blur.episodes import meta_loss as meta_loss
    from icl.blur.genome import Genome as Genome
    from icl.blur.genome import LearnedRule as LearnedRule
    from icl.blur.genome import backprop_genome as backprop_genome
    from icl.blur.genome import load_genome as load_genome
    from icl.blur.genome import random_genome as random_genome
    from icl.blur.genome import ridge_genome as ridge_genome
    from icl.blur.genome import save_genome as save_genome
    from icl.blur.genome import shipped_genomes as shipped_genomes
    from icl.blur.learning import Learner as Learner
    from icl.blur.learning import learner as learner
    from icl.blur.learning import learning_curves as learning_curves
    from icl.blur.learning import minibatches as minibatches
    from icl.blur.meta import MetaRecipe as MetaRecipe
    from icl.blur.meta import SearchResult as SearchResult
    from icl.blur.meta import Stage as Stage
    from icl.blur.meta import meta_step as meta_step
    from icl.blur.meta import meta_train as meta_train
    from icl.blur.rules import Synapse as Synapse
    from icl.blur.rules import backward as backward
    from icl.blur.rules import forward as forward
    from icl.blur.rules import init_synapses as init_synapses
    from icl.blur.rules import learn as learn
    from icl.blur.rules import predict as predict
    from icl.blur.rules import update_synapses as update_synapses
    from icl.names import RATES as RATES

__getattr__, __dir__ = public_names(__name__)
