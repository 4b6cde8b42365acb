"""The ticket authorizer of the WebSocket API."""
