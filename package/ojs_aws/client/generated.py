"""Methods of both clients, one per operation. `make facts` generates this file."""

from __future__ import annotations

from typing import Any

from ojs_aws.client.call import Answer, Call, json_object, place
from ojs_aws.client.method import Method


class Generated:
    """Operations that return the JSON object that the OpenAPI document describes."""

    @Method
    @staticmethod
    def delete_job(job_id: str) -> Call[Answer]:
        """Delete a job in a final state permanently.

        Args:
            job_id: ID of the job.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("DELETE", place("admin/jobs/{}", job_id), json_object)

    @Method
    @staticmethod
    def stats(**query: Any) -> Call[Answer]:
        """Read the totals of all queues.

        Args:
            **query: Query parameters: `detail`, `limit`, `cursor`.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", "admin/stats", json_object, query=query)

    @Method
    @staticmethod
    def stats_history(**query: Any) -> Call[Answer]:
        """Read the history of statistics.

        Args:
            **query: Query parameters: `period`, `since`, `until`, `queue`.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", "admin/stats/history", json_object, query=query)

    @Method
    @staticmethod
    def change_cron(name: str, **body: Any) -> Call[Answer]:
        """Change some of a cron job.

        Args:
            name: Name of the cron job.
            **body: Fields of the request: `expression`, `cron`, `schedule`, `timezone`,
                `job_template`, `type`, `args`, `meta`, `options`, `queue`, `overlap_policy`,
                `enabled`, `description`, `starts_at`, `ends_at`, `catchup_window`, `jitter`,
                `pause_on_failure`.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("PATCH", place("cron/{}", name), json_object, body)

    @Method
    @staticmethod
    def configure_queue(name: str, **body: Any) -> Call[Answer]:
        """Change a queue's configuration.

        Args:
            name: Name of the queue.
            **body: Fields of the request: `max_size`, `max_depth`, `max_size_bytes`,
                `overflow_policy`, `strategy`, `warning_threshold`, `backpressure`, `concurrency`,
                `rate_limit`, `visibility_timeout`, `default_timeout`, `default_retry`, `retention`,
                `dead_letter_queue`, `dead_letter_max_size`, `dead_letter_ttl`, `dead_letter`,
                `replay_rules`, `allowed_job_types`, `producers`, `lanes`, `require_lease_token`,
                `tenant_fairness`.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("PUT", place("queues/{}/config", name), json_object, body)

    @Method
    @staticmethod
    def create_delivery(**body: Any) -> Call[Answer]:
        """Push the jobs of queues to an endpoint or function.

        Args:
            **body: Fields of the request: `target`, `endpoint`, `queues`, `pool`, `job_types`,
                `concurrency`, `batch_size`, `timeout_ms`, `form`, `signing_secret`,
                `signing_secrets`, `paused`, `config`.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("POST", "admin/deliveries", json_object, body)

    @Method
    @staticmethod
    def create_queue(name: str, **body: Any) -> Call[Answer]:
        """Create a queue.

        Args:
            name: Name of the new resource.
            **body: Fields of the request: .

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("POST", "queues", json_object, {"name": name, **body}, repeatable=False)

    @Method
    @staticmethod
    def cron_history(name: str, **query: Any) -> Call[Answer]:
        """Read the run history of a cron job.

        Args:
            name: Name of the cron job.
            **query: Query parameters: `limit`, `cursor`.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", place("cron/{}/history", name), json_object, query=query)

    @Method
    @staticmethod
    def dead_letter_stats() -> Call[Answer]:
        """Read statistics of dead letters.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", "dead-letter/stats", json_object)

    @Method
    @staticmethod
    def delete_cron(name: str) -> Call[Answer]:
        """Delete a cron job; its jobs stay.

        Args:
            name: Name of the cron job.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("DELETE", place("cron/{}", name), json_object)

    @Method
    @staticmethod
    def delete_dead_letter(job_id: str) -> Call[Answer]:
        """Delete a dead letter permanently.

        Args:
            job_id: ID of the job.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("DELETE", place("dead-letter/{}", job_id), json_object)

    @Method
    @staticmethod
    def delete_delivery(name: str) -> Call[Answer]:
        """Delete a delivery.

        Args:
            name: Name of the delivery.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("DELETE", place("admin/deliveries/{}", name), json_object)

    @Method
    @staticmethod
    def delete_pool(name: str) -> Call[Answer]:
        """Delete a worker pool.

        Args:
            name: Name of the pool.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("DELETE", place("admin/pools/{}", name), json_object)

    @Method
    @staticmethod
    def delete_rate_limit(key: str) -> Call[Answer]:
        """Remove a key's override and pause.

        Args:
            key: Key of the rate limit.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("DELETE", place("rate-limits/{}", key), json_object)

    @Method
    @staticmethod
    def get_caller() -> Call[Answer]:
        """Read the identity and scopes of the caller.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", "me", json_object)

    @Method
    @staticmethod
    def get_cron(name: str) -> Call[Answer]:
        """Read a cron job.

        Args:
            name: Name of the cron job.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", place("cron/{}", name), json_object)

    @Method
    @staticmethod
    def get_dead_letter_operation(operation_id: str) -> Call[Answer]:
        """Read a bulk operation on dead letters.

        Args:
            operation_id: ID of the operation.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", place("dead-letter/operations/{}", operation_id), json_object)

    @Method
    @staticmethod
    def get_delivery(name: str) -> Call[Answer]:
        """Read a delivery and its statistics.

        Args:
            name: Name of the delivery.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", place("admin/deliveries/{}", name), json_object)

    @Method
    @staticmethod
    def get_job_operation(operation_id: str) -> Call[Answer]:
        """Read a bulk operation on jobs.

        Args:
            operation_id: ID of the operation.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", place("admin/jobs/bulk/operations/{}", operation_id), json_object)

    @Method
    @staticmethod
    def get_key(key_id: str) -> Call[Answer]:
        """Read an access key, or what a role may do.

        Args:
            key_id: ID of the key.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", place("admin/keys/{}", key_id), json_object)

    @Method
    @staticmethod
    def get_maintenance() -> Call[Answer]:
        """Read whether maintenance mode is on.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", "admin/system/maintenance", json_object)

    @Method
    @staticmethod
    def get_pool(name: str) -> Call[Answer]:
        """Read a worker pool.

        Args:
            name: Name of the pool.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", place("admin/pools/{}", name), json_object)

    @Method
    @staticmethod
    def get_progress(job_id: str) -> Call[Answer]:
        """Read the progress of a job.

        Args:
            job_id: ID of the job.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", place("jobs/{}/progress", job_id), json_object)

    @Method
    @staticmethod
    def get_queue(name: str) -> Call[Answer]:
        """Read a queue, its configuration and statistics.

        Args:
            name: Name of the queue.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", place("queues/{}", name), json_object)

    @Method
    @staticmethod
    def get_queue_config(name: str) -> Call[Answer]:
        """Read a queue's configuration.

        Args:
            name: Name of the queue.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", place("queues/{}/config", name), json_object)

    @Method
    @staticmethod
    def get_queue_policy() -> Call[Answer]:
        """Read the policy for new queues.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", "queues/_default/config", json_object)

    @Method
    @staticmethod
    def get_rate_limit(key: str) -> Call[Answer]:
        """Read the state of a key's rate limit.

        Args:
            key: Key of the rate limit.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", place("rate-limits/{}", key), json_object)

    @Method
    @staticmethod
    def get_worker(worker_id: str) -> Call[Answer]:
        """Read a worker.

        Args:
            worker_id: ID of the worker.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", place("admin/workers/{}", worker_id), json_object)

    @Method
    @staticmethod
    def get_workflow(workflow_id: str, **query: Any) -> Call[Answer]:
        """Read a workflow and its steps.

        Args:
            workflow_id: ID of the workflow.
            **query: Query parameters: `limit`, `cursor`.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", place("workflows/{}", workflow_id), json_object, query=query)

    @Method
    @staticmethod
    def health() -> Call[Answer]:
        """Read whether the server and its store work.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", "health", json_object)

    @Method
    @staticmethod
    def list_actions(**query: Any) -> Call[Answer]:
        """List the actions of operators.

        Args:
            **query: Query parameters: `limit`, `cursor`, `offset`, `page`, `per_page`.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", "admin/actions", json_object, query=query)

    @Method
    @staticmethod
    def list_crons(**query: Any) -> Call[Answer]:
        """List cron jobs.

        Args:
            **query: Query parameters: `enabled`, `limit`, `cursor`, `offset`, `page`, `per_page`.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", "cron", json_object, query=query)

    @Method
    @staticmethod
    def list_dead_letter_operations(**query: Any) -> Call[Answer]:
        """List bulk operations on dead letters.

        Args:
            **query: Query parameters: `limit`, `cursor`, `offset`, `page`, `per_page`.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", "dead-letter/operations", json_object, query=query)

    @Method
    @staticmethod
    def list_dead_letters(**query: Any) -> Call[Answer]:
        """List dead letters.

        Args:
            **query: Query parameters: `queue`, `type`, `error_type`, `since`, `until`, `before`,
                `older_than`, `args`, `state`, `limit`, `cursor`, `offset`, `page`, `per_page`.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", "dead-letter", json_object, query=query)

    @Method
    @staticmethod
    def list_deliveries(**query: Any) -> Call[Answer]:
        """List deliveries.

        Args:
            **query: Query parameters: `limit`, `cursor`, `offset`, `page`, `per_page`.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", "admin/deliveries", json_object, query=query)

    @Method
    @staticmethod
    def list_events(**query: Any) -> Call[Answer]:
        """List lifecycle events.

        Args:
            **query: Query parameters: `types`, `type`, `queues`, `queue`, `job_types`, `job_type`,
                `sources`, `source`, `since`, `until`, `after`, `cursor`, `limit`, `per_page`,
                `page`.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", "events", json_object, query=query)

    @Method
    @staticmethod
    def list_job_operations(**query: Any) -> Call[Answer]:
        """List bulk operations on jobs.

        Args:
            **query: Query parameters: `limit`, `cursor`, `offset`, `page`, `per_page`.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", "admin/jobs/bulk/operations", json_object, query=query)

    @Method
    @staticmethod
    def list_jobs(**query: Any) -> Call[Answer]:
        """List jobs.

        Args:
            **query: Query parameters: `queue`, `state`, `type`, `tag`, `worker_id`, `producer`,
                `since`, `until`, `args`, `sort`, `order`, `include`, `limit`, `cursor`, `offset`,
                `page`, `per_page`.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", "jobs", json_object, query=query)

    @Method
    @staticmethod
    def list_keys(**query: Any) -> Call[Answer]:
        """List access keys, and roles.

        Args:
            **query: Query parameters: `limit`, `cursor`, `offset`, `page`, `per_page`.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", "admin/keys", json_object, query=query)

    @Method
    @staticmethod
    def list_middleware() -> Call[Answer]:
        """List the middleware that processes enqueued jobs.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", "middleware", json_object)

    @Method
    @staticmethod
    def list_pools(**query: Any) -> Call[Answer]:
        """List worker pools.

        Args:
            **query: Query parameters: `limit`, `cursor`, `offset`, `page`, `per_page`.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", "admin/pools", json_object, query=query)

    @Method
    @staticmethod
    def list_queues(**query: Any) -> Call[Answer]:
        """List queues with their counts.

        Args:
            **query: Query parameters: `limit`, `cursor`, `offset`, `page`, `per_page`.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", "queues", json_object, query=query)

    @Method
    @staticmethod
    def list_rate_limits(**query: Any) -> Call[Answer]:
        """List the keys of rate limits.

        Args:
            **query: Query parameters: `limit`, `cursor`, `offset`, `page`, `per_page`.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", "rate-limits", json_object, query=query)

    @Method
    @staticmethod
    def list_retries(job_id: str) -> Call[Answer]:
        """Read a job's error history.

        Args:
            job_id: ID of the job.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", place("jobs/{}/retries", job_id), json_object)

    @Method
    @staticmethod
    def list_unique_jobs(**query: Any) -> Call[Answer]:
        """List unique keys, and the jobs that hold them.

        Args:
            **query: Query parameters: `key`, `queue`, `type`, `state`, `limit`, `cursor`, `offset`,
                `page`, `per_page`.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", "unique-jobs", json_object, query=query)

    @Method
    @staticmethod
    def list_workers(**query: Any) -> Call[Answer]:
        """List workers.

        Args:
            **query: Query parameters: `limit`, `cursor`, `offset`, `page`, `per_page`.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", "workers", json_object, query=query)

    @Method
    @staticmethod
    def list_workflows(**query: Any) -> Call[Answer]:
        """List workflows.

        Args:
            **query: Query parameters: `state`, `name`, `limit`, `cursor`, `offset`, `page`,
                `per_page`.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", "workflows", json_object, query=query)

    @Method
    @staticmethod
    def manifest() -> Call[Answer]:
        """Read the manifest of the server.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", "/ojs/manifest", json_object)

    @Method
    @staticmethod
    def openapi() -> Call[Answer]:
        """Read the OpenAPI document.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", "openapi.json", json_object)

    @Method
    @staticmethod
    def pause_cron(name: str) -> Call[Answer]:
        """Pause a cron job.

        Args:
            name: Name of the cron job.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("POST", place("cron/{}/pause", name), json_object, {})

    @Method
    @staticmethod
    def pause_delivery(name: str) -> Call[Answer]:
        """Pause a delivery.

        Args:
            name: Name of the delivery.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("POST", place("admin/deliveries/{}/pause", name), json_object, {})

    @Method
    @staticmethod
    def pause_queue(name: str) -> Call[Answer]:
        """Pause a queue.

        Args:
            name: Name of the queue.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("POST", place("queues/{}/pause", name), json_object, {})

    @Method
    @staticmethod
    def priority_stats(name: str) -> Call[Answer]:
        """Count a queue's available jobs by priority.

        Args:
            name: Name of the queue.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", place("queues/{}/priority-stats", name), json_object)

    @Method
    @staticmethod
    def put_delivery(name: str, **body: Any) -> Call[Answer]:
        """Create or replace a delivery.

        Args:
            name: Name of the delivery.
            **body: Fields of the request: `target`, `endpoint`, `queues`, `pool`, `job_types`,
                `concurrency`, `batch_size`, `timeout_ms`, `form`, `signing_secret`,
                `signing_secrets`, `paused`, `config`.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("PUT", place("admin/deliveries/{}", name), json_object, body)

    @Method
    @staticmethod
    def put_pool(name: str, **body: Any) -> Call[Answer]:
        """Create or replace a worker pool.

        Args:
            name: Name of the pool.
            **body: Fields of the request: `queues`, `concurrency`, `strategy`, `weights`,
                `isolated`, `starvation_prevention`, `tenant_fairness`.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("PUT", place("admin/pools/{}", name), json_object, body)

    @Method
    @staticmethod
    def put_rate_limit(key: str, **body: Any) -> Call[Answer]:
        """Override a key's rate limit.

        Args:
            key: Key of the rate limit.
            **body: Fields of the request: `concurrency`, `rate`, `limit`, `period`, `throttle`,
                `expires_at`.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("PUT", place("rate-limits/{}", key), json_object, body)

    @Method
    @staticmethod
    def queue_stats(name: str) -> Call[Answer]:
        """Read a queue's statistics.

        Args:
            name: Name of the queue.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", place("queues/{}/stats", name), json_object)

    @Method
    @staticmethod
    def ready() -> Call[Answer]:
        """Read whether the server is ready.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", "ready", json_object)

    @Method
    @staticmethod
    def remove_worker(worker_id: str) -> Call[Answer]:
        """Deregister a worker.

        Args:
            worker_id: ID of the worker.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("DELETE", place("workers/{}", worker_id), json_object)

    @Method
    @staticmethod
    def resume_cron(name: str) -> Call[Answer]:
        """Resume a cron job.

        Args:
            name: Name of the cron job.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("POST", place("cron/{}/resume", name), json_object, {})

    @Method
    @staticmethod
    def resume_delivery(name: str) -> Call[Answer]:
        """Resume a paused or disabled delivery.

        Args:
            name: Name of the delivery.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("POST", place("admin/deliveries/{}/resume", name), json_object, {})

    @Method
    @staticmethod
    def resume_queue(name: str) -> Call[Answer]:
        """Resume a queue.

        Args:
            name: Name of the queue.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("POST", place("queues/{}/resume", name), json_object, {})

    @Method
    @staticmethod
    def scheduling_stats(**query: Any) -> Call[Answer]:
        """Read the share of each queue in the last minute.

        Args:
            **query: Query parameters: `pool`, `limit`, `cursor`, `offset`, `page`, `per_page`.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", "admin/scheduling/stats", json_object, query=query)

    @Method
    @staticmethod
    def set_queue_limits(name: str, **body: Any) -> Call[Answer]:
        """Set a queue's own limits.

        Args:
            name: Name of the queue.
            **body: Fields of the request: `limit`, `period`, `rate_limit`, `rate`, `concurrency`.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("PUT", place("admin/queues/{}/rate-limit", name), json_object, body)

    @Method
    @staticmethod
    def set_queue_policy(**body: Any) -> Call[Answer]:
        """Change the policy for new queues.

        Args:
            **body: Fields of the request: `max_size`, `max_depth`, `max_size_bytes`,
                `overflow_policy`, `strategy`, `warning_threshold`, `backpressure`, `concurrency`,
                `rate_limit`, `visibility_timeout`, `default_timeout`, `default_retry`, `retention`,
                `dead_letter_queue`, `dead_letter_max_size`, `dead_letter_ttl`, `dead_letter`,
                `replay_rules`, `allowed_job_types`, `producers`, `lanes`, `require_lease_token`,
                `tenant_fairness`.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("PUT", "queues/_default/config", json_object, body)

    @Method
    @staticmethod
    def stop_dead_letter_operation(operation_id: str) -> Call[Answer]:
        """Stop a bulk operation on dead letters.

        Args:
            operation_id: ID of the operation.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
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
        """Stop a bulk operation on jobs.

        Args:
            operation_id: ID of the operation.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
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
        """Read the server's configuration.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", "admin/system/config", json_object)

    @Method
    @staticmethod
    def test_delivery(name: str, **body: Any) -> Call[Answer]:
        """Send a test event to a delivery's target.

        Args:
            name: Name of the delivery.
            **body: Fields of the request: `type`, `args`.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call(
            "POST", place("admin/deliveries/{}/test", name), json_object, body, repeatable=False
        )

    @Method
    @staticmethod
    def worker_health(worker_id: str) -> Call[Answer]:
        """Read whether a worker fetches jobs.

        Args:
            worker_id: ID of the worker.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", place("workers/{}/health", worker_id), json_object)

    @Method
    @staticmethod
    def workflow_progress(workflow_id: str) -> Call[Answer]:
        """Read the progress of a workflow.

        Args:
            workflow_id: ID of the workflow.

        Returns:
            The call. Its result is the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
        """
        return Call("GET", place("workflows/{}/progress", workflow_id), json_object)
