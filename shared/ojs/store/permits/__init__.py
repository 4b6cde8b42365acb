"""Counters that limit: depth of queues, concurrency permits, rates, limits by key; recounts."""
