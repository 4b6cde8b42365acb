"""Workflows: creating, advancing, cancelling, and retrying them."""
