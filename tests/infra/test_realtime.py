"""The WebSocket API: who may connect, what it costs at rest, and which functions send messages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from aws_cdk import App, Environment, Stack, assertions
from aws_cdk import aws_certificatemanager as acm
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_lambda as lambda_

from ojs.settings import Settings
from ojs.store.table import keys
from ojs.store.table.schema import TABLE
from ojs_aws.cdk import DeploymentSettings, Network, OpenJobSpec
from ojs_aws.cdk.functions import FUNCTIONS, deployed
from ojs_aws.cdk.parts.domain import Domain
from ojs_aws.cdk.parts.realtime import PATH, STAGE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FUNCTION = "AWS::Lambda::Function"
MAPPING = "AWS::Lambda::EventSourceMapping"
JOB = "019414d4-aaaa-7000-8000-111111111111"
CERTIFICATE = "arn:aws:acm:eu-central-1:123456789012:certificate/abc"
SENDS = {spec.name for spec in FUNCTIONS if spec.access.connections}


@pytest.fixture(scope="module")
def whole(synthesise: Callable[[DeploymentSettings], Any]) -> Any:
    """With events, and a domain name."""
    return synthesise(
        DeploymentSettings(
            realtime="all",
            realtime_domain="live.example.com",
            certificate_arn=CERTIFICATE,
            hosted_zone_id="Z123",
            hosted_zone_name="example.com",
            cors_origins=("https://jobs.example.com",),
            encryption="own",
        )
    )


@pytest.fixture(scope="module")
def off(synthesise: Callable[[DeploymentSettings], Any]) -> Any:
    return synthesise(DeploymentSettings(realtime="off"))


def functions(made: Any) -> dict[str, dict[str, Any]]:
    """Properties by name."""
    return {
        function["Handler"].split(".")[1]: function
        for function in made.resources(FUNCTION).values()
        if function["Handler"].startswith("functions.")
    }


def grants(made: Any, name: str) -> list[Any]:
    """Resources of a function's permission to send messages."""
    role = functions(made)[name]["Role"]["Fn::GetAtt"][0]
    return [
        statement["Resource"]
        for policy in made.resources("AWS::IAM::Policy").values()
        if {"Ref": role} in policy["Roles"]
        for statement in policy["PolicyDocument"]["Statement"]
        if statement["Action"] == "execute-api:ManageConnections"
    ]


# --- who connects --------------------------------------------------------------------------------


def test_a_connection_needs_a_ticket(synthesis: Any) -> None:
    (api,) = synthesis.realtime("AWS::ApiGatewayV2::Api").values()
    assert api["ProtocolType"] == "WEBSOCKET"
    (authorizer,) = synthesis.realtime("AWS::ApiGatewayV2::Authorizer").values()
    assert authorizer["AuthorizerType"] == "REQUEST"
    assert authorizer["IdentitySource"] == ["route.request.querystring.ticket"]
    # A ticket is valid once: nothing is cached.
    assert "AuthorizerResultTtlInSeconds" not in authorizer
    assert "TicketFunction" in json.dumps(authorizer["AuthorizerUri"])
    routes = {
        route["RouteKey"]: route
        for route in synthesis.realtime("AWS::ApiGatewayV2::Route").values()
    }
    kinds = {key: route["AuthorizationType"] for key, route in routes.items()}
    assert kinds == {"$connect": "CUSTOM", "$default": "NONE", "$disconnect": "NONE"}
    # Messages are answered.
    assert routes["$default"]["RouteResponseSelectionExpression"] == "$default"
    assert len(synthesis.realtime("AWS::ApiGatewayV2::RouteResponse")) == 1
    for integration in synthesis.realtime("AWS::ApiGatewayV2::Integration").values():
        assert "SocketFunction" in json.dumps(integration["IntegrationUri"])


def test_the_ticket_authorizer_can_only_delete_tickets(synthesis: Any) -> None:
    (spec,) = (each for each in deployed("keys") if each.name == "ticket")
    assert spec.access.items == (keys.ticket("*"),)
    assert spec.access.table == {"DeleteItem"}
    assert functions(synthesis)["ticket"]["Timeout"] <= 10


def test_messages_are_throttled_and_no_stage_writes_what_a_ticket_is(synthesis: Any) -> None:
    (stage,) = synthesis.realtime("AWS::ApiGatewayV2::Stage").values()
    limits = {"ThrottlingRateLimit": 100, "ThrottlingBurstLimit": 200}
    assert (stage["StageName"], stage["DefaultRouteSettings"]) == (STAGE, limits)
    # API Gateway refuses it in an account without a role for all its logs.
    assert "AccessLogSettings" not in stage
    (name,) = synthesis.realtime("AWS::ApiGatewayV2::Stage")
    made = synthesis.service.find_resources("AWS::ApiGatewayV2::Stage")[name]
    assert set(synthesis.realtime("AWS::ApiGatewayV2::Route")) <= set(made["DependsOn"])


