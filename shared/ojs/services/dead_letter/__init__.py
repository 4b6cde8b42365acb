"""Dead letters: search, retry, replay by rule, bulk operations, pruning, copies."""
