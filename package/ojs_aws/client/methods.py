"""The methods of both clients. Operations that need more than one declared request are here."""

from __future__ import annotations

from ojs_aws.client import operations
from ojs_aws.client.generated import Generated
from ojs_aws.client.method import Method
from ojs_aws.client.outbox import outbox_item


class Operations(Generated):
    """One method for each operation of the API."""

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
    get_result = Method(operations.get_result)
    results = Method(operations.results)
    send_signal = Method(operations.send_signal)
    job_history = Method(operations.job_history)
    retry_jobs = Method(operations.retry_jobs)
    cancel_jobs = Method(operations.cancel_jobs)
    delete_jobs = Method(operations.delete_jobs)
    erase_jobs = Method(operations.erase_jobs)
    purge_queue_jobs = Method(operations.purge_queue_jobs)
    get_dead_letter = Method(operations.get_dead_letter)
    retry_dead_letter = Method(operations.retry_dead_letter)
    retry_dead_letters = Method(operations.retry_dead_letters)
    purge_dead_letters = Method(operations.purge_dead_letters)
    delete_queue = Method(operations.delete_queue)
    register_cron = Method(operations.register_cron)
    preview_cron = Method(operations.preview_cron)
    trigger_cron = Method(operations.trigger_cron)
    create_workflow = Method(operations.create_workflow)
    workflow_results = Method(operations.workflow_results)
    cancel_workflow = Method(operations.cancel_workflow)
    retry_workflow = Method(operations.retry_workflow)
    direct_worker = Method(operations.direct_worker)
    metrics = Method(operations.metrics)
    create_key = Method(operations.create_key)
    create_role = Method(operations.create_role)
    revoke_key = Method(operations.revoke_key)
    set_maintenance = Method(operations.set_maintenance)
    outbox_item = staticmethod(outbox_item)
