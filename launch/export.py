"""Write one language model of a run to a file.

python -m launch.export --run runs/demo --method explicit --out model.safetensors
python -m launch.export --run runs/demo --method bigram --out model.arpa.gz
"""

from dataclasses import dataclass
from typing import Any

from jexplicit.runs.files import check_writable, local_path
from jexplicit.runs.progress import console, show
from launch.kit.command import entry_point
from launch.kit.text import ModelChoice, load_choice


@dataclass(frozen=True, kw_only=True)
class Config(ModelChoice):
    out: str
    """File NAME.safetensors.
    The methods ngram, bigram and unigram also write NAME.arpa or NAME.arpa.gz."""


def run(config: Config) -> dict[str, Any]:
    """Load and write."""
    from jexplicit.lm.ngram import is_arpa
    from jexplicit.lm.text_model import model_path

    out = check_writable(model_path(local_path(config.out, "--out")), "--out")
    saved = load_choice(config)
    saved.save(out)
    if is_arpa(out) and not saved.model.eos:
        remedy = "</s> has log10 p = -99; score without it (eos=False)"
        console.print(f"[yellow]warning:[/] the model was fitted without --eos: {remedy}")
    show(f"{out}, {out.stat().st_size / 1e6:.1f} MB")
    return {"out": str(out), "bytes": out.stat().st_size}


main = entry_point(run, Config, __doc__, module=__name__)
