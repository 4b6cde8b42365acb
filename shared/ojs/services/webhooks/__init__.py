"""Manages webhook subscriptions, and posts events to them."""
