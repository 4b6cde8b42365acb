"""Projections of the table's stream."""
