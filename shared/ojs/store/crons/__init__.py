"""Cron jobs in the table."""
