"""lm-evaluation-harness with models of jexplicit: `python lm_eval_model.py run --model jexplicit --model_args run=DIR ...`.

A request is a document of its own. What the tokenizer does not know is scored as <unk>. No part of the package imports this.
"""

import numpy as np
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

import jexplicit
from jexplicit.lm import next_token


@register_model("jexplicit")
class JexplicitModel(LM):
    """A model of a run folder or of an exported file; `wanted` chooses by method, features, radius and history."""

    def __init__(self, run, batch_size=None, max_batch_size=None, device=None, **wanted):
        super().__init__()
        self.model = jexplicit.load_model(run, **wanted)

    def loglikelihood(self, requests):
        """log p of continuations, and whether each token of one is the likeliest."""
        return [self.of_pair(*request.args) for request in requests]

    def of_pair(self, context, continuation):
        encode = self.model.tokenizer.encode
        ids, n = encode(context + continuation), len(encode(context.rstrip()))  # a space belongs to the token after it
        n = min(n, max(len(ids) - 1, 0))
        (log_p,) = self.model.score([context + continuation])
        greedy = all(np.argmax(next_token(self.model.model, ids[:m])) == ids[m] for m in range(n, len(ids)))
        return float(log_p[n : len(ids)].sum()), greedy

    def loglikelihood_rolling(self, requests):
        return [float(self.model.score([request.args[0]])[0].sum()) for request in requests]

    def generate_until(self, requests):
        """Greedy continuations, cut before the first stop."""
        found = []
        for request in requests:
            prompt, options = request.args
            text = self.model.generate(prompt, options.get("max_gen_toks", 64), temperature=0.0)
            for stop in options.get("until", ()):
                text = text.split(stop)[0]
            found.append(text)
        return found


if __name__ == "__main__":
    cli_evaluate()
