"""Tenants: their records, and the quotas of their pushes."""
