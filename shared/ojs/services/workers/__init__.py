"""Workers: their records, their state, and their heartbeats."""
