"""Dead letters: filters, changes on a retry, replay rules, copies, bulk operations, statistics."""
