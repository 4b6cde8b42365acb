"""A job: its request, record, states, transitions, retries, failures, and unique keys."""
