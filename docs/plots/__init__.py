"""Pictures of the documentation, and the runs they are drawn from."""
