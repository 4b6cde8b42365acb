"""Queues, worker pools and workers."""
