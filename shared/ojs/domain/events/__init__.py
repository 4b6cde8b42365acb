"""Lifecycle events: their types, their envelope, and filters of the event log."""
