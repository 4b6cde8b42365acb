"""Push delivery: configuration, dispatch, outcomes, and wake-up messages."""
