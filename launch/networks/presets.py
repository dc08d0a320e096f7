"""The presets of launch.networks, by subcommand."""

from typing import Any, get_args

from jexplicit.nn.parts.names import Activation
from launch.kit.command import Preset
from launch.networks.config import AutoencoderConfig, CompareConfig, FCNNConfig, LSTMConfig, MLPConfig, TransformerConfig

_digits = "200 of the 8x8 digits; under a minute on 2 CPU cores."
_small: dict[str, Any] = {"limit": 200, "hidden": (16,), "epochs": 2, "batch_size": 64}
_text: dict[str, Any] = {**_small, "direct": "tokens", "limit": 30, "tokenizer": "char", "embedding": 4, "samples": 2}
_memory: dict[str, Any] = {"memories": 2, "memory_width": 32, "memory_depth": 2, "memory_scales": (0.4,), "memory_steps": 50}
_network: Any = {"limit": 30, "tokenizer": "char", "window": 32, "width": 16, "layers": 1}
_training: Any = {"steps": 8, "warmup": 2, "evaluations": 2, "batch_size": 4, "samples": 1}
_characters: Any = {"corpus": "text", "documents": "file", "split": "end", "tokenizer": "char"}
_larger: Any = {"window": 256, "width": 192, "heads": 6, "dropout": 0.1, "batch_size": 16}
_subwords: Any = {"corpus": "text", "window": 128, "width": 256, "batch_size": 32, "steps": 8000, "evaluations": 16}
_lstm: Any = {"window": 128, "width": 512, "dropout": 0.3, "batch_size": 32, "steps": 5000, "evaluations": 20}
_a100: Any = {"window": 256, "width": 384, "layers": 6, "heads": 6, "dropout": 0.2, "batch_size": 64}
_h100: Any = {"window": 256, "width": 512, "layers": 6, "heads": 8, "dropout": 0.1, "batch_size": 64, "steps": 3000}
_h100 |= {"learning_rate": 6e-4, "warmup": 200}
_compare: dict[str, Any] = {"seeds": 2, "width": 8, "epochs": 3, "depths": (1, 2), "rates": (0.1,)}
PRESETS: dict[str, dict[str, Preset]] = {
    "mlp-lm": {"tiny": Preset(MLPConfig("runs/mlp_tiny", **_text), "30 documents by character; ten seconds on 2 cores.")},
    "transformer-lm": {
        "tiny": Preset(
            TransformerConfig(out="runs/transformer_tiny", heads=2, **_network, **_training), "30 documents; 20 s on 2 cores."
        ),
        "shakespeare-cpu": Preset(
            TransformerConfig(out="runs/transformer_shakespeare_cpu", positions="learned", **_characters),
            "tiny Shakespeare with --train input.txt, in nanoGPT's setting for a CPU; 4 minutes on 2 CPU cores. Loss by window "
            "1.90 (there: 1.88).",
        ),
        "shakespeare": Preset(
            TransformerConfig(out="runs/transformer_shakespeare", steps=5000, evaluations=20, **_larger, **_characters),
            "tiny Shakespeare with --train input.txt, as large as two CPU cores train in a few hours.",
        ),
        "shakespeare-gpu": Preset(
            TransformerConfig(
                out="runs/transformer_shakespeare_gpu", positions="learned", steps=5000, evaluations=20, **_a100, **_characters
            ),
            "tiny Shakespeare with --train input.txt, in nanoGPT's setting for an A100 (there: 1.4697); a minute on an "
            "H100. Loss by window 1.480.",
        ),
        "babylm": Preset(
            TransformerConfig(out="runs/transformer_babylm", **_subwords),
            "your own text in 4098 subwords, with --train and --dev: two passes over 10 M words. Dev perplexity 39.8.",
        ),
        "babylm-gpu": Preset(
            TransformerConfig(out="runs/transformer_babylm_gpu", **_subwords | _h100),
            "the same with 21 M weights and three passes; 2 minutes on an H100. Dev perplexity 31.3.",
        ),
    },
    "lstm-lm": {
        "tiny": Preset(LSTMConfig(out="runs/lstm_tiny", **_network, **_training), "30 documents; 20 s on 2 cores."),
        "shakespeare": Preset(
            LSTMConfig(out="runs/lstm_shakespeare", **_lstm, **_characters),
            "tiny Shakespeare with --train input.txt, as large as two CPU cores train in a few hours.",
        ),
        "babylm": Preset(
            LSTMConfig(out="runs/lstm_babylm", **_subwords | {"width": 512}),
            "your own text in 4098 subwords, with --train and --dev: two passes over 10 M words.",
        ),
    },
    "fcnn": {"tiny": Preset(FCNNConfig("runs/fcnn_tiny", **_small), "200 of the 8x8 digits; 15 s on 2 CPU cores.")},
    "autoencoder": {
        "tiny": Preset(AutoencoderConfig("runs/autoencoder_tiny", limit=200, epochs=3, iterations=10, **_memory), _digits),
        "memories": Preset(
            AutoencoderConfig("runs/memories", memory_activations=get_args(Activation), memory_scales=(1.0, 0.4, 0.2)),
            "memorised examples by nonlinearity and scale of the initial weights: 21 networks, 10 minutes on 2 CPU cores.",
        ),
    },
    "compare": {"tiny": Preset(CompareConfig("runs/compare_tiny", limit=200, **_compare), _digits)},
}
