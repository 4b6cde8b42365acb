"""Realtime: tickets, connections, rings to idle workers, and events to subscribers."""
