"""A queue: its state, its configuration, and the jobs that it accepts."""
