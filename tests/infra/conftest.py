"""Synthesised deployments: each made once, with a stub in place of the bundled functions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aws_cdk import App, Environment, Stack, assertions
from aws_cdk import aws_lambda as lambda_

from infra.app import compose
from ojs_aws.cdk.settings import DeploymentSettings

if TYPE_CHECKING:
    from collections.abc import Callable

ACCOUNT = "123456789012"
REGION = "eu-central-1"
PUSHED_TO = f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:thumbnails"


# What the logical ids of the WebSocket API and its parts begin with.
_REALTIME = "Realtime"

# What makes another deployment than that of the settings as they are: each takes a second or two.
OTHERS = {"synthesise", "with_jwt", "with_iam", "with_waf"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make test` makes one deployment; the others are left to `make test-exhaustive`."""
    for item in items:
        if isinstance(item, pytest.Function) and item.path.parent == Path(__file__).parent:
            params = item.callspec.params.values() if hasattr(item, "callspec") else ()
            asked = {*item._fixtureinfo.argnames, *(each for each in params if type(each) is str)}
            if asked & OTHERS:
                item.add_marker("exhaustive")


@dataclass(frozen=True)
class Synthesis:
    app: App
    data: assertions.Template
    service: assertions.Template
    edge: assertions.Template | None = None

    @property
    def templates(self) -> list[assertions.Template]:
        """Of all stacks there are."""
        return [each for each in (self.data, self.service, self.edge) if each is not None]

    def resources(self, kind: str) -> dict[str, dict[str, Any]]:
        """Properties by logical id of every resource of this type, in all stacks, without those of
        the WebSocket API.
        """
        found = self._all(kind)
        return {name: each for name, each in found.items() if not name.startswith(_REALTIME)}

    def realtime(self, kind: str) -> dict[str, dict[str, Any]]:
        """As `resources`, of the WebSocket API."""
        found = self._all(kind)
        return {name: each for name, each in found.items() if name.startswith(_REALTIME)}

    def _all(self, kind: str) -> dict[str, dict[str, Any]]:
        return {
            name: resource.get("Properties", {})
            for template in self.templates
            for name, resource in template.find_resources(kind).items()
        }

    def one(self, kind: str) -> dict[str, Any]:
        """Properties of the only resource of this type."""
        (properties,) = self.resources(kind).values()
        return properties


@pytest.fixture(scope="session")
def code(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], lambda_.Code]:
    """The functions' code, anew for each construct."""
    stub = tmp_path_factory.mktemp("stub")
    (stub / "handler.py").write_text("# stands for the bundle\n")
    return lambda: lambda_.Code.from_asset(str(stub))


@pytest.fixture(scope="session")
def synthesise(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[DeploymentSettings], Synthesis]:
    stub = tmp_path_factory.mktemp("stub")
    (stub / "handler.py").write_text("# stands for the bundle\n")

    def make(settings: DeploymentSettings) -> Synthesis:
        app = App(outdir=str(tmp_path_factory.mktemp("assembly")))
        place = Environment(account=ACCOUNT, region=REGION)
        compose(app, settings, lambda_.Code.from_asset(str(stub)), place)
        stacks = {
            child.stack_name: assertions.Template.from_stack(child)
            for child in app.node.children
            if isinstance(child, Stack)
        }
        return Synthesis(
            app,
            data=stacks[f"ojs-{settings.stage}-data"],
            service=stacks[f"ojs-{settings.stage}-service"],
            edge=stacks.get(f"ojs-{settings.stage}-edge"),
        )

    return make


@pytest.fixture(scope="session")
def synthesis(synthesise: Callable[[DeploymentSettings], Synthesis]) -> Synthesis:
    """The deployment with the settings as they are: made for AWS, with keys."""
    return synthesise(DeploymentSettings())


@pytest.fixture(scope="session")
def with_jwt(synthesise: Callable[[DeploymentSettings], Synthesis]) -> Synthesis:
    """With a JWT issuer, CORS, a customer-managed encryption key, push delivery, and a domain name
    of the WebSocket API.
    """
    return synthesise(
        DeploymentSettings(
            push=True,
            push_functions=(PUSHED_TO,),
            authorizer="jwt",
            jwt_issuer="https://id.example.com/",
            jwt_audience=("jobs", "ops"),
            jwt_scope_claim="scp",
            jwt_scope_prefix="ojs/",
            cors_origins=("https://jobs.example.com", "http://localhost:3000"),
            encryption="own",
            realtime_domain="live.example.com",
            certificate_arn=f"arn:aws:acm:{REGION}:{ACCOUNT}:certificate/abc",
        )
    )


@pytest.fixture(scope="session")
def with_iam(synthesise: Callable[[DeploymentSettings], Synthesis]) -> Synthesis:
    """IAM, a name of its own, and web pages."""
    return synthesise(
        DeploymentSettings(
            authorizer="iam",
            iam_operators=(f"arn:aws:iam::{ACCOUNT}:role/operator",),
            cors_origins=("https://jobs.example.com",),
            domain_name="jobs.example.com",
            certificate_arn=f"arn:aws:acm:{REGION}:{ACCOUNT}:certificate/abc",
            hosted_zone_id="Z123",
            hosted_zone_name="example.com",
        )
    )


@pytest.fixture(scope="session")
def with_waf(synthesise: Callable[[DeploymentSettings], Synthesis]) -> Synthesis:
    """Keys, behind a firewall, everything encrypted with a key of its own, and web pages."""
    return synthesise(
        DeploymentSettings(
            domain_name="jobs.example.com",
            certificate_arn=f"arn:aws:acm:us-east-1:{ACCOUNT}:certificate/abc",
            hosted_zone_id="Z123",
            hosted_zone_name="example.com",
            waf=True,
            waf_rate=5_000,
            max_write_units=1_000,
            max_read_units=3_000,
            backup_days=30,
            encryption="own",
            cors_origins=("https://jobs.example.com",),
        )
    )


@pytest.fixture(params=["synthesis", "with_jwt", "with_iam", "with_waf"])
def each_synthesis(request: pytest.FixtureRequest) -> Synthesis:
    """One deployment after the other."""
    made: Synthesis = request.getfixturevalue(request.param)
    return made
