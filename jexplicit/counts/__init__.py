"""Co-occurrence counts: dense, sparse, sharded, streamed, merged."""
