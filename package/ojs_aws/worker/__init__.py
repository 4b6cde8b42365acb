"""A worker: fetches jobs, runs their handlers, and reports what became of each.

`worker` is what users see; `context` what handlers see; `handlers` finds and calls them;
`execution` runs them on threads, in processes and on an event loop; `outbox` keeps reports until
the server has heard them.
"""
