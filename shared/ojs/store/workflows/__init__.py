"""Workflows in the table."""
