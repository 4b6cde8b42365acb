"""Stored data about dead letters besides their job records."""
