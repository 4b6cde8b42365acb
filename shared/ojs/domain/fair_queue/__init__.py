"""Tenant fairness: start tags and shares of tenants in a queue."""
