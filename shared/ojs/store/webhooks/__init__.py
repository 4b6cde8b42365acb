"""Storage of webhook subscriptions and their deliveries."""
