"""Jobs as typed functions: declared with their options, enqueued by reference.

`job_type` has the job type and its handle, `jobs` declares them, and `workflows` combines them.
`signature` reads a function. `plain` converts values without pydantic, `validated` with it.
"""
