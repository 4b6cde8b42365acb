"""Bounds and limits: taking and giving back permits, and repairing what crashes left."""
