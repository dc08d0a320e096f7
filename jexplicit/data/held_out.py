"""Documents held out of a token stream, to choose parameters on text that was not counted."""

import numpy as np

from jexplicit.data.contexts import PAD


def hold_out(stream: np.ndarray, *, positions: int, most: float = 0.1, blocks: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """Hold whole documents out of a stream, in blocks of neighbours spread evenly over it.

    Neighbouring documents are alike: a document held out alone would be more predictable than new text, and a single block
    would come from one source only.

    Args:
        stream: [L] token ids, `<pad> d_1 <pad> ... d_n <pad>`.
        positions: approximate number of tokens to hold out.
        most: approximate upper bound on the share of the stream.
        blocks: approximate number of blocks; fewer where documents are long.

    Returns:
        the remaining and the held-out documents, as streams. Their counts add up to the counts of the whole stream. A document
        more than twice as long as what is to be held out stays in the rest if there is a shorter one. Of a single document the
        last part is held out, and the pairs across the cut are in neither stream.

    Raises:
        ValueError: a stream of a single token; positions, most or blocks not above 0.

    Example:
        >>> rest, held = hold_out(np.array([0, 1, 0, 2, 0, 3, 0, 4, 0]), positions=2, most=0.25, blocks=1)
        >>> rest.tolist(), held.tolist()
        ([0, 1, 0, 3, 0, 4, 0], [0, 2, 0])
    """
    if positions < 1 or most <= 0 or blocks < 1:
        raise ValueError(f"{positions} positions, at most a share of {most}, in {blocks} blocks: all must be above 0")
    pads = np.flatnonzero(stream == PAD)
    lengths = np.diff(pads)  # of documents, with the <pad> that ends each
    share = min(positions / len(stream), most)
    if len(lengths) < 2:
        cut = len(stream) - 1 - max(1, round(share * len(stream)))
        if cut < 2:
            raise ValueError(
                f"a text of {len(stream) - 2} token(s): nothing is left when a part is held out; use a longer text"
            )
        return np.append(stream[:cut], stream[:1]), np.concatenate([stream[:1], stream[cut:]])
    wanted = share * len(stream)
    gap = (1 - share) * wanted / blocks  # tokens owed when a block begins; while it is held out, its own share is added
    chosen, owed, holding = np.zeros(len(lengths), bool), gap / 2, False
    for d, length in enumerate(lengths):
        owed += share * length
        holding = length <= wanted + owed and owed >= (length / 2 if holding else gap)
        if holding:
            chosen[d], owed = True, owed - length
    if 2 * lengths[chosen].sum() < wanted or chosen.all():  # long documents: hold out the one nearest in size
        misfit = np.where(2 * lengths > len(stream), np.inf, np.abs(np.log(lengths / wanted)))
        chosen[:] = np.arange(len(lengths)) == np.argmin(misfit)
    of_token = np.repeat(chosen, lengths)
    first, others = stream[:1], stream[1:]
    return np.concatenate([first, others[~of_token]]), np.concatenate([first, others[of_token]])
