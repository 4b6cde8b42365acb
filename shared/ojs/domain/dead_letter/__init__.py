"""Dead letters: changes on a retry, replay rules, and statistics."""
