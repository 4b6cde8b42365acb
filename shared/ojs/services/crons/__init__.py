"""Cron jobs: registration, changes, and the creation of their jobs when a tick is due."""
