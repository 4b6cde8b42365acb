"""Tenants that share a queue: start tags and shares."""
