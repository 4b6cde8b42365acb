"""Cron jobs: registering them, and firing them when their ticks come."""
