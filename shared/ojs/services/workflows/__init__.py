"""Workflows: creating them, advancing them when their jobs end, cancelling and retrying them."""
