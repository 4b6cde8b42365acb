"""The function that sends pushes which wait for their target."""
