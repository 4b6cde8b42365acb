"""The domain rules of jobs, queues, and workflows. Pure: no dependency on AWS or HTTP."""
