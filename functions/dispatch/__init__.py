"""The function that dispatches the jobs of woken deliveries."""
