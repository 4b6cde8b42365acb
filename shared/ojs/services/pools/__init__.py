"""Worker pools: configuration, dispatch, workers, health."""
