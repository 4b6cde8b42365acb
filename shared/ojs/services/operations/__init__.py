"""Operator features: statistics, events, access keys, deployment setup, and garbage collection."""
