"""The whole job of launch.judge: pairs -> differences of log-probability, model by model -> accuracies, figure, report."""

import time
from typing import Any

from jexplicit.data.pairs import MinimalPair, read_pairs
from jexplicit.lm.minimal_pairs import judgement, preferences
from jexplicit.lm.names import label
from jexplicit.lm.text_model import TextModel
from jexplicit.runs.folder import RunFolder, present_run
from jexplicit.runs.progress import stage
from launch.choose import load_choices
from launch.judge.config import Config
from launch.judge.report import by_model, results_table, write_report


def run(config: Config) -> dict[str, Any]:
    """Pairs -> differences of log-probability, model by model -> accuracies, figure, report."""
    start = time.perf_counter()
    pairs = read_pairs(config.pairs)
    models = load_choices(config.run, config)
    first = next(models)  # what cannot be loaded is refused before a folder is made
    folder = RunFolder(config.out, config, resume=config.resume, extend=("method", "features", "radius", "history"))
    for saved in (first, *models):
        if not any(name_of(saved).items() <= row.items() for row in folder.rows()):
            folder.add_rows(judge(saved, pairs))
    report = write_report(folder.path)
    presented = present_run(folder, results_table(folder.rows()), report, start)
    return {**presented, "models": by_model(folder.rows())}


def judge(saved: TextModel, pairs: list[MinimalPair]) -> list[dict[str, Any]]:
    """A row per paradigm: how often one model is right."""
    began = time.perf_counter()
    with stage(f"judging with {label(saved.about)}", "positions") as progress:
        differences = preferences(saved.model, saved.tokenizer, pairs, progress=progress)
    seconds = time.perf_counter() - began
    paradigms: dict[str, list[int]] = {}
    for n, pair in enumerate(pairs):
        paradigms.setdefault(pair.paradigm, []).append(n)
    return [
        {
            "paradigm": paradigm,
            "field": pairs[which[0]].field,
            "term": pairs[which[0]].term,
            **judgement(differences[which])._asdict(),
            **name_of(saved),
            "seconds": seconds * len(which) / len(pairs),
        }
        for paradigm, which in paradigms.items()
    ]


def name_of(saved: TextModel) -> dict[str, Any]:
    """What tells the models of a run apart."""
    return {name: saved.about[name] for name in ("method", "features", "radius", "history", "bits") if name in saved.about}
