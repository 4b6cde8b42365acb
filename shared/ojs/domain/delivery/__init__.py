"""Push deliveries: configuration, events, signatures, outcomes, and circuit breakers."""
