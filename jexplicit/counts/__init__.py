"""Co-occurrence counts: dense, sparse, streamed, merged."""

from jexplicit.counts.dense import count as count
from jexplicit.counts.merging import Counts as Counts
from jexplicit.counts.merging import merge_counts as merge_counts
from jexplicit.counts.sparse import count_sparse as count_sparse
