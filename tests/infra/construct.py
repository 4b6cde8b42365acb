"""A backend in a stack of its own, for the tests of its construct."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aws_cdk import App, Environment, Stack, assertions
from aws_cdk import aws_iam as iam
from cdk_nag import AwsSolutionsChecks

from ojs_aws.cdk import OpenJobSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

PLACE = Environment(account="123456789012", region="eu-central-1")


class Made:
    """A stack with a backend, and what is beside it."""

    def __init__(self, app: App, stack: Stack, jobs: OpenJobSpec) -> None:
        self.app, self.stack, self.jobs = app, stack, jobs
        self.template = assertions.Template.from_stack(stack)

    def all(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        return self.template.find_resources(kind)

    def some(self, kind: str, part: str) -> dict[str, Any]:
        """Properties of the one of this type with this in its logical id."""
        (one,) = (each for name, each in self.all(kind).items() if part in name)
        found: dict[str, Any] = one["Properties"]
        return found

    def findings(self) -> list[str]:
        report = AwsSolutionsChecks(self.app).validate_scope(self.app)
        return [f"{each.rule_name}: {each.description}" for each in report.violations]


def role(stack: Stack, name: str) -> iam.Role:
    return iam.Role(stack, name, assumed_by=iam.ServicePrincipal("ecs-tasks.amazonaws.com"))
