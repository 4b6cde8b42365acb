"""All other operations: health, manifest, dead letters, queues, and operators' view of workers."""
