"""Stored data about dead letters in addition to their job records."""
