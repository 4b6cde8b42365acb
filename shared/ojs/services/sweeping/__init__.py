"""The sweep of due jobs."""
