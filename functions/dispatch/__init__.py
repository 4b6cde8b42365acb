"""The function that pushes jobs of deliveries that are woken."""
