"""Limits: concurrency permits, rate windows, limits by key, and throttle states."""
