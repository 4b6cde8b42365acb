"""Deliveries in the table."""
