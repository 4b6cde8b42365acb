"""Registers schemas of job arguments, and checks arguments."""
