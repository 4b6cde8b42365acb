"""Storage of push deliveries."""
