"""A corpus as a whole: read, held out, tokenised, kept in a cache and in shards."""
