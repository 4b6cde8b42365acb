"""Listings of jobs, dead letters and unique locks."""
