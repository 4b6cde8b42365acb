"""A job: its request, record, states and transitions, retries, failures and unique keys."""
