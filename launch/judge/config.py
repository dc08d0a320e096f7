"""The configuration of launch.judge."""

from dataclasses import dataclass
from typing import ClassVar

from launch.shared.flags import ModelChoices


@dataclass(frozen=True, kw_only=True)
class Config(ModelChoices):
    """Judge language models by minimal pairs of sentences."""

    GROUPS: ClassVar = {"run": "run"}

    run: str
    """Run folder of launch.lm or launch.networks, or an exported .safetensors file. All its models are judged, or only
    those that match --method, --features, --radius and --history."""
    pairs: tuple[str, ...]
    """Minimal pairs: JSON lines files, globs or folders."""
    out: str
    """Run folder to write: results and report.md."""
    resume: bool = False
    """Continue the interrupted run in --out, or judge more models."""
