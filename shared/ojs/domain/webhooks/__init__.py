"""Webhooks: events that are posted to the endpoints of subscribers."""
