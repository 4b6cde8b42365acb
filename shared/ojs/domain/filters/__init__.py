"""Filters of jobs and dead letters. Each field of a filter is one condition."""
