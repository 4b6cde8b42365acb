"""Rate limits of jobs: requests, and decisions about how many jobs can start."""
