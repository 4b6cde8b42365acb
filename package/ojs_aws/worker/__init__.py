"""A worker: fetches jobs, runs their handlers, and reports their outcomes.

`worker` is the public class. `context` is the handler's view of a job. `handlers` registers and
calls handlers. `execution` runs them in threads, in processes, and on an event loop. `outbox` keeps
reports until the server confirms them.
"""
