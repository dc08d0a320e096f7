"""A language model of this project as a model of lm-evaluation-harness (docs/model_guide.md there).

Every request is a document of its own. Unknown symbols are scored as `<unk>`, which a rolling log-likelihood also spells.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]
from lm_eval.api.registry import register_model  # pyright: ignore[reportMissingImports]
from lm_eval.models.utils import normalize_gen_kwargs  # pyright: ignore[reportMissingImports]

from jexplicit.data.text import text_sizes
from jexplicit.data.tokenizers import PAD
from jexplicit.lm.evaluation import score, spelling
from jexplicit.lm.generation import generate, generate_text
from jexplicit.lm.text_model import load_model
from jexplicit.runs.devices import key_of_seed
from launch.kit.views import groups

_together = 64  # prompts of one call: as many each time, so that it is compiled once
_options = ("until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p")  # of generation


@register_model("jexplicit")
class JexplicitModel(LM):
    """A model of a run, or of an exported file.

    run, options: arguments of `load_model`. seed: of texts that are sampled.
    """

    def __init__(self, run: str, seed: int = 0, **options: Any):
        super().__init__()
        ignored = ("batch_size", "max_batch_size", "device")  # of lm_eval's command line
        self.saved = load_model(run, **{name: value for name, value in options.items() if name not in ignored})
        self.model, self.key = self.saved.model, key_of_seed(seed)

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        """`log p(continuation | context)` in nats, and whether greedy generation says it."""
        pairs = [self._encode_pair(*request.args) for request in requests]
        log_p, greedy = self._log_probabilities([ids for ids, _ in pairs]), self._are_greedy(pairs)
        return [(float(own[n:].sum()), said) for own, (_, n), said in zip(log_p, pairs, greedy, strict=True)]

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        """`log p(text)` in nats, `<unk>` spelled; the context is never cut."""
        texts = [request.args[0] for request in requests]
        ids = [self.saved.tokenizer.encode(text) for text in texts]
        prices = (spelling(self.saved.tokenizer, own, text_sizes([text])) for own, text in zip(ids, texts, strict=True))
        return [float(own.sum()) - price for own, price in zip(self._log_probabilities(ids), prices, strict=True)]

    def generate_until(self, requests: list[Any]) -> list[str]:
        """Continuations up to stop strings, greedy unless a task samples."""
        texts, given = [""] * len(requests), [_options_of(request.args[1]) for request in requests]
        for options, which in groups(range(len(requests)), lambda n: tuple(given[n][0].items())).items():
            for some in _batches(which):
                key = jax.random.fold_in(self.key, some[0])  # no two batches have the same draws
                prompts = [requests[n].args[0] for n in some] + [""] * (_together - len(some))
                said = generate_text(key, self.model, self.saved.tokenizer, prompts, **dict(options))
                for n, text in zip(some, said, strict=False):
                    for stop in filter(None, given[n][1]):
                        text = text.split(stop)[0]
                    texts[n] = text
        return texts

    def _encode_pair(self, context: str, continuation: str) -> tuple[np.ndarray, int]:
        """Token ids of both together, and how many are the context's."""
        encode = self.saved.tokenizer.encode
        before = len(encode(context.rstrip())) if context.strip() else 0  # a space belongs to the token after it
        ids = encode(context + continuation)
        if before >= len(ids) and continuation.strip():  # a token of both: it is the continuation's
            before = max(len(ids) - 1, 0)
        return ids, min(before, len(ids))

    def _log_probabilities(self, texts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Of every token of every text, each text on its own."""
        some = [ids for ids in texts if len(ids)]
        if not some:
            return [np.zeros(0)] * len(texts)
        stream = np.concatenate([[PAD], *(np.append(ids, PAD) for ids in some)])
        log_p = score(self.model, stream, separate=True).astype(np.float64)
        if self.model.eos:
            log_p = log_p[stream[1:] != PAD]  # a request is not the end of a document
        return np.split(log_p, np.cumsum([len(ids) for ids in texts])[:-1])

    def _are_greedy(self, pairs: Sequence[tuple[np.ndarray, int]]) -> list[bool]:
        """Whether each continuation is greedy, token by token."""
        greedy, banned, step = [True] * len(pairs), (self.saved.tokenizer.unk_id,), 0
        while open_ := [n for n, (ids, start) in enumerate(pairs) if greedy[n] and start + step < len(ids)]:
            for some in _batches(open_):
                prompts = [pairs[n][0][: pairs[n][1] + step] for n in some] + [np.zeros(0, np.int64)] * (_together - len(some))
                said = generate(self.key, self.model, prompts, 1, temperature=0.0, banned=banned)[:, 0]
                for n, token in zip(some, said, strict=False):
                    greedy[n] = bool(token == pairs[n][0][pairs[n][1] + step])
            step += 1
        return greedy


def _options_of(given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The options of `generate_text`, and the stop strings, of a request."""
    options = dict[str, Any](normalize_gen_kwargs(given))
    if unknown := [name for name in options if name not in _options]:
        raise ValueError(f"generation option {', '.join(unknown)}: leave it out; there are {', '.join(_options)}")
    if (length := options["max_gen_toks"]) < 1:
        raise ValueError(f"max_gen_toks {length}: generate at least one token")
    temperature = float(options.get("temperature", 1.0)) if options["do_sample"] else 0.0
    more = {"top_k": options.get("top_k") or None, "top_p": options.get("top_p")}
    return {"length": length, "temperature": temperature, **more}, options["until"]


def _batches(which: list[int]) -> Iterator[list[int]]:
    return (which[first : first + _together] for first in range(0, len(which), _together))
