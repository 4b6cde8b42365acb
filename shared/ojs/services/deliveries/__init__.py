"""Pushing jobs to targets: configuration, dispatch, outcomes, wake-ups."""
