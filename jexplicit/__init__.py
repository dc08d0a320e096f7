"""Closed-form ("explicit") solutions of softmax layers from co-occurrence counts: networks solved instead of trained.

import jexplicit

model = jexplicit.fit(documents)  # a list of texts, or pathlib.Paths of files; by context mixing, of the lowest perplexity
model.perplexity(more_documents)
model.next_token("Return the")
model.generate("Return the", 20)
model.save("model.safetensors")  # jexplicit.load_model reads it

These are the names that most programs need. All others are those of the packages: `jexplicit.counts`, `jexplicit.data`,
`jexplicit.features`, `jexplicit.lm` and `jexplicit.solvers`; each can be written without its package, too.
"""

from typing import TYPE_CHECKING

from jexplicit.runs.api import public_names

if TYPE_CHECKING:
    from jexplicit.counts import *  # noqa: F403
    from jexplicit.counts.dense import count as count
    from jexplicit.data import *  # noqa: F403
    from jexplicit.data.contexts import contexts as contexts
    from jexplicit.features import *  # noqa: F403
    from jexplicit.features.patch_pools import patch_pools as patch_pools
    from jexplicit.lm import *  # noqa: F403
    from jexplicit.lm.attribution import explain as explain
    from jexplicit.lm.checkpoints import load_model as load_model
    from jexplicit.lm.core.model import LanguageModel as LanguageModel
    from jexplicit.lm.evaluation import evaluate as evaluate
    from jexplicit.lm.evaluation import score as score
    from jexplicit.lm.fits.fit import fit as fit
    from jexplicit.lm.generation import generate as generate
    from jexplicit.runs.devices import data_mesh as data_mesh
    from jexplicit.solvers import *  # noqa: F403
    from jexplicit.solvers.curvature_bound import curvature_bound_sweeps as curvature_bound_sweeps
    from jexplicit.solvers.explicit import explicit_solution as explicit_solution
    from jexplicit.solvers.layerwise import solve_layers as solve_layers
    from jexplicit.solvers.sweeps import iterative_scaling_sweeps as iterative_scaling_sweeps

_packages = tuple(f"jexplicit.{name}" for name in ("counts", "data", "features", "lm", "solvers"))
__getattr__, __dir__ = public_names(__name__, _packages)
