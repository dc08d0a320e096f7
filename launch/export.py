"""Write one language model of a run to a self-contained file.

    python -m launch.export --run runs/demo --method explicit --out model.safetensors
    python -m launch.export --run runs/demo --out demo-model        # a folder to share, with a model card
    python -m launch.export --run runs/demo --method bigram --out model.arpa.gz

A file NAME.arpa or NAME.arpa.gz holds an n-gram model whose words are the tokens, for KenLM and other decoders.
"""

import sys
from dataclasses import dataclass
from typing import Any

from jexplicit.runs.files import check_writable, local_path
from jexplicit.runs.progress import console, show
from launch.kit.command import entry_point
from launch.shared.flags import ModelChoice, load_choice


@dataclass(frozen=True, kw_only=True)
class Config(ModelChoice):
    """Write one language model of a run to a self-contained safetensors file."""

    out: str
    """File NAME.safetensors, or folder to share.
    The methods ngram, bigram and unigram also write NAME.arpa or NAME.arpa.gz."""


def run(config: Config) -> dict[str, Any]:
    """Load and write."""
    from jexplicit.lm.arpa import is_arpa
    from jexplicit.lm.checkpoints import export_model, model_path

    given = local_path(config.out, "--out")
    out = check_writable(model_path(given), "--out")
    saved = load_choice(config)
    export_model(given, saved)
    if is_arpa(out) and not saved.model.eos:
        remedy = "</s> has log10 p = -99; score without it (eos=False)"
        console.print(f"[yellow]warning:[/] the model was fitted without --eos: {remedy}")
    show(f"{out}, {out.stat().st_size / 1e6:.1f} MB")
    return {"out": str(out), "bytes": out.stat().st_size}


main = entry_point(run, Config, __doc__)

if __name__ == "__main__":
    sys.exit(main())
