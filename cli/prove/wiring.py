"""Checks of routes, access, alarms, and permissions, and of behavior that no emulator shows."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

from cli.prove.aws import Cloud, Skip, Wrong
from cli.prove.state import Run, require
from ojs_aws import ApiError

# Paths of each route of the API, with the expected statuses. 200 or 400: a function responds.
ROUTES = {
    "/ojs/v1/jobs?limit=1": (200, 403), "/ojs/v1/jobs/none": (400, 403, 404),
    "/ojs/v1/workers?limit=1": (200, 403), "/ojs/v1/workers/none/health": (403, 404),
    "/ojs/v1/health": (200,), "/ojs/v1/me": (200,), "/ojs/manifest": (200,), "/health": (200,),
    # The pages of the dashboard are open. 404: web_dashboard=false.
    "/ojs/admin": (200,), "/ojs/admin/": (200,),
}  # fmt: skip
# Calls that no role of a function may make.
_REFUSED = ("dynamodb:Scan", "dynamodb:DeleteTable", "lambda:UpdateFunctionCode")
# Alarms whose metrics have values while the deployment is in use.
_WITH_DATA = ("stream-age", "sweep-silent", "latency")
_NO_AWS = "needs --stage and AWS credentials"
_STREAM_AGE_S = 60.0


def cloud_of(run: Run) -> Cloud:
    """Return the deployment's resources. Raises Skip without AWS credentials."""
    if run.cloud is None:
        raise Skip(_NO_AWS)
    return run.cloud


def run_wiring(run: Run) -> None:
    """Run the checks of routes, access, alarms, and permissions."""
    for name, test, todo in (
        ("routes", _routes, "Deploy again: a route is missing. Dashboard: set web_dashboard"),
        ("wrong key or signature", _strangers, "Check the authorizer of the API at once"),
        ("scope and queue of a key", _limited, "Check the authorizer of the API at once"),
        ("failure queues", _failures, "Read the messages. docs/operations.md describes them"),
        ("mappings", _mappings, "Enable the mapping, or check the log of its function"),
        ("alarms are OK", _alarms_ok, "Follow the description of the alarm"),
        ("alarms have actions", _alarm_actions, "Set alarm_email or alarm_topic_arn"),
        ("alarms have data", _alarm_data, "Deploy again: the metric has another name"),
        ("permissions of functions", _roles, "Remove the permission from the role"),
    ):
        run.check("wiring", name, test, todo)


def run_behavior(run: Run) -> None:
    """Run the checks of what emulators don't show."""
    for name, test, todo in (
        ("counters", _counters, "Check the log of the function stream"),
        ("stream windows", _window, "Check the mapping of the function stream"),
        ("table settings", _table, "Deploy again, or enable the setting of the table"),
        ("outcomes of pushed jobs", _pushed, "Check the log of the function outcomes"),
        ("counters over a window's end", _long, "Check the log of the function stream"),
    ):
        run.check("behavior", name, test, todo)


# --- behavior ------------------------------------------------------------------------------------


def _counters(run: Run) -> str:
    queue, count = run.queue("count"), run.pace.counted
    run.push_many(queue, count)
    run.complete(queue, count)
    return _counted(run, queue, count)


def _counted(run: Run, queue: str, count: int) -> str:
    """Wait until the counters have exactly `count` jobs."""
    began = time.monotonic()

    def counted() -> int:
        return int(run.own.queue_stats(queue)["stats"]["completed"])

    run.until(
        lambda: counted() == count, run.pace.counted_s,
        lambda: f"the counters have {counted()} completed jobs of {count}",
    )  # fmt: skip
    return f"{count} jobs, {time.monotonic() - began:.1f} s after the last one"


