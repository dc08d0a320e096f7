"""The text of a run as tokens and counts, new or cached."""

import shutil
import time
from typing import Any

import numpy as np
from jax.sharding import Mesh

from jexplicit.counts.dense import count
from jexplicit.counts.merging import SparseCounts, read_tables
from jexplicit.counts.sparse import count_sparse
from jexplicit.counts.stream import Saving
from jexplicit.data.contexts import PAD
from jexplicit.data.corpora import Corpus, Documents, split_at_end
from jexplicit.data.corpus import sources
from jexplicit.data.corpus.cache import TokenizedCorpus, cached_streams
from jexplicit.data.corpus.shards import read_shards, read_sizes
from jexplicit.data.tokenizers import Tokenizer
from jexplicit.lm.checkpoints import has_counts, load_counts, save_counts, save_tokenizer
from jexplicit.lm.fits.fit import choose_tables
from jexplicit.lm.training_text import TrainingText
from jexplicit.runs.devices import within_memory
from jexplicit.runs.host import host_bytes, parse_bytes, peak_bytes
from jexplicit.runs.processes import barrier, check_equal_across_processes, is_first
from jexplicit.runs.progress import console, stage
from launch.kit.folder import RunFolder
from launch.lm.config import Config

_of_sparse = ("unigram", "bigram", "explicit", "ngram", "context-mixing")  # methods that have models of sparse tables


def read_corpus(config: Config) -> Corpus[list[str]]:
    """The documents of the corpus, without the test text."""
    with stage("reading", "source files" if config.corpus == "installed" else "") as progress:
        split = "end" if config.split == "dev-test" else config.split
        options: Any = {"field": config.field, "documents": config.documents, "split": split, "keep": True}
        corpus = sources.read_corpus(config.corpus, config.train, config.dev, **options, progress=progress)
        if config.split == "dev-test":  # a ninth of what is left is a tenth of all
            train, dev = (Documents(split_at_end, corpus.train, dev=dev, share=1 / 9) for dev in (False, True))
            corpus = Corpus(corpus.name, train, dev, corpus.source)
        return (corpus.limit(config.limit) if config.limit else corpus).in_memory()


def read_text(config: Config, folder: RunFolder) -> tuple[TokenizedCorpus, dict[str, Any]]:
    """Streams of token ids, and their origin as fields of rows.

    Of several processes the first one tokenises, and the others then find its tokens in the cache. The tokenizer is saved.

    Raises:
        ValueError: shards of another tokenizer than the one beside them; a run that is resumed counted another text.
    """
    if config.shards:
        tokenizer = Tokenizer.load(config.shards / "tokenizer.model")
        train, dev = (read_shards(config.shards / part) for part in ("train", "dev"))
        if others := [shards.folder for shards in (train, dev) if shards.tokenizer != tokenizer.sha256]:
            raise ValueError(f"{others[0]} holds tokens of another tokenizer than its tokenizer.model: write both again")
        name, sha256, of_all = str(config.shards), train.sha256, train.sha256 + dev.sha256
        text = TokenizedCorpus(tokenizer, train, dev[:], cached=True, dev_sizes=read_sizes(config.shards / "dev"))
    else:
        if not is_first():
            barrier("tokens")
        corpus = read_corpus(config)
        name, sha256, of_all = corpus.name, corpus.sha256, corpus.sha256
        with stage("tokenising", "documents") as progress:
            text = cached_streams(corpus, kind=config.tokenizer, vocab_size=config.vocab_size, progress=progress)
        if is_first():
            barrier("tokens")
    check_equal_across_processes("text", of_all)
    folder.note_data("text", corpus_sha256=sha256, tokenizer_sha256=text.tokenizer.sha256)
    if is_first():
        save_tokenizer(folder.path, text.tokenizer)
    return text, {"corpus": name, "corpus_sha256": sha256}


def kind_of_tables(config: Config, vocab_size: int) -> str:
    """dense or sparse tables, as the methods, --tables and the memory allow."""
    budget = parse_bytes(config.memory) if config.memory else host_bytes()
    auto = choose_tables(config.methods, vocab_size, max(config.radius), budget)
    tables = auto if config.tables == "auto" else config.tables
    if tables == "sparse" and (others := set(config.methods) - set(_of_sparse)):
        raise ValueError(
            f"--methods {' '.join(sorted(others))} with sparse tables: these work only with {', '.join(_of_sparse)}; "
            "use --tables dense or a smaller --vocab-size"
        )
    return tables


def check_fit(config: Config, text: TokenizedCorpus) -> None:
    """Refuse text that is too small.

    Raises:
        ValueError: with what the text has.
    """
    if isinstance(text.train, np.ndarray):  # shards are too many to look through
        lengths = np.diff(np.flatnonzero(text.train == PAD)) - 1
        if len(np.unique(np.bincount(text.train[text.train != PAD]))) <= 2:  # 0, and one number
            raise ValueError(f"a training text of {lengths.sum()} tokens that all occur equally often: give more text")
        if max(config.radius) > lengths.max():
            raise ValueError(
                f"--radius {max(config.radius)}: the longest document has {lengths.max()} tokens; use at most that"
            )


def count_or_load(
    config: Config, folder: RunFolder, text: TokenizedCorpus, mesh: Mesh, kind: str
) -> tuple[TrainingText, float]:
    """The text with its counts, new or resumed, and their seconds."""
    K, N, path = max(config.radius), text.tokenizer.vocab_size, folder.path
    memory = parse_bytes(config.memory) if config.memory else None
    shape: Any = {"eos": config.eos, "mesh": mesh, "tokenizer": text.tokenizer}

    def training(counts: Any) -> TrainingText:
        name = {"dense": "counts", "sparse": "sparse_counts"}[kind]
        return TrainingText(text.train, N, **{name: counts}, **shape)

    sparse = kind == "sparse"
    if has_counts(path, sparse=sparse) and len(counts := load_counts(path, sparse=sparse)) >= K:
        return training(counts), folder.events("count")[-1]["seconds"]
    saving = Saving(path / "checkpoints" / "counting", config.checkpoint_seconds)
    start = time.perf_counter()
    with stage(f"counting, {kind} tables", "positions") as progress:
        options: Any = {"radius": K, "vocab_size": N, "progress": progress}
        counts: Any
        if beside := counts_beside_shards(config, text.tokenizer, K):
            counts = beside if kind == "sparse" else tuple(C.toarray() for C in beside)
        elif kind == "sparse":
            counts = count_sparse(text.train, saving=saving, **options)
        else:
            devices = within_memory(mesh, memory, 4 * K * N**2, K) if memory else mesh
            counts = count(text.train, mesh=devices, saving=saving, **options)
        counted = training(counts)
    seconds = time.perf_counter() - start
    folder.log(event="count", seconds=seconds, positions=len(text.train) - 1, radius=K, peak_bytes=peak_bytes(), tables=kind)
    save_counts(path, counts)
    if is_first():
        shutil.rmtree(saving.folder, ignore_errors=True)  # what was counted is saved as a whole
    return counted, seconds


def counts_beside_shards(config: Config, tokenizer: Tokenizer, radius: int) -> SparseCounts:
    """C_1 .. C_K that launch.beam left with its shards, if any.

    Raises:
        ValueError: damaged counts, or those of another tokenizer.
    """
    folder = config.shards / "counts" if config.shards else None
    if not folder or not folder.is_dir():
        return ()
    tables = read_tables(folder, tokenizer=tokenizer.sha256)[:radius]
    if len(tables) < radius:
        console.print(f"  {folder} holds offsets 1 to {len(tables)} of the {radius} needed: counting again")
        return ()
    return tables
