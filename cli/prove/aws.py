"""What AWS tells about a deployment. Everything here only reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from cli.target import outputs

# Functions that process requests.
REQUESTS = ("jobs", "workers", "admin", "api")


class Wrong(Exception):
    """A check failed. The message is the observation."""


class Skip(Exception):
    """A check can't run. The message is the reason."""


class Cloud:
    """The resources of a stage, and their settings and metrics.

    A method raises Skip if the credentials don't allow a call, and Wrong if a call fails.
    """

    def __init__(self, stage: str) -> None:
        """Find the stacks of a stage. Raises errors of the SDK."""
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError

        self._make: Any = boto3.client
        self._errors = (ClientError, BotoCoreError)
        self._clients: dict[str, Any] = {}
        self.stage = stage
        # Functions of an emulator run, but many facts about it differ.
        self.emulated = bool(os.environ.get("AWS_ENDPOINT_URL"))
        self.outputs = {**outputs(stage, "data"), **outputs(stage, "service")}
        self.region: str = self._client("cloudformation").meta.region_name

    def _client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = self._make(service)
        return self._clients[service]

    def ask(self, service: str, operation: str, **options: Any) -> Any:
        """Call an operation that reads."""
        return self._told(lambda: getattr(self._client(service), operation)(**options), operation)

    def _told(self, call: Callable[[], Any], operation: str) -> Any:
        try:
            return call()
        except self._errors as error:
            response: dict[str, Any] = getattr(error, "response", {})
            code = str(response.get("Error", {}).get("Code", ""))
            if "Denied" in code or "NotAuthorized" in code:
                raise Skip(f"the credentials don't allow {operation}") from None
            raise Wrong(f"{operation}: {error}") from None

    def on_aws(self) -> None:
        """Raise Skip in an emulator."""
        if self.emulated:
            raise Skip("an emulator doesn't show it")

    @cached_property
    def resources(self) -> dict[str, list[str]]:
        """Physical IDs of the stack's resources, by type."""
        found: dict[str, list[str]] = {}
        pages = self._client("cloudformation").get_paginator("list_stack_resources")
        name = f"ojs-{self.stage}-service"
        for page in self._told(lambda: [*pages.paginate(StackName=name)], "list_stack_resources"):
            for each in page["StackResourceSummaries"]:
                found.setdefault(each["ResourceType"], []).append(each["PhysicalResourceId"])
        return found

    @cached_property
    def functions(self) -> dict[str, dict[str, Any]]:
        """Configurations of the deployment's functions, by name."""
        found = {}
        for each in self.resources.get("AWS::Lambda::Function", ()):
            config = self.ask("lambda", "get_function_configuration", FunctionName=each)
            parts = str(config.get("Handler", "")).split(".")
            if parts[0] == "functions":
                found[parts[1]] = config
        return found

    @cached_property
    def table(self) -> dict[str, Any]:
        """The description of the table."""
        name = self.outputs["TableName"]
        found: dict[str, Any] = self.ask("dynamodb", "describe_table", TableName=name)["Table"]
        return found

    def mappings(self) -> Iterator[dict[str, Any]]:
        """Yield the event source mappings."""
        for uuid in self.resources.get("AWS::Lambda::EventSourceMapping", ()):
            yield self.ask("lambda", "get_event_source_mapping", UUID=uuid)

    def stream_mapping(self) -> dict[str, Any]:
        """Return the mapping of the stream to its consumer."""
        name = self.functions["stream"]["FunctionName"]
        for each in self.mappings():
            if str(each["FunctionArn"]).rpartition(":")[2] == name:
                return each
        raise Wrong("the stream has no mapping to the function stream")

    # --- metrics -----------------------------------------------------------------------------

    def measured(
        self, space: str, name: str, statistic: str, span: tuple[datetime, datetime], **dims: str
    ) -> list[float]:
        """Return the values of a metric, one for each minute that has one."""
        found = self.ask(
            "cloudwatch", "get_metric_statistics", Namespace=space, MetricName=name,
            Dimensions=[{"Name": key, "Value": value} for key, value in dims.items()],
            StartTime=span[0], EndTime=span[1], Period=60, Statistics=[statistic],
        )  # fmt: skip
        return [float(each[statistic]) for each in found["Datapoints"]]

    def units(self, name: str, span: tuple[datetime, datetime]) -> float:
        """Return consumed units of the table and its indexes: `Write` or `Read`."""
        metric, table = f"Consumed{name}CapacityUnits", self.outputs["TableName"]
        total = sum(self.measured("AWS/DynamoDB", metric, "Sum", span, TableName=table))
        for index in self.table.get("GlobalSecondaryIndexes", ()):
            dims = {"TableName": table, "GlobalSecondaryIndexName": index["IndexName"]}
            total += sum(self.measured("AWS/DynamoDB", metric, "Sum", span, **dims))
        return total

    def calls(self, names: Sequence[str], span: tuple[datetime, datetime]) -> tuple[float, float]:
        """Return the number of calls of functions, and their mean duration in ms."""
        count = total = 0.0
        for name in names:
            if name in self.functions:
                dims = {"FunctionName": self.functions[name]["FunctionName"]}
                count += sum(self.measured("AWS/Lambda", "Invocations", "Sum", span, **dims))
                total += sum(self.measured("AWS/Lambda", "Duration", "Sum", span, **dims))
        return count, total / count if count else 0.0

    def alarms(self) -> list[dict[str, Any]]:
        """Return the alarms of the deployment."""
        names = self.resources.get("AWS::CloudWatch::Alarm", [])
        found: list[dict[str, Any]] = []
        for start in range(0, len(names), 100):
            asked = {"AlarmNames": names[start : start + 100], "MaxRecords": 100}
            found += self.ask("cloudwatch", "describe_alarms", **asked)["MetricAlarms"]
        return found

    def raised(self) -> list[str]:
        """Return the names of alarms in state ALARM."""
        return [each["AlarmName"] for each in self.alarms() if each["StateValue"] == "ALARM"]

    def throttled(self, span: tuple[datetime, datetime]) -> float:
        """Return the number of throttled calls of functions and the table."""
        table = {"TableName": self.outputs["TableName"]}
        found = [
            *self.measured("AWS/DynamoDB", "WriteThrottleEvents", "Sum", span, **table),
            *self.measured("AWS/DynamoDB", "ReadThrottleEvents", "Sum", span, **table),
        ]
        for each in self.functions.values():
            dims = {"FunctionName": each["FunctionName"]}
            found += self.measured("AWS/Lambda", "Throttles", "Sum", span, **dims)
        return sum(found)
