"""Co-occurrence counts: dense, sparse, streamed, merged."""

from jexplicit.counts import Counts as Counts
from jexplicit.counts import count as count
from jexplicit.counts import count_sparse as count_sparse
from jexplicit.counts import merge_counts as merge_counts
