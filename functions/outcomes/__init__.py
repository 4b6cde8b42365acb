"""The function that processes the outcomes of pushes."""
