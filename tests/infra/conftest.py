"""The synthesised deployment: made once, with a stub in place of the bundled functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from aws_cdk import App, Stack, assertions
from aws_cdk import aws_lambda as lambda_

from infra.app import compose
from infra.settings import DeploymentSettings

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Synthesis:
    app: App
    data: assertions.Template
    service: assertions.Template

    def resources(self, kind: str) -> dict[str, dict[str, Any]]:
        """Properties by logical id of every resource of this type, in both stacks."""
        found = {**self.data.find_resources(kind), **self.service.find_resources(kind)}
        return {name: resource.get("Properties", {}) for name, resource in found.items()}

    def one(self, kind: str) -> dict[str, Any]:
        """Properties of the only resource of this type."""
        (properties,) = self.resources(kind).values()
        return properties


@pytest.fixture(scope="session")
def synthesise(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[DeploymentSettings], Synthesis]:
    stub = tmp_path_factory.mktemp("stub")
    (stub / "handler.py").write_text("# stands for the bundle\n")

    def make(settings: DeploymentSettings) -> Synthesis:
        app = App(outdir=str(tmp_path_factory.mktemp("assembly")))
        compose(app, settings, lambda_.Code.from_asset(str(stub)))
        stacks = {
            child.stack_name: assertions.Template.from_stack(child)
            for child in app.node.children
            if isinstance(child, Stack)
        }
        return Synthesis(
            app,
            data=stacks[f"ojs-{settings.stage}-data"],
            service=stacks[f"ojs-{settings.stage}-service"],
        )

    return make


@pytest.fixture(scope="session")
def synthesis(synthesise: Callable[[DeploymentSettings], Synthesis]) -> Synthesis:
    """The deployment as cdk.json leaves it: made for AWS."""
    return synthesise(DeploymentSettings())
