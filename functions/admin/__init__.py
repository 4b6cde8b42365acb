"""Everything else: health, manifest, dead letter, queues, workers as an operator sees them."""
