"""Counters of queues, and the metrics derived from them."""
