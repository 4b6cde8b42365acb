"""Other ways in than an HTTP API: a function URL, and a REST API that only a VPC reaches."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from aws_cdk import App, Environment, Stack, assertions
from aws_cdk import aws_certificatemanager as acm
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from cdk_nag import AwsSolutionsChecks
from pydantic import ValidationError

from ojs.settings import Settings
from ojs_aws.cdk import DeploymentSettings, Domain, OpenJobSpec

if TYPE_CHECKING:
    from collections.abc import Callable

PLACE = Environment(account="123456789012", region="eu-central-1")
ENDPOINT = "vpce-0123456789abcdef0"


class Deployment:
    def __init__(self, app: App, stack: Stack, jobs: OpenJobSpec, role: iam.Role) -> None:
        self.app, self.jobs, self.role = app, jobs, role
        self.template = assertions.Template.from_stack(stack)
        self.url = json.dumps(stack.resolve(jobs.url))

    def all(self, kind: str) -> dict[str, dict[str, Any]]:
        found = self.template.find_resources(f"AWS::{kind}")
        return {name: each.get("Properties", {}) for name, each in found.items()}

    def function(self, name: str) -> dict[str, Any]:
        handler = f"functions.{name}.handler.handler"
        (found,) = (each for each in self.all("Lambda::Function").values()
                    if each["Handler"] == handler)  # fmt: skip
        return found

    def findings(self) -> list[str]:
        report = AwsSolutionsChecks(self.app).validate_scope(self.app)
        return [f"{each.rule_name}: {each.description}" for each in report.violations]


@pytest.fixture(scope="module")
def deploy(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Deployment]:
    stub = tmp_path_factory.mktemp("stub")
    (stub / "handler.py").write_text("# stands for the bundle\n")

    def make(*, granted: bool = True, endpoints: int | None = None, **chosen: Any) -> Deployment:
        app = App()
        stack = Stack(app, "shop", env=PLACE)
        role = iam.Role(stack, "Shop", assumed_by=iam.ServicePrincipal("ecs-tasks.amazonaws.com"))
        if chosen.get("entry") == "function_url":
            chosen = {"reserved_concurrency": {"api": 50}, **chosen}
        settings = DeploymentSettings(**chosen)
        count = int(settings.entry == "private_api") if endpoints is None else endpoints
        through = [
            ec2.InterfaceVpcEndpoint.from_interface_vpc_endpoint_attributes(
                stack, f"Endpoint{at}", vpc_endpoint_id=ENDPOINT, port=443
            )
            for at in range(count)
        ]
        code = lambda_.Code.from_asset(str(stub))
        jobs = OpenJobSpec(stack, "Jobs", settings=settings, code=code, vpc_endpoints=through)
        if granted:
            jobs.grant_produce(role)
        return Deployment(app, stack, jobs, role)

    return make


@pytest.fixture(scope="module")
def by_url(deploy: Callable[..., Deployment]) -> Deployment:
    return deploy(entry="function_url", cors_origins=("https://jobs.example.com",))


@pytest.fixture(scope="module")
def private(deploy: Callable[..., Deployment]) -> Deployment:
    return deploy(entry="private_api")


@pytest.fixture(scope="module")
def signed(deploy: Callable[..., Deployment]) -> Deployment:
    return deploy(entry="private_api", authorizer="iam")


@pytest.fixture(params=["by_url", "private", "signed"])
def each(request: pytest.FixtureRequest) -> Deployment:
    made: Deployment = request.getfixturevalue(request.param)
    return made


def test_one_function_stands_for_those_with_routes(each: Deployment) -> None:
    private = each.jobs.settings.entry == "private_api"
    # A WebSocket API cannot be private.
    connected = [] if private else ["socket", "ticket"]
    assert sorted(each.jobs.functions) == sorted(["api", "setup", "stream", "sweep", *connected])
    variables = each.function("api")["Environment"]["Variables"]
    settings = each.jobs.settings
    assert variables["OJS_ENTRY"] == settings.entry
    assert variables["OJS_AUTHORIZER"] == settings.authorizer
    # As the functions read them.
    read = Settings(table="jobs", entry=settings.entry, authorizer=settings.authorizer)
    assert read.looks_up_keys == (settings.authorizer == "keys")
    apis = each.all("ApiGatewayV2::Api").values()
    assert [api["ProtocolType"] for api in apis] == ([] if private else ["WEBSOCKET"])


def test_no_finding_without_a_written_reason(each: Deployment) -> None:
    assert each.findings() == []


def test_alarms_look_at_what_there_is(each: Deployment) -> None:
    looked_at = json.dumps(list(each.all("CloudWatch::Alarm").values()))
    kind = "AWS/Lambda" if each.jobs.settings.entry == "function_url" else "AWS/ApiGateway"
    name = {"AWS/Lambda": "Url5xxCount", "AWS/ApiGateway": "5XXError"}[kind]
    assert name in looked_at
    (refused,) = each.all("Logs::MetricFilter").values()
    assert refused["FilterPattern"] == "{ ($.status = 401) || ($.status = 403) }"
    (group,) = (
        value["Ref"] for key, value in each.function("api")["LoggingConfig"].items()
        if key == "LogGroup"
    )  # fmt: skip
    assert refused["LogGroupName"] == {"Ref": group}


def test_a_function_url_is_open_to_all_who_have_a_key(by_url: Deployment) -> None:
    (url,) = by_url.all("Lambda::Url").values()
    assert url["AuthType"] == "NONE"
    assert url["Cors"]["AllowOrigins"] == ["https://jobs.example.com"]
    assert "authorization" in [each.lower() for each in url["Cors"]["AllowHeaders"]]
    open_to_all = sorted(
        (each["Action"], each.get("FunctionUrlAuthType"), each.get("InvokedViaFunctionUrl"))
        for each in by_url.all("Lambda::Permission").values()
        if each["Principal"] == "*"
    )
    assert open_to_all == [
        ("lambda:InvokeFunction", None, True),
        ("lambda:InvokeFunctionUrl", "NONE", None),
    ]
    # Whatever the callers send, so many containers run.
    assert by_url.function("api")["ReservedConcurrentExecutions"] == 50
    # Without the slash that Lambda has at its end.
    assert by_url.url.startswith('{"Fn::Join": ["", ["https://", {"Fn::Select": [2')


def test_a_private_api_is_reached_through_its_endpoints_alone(private: Deployment) -> None:
    (api,) = private.all("ApiGateway::RestApi").values()
    assert api["EndpointConfiguration"] == {"Types": ["PRIVATE"], "VpcEndpointIds": [ENDPOINT]}
    allowed, denied = api["Policy"]["Statement"]
    assert allowed["Effect"] == "Allow"
    assert denied["Effect"] == "Deny"
    assert denied["Condition"] == {"StringNotEquals": {"aws:SourceVpce": [ENDPOINT]}}
    # The root, and all below it.
    methods = private.all("ApiGateway::Method").values()
    found = [(each["HttpMethod"], each["AuthorizationType"]) for each in methods]
    assert found == [("ANY", "NONE")] * 2
    assert f"-{ENDPOINT}.execute-api.eu-central-1." in private.url
    assert private.url.rstrip('"]}').endswith("/jobs")
    # Nothing of the whole account is changed.
    assert not private.all("ApiGateway::Account")


def test_with_iam_a_private_api_asks_for_signatures(signed: Deployment) -> None:
    methods = signed.all("ApiGateway::Method").values()
    assert [each["AuthorizationType"] for each in methods] == ["AWS_IAM"] * 2
    policies = [
        each for each in signed.all("IAM::Policy").values() if "execute-api" in json.dumps(each)
    ]
    (policy,) = policies
    (statement,) = policy["PolicyDocument"]["Statement"]
    written = json.dumps(statement["Resource"])
    assert "/jobs/POST/ojs/v1/jobs" in written
    assert "/jobs/POST/ojs/v1/workers" not in written


def test_with_iam_a_function_url_grants_nothing_by_path(
    deploy: Callable[..., Deployment],
) -> None:
    with pytest.raises(ValueError, match="policies can't limit paths"):
        deploy(entry="function_url", authorizer="iam")
    made = deploy(entry="function_url", authorizer="iam", granted=False)
    (url,) = made.all("Lambda::Url").values()
    assert url["AuthType"] == "AWS_IAM"
    assert not [
        each for each in made.all("Lambda::Permission").values() if each["Principal"] == "*"
    ]


@pytest.mark.parametrize(
    ("chosen", "named"),
    [
        ({"entry": "function_url", "domain_name": "jobs.example.com",
          "certificate_arn": "arn:aws:acm:eu-central-1:123456789012:certificate/abc"},
         "domain_name"),
        ({"entry": "private_api", "authorizer": "jwt", "jwt_issuer": "https://id.example.com",
          "jwt_audience": ("jobs",)}, "authorizer"),
        ({"entry": "private_api", "cors_origins": ("https://jobs.example.com",)}, "cors_origins"),
        ({"entry": "function_url", "throttle_burst": 5}, "throttle_burst"),
        ({"entry": "function_url"}, "reserved_concurrency: must contain api"),
        ({"entry": "function_url", "authorizer": "iam", "reserved_concurrency": "sweep=1"},
         "must contain api"),
        ({"reserved_concurrency": "api=50"}, "api: requires"),
        ({"entry": "function_url", "memory_mb_by_function": {"jobs": 512}}, "jobs: requires"),
        ({"memory_mb_by_function": {"api": 512}}, "api: requires"),
        ({"entry": "rest"}, "entry"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(chosen: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        DeploymentSettings(**chosen)


def test_endpoints_and_a_private_api_go_together(deploy: Callable[..., Deployment]) -> None:
    for wrong in ({"entry": "private_api", "endpoints": 0}, {"endpoints": 1}):
        with pytest.raises(ValueError, match="vpc_endpoints"):
            deploy(**wrong)


def test_a_function_url_has_no_name_of_its_own() -> None:
    stack = Stack(App(), "shop", env=PLACE)
    certificate = acm.Certificate.from_certificate_arn(
        stack, "Certificate", "arn:aws:acm:eu-central-1:123456789012:certificate/abc"
    )
    with pytest.raises(ValueError, match="domain: requires entry=http_api"):
        OpenJobSpec(
            stack,
            "Jobs",
            settings=DeploymentSettings(entry="function_url", reserved_concurrency={"api": 50}),
            domain=Domain("jobs.example.com", certificate, None),
            code=lambda_.Code.from_inline("# none"),
        )
