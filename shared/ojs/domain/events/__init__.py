"""Lifecycle events: their envelope, and queries of the event log."""
