"""Rate limits of jobs: what may be asked for, and how many jobs may start now."""
