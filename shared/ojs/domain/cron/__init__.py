"""Cron jobs: definitions, expressions, time zones, and ticks."""