def _window(run: Run) -> str:
    cloud = cloud_of(run)
    cloud.on_aws()
    window_s = cloud.stream_mapping().get("TumblingWindowInSeconds", 0)
    require(window_s, "the mapping has no tumbling window, so records have no shard")
    now = datetime.now(UTC)
    dims = {"FunctionName": cloud.functions["stream"]["FunctionName"]}
    span = (now - timedelta(minutes=10), now)
    ages = cloud.measured("AWS/Lambda", "IteratorAge", "Maximum", span, **dims)
    worst_s = max(ages, default=0.0) / 1_000
    require(worst_s < _STREAM_AGE_S, f"IteratorAge was {worst_s:.0f} s")
    return f"a window of {window_s} s; records were at most {worst_s:.1f} s old"


def _table(run: Run) -> str:
    cloud = cloud_of(run)
    cloud.on_aws()
    table, name = cloud.table, cloud.outputs["TableName"]
    stream = table.get("StreamSpecification", {}).get("StreamViewType")
    require(stream == "NEW_AND_OLD_IMAGES", f"the stream has {stream}")
    ttl = cloud.ask("dynamodb", "describe_time_to_live", TableName=name)
    state = ttl["TimeToLiveDescription"]["TimeToLiveStatus"]
    require(state == "ENABLED", f"TTL is {state}")
    backups = cloud.ask("dynamodb", "describe_continuous_backups", TableName=name)
    found = backups["ContinuousBackupsDescription"].get("PointInTimeRecoveryDescription", {})
    recovery = found.get("PointInTimeRecoveryStatus")
    require(recovery == "ENABLED", f"point-in-time recovery is {recovery}")
    warm = table.get("WarmThroughput", {}).get("WriteUnitsPerSecond")
    return f"stream, TTL, and recovery are on; warm throughput: {warm or 'unknown'} WU/s"


def deliver(run: Run) -> str:
    """Create the delivery of the run, unless it exists. Returns its queue. Raises Skip."""
    target = cloud_of(run).outputs.get("ProveFunctionArn")
    if target is None:
        raise Skip("needs a deployment with -c push=true -c prove=true")
    queue = run.queue("pushed")
    if run.made.note("delivery", queue):
        run.operator.put_delivery(queue, target={"function": target}, queues=[queue])
    return queue


def _pushed(run: Run) -> str:
    queue = deliver(run)
    good, bad = run.push(queue, "pass"), run.push(queue, "fail", retry={"max_attempts": 1})

    def states() -> list[str]:
        return [run.own.get_job(each).state for each in (good, bad)]

    run.until(
        lambda: states() == ["completed", "discarded"], run.pace.counted_s,
        lambda: f"a job that passes and one that fails are {states()}",
    )  # fmt: skip
    how = "without destinations (emulator)" if cloud_of(run).emulated else "by destinations"
    return f"a success and a failure arrived, {how}"


def _long(run: Run) -> str:
    if not run.long:
        raise Skip("needs --long")
    queue, end, count = run.queue("long"), time.monotonic() + run.pace.long_s, 0
    while time.monotonic() < end:
        run.push_many(queue, 10)
        count += len(run.complete(queue, 10))
        run.sleep(min(30.0, run.pace.long_s / 4))
    return _counted(run, queue, count)


# --- wiring --------------------------------------------------------------------------------------


def _routes(run: Run) -> str:
    for path, statuses in ROUTES.items():
        status = run.own.status(path, authenticated="admin" not in path)
        require(status in statuses, f"GET {path} returned {status}")
    return f"{len(ROUTES)} paths lead to their functions"


def _strangers(run: Run) -> str:
    operator = run.operator
    if operator.key is None and operator.signer is None:
        raise Skip("the server has no authentication")
    key = run.own.key or "ojs_"
    changed = key[:-1] + ("0" if key[-1] != "0" else "1")
    found = [operator.other(each).status("/ojs/v1/me") for each in ("wrong", changed)]
    found.append(operator.status("/ojs/v1/jobs", authenticated=False))
    # API Gateway rejects a request without a signature with 403.
    require({*found} <= ({401, 403} if operator.signer else {401}), f"wrong keys got {found}")
    return f"{len(found)} requests were rejected"


