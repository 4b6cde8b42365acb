"""Methods of both clients, one for each operation: written by `make facts`."""

from __future__ import annotations

from typing import Any

from ojs_aws.client.call import Answer, Call, json_object, place
from ojs_aws.client.method import Method


class Generated:
    """Operations whose answer is the JSON that the OpenAPI document describes."""

    @Method
    @staticmethod
    def delete_job(job_id: str) -> Call[Answer]:
        """Delete a final job for good."""
        return Call("DELETE", place("admin/jobs/{}", job_id), json_object)

    @Method
    @staticmethod
    def stats(**query: Any) -> Call[Answer]:
        """Read the totals of all queues."""
        return Call("GET", "admin/stats", json_object, query=query)

    @Method
    @staticmethod
    def stats_history(**query: Any) -> Call[Answer]:
        """Read what happened when."""
        return Call("GET", "admin/stats/history", json_object, query=query)

    @Method
    @staticmethod
    def change_cron(name: str, **body: Any) -> Call[Answer]:
        """Change some of a cron job."""
        return Call("PATCH", place("cron/{}", name), json_object, body)

    @Method
    @staticmethod
    def configure_queue(name: str, **body: Any) -> Call[Answer]:
        """Change a queue's configuration."""
        return Call("PUT", place("queues/{}/config", name), json_object, body)

    @Method
    @staticmethod
    def create_delivery(**body: Any) -> Call[Answer]:
        """Push the jobs of queues to an endpoint or function."""
        return Call("POST", "admin/deliveries", json_object, body)

    @Method
    @staticmethod
    def create_queue(name: str, **body: Any) -> Call[Answer]:
        """Make a queue."""
        return Call("POST", "queues", json_object, {"name": name, **body}, repeatable=False)

    @Method
    @staticmethod
    def cron_history(name: str, **query: Any) -> Call[Answer]:
        """Read what became of a cron job's ticks."""
        return Call("GET", place("cron/{}/history", name), json_object, query=query)

    @Method
    @staticmethod
    def dead_letter_stats() -> Call[Answer]:
        """Read statistics of dead letters."""
        return Call("GET", "dead-letter/stats", json_object)

    @Method
    @staticmethod
    def delete_cron(name: str) -> Call[Answer]:
        """Delete a cron job; its jobs stay."""
        return Call("DELETE", place("cron/{}", name), json_object)

    @Method
    @staticmethod
    def delete_dead_letter(job_id: str) -> Call[Answer]:
        """Delete a dead letter for good."""
        return Call("DELETE", place("dead-letter/{}", job_id), json_object)

    @Method
    @staticmethod
    def delete_delivery(name: str) -> Call[Answer]:
        """Remove a delivery."""
        return Call("DELETE", place("admin/deliveries/{}", name), json_object)

    @Method
    @staticmethod
    def delete_pool(name: str) -> Call[Answer]:
        """Remove a worker pool."""
        return Call("DELETE", place("admin/pools/{}", name), json_object)

    @Method
    @staticmethod
    def delete_rate_limit(key: str) -> Call[Answer]:
        """Take back a key's override and pause."""
        return Call("DELETE", place("rate-limits/{}", key), json_object)

    @Method
    @staticmethod
    def get_caller() -> Call[Answer]:
        """Read who you are, and what you may do."""
        return Call("GET", "me", json_object)

    @Method
    @staticmethod
    def get_cron(name: str) -> Call[Answer]:
        """Read a cron job."""
        return Call("GET", place("cron/{}", name), json_object)

    @Method
    @staticmethod
    def get_dead_letter_operation(operation_id: str) -> Call[Answer]:
        """Read a bulk operation on dead letters."""
        return Call("GET", place("dead-letter/operations/{}", operation_id), json_object)

    @Method
    @staticmethod
    def get_delivery(name: str) -> Call[Answer]:
        """Read a delivery and its statistics."""
        return Call("GET", place("admin/deliveries/{}", name), json_object)

    @Method
    @staticmethod
    def get_job_operation(operation_id: str) -> Call[Answer]:
        """Read a bulk operation on jobs."""
        return Call("GET", place("admin/jobs/bulk/operations/{}", operation_id), json_object)

    @Method
    @staticmethod
    def get_key(key_id: str) -> Call[Answer]:
        """Read an access key, or what a role may do."""
        return Call("GET", place("admin/keys/{}", key_id), json_object)

    @Method
    @staticmethod
    def get_maintenance() -> Call[Answer]:
        """Read whether maintenance mode is on."""
        return Call("GET", "admin/system/maintenance", json_object)

    @Method
    @staticmethod
    def get_pool(name: str) -> Call[Answer]:
        """Read a worker pool."""
        return Call("GET", place("admin/pools/{}", name), json_object)

    @Method
    @staticmethod
    def get_progress(job_id: str) -> Call[Answer]:
        """Read how far a job is."""
        return Call("GET", place("jobs/{}/progress", job_id), json_object)

    @Method
    @staticmethod
    def get_queue(name: str) -> Call[Answer]:
        """Read a queue, its configuration and statistics."""
        return Call("GET", place("queues/{}", name), json_object)

    @Method
    @staticmethod
    def get_queue_config(name: str) -> Call[Answer]:
        """Read a queue's configuration."""
        return Call("GET", place("queues/{}/config", name), json_object)

    @Method
    @staticmethod
    def get_queue_policy() -> Call[Answer]:
        """Read the policy for new queues."""
        return Call("GET", "queues/_default/config", json_object)

    @Method
    @staticmethod
    def get_rate_limit(key: str) -> Call[Answer]:
        """Read how a key's rate limit stands."""
        return Call("GET", place("rate-limits/{}", key), json_object)

    @Method
    @staticmethod
    def get_worker(worker_id: str) -> Call[Answer]:
        """Read a worker."""
        return Call("GET", place("admin/workers/{}", worker_id), json_object)

    @Method
    @staticmethod
    def get_workflow(workflow_id: str, **query: Any) -> Call[Answer]:
        """Read a workflow and its steps."""
        return Call("GET", place("workflows/{}", workflow_id), json_object, query=query)

    @Method
    @staticmethod
    def health() -> Call[Answer]:
        """Read whether the server and its store work."""
        return Call("GET", "health", json_object)

    @Method
    @staticmethod
    def list_actions(**query: Any) -> Call[Answer]:
        """List what operators did."""
        return Call("GET", "admin/actions", json_object, query=query)

    @Method
    @staticmethod
    def list_crons(**query: Any) -> Call[Answer]:
        """List cron jobs."""
        return Call("GET", "cron", json_object, query=query)

    @Method
    @staticmethod
    def list_dead_letter_operations(**query: Any) -> Call[Answer]:
        """List bulk operations on dead letters."""
        return Call("GET", "dead-letter/operations", json_object, query=query)

    @Method
    @staticmethod
    def list_dead_letters(**query: Any) -> Call[Answer]:
        """List dead letters."""
        return Call("GET", "dead-letter", json_object, query=query)

    @Method
    @staticmethod
    def list_deliveries(**query: Any) -> Call[Answer]:
        """List deliveries."""
        return Call("GET", "admin/deliveries", json_object, query=query)

    @Method
    @staticmethod
    def list_events(**query: Any) -> Call[Answer]:
        """List lifecycle events."""
        return Call("GET", "events", json_object, query=query)

    @Method
    @staticmethod
    def list_job_operations(**query: Any) -> Call[Answer]:
        """List bulk operations on jobs."""
        return Call("GET", "admin/jobs/bulk/operations", json_object, query=query)

    @Method
    @staticmethod
    def list_jobs(**query: Any) -> Call[Answer]:
        """List jobs."""
        return Call("GET", "jobs", json_object, query=query)

    @Method
    @staticmethod
    def list_keys(**query: Any) -> Call[Answer]:
        """List access keys, and roles."""
        return Call("GET", "admin/keys", json_object, query=query)

    @Method
    @staticmethod
    def list_middleware() -> Call[Answer]:
        """List what jobs go through when they are pushed."""
        return Call("GET", "middleware", json_object)

    @Method
    @staticmethod
    def list_pools(**query: Any) -> Call[Answer]:
        """List worker pools."""
        return Call("GET", "admin/pools", json_object, query=query)

    @Method
    @staticmethod
    def list_queues(**query: Any) -> Call[Answer]:
        """List queues with their counts."""
        return Call("GET", "queues", json_object, query=query)

    @Method
    @staticmethod
    def list_rate_limits(**query: Any) -> Call[Answer]:
        """List the keys of rate limits."""
        return Call("GET", "rate-limits", json_object, query=query)

    @Method
    @staticmethod
    def list_retries(job_id: str) -> Call[Answer]:
        """Read a job's error history."""
        return Call("GET", place("jobs/{}/retries", job_id), json_object)

    @Method
    @staticmethod
    def list_unique_jobs(**query: Any) -> Call[Answer]:
        """List unique keys, and the jobs that hold them."""
        return Call("GET", "unique-jobs", json_object, query=query)

    @Method
    @staticmethod
    def list_workers(**query: Any) -> Call[Answer]:
        """List workers."""
        return Call("GET", "workers", json_object, query=query)

    @Method
    @staticmethod
    def list_workflows(**query: Any) -> Call[Answer]:
        """List workflows."""
        return Call("GET", "workflows", json_object, query=query)

    @Method
    @staticmethod
    def manifest() -> Call[Answer]:
        """Read what this server offers."""
        return Call("GET", "/ojs/manifest", json_object)

    @Method
    @staticmethod
    def openapi() -> Call[Answer]:
        """Read this description."""
        return Call("GET", "openapi.json", json_object)

    @Method
    @staticmethod
    def pause_cron(name: str) -> Call[Answer]:
        """Let a cron job not fire."""
        return Call("POST", place("cron/{}/pause", name), json_object, {})

    @Method
    @staticmethod
    def pause_delivery(name: str) -> Call[Answer]:
        """Push no more jobs for now."""
        return Call("POST", place("admin/deliveries/{}/pause", name), json_object, {})

    @Method
    @staticmethod
    def pause_queue(name: str) -> Call[Answer]:
        """Hand out no more jobs of a queue."""
        return Call("POST", place("queues/{}/pause", name), json_object, {})

    @Method
    @staticmethod
    def priority_stats(name: str) -> Call[Answer]:
        """Count a queue's available jobs by priority."""
        return Call("GET", place("queues/{}/priority-stats", name), json_object)

    @Method
    @staticmethod
    def put_delivery(name: str, **body: Any) -> Call[Answer]:
        """Make or replace a delivery."""
        return Call("PUT", place("admin/deliveries/{}", name), json_object, body)

    @Method
    @staticmethod
    def put_pool(name: str, **body: Any) -> Call[Answer]:
        """Make or replace a worker pool."""
        return Call("PUT", place("admin/pools/{}", name), json_object, body)

    @Method
    @staticmethod
    def put_rate_limit(key: str, **body: Any) -> Call[Answer]:
        """Override a key's rate limit."""
        return Call("PUT", place("rate-limits/{}", key), json_object, body)

    @Method
    @staticmethod
    def queue_stats(name: str) -> Call[Answer]:
        """Read a queue's statistics."""
        return Call("GET", place("queues/{}/stats", name), json_object)

    @Method
    @staticmethod
    def ready() -> Call[Answer]:
        """Read whether requests can be served."""
        return Call("GET", "ready", json_object)

    @Method
    @staticmethod
    def remove_worker(worker_id: str) -> Call[Answer]:
        """Sign a worker off."""
        return Call("DELETE", place("workers/{}", worker_id), json_object)

    @Method
    @staticmethod
    def resume_cron(name: str) -> Call[Answer]:
        """Let a paused cron job fire again."""
        return Call("POST", place("cron/{}/resume", name), json_object, {})

    @Method
    @staticmethod
    def resume_delivery(name: str) -> Call[Answer]:
        """Push jobs again, also where the target was gone or forbidden."""
        return Call("POST", place("admin/deliveries/{}/resume", name), json_object, {})

    @Method
    @staticmethod
    def resume_queue(name: str) -> Call[Answer]:
        """Hand out jobs of a queue again."""
        return Call("POST", place("queues/{}/resume", name), json_object, {})

    @Method
    @staticmethod
    def scheduling_stats(**query: Any) -> Call[Answer]:
        """Read what queues were given in the last minute."""
        return Call("GET", "admin/scheduling/stats", json_object, query=query)

    @Method
    @staticmethod
    def set_queue_limits(name: str, **body: Any) -> Call[Answer]:
        """Set a queue's own limits."""
        return Call("PUT", place("admin/queues/{}/rate-limit", name), json_object, body)

    @Method
    @staticmethod
    def set_queue_policy(**body: Any) -> Call[Answer]:
        """Change the policy for new queues."""
        return Call("PUT", "queues/_default/config", json_object, body)

    @Method
    @staticmethod
    def stop_dead_letter_operation(operation_id: str) -> Call[Answer]:
        """Stop a bulk operation on dead letters."""
        return Call(
            "POST",
            place("dead-letter/operations/{}/stop", operation_id),
            json_object,
            {},
            repeatable=False,
        )

    @Method
    @staticmethod
    def stop_job_operation(operation_id: str) -> Call[Answer]:
        """Stop a bulk operation on jobs."""
        return Call(
            "POST",
            place("admin/jobs/bulk/operations/{}/stop", operation_id),
            json_object,
            {},
            repeatable=False,
        )

    @Method
    @staticmethod
    def system_config() -> Call[Answer]:
        """Read how this server is configured."""
        return Call("GET", "admin/system/config", json_object)

    @Method
    @staticmethod
    def test_delivery(name: str, **body: Any) -> Call[Answer]:
        """Push once what no job stands for, and tell what the target answers."""
        return Call(
            "POST", place("admin/deliveries/{}/test", name), json_object, body, repeatable=False
        )

    @Method
    @staticmethod
    def worker_health(worker_id: str) -> Call[Answer]:
        """Read whether a worker takes jobs."""
        return Call("GET", place("workers/{}/health", worker_id), json_object)

    @Method
    @staticmethod
    def workflow_progress(workflow_id: str) -> Call[Answer]:
        """Read how far a workflow is."""
        return Call("GET", place("workflows/{}/progress", workflow_id), json_object)
