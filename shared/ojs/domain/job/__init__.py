"""A job: what a client sends, its record, states and transitions, retries, failures, unique keys."""
