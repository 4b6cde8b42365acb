"""The methods of both clients, made of `operations`: one that waits, one to be awaited."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeVar, overload

from ojs_aws.client import operations
from ojs_aws.client.call import Call

P = ParamSpec("P")
T = TypeVar("T")


class Blocking(ABC):
    """A client whose methods return answers."""

    @abstractmethod
    def run(self, call: Call[T]) -> T:
        """The answer to a call. Raises ApiError, Unreachable."""


class Awaiting(ABC):
    """A client whose methods are awaited."""

    @abstractmethod
    async def run(self, call: Call[T]) -> T:
        """The answer to a call. Raises ApiError, Unreachable."""


class Method(Generic[P, T]):
    """An operation as a method: its arguments are the operation's."""

    def __init__(self, build: Callable[P, Call[T]]) -> None:
        self._build = build
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: Awaiting, owner: type) -> Callable[P, Awaitable[T]]: ...
    @overload
    def __get__(self, client: None, owner: type) -> Method[P, T]: ...

    def __get__(self, client: Any, owner: type) -> Any:
        """The method of this client."""
        if client is None:
            return self
        build = self._build

        @wraps(build)
        def method(*args: P.args, **kwargs: P.kwargs) -> Any:
            return client.run(build(*args, **kwargs))

        return method


class Operations:
    """One method for each operation."""

    enqueue = Method(operations.enqueue_job)
    enqueue_many = Method(operations.enqueue_batch)
    enqueue_each = Method(operations.enqueue_each)
    get_job = Method(operations.get_job)
    admin_get_job = Method(operations.admin_get_job)
    cancel_job = Method(operations.cancel_job)
    activate_job = Method(operations.activate_job)
    retry_job = Method(operations.retry_job)
    run_job = Method(operations.run_job)
    change_job = Method(operations.change_job)
    delete_job = Method(operations.delete_job)
    get_result = Method(operations.get_result)
    get_progress = Method(operations.get_progress)
    list_retries = Method(operations.list_retries)
    job_history = Method(operations.job_history)
    list_jobs = Method(operations.list_jobs)
    list_unique_jobs = Method(operations.list_unique_jobs)
    retry_jobs = Method(operations.retry_jobs)
    cancel_jobs = Method(operations.cancel_jobs)
    delete_jobs = Method(operations.delete_jobs)
    erase_jobs = Method(operations.erase_jobs)
    list_job_operations = Method(operations.list_job_operations)
    get_job_operation = Method(operations.get_job_operation)
    stop_job_operation = Method(operations.stop_job_operation)
    purge_queue_jobs = Method(operations.purge_queue_jobs)
    list_dead_letters = Method(operations.list_dead_letters)
    dead_letter_stats = Method(operations.dead_letter_stats)
    get_dead_letter = Method(operations.get_dead_letter)
    retry_dead_letter = Method(operations.retry_dead_letter)
    delete_dead_letter = Method(operations.delete_dead_letter)
    retry_dead_letters = Method(operations.retry_dead_letters)
    purge_dead_letters = Method(operations.purge_dead_letters)
    list_dead_letter_operations = Method(operations.list_dead_letter_operations)
    get_dead_letter_operation = Method(operations.get_dead_letter_operation)
    stop_dead_letter_operation = Method(operations.stop_dead_letter_operation)
    create_queue = Method(operations.create_queue)
    list_queues = Method(operations.list_queues)
    get_queue = Method(operations.get_queue)
    get_queue_config = Method(operations.get_queue_config)
    configure_queue = Method(operations.configure_queue)
    delete_queue = Method(operations.delete_queue)
    pause_queue = Method(operations.pause_queue)
    resume_queue = Method(operations.resume_queue)
    queue_stats = Method(operations.queue_stats)
    priority_stats = Method(operations.priority_stats)
    get_queue_policy = Method(operations.get_queue_policy)
    set_queue_policy = Method(operations.set_queue_policy)
    set_queue_limits = Method(operations.set_queue_limits)
    list_rate_limits = Method(operations.list_rate_limits)
    get_rate_limit = Method(operations.get_rate_limit)
    put_rate_limit = Method(operations.put_rate_limit)
    delete_rate_limit = Method(operations.delete_rate_limit)
    list_pools = Method(operations.list_pools)
    get_pool = Method(operations.get_pool)
    put_pool = Method(operations.put_pool)
    delete_pool = Method(operations.delete_pool)
    list_deliveries = Method(operations.list_deliveries)
    create_delivery = Method(operations.create_delivery)
    put_delivery = Method(operations.put_delivery)
    get_delivery = Method(operations.get_delivery)
    delete_delivery = Method(operations.delete_delivery)
    pause_delivery = Method(operations.pause_delivery)
    resume_delivery = Method(operations.resume_delivery)
    test_delivery = Method(operations.test_delivery)
    scheduling_stats = Method(operations.scheduling_stats)
    register_cron = Method(operations.register_cron)
    list_crons = Method(operations.list_crons)
    preview_cron = Method(operations.preview_cron)
    get_cron = Method(operations.get_cron)
    change_cron = Method(operations.change_cron)
    delete_cron = Method(operations.delete_cron)
    trigger_cron = Method(operations.trigger_cron)
    pause_cron = Method(operations.pause_cron)
    resume_cron = Method(operations.resume_cron)
    cron_history = Method(operations.cron_history)
    create_workflow = Method(operations.create_workflow)
    list_workflows = Method(operations.list_workflows)
    get_workflow = Method(operations.get_workflow)
    workflow_progress = Method(operations.workflow_progress)
    workflow_results = Method(operations.workflow_results)
    cancel_workflow = Method(operations.cancel_workflow)
    retry_workflow = Method(operations.retry_workflow)
    list_workers = Method(operations.list_workers)
    get_worker = Method(operations.get_worker)
    worker_health = Method(operations.worker_health)
    direct_worker = Method(operations.direct_worker)
    remove_worker = Method(operations.remove_worker)
    list_events = Method(operations.list_events)
    stats = Method(operations.stats)
    stats_history = Method(operations.stats_history)
    metrics = Method(operations.metrics)
    create_key = Method(operations.create_key)
    create_role = Method(operations.create_role)
    list_keys = Method(operations.list_keys)
    get_key = Method(operations.get_key)
    revoke_key = Method(operations.revoke_key)
    get_caller = Method(operations.get_caller)
    list_actions = Method(operations.list_actions)
    manifest = Method(operations.manifest)
    health = Method(operations.health)
    ready = Method(operations.ready)
    system_config = Method(operations.system_config)
    get_maintenance = Method(operations.get_maintenance)
    set_maintenance = Method(operations.set_maintenance)
    list_middleware = Method(operations.list_middleware)
    openapi = Method(operations.openapi)
