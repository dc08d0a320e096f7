"""Models fitted without SGD: softmax layers in closed form, language models from counts.

import jexplicit

model = jexplicit.fit(documents)  # a list of texts, or pathlib.Paths of files; by context mixing, of the lowest perplexity
model.perplexity(more_documents)
model.next_token("Return the")
model.generate("Return the", 20)
model.save("model.safetensors")  # jexplicit.load_model reads it

Most programs need these names alone. The packages have the others: `jexplicit.counts`, `jexplicit.data`, `jexplicit.features`,
`jexplicit.lm` and `jexplicit.solvers`.
"""

from typing import TYPE_CHECKING

from jexplicit.runs.files import lazy_names

if TYPE_CHECKING:
    from jexplicit import counts as counts
    from jexplicit import data as data
    from jexplicit import features as features
    from jexplicit import lm as lm
    from jexplicit import solvers as solvers
    from jexplicit.counts import count as count
    from jexplicit.data.streams import contexts as contexts
    from jexplicit.lm.attribution import explain as explain
    from jexplicit.lm.evaluation import combine as combine
    from jexplicit.lm.evaluation import evaluate as evaluate
    from jexplicit.lm.evaluation import score as score
    from jexplicit.lm.fit import fit as fit
    from jexplicit.lm.generation import generate as generate
    from jexplicit.lm.model import LanguageModel as LanguageModel
    from jexplicit.lm.text_model import TextModel as TextModel
    from jexplicit.lm.text_model import load_model as load_model
    from jexplicit.runs.devices import data_mesh as data_mesh
    from jexplicit.solvers.explicit import explicit_solution as explicit_solution
    from jexplicit.solvers.explicit import solve_layers as solve_layers

__version__ = "0.2.0"
_names = {
    "": "counts data features lm solvers",
    "counts": "count",
    "data.streams": "contexts",
    "lm.attribution": "explain",
    "lm.text_model": "TextModel load_model",
    "lm.model": "LanguageModel",
    "lm.evaluation": "combine evaluate score",
    "lm.fit": "fit",
    "lm.generation": "generate",
    "runs.devices": "data_mesh",
    "solvers.explicit": "explicit_solution solve_layers",
}
__getattr__, __dir__ = lazy_names(__name__, _names)