def test_pages_of_the_deployment_and_those_that_are_let_in_can_connect(
    whole: Any, with_waf: Any
) -> None:
    variables = functions(with_waf)["socket"]["Environment"]["Variables"]
    origins = "https://jobs.example.com,https://jobs.example.com"
    assert variables["OJS_SOCKET_ORIGINS"] == origins
    # The server would take anybody without it.
    assert variables["OJS_AUTHORIZER"] == "keys"
    own = functions(whole)["socket"]["Environment"]["Variables"]["OJS_SOCKET_ORIGINS"]
    assert own["Fn::Join"][1][-1] == ",https://jobs.example.com"


# --- where it is ---------------------------------------------------------------------------------


def test_its_address_is_told_to_who_answers_for_it(synthesis: Any, whole: Any) -> None:
    variables = functions(synthesis)["admin"]["Environment"]["Variables"]
    url, endpoint = variables["OJS_SOCKET_URL"], variables["OJS_SOCKET_ENDPOINT"]
    assert url["Fn::Join"][1][0] == "wss://"
    assert endpoint["Fn::Join"][1][0] == "https://"
    assert url["Fn::Join"][1][1:] == endpoint["Fn::Join"][1][1:]
    assert endpoint["Fn::Join"][1][-1] == f"/{STAGE}"
    synthesis.service.has_output("RealtimeUrl", {"Value": url})
    there = functions(whole)
    assert there["admin"]["Environment"]["Variables"]["OJS_SOCKET_URL"] == "wss://live.example.com"
    # The management API has no other name.
    told = there["admin"]["Environment"]["Variables"]["OJS_SOCKET_ENDPOINT"]
    assert ".execute-api." in json.dumps(told)
    for name, function in there.items():
        found = function["Environment"]["Variables"]
        level = found.get("OJS_REALTIME")
        assert level == ("all" if name in {*SENDS, "dashboard"} else None), name
        if level:
            Settings(table="jobs", realtime=level)


def test_it_has_a_domain_name_of_its_own(whole: Any) -> None:
    (domain,) = whole.realtime("AWS::ApiGatewayV2::DomainName").values()
    assert domain["DomainName"] == "live.example.com"
    (mapping,) = whole.realtime("AWS::ApiGatewayV2::ApiMapping").values()
    assert (mapping["Stage"], "ApiMappingKey" in mapping) == (STAGE, False)
    records = whole.realtime("AWS::Route53::RecordSet").values()
    assert {each["Type"] for each in records} == {"A", "AAAA"}
    assert {each["Name"] for each in records} == {"live.example.com."}
    whole.service.has_output("RealtimeDomainTarget", {})
    # The HTTP API keeps its name.
    assert not whole.resources("AWS::ApiGatewayV2::DomainName")


def test_behind_a_firewall_it_has_a_path(with_waf: Any) -> None:
    (found,) = with_waf.edge.find_resources("AWS::CloudFront::Distribution").values()
    distribution = found["Properties"]["DistributionConfig"]
    (behavior,) = distribution["CacheBehaviors"]
    assert behavior["PathPattern"] == PATH
    default = distribution["DefaultCacheBehavior"]
    for name in ("CachePolicyId", "OriginRequestPolicyId", "ViewerProtocolPolicy"):
        assert behavior[name] == default[name]
    http, socket = distribution["Origins"]
    assert behavior["TargetOriginId"] == socket["Id"] != http["Id"]
    # A ticket shows that its holder came through; the secret is for the HTTP API alone.
    assert "OriginCustomHeaders" not in socket
    assert with_waf.service.to_json()["Outputs"]["RealtimeUrl"]["Value"] == (
        f"wss://jobs.example.com{PATH}"
    )
    # API Gateway knows no path below the stage.
    (renames,) = with_waf.edge.find_resources("AWS::CloudFront::Function").values()
    assert f'"/{STAGE}"' in renames["Properties"]["FunctionCode"]
    (association,) = behavior["FunctionAssociations"]
    assert association["EventType"] == "viewer-request"


def test_pages_of_the_dashboard_know_it_if_it_sends_events(whole: Any, synthesis: Any) -> None:
    """Their policy lets them connect to it. The management API is none of their business."""
    variables = functions(whole)["dashboard"]["Environment"]["Variables"]
    told = {name: value for name, value in variables.items() if "SOCKET" in name}
    assert told == {"OJS_SOCKET_URL": "wss://live.example.com"}
    assert not grants(whole, "dashboard")
    without = functions(synthesis)["dashboard"]["Environment"]["Variables"]
    assert not {name for name in without if "SOCKET" in name or "REALTIME" in name}


# --- who sends -----------------------------------------------------------------------------------