def _limited(run: Run) -> str:
    if run.own.key == run.operator.key:
        raise Skip("the run has no separate key")
    for what, call in (
        ("another queue", lambda: run.own.fetch(f"other-{run.name}")),
        ("keys", run.own.list_keys),
    ):
        try:
            call()
        except ApiError as error:
            require(error.status == 403, f"{what}: {error.status}")
        else:
            raise Wrong(f"the key of the run could use {what}")
    return "another queue 403, keys 403"


def _failures(run: Run) -> str:
    cloud, found = cloud_of(run), {}
    for name, url in cloud.outputs.items():
        if name.endswith("FailureQueueUrl"):
            names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
            got = cloud.ask("sqs", "get_queue_attributes", QueueUrl=url, AttributeNames=names)
            found[name.removesuffix("Url")] = sum(int(got["Attributes"][each]) for each in names)
    require(not any(found.values()), ", ".join(f"{n}: {c} messages" for n, c in found.items()))
    return f"{len(found)} are empty"


def _mappings(run: Run) -> str:
    found = [*cloud_of(run).mappings()]
    require(found, "the deployment has no mappings")
    for each in found:
        last = str(each.get("LastProcessingResult", ""))
        name = str(each["FunctionArn"]).rpartition(":")[2]
        good = each["State"] == "Enabled" and not last.startswith("PROBLEM")
        require(good, f"the mapping of {name} is {each['State']} {last}".rstrip())
    return f"{len(found)} are enabled"


def _alarms_ok(run: Run) -> str:
    cloud = cloud_of(run)
    alarms = cloud.alarms()
    require(alarms, "the deployment has no alarms")
    # Without metrics, the emulator doesn't evaluate them.
    good = {"OK", "INSUFFICIENT_DATA"} if cloud.emulated else {"OK"}
    wrong = [each for each in alarms if each["StateValue"] not in good]
    require(not wrong, ", ".join(f"{e['AlarmName']} is {e['StateValue']}" for e in wrong))
    return f"{len(alarms)} alarms"


def _alarm_actions(run: Run) -> str:
    alarms = cloud_of(run).alarms()
    silent = [e for e in alarms if not (e.get("ActionsEnabled", True) and e.get("AlarmActions"))]
    require(not silent, f"{', '.join(each['AlarmName'] for each in silent)} have no action")
    return f"{len(alarms)} alarms"


def _alarm_data(run: Run) -> str:
    cloud = cloud_of(run)
    cloud.on_aws()
    now = datetime.now(UTC)
    span = (now - timedelta(minutes=30), now)
    seen = []
    for each in cloud.alarms():
        name = str(each["AlarmName"])
        if name.endswith(_WITH_DATA) and "MetricName" in each:
            dims = {one["Name"]: one["Value"] for one in each["Dimensions"]}
            found = cloud.measured(
                each["Namespace"], each["MetricName"], "SampleCount", span, **dims
            )
            require(found, f"the metric of {name} has no data")
            seen.append(name)
    return f"{len(seen)} metrics"


def _roles(run: Run) -> str:
    cloud = cloud_of(run)
    table = cloud.table["TableArn"]
    for name, config in cloud.functions.items():
        found: list[dict[str, Any]] = cloud.ask(
            "iam", "simulate_principal_policy", PolicySourceArn=config["Role"],
            ActionNames=list(_REFUSED), ResourceArns=[table, config["FunctionArn"]],
        )["EvaluationResults"]  # fmt: skip
        allowed = [each["EvalActionName"] for each in found if each["EvalDecision"] == "allowed"]
        require(not allowed, f"the function {name} is allowed to call {', '.join(allowed)}")
    return f"{len(_REFUSED)} calls are refused to each of {len(cloud.functions)} functions"
