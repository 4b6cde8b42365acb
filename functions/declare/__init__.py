"""Resources that a CDK app declares: queues, worker pools, cron jobs, rate limits."""
