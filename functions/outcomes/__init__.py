"""The function that settles the outcomes of pushes."""
