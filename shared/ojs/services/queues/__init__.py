"""Queues: creation, configuration, pause, and deletion."""
