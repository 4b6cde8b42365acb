"""Checks workflows that are due: missed job outcomes, and unfinished starts or cancellations."""

from __future__ import annotations

from contextlib import suppress

from ojs.domain.errors import NotFound
from ojs.services.sweeps import GoOn, SweepReport, SweepRun, always, counting_failures
from ojs.services.workflows.advance import WorkflowAdvance
from ojs.services.workflows.control import WorkflowControl
from ojs.store.workflows.workflows import WorkflowStore

# A workflow that didn't change for this time (ms) is stalled and reported to operators.
STALLED_MS = 3_600_000


class WorkflowSweep:
    """Checks workflows and finishes their starts and cancellations."""

    name = "workflows"

    def __init__(
        self,
        *,
        workflows: WorkflowStore,
        workflow_advance: WorkflowAdvance,
        workflow_control: WorkflowControl,
    ) -> None:
        self._workflows = workflows
        self._advance = workflow_advance
        self._control = workflow_control

    def run_once(self, now_ms: int, limit: int, go_on: GoOn = always) -> SweepReport:
        """Check the workflows that are due.

        Makes one DynamoDB call if none is due.

        Args:
            now_ms: Current time in milliseconds since the epoch.
            limit: Maximum number of workflows.
            go_on: Returns whether enough time is left to continue.

        Returns:
            The counts checked (workflows), stalled (workflows that didn't change for
            `STALLED_MS`), failed, and `more` (1 if others are due).
        """
        run = SweepRun(now_ms, limit, go_on)
        for workflow_id in self._workflows.due(now_ms=now_ms, limit=limit):
            if run.stop():
                break
            with counting_failures(run.counts, f"workflow {workflow_id}"):
                # The index is eventually consistent: the workflow can be deleted or changed.
                with suppress(NotFound):
                    record = self._advance.check(workflow_id)
                    stalled = not record.state.final and now_ms - record.updated_ms >= STALLED_MS
                    run.counts["stalled"] += stalled
                    if record.leaving:
                        self._control.leave(record)
                run.counts["checked"] += 1
        return SweepReport(+run.counts, failures=run.counts.failures)
