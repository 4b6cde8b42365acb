"""A queue: its state and configuration, and which jobs it takes."""
