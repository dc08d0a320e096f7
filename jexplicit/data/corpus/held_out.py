"""Documents held out of a token stream, for fitting parameters on uncounted text."""

import numpy as np

from jexplicit.data.contexts import PAD

_span_nats = 64
_part = 1 << 22  # tokens
_odd = np.array([1000003, 0x9E3779B97F4A7C15], np.uint64)  # of a polynomial hash


def hold_out(stream: np.ndarray, *, positions: int, most: float = 0.1, blocks: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """Hold whole documents out of a stream, in blocks spread evenly.

    Neighbouring documents are similar: a single held-out document would be more predictable than new text, and a single block
    would be from one source only.

    Args:
        stream: [L] token ids, `<pad> d_1 <pad> ... d_n <pad>`.
        positions: approximate number of tokens to hold out.
        most: approximate upper bound on the share of the stream.
        blocks: approximate number of blocks; fewer for long documents.

    Returns:
        the remaining and the held-out documents, as streams. Their counts sum to those of the whole stream. Documents more than
        twice as long as the held-out text are not held out if there is a shorter one. Of a single document the last part is
        held out, and the pairs across the boundary are in neither stream.

    Raises:
        ValueError: a stream of a single token; positions, most or blocks not above 0.
    """
    if positions < 1 or most <= 0 or blocks < 1:
        raise ValueError(f"{positions} positions, at most a share of {most}, in {blocks} blocks: all must be above 0")
    pads = np.flatnonzero(stream == PAD)
    lengths = np.diff(pads)  # of documents, including their final <pad>
    share = min(positions / len(stream), most)
    if len(lengths) < 2:
        cut = len(stream) - 1 - max(1, round(share * len(stream)))
        if cut < 2:
            raise ValueError(f"a text of {len(stream) - 2} token(s): too short to hold out a part; use a longer text")
        return np.append(stream[:cut], stream[:1]), np.concatenate([stream[:1], stream[cut:]])
    wanted = share * len(stream)
    gap = (1 - share) * wanted / blocks  # deficit of held-out tokens that starts a block; it grows by the block's own share
    chosen, owed, holding = np.zeros(len(lengths), bool), gap / 2, False
    for d, length in enumerate(lengths):
        owed += share * length
        holding = length <= wanted + owed and owed >= (length / 2 if holding else gap)
        if holding:
            chosen[d], owed = True, owed - length
    if 2 * lengths[chosen].sum() < wanted or chosen.all():  # long documents: hold out the one of nearest size
        misfit = np.where(2 * lengths > len(stream), np.inf, np.abs(np.log(lengths / wanted)))
        chosen[:] = np.arange(len(lengths)) == np.argmin(misfit)
    of_token = np.repeat(chosen, lengths)
    first, others = stream[:1], stream[1:]
    return np.concatenate([first, others[~of_token]]), np.concatenate([first, others[of_token]])


def cut_documents(stream: np.ndarray, longest: int) -> np.ndarray:
    """The same text with long documents split to `longest` tokens.

    For a text of a few long documents, pieces spread over it are a better sample than one document.
    """
    pads = np.flatnonzero(stream == PAD)
    lengths = np.diff(pads) - 1
    pieces = np.maximum(1, -(-lengths // longest))
    document = np.repeat(np.arange(len(lengths)), pieces - 1)
    nth = np.arange(len(document)) - np.repeat(np.cumsum(pieces - 1) - (pieces - 1), pieces - 1) + 1
    return np.insert(stream, pads[document] + 1 + nth * lengths[document] // pieces[document], PAD)
