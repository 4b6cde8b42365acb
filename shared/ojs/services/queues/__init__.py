"""Queues: making, configuring, pausing and deleting them."""
