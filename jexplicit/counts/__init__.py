"""Co-occurrence counts: dense, sparse, streamed, merged."""

from jexplicit.counts.pairs import count as count
from jexplicit.counts.pairs import count_sparse as count_sparse
from jexplicit.counts.tables import Counts as Counts
from jexplicit.counts.tables import merge_counts as merge_counts
