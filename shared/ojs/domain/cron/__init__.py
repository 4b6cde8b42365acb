"""Periodic jobs: expressions, time zones and the times at which they fire."""
