"""Workers: who they are, their state, and their heartbeats."""