@pytest.mark.parametrize("made", ["synthesis", "whole", "with_jwt"])
def test_functions_that_ring_can_post_to_this_stage_and_no_others(
    request: pytest.FixtureRequest, made: str
) -> None:
    deployment = request.getfixturevalue(made)
    for name in functions(deployment):
        found = grants(deployment, name)
        assert bool(found) is (name in SENDS), name
        for arn in found:
            assert arn["Fn::Join"][1][-1] == f"/{STAGE}/POST/@connections/*"
            assert "RealtimeApi" in json.dumps(arn)
    assert {"jobs", "workers", "admin", "sweep", "stream", "dispatch", "outcomes"} <= SENDS
    assert not {"ticket", "authorizer", "dashboard", "setup"} & SENDS


def test_events_have_a_reader_of_the_stream(whole: Any, synthesis: Any) -> None:
    assert "notify" not in functions(synthesis)
    assert len(synthesis.resources(MAPPING)) == 1
    (mapping,) = (
        each
        for each in whole.resources(MAPPING).values()
        if "Notify" in each["FunctionName"]["Ref"]
    )
    assert mapping["StartingPosition"] == "LATEST"
    assert (mapping["BatchSize"], mapping["MaximumBatchingWindowInSeconds"]) == (100, 0)
    assert (mapping["MaximumRetryAttempts"], mapping["MaximumRecordAgeInSeconds"]) == (2, 60)
    assert "DestinationConfig" not in mapping
    found = [json.loads(each["Pattern"]) for each in mapping["FilterCriteria"]["Filters"]]
    assert len(found) == len(TABLE.live_filters) <= 5

    def taken(pk: str, sk: str) -> bool:
        return any(
            any(pk.startswith(each["prefix"]) for each in one["dynamodb"]["Keys"]["pk"]["S"])
            and sk in one["dynamodb"]["Keys"]["sk"]["S"]
            for one in found
        )

    assert taken(keys.job(JOB), keys.RECORD)
    assert taken(keys.job(JOB), keys.PROGRESS)
    assert taken(keys.queue("mail"), keys.RECORD)
    assert taken(keys.batch("token"), keys.RECORD)
    assert not taken(keys.worker("07"), "worker_1")
    # What it writes, and what rings read: it must not feed itself.
    assert not taken(keys.connection("c"), keys.RECORD)
    assert not taken(keys.listeners("g"), "c")


def test_no_job_depends_on_it_so_no_alarm_watches_it(whole: Any, off: Any) -> None:
    alarms = whole.resources("AWS::CloudWatch::Alarm")
    assert len(alarms) == len(off.resources("AWS::CloudWatch::Alarm"))
    assert "SocketFunction" not in json.dumps(alarms)


# --- without it ----------------------------------------------------------------------------------


def test_off_leaves_nothing(off: Any) -> None:
    text = json.dumps([each.to_json() for each in off.templates])
    for word in ("WEBSOCKET", "OJS_REALTIME", "OJS_SOCKET", "ManageConnections", "ticket"):
        assert word not in text
    assert len(off.resources(MAPPING)) == 1
    assert set(functions(off)) == {spec.name for spec in deployed("keys", realtime="off")}


def construct(folder: Path, settings: DeploymentSettings, **chosen: Any) -> OpenJobSpec:
    (folder / "handler.py").write_text("# stands for the bundle\n")
    stack = Stack(App(), "shop", env=Environment(account="123456789012", region="eu-central-1"))
    found = {name: make(stack) if callable(make) else make for name, make in chosen.items()}
    code = lambda_.Code.from_asset(str(folder))
    return OpenJobSpec(stack, "Jobs", settings=settings, code=code, **found)


def vpc(stack: Stack) -> Network:
    return Network(ec2.Vpc(stack, "Vpc"), endpoints=True)


def domain(stack: Stack) -> Domain:
    return Domain(
        "live.example.com",
        acm.Certificate.from_certificate_arn(stack, "Certificate", CERTIFICATE),
    )


def test_functions_that_reach_no_connection_send_nothing_unless_that_is_chosen(
    tmp_path: Path,
) -> None:
    """A VPC with endpoints has no way to connections, or one that only its owner knows."""
    assert construct(tmp_path, DeploymentSettings(), network=vpc).realtime is None
    assert construct(tmp_path, DeploymentSettings(realtime="wake"), network=vpc).realtime


def test_a_domain_of_the_app_is_taken(tmp_path: Path) -> None:
    jobs = construct(tmp_path, DeploymentSettings(), realtime_domain=domain)
    assert jobs.realtime
    assert jobs.realtime.url == "wss://live.example.com"
    template = assertions.Template.from_stack(Stack.of(jobs))
    template.resource_count_is("AWS::ApiGatewayV2::DomainName", 1)
    for settings in (
        DeploymentSettings(realtime="off"),
        DeploymentSettings(realtime_domain="a.example.com", certificate_arn=CERTIFICATE),
    ):
        with pytest.raises(ValueError, match="realtime_domain"):
            construct(tmp_path, settings, realtime_domain=domain)
