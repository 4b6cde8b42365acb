"""Limits and queue capacity: reserves and releases permits, and repairs counters."""
