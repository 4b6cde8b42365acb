"""The function that sends pushes and waits for the response of their target."""
