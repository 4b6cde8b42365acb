"""The construct that others build on: what it makes by default, and with everything asked for."""

from __future__ import annotations

import json
import re
from inspect import signature
from typing import TYPE_CHECKING, Any, cast

import pytest
from aws_cdk import App, Duration, Environment, Stack, assertions
from aws_cdk import aws_certificatemanager as acm
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_route53 as route53
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs

from examples.mail_queue.app import MailStack
from infra import ROOT, client, facts
from ojs.api import operations as contract
from ojs.domain.access import ALL_SCOPES
from ojs.http.binding import negotiation
from ojs_aws.cdk import (
    DeploymentSettings,
    Domain,
    Network,
    OpenJobSpec,
    Storage,
    bundling,
    server,
)
from ojs_aws.cdk import settings as settings_module
from ojs_aws.cdk.parts import grants
from tests.infra.construct import PLACE, Made, role

if TYPE_CHECKING:
    from collections.abc import Callable

TABLE = "AWS::DynamoDB::Table"
CERTIFICATE = f"arn:aws:acm:eu-central-1:{PLACE.account}:certificate/abc"


@pytest.fixture(scope="session")
def plain(code: Callable[[], lambda_.Code]) -> Made:
    """With defaults, and nothing said."""
    app = App()
    stack = Stack(app, "shop", env=PLACE)
    return Made(app, stack, OpenJobSpec(stack, "Jobs", code=code()))


@pytest.fixture(scope="session")
def whole(code: Callable[[], lambda_.Code]) -> Made:
    """Everything that can be brought along, and everything that can be declared, with keys."""
    app = App()
    stack = Stack(app, "shop", env=PLACE)
    given = Stack(app, "given", env=PLACE)
    key = kms.Key(given, "Key", enable_key_rotation=True)
    settings = DeploymentSettings(stage="shop", backup_days=40, tracing=True, queue_metrics="all")
    source = Storage(Stack(app, "other", env=PLACE), "Storage", settings=settings)
    bucket = s3.Bucket.from_bucket_name(stack, "Bucket", "shop-payloads")
    storage = Storage(stack, "Kept", settings=settings, table=source.table, bucket=bucket, key=key)
    topic = sns.Topic.from_topic_arn(stack, "Ops", f"arn:aws:sns:eu-central-1:{PLACE.account}:ops")
    certificate = acm.Certificate.from_certificate_arn(stack, "Certificate", CERTIFICATE)
    zone = route53.HostedZone.from_hosted_zone_attributes(
        stack, "Zone", hosted_zone_id="Z1", zone_name="example.com"
    )
    vpc = ec2.Vpc.from_vpc_attributes(
        stack,
        "Vpc",
        vpc_id="vpc-1",
        vpc_cidr_block="10.0.0.0/16",
        availability_zones=["eu-central-1a", "eu-central-1b"],
        private_subnet_ids=["subnet-1", "subnet-2"],
        private_subnet_route_table_ids=["rtb-1", "rtb-2"],
    )
    jobs = OpenJobSpec(
        stack,
        "Jobs",
        settings=settings,
        storage=storage,
        domain=Domain("jobs.example.com", certificate, zone),
        alarm_topics=[topic],
        network=Network(vpc, endpoints=True),
        code=code(),
    )
    jobs.add_queue("mail", max_size=10_000, rate_limit=(100, "PT1S"), config={"lanes": 2})
    jobs.add_pool("workers", queues={"mail": 3, "other/ones": 1}, concurrency=50)
    jobs.add_cron("nightly", expression="0 3 * * *", job_type="tidy", queue="mail")
    jobs.add_rate_limit("smtp: all", concurrency=5, rate=(100, "PT1M"))
    jobs.grant_produce(role(stack, "Shop"), queues=["mail"])
    jobs.grant_work(role(stack, "Sender"), queues=["mail", "news-*"])
    jobs.grant_read(role(stack, "Board"))
    jobs.add_key("ci", scopes=["admin:write"])
    queue = sqs.Queue.from_queue_arn(
        stack, "ListenerState", f"arn:aws:sqs:eu-central-1:{PLACE.account}:heard"
    )
    jobs.on_event("job.completed", targets.SqsQueue(queue))
    jobs.on_event("job.*", targets.SqsQueue(queue))
    jobs.on_event("dead_letter.added", targets.SqsQueue(queue))
    jobs.add_sqs_bridge(queue, job_type="mail.send", to="mail", batch_size=50, max_concurrency=5)
    return Made(app, stack, jobs)


@pytest.fixture(scope="session")
def signed(code: Callable[[], lambda_.Code]) -> Made:
    """Roles that sign their requests, beside another deployment in the same account."""
    app = App()
    stack = Stack(app, "shop", env=PLACE)
    settings = DeploymentSettings(stage="blue", authorizer="iam")
    jobs = OpenJobSpec(stack, "Jobs", settings=settings, code=code())
    OpenJobSpec(stack, "Green", settings=DeploymentSettings(stage="green"), code=code())
    jobs.grant_produce(role(stack, "Shop"))
    jobs.grant_work(role(stack, "Sender"))
    jobs.grant_read(role(stack, "Board"))
    return Made(app, stack, jobs)


@pytest.mark.parametrize("made", ["plain", "whole", "signed"])
def test_no_finding_without_a_written_reason(request: pytest.FixtureRequest, made: str) -> None:
    assert request.getfixturevalue(made).findings() == []


def test_the_example_is_whole(
    code: Callable[[], lambda_.Code], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundling, "code", lambda _settings: code())
    app = App()
    stack = MailStack(app, "mail", email="ops@example.com")
    jobs = stack.node.find_child("Jobs")
    assert isinstance(jobs, OpenJobSpec)
    made = Made(app, stack, jobs)
    assert made.findings() == []
    assert set(declared(made)) == {"queue mail", "cron digest"}
    (topic,) = made.all("AWS::SNS::Topic")
    # A topic with a policy of its own lets in nobody who is not named there.
    policy = made.some("AWS::SNS::TopicPolicy", "Trouble")["PolicyDocument"]["Statement"]
    allowed = {
        each["Principal"]["Service"]
        for each in policy
        if each["Effect"] == "Allow" and each["Action"] == "sns:Publish"
    }
    assert allowed == {"cloudwatch.amazonaws.com", "events.amazonaws.com"}
    for alarm in made.all("AWS::CloudWatch::Alarm").values():
        assert alarm["Properties"]["AlarmActions"] == [{"Ref": topic}]


def test_a_warning_says_that_alarms_reach_nobody(plain: Made, whole: Made) -> None:
    def warned(made: Made) -> bool:
        found = assertions.Annotations.from_stack(made.stack)
        return bool(
            found.find_warning("*", assertions.Match.string_like_regexp("No alarm notifications"))
        )

    assert (warned(plain), warned(whole)) == (True, False)


def test_the_page_names_all_that_it_offers() -> None:
    page = (ROOT / "docs/construct.md").read_text("utf-8")
    offered = [name for name in vars(OpenJobSpec) if name.startswith(("add_", "grant_", "metric_"))]
    arguments = [
        name
        for name in signature(OpenJobSpec.__init__).parameters
        if name not in {"self", "scope", "name"}
    ]
    assert len(offered) == 15
    for name in [*offered, *arguments, "on_event", "url"]:
        assert f"`{name}" in page or f".{name}" in page, name


# --- what it is made of --------------------------------------------------------------------------


def test_the_construct_knows_the_server_as_it_is() -> None:
    assert server.FILE.read_text("utf-8") == facts.text(), "make facts writes it anew"
    assert facts.JOB_FILE.read_text("utf-8") == facts.job_text(), "make facts writes it anew"
    assert client.FILE.read_text("utf-8") == client.text(), "make facts writes it anew"
    assert settings_module.ORIGIN == negotiation.ORIGIN


def test_defaults_are_made_to_last(plain: Made, synthesis: Any) -> None:
    (table,) = plain.all(TABLE).values()
    assert table["DeletionPolicy"] == table["UpdateReplacePolicy"] == "Retain"
    assert table["Properties"]["DeletionProtectionEnabled"] is True
    # All that the app of this repository has in two stacks, and nothing else.
    kinds = sorted(each["Type"] for each in plain.template.to_json()["Resources"].values())
    both = [each.to_json()["Resources"].values() for each in synthesis.templates]
    assert kinds == sorted(resource["Type"] for part in both for resource in part)


def test_what_is_brought_along_is_used(whole: Made) -> None:
    for kind in (TABLE, "AWS::S3::Bucket", "AWS::KMS::Key", "AWS::SNS::Topic"):
        assert not whole.all(kind)
    variables = whole.some("AWS::Lambda::Function", "JobsFunction")["Environment"]["Variables"]
    assert "other:Export" in json.dumps(variables["OJS_TABLE"])
    assert variables["OJS_BUCKET"] == "shop-payloads"
    for group in whole.all("AWS::Logs::LogGroup").values():
        assert "given:Export" in json.dumps(group["Properties"]["KmsKeyId"])
    for alarm in whole.all("AWS::CloudWatch::Alarm").values():
        assert alarm["Properties"]["AlarmActions"] == [
            f"arn:aws:sns:eu-central-1:{PLACE.account}:ops"
        ]
    assert whole.jobs.url == "https://jobs.example.com"
    records = whole.all("AWS::Route53::RecordSet").values()
    assert {each["Properties"]["Name"] for each in records} == {"jobs.example.com."}


def test_functions_run_in_the_vpc_and_reach_what_they_need(whole: Made, plain: Made) -> None:
    for function in whole.all("AWS::Lambda::Function").values():
        assert function["Properties"]["VpcConfig"]["SubnetIds"] == ["subnet-1", "subnet-2"]
    for function in plain.all("AWS::Lambda::Function").values():
        assert "VpcConfig" not in function["Properties"]
    endpoints = [each["Properties"] for each in whole.all("AWS::EC2::VPCEndpoint").values()]
    services = json.dumps([each["ServiceName"] for each in endpoints])
    for name in ("dynamodb", "s3", "events", "sqs", "secretsmanager"):
        assert name in services
    assert len(endpoints) == 5
    policy = whole.some("AWS::IAM::Policy", "JobsRoleDefaultPolicy")["PolicyDocument"]["Statement"]
    assert any("ec2:CreateNetworkInterface" in each["Action"] for each in policy)


# --- what cannot be is refused when it is synthesised --------------------------------------------


def test_a_table_that_cannot_be_the_one_is_refused() -> None:
    stack = Stack(App(), "shop")
    text = dynamodb.AttributeType.STRING
    wrong = dynamodb.Table(
        stack,
        "Wrong",
        partition_key=dynamodb.Attribute(name="id", type=text),
        stream=dynamodb.StreamViewType.NEW_IMAGE,
    )
    with pytest.raises(ValueError, match=r"NEW_AND_OLD_IMAGES; the keys pk and sk; .* ttl; .*work"):
        Storage(stack, "A", settings=DeploymentSettings(), table=wrong)
    silent = dynamodb.Table.from_table_name(stack, "Silent", "jobs")
    with pytest.raises(ValueError, match="table: requires a stream"):
        Storage(stack, "B", settings=DeploymentSettings(), table=silent)


def test_two_of_one_name_are_refused(code: Callable[[], lambda_.Code], plain: Made) -> None:
    with pytest.raises(ValueError, match="stage: 'dev' is already used by shop/Jobs"):
        OpenJobSpec(Stack(plain.app, "second", env=PLACE), "Jobs", code=code())
    elsewhere = Environment(account=PLACE.account, region="eu-west-1")
    OpenJobSpec(Stack(App(), "second", env=elsewhere), "Jobs", code=code())


def test_two_deployments_share_no_name(signed: Made) -> None:
    named = [
        (each["Type"], properties[key])
        for each in signed.template.to_json()["Resources"].values()
        for properties in [each.get("Properties", {})]
        for key in ("AlarmName", "DashboardName", "LogGroupName", "Name", "TableName")
        if isinstance(properties.get(key), str) and each["Type"] != "AWS::ApiGatewayV2::Authorizer"
    ]
    assert len(named) == len(set(named))
    assert {"ojs-blue", "ojs-green"} <= {name for _, name in named}


def test_what_an_authorizer_cannot_do_is_refused(
    code: Callable[[], lambda_.Code], signed: Made
) -> None:
    stack = Stack(App(), "shop")
    tokens = OpenJobSpec(
        stack,
        "Jobs",
        settings=DeploymentSettings(
            authorizer="jwt", jwt_issuer="https://id.example.com", jwt_audience=("jobs",)
        ),
        code=code(),
    )
    somebody = role(stack, "Somebody")
    with pytest.raises(
        ValueError, match=r"authorizer=jwt.* grant the scopes jobs:write, jobs:read"
    ):
        tokens.grant_produce(somebody)
    with pytest.raises(ValueError, match="requires authorizer=keys, but authorizer is jwt"):
        tokens.add_key("ci", scopes=["work"])
    with pytest.raises(ValueError, match="requires authorizer=keys, but authorizer is iam"):
        signed.jobs.add_key("ci", scopes=["work"])


def test_mistakes_in_what_is_declared_are_refused(
    whole: Made, code: Callable[[], lambda_.Code]
) -> None:
    jobs = whole.jobs
    with pytest.raises(ValueError, match=r"queue\(news\): max_size is set as an argument"):
        jobs.add_queue("news", max_size=5, config={"max_size": 6})
    with pytest.raises(ValueError, match="scopes: unknown: jobs:all"):
        jobs.add_key("all", scopes=["jobs:all"])
    with pytest.raises(ValueError, match="name: "):
        jobs.add_key('a "quoted" one', scopes=["work"])
    with pytest.raises(ValueError, match="pattern: must be an event type"):
        jobs.on_event("Job", targets.SqsQueue(jobs.failures))
    named = DeploymentSettings(domain_name="a.example.com", certificate_arn=CERTIFICATE)
    certificate = acm.Certificate.from_certificate_arn(whole.stack, "Another", CERTIFICATE)
    twice = Domain("b.example.com", certificate)
    elsewhere = Stack(App(), "twice")
    with pytest.raises(ValueError, match="domain: can't be combined with settings"):
        OpenJobSpec(elsewhere, "Jobs", settings=named, domain=twice, code=code())


# --- who may do what -----------------------------------------------------------------------------


ID = "01968f2a-0000-7000-8000-000000000000"


def test_no_pattern_reaches_an_operation_of_another_scope() -> None:
    for scope in sorted(ALL_SCOPES):
        patterns = grants.paths([scope])
        for each in contract.OPERATIONS:
            path = f"{each.method}{each.path}".replace("{id}", ID)
            path = path.replace("{", "").replace("}", "")
            reached = any(grants.reaches(pattern, path) for pattern in patterns)
            enough = {each.permission.scope, *each.permission.others}
            assert reached == bool(enough & {None, scope}), (scope, path)


def test_a_role_may_ask_what_it_was_granted(signed: Made) -> None:
    statements = signed.some("AWS::IAM::Policy", "SenderDefaultPolicy")["PolicyDocument"]
    (statement,) = statements["Statement"]
    assert statement["Action"] == "execute-api:Invoke"
    apis = signed.all("AWS::ApiGatewayV2::Api").items()
    (api,) = (
        name
        for name, each in apis
        if "Green" not in name and each["Properties"]["ProtocolType"] == "HTTP"
    )
    for arn in statement["Resource"]:
        parts = arn["Fn::Join"][1]
        assert parts[:4] == [
            "arn:", {"Ref": "AWS::Partition"},
            f":execute-api:eu-central-1:{PLACE.account}:", {"Ref": api},
        ]  # fmt: skip
    asked = {arn["Fn::Join"][1][4] for arn in statement["Resource"]}
    assert "/$default/POST/ojs/v1/workers/fetch" in asked
    assert not any("/admin/" in each or each.endswith("POST/ojs/v1/jobs") for each in asked)
    for name in ("Shop", "Sender", "Board"):
        policy = signed.some("AWS::IAM::Policy", f"{name}DefaultPolicy")
        # Of all inline policies of a role IAM takes 10 240 characters, with resolved references.
        text = json.dumps(policy["PolicyDocument"], separators=(",", ":"))
        text = re.sub(r'\{"Ref":"[^"]*"\}', '"aws-or-api"', text)
        joined = re.sub(
            r'\{"Fn::Join":\["",(\[[^\]]*\])\]\}',
            lambda found: json.dumps("".join(json.loads(found[1]))),
            text,
        )
        assert "Fn::" not in joined
        assert len(joined) < 9_000


def test_a_role_that_signs_is_limited_to_queues(code: Callable[[], lambda_.Code]) -> None:
    stack = Stack(App(), "shop", env=PLACE)
    jobs = OpenJobSpec(
        stack, "Jobs", settings=DeploymentSettings(stage="s", authorizer="iam"), code=code()
    )
    sender, board = role(stack, "Sender"), role(stack, "Board")
    arn = f"arn:aws:iam::{PLACE.account}:role/billing"
    imported = [iam.Role.from_role_arn(stack, each, arn) for each in ("A", "B")]
    jobs.grant_produce(sender, queues=["mail", "news-*"])
    jobs.grant_work(sender, queues=["news-*", "mail"])
    jobs.grant_work(imported[0], queues=["bills"])
    jobs.grant_read(imported[1], queues=["bills"])
    jobs.grant_read(board)
    for other in (None, ["mail"]):
        with pytest.raises(ValueError, match="grant_read: queues of shop/Sender must be"):
            jobs.grant_read(sender, queues=other)
    with pytest.raises(ValueError, match="must be omitted, as in an earlier grant"):
        jobs.grant_work(board, queues=["mail"])
    with pytest.raises(ValueError, match="grant_work: grantee must have a role"):
        jobs.grant_work(iam.ServicePrincipal("ec2.amazonaws.com"), queues=["mail"])
    made = Made(cast("App", stack.node.root), stack, jobs)
    records = [
        json.loads("".join(map(str, text["Fn::Join"][1])) if isinstance(text, dict) else text)
        for each in made.all("Custom::OjsDeclaredRole").values()
        for text in [each["Properties"]["Role"]]
    ]
    assert {each["name"]: (each["scopes"], each["queues"]) for each in records} == {
        "shop-Sender": (["jobs:read", "jobs:write", "work"], ["news-*", "mail"]),
        "shop-A": (["admin:read", "jobs:read", "work"], ["bills"]),
    }
    assert [each["role"] for each in records if each["name"] == "shop-A"] == [arn]
    # Each has the policy of its grants, too.
    for name in ("Sender", "Board"):
        assert made.some("AWS::IAM::Policy", f"{name}DefaultPolicy")
    assert made.findings() == []


def test_a_role_of_another_stack_may_be_granted(code: Callable[[], lambda_.Code]) -> None:
    for authorizer in ("iam", "keys"):
        app = App()
        settings = DeploymentSettings.model_validate(
            {"authorizer": authorizer, "encryption": "own"}
        )
        jobs = OpenJobSpec(Stack(app, "jobs", env=PLACE), "Jobs", settings=settings, code=code())
        shop = Stack(app, "shop", env=PLACE)
        jobs.grant_produce(role(shop, "Shop"))
        # Synthesised: neither stack waits for the other in a circle.
        policies = assertions.Template.from_stack(shop).find_resources("AWS::IAM::Policy")
        assert "jobs:Export" in json.dumps(policies)


def test_a_role_gets_a_key_of_its_own(whole: Made) -> None:
    keys = {
        each["Properties"]["Name"]: each["Properties"]
        for each in whole.all("Custom::OjsKey").values()
    }
    assert set(keys) == {"shop-Shop-produce", "shop-Sender-work", "shop-Board-read", "ci"}
    assert keys["shop-Sender-work"]["Scopes"] == ["work"]
    assert keys["shop-Sender-work"]["Queues"] == ["mail", "news-*"]
    assert "Queues" not in keys["shop-Board-read"]
    secret = keys["shop-Sender-work"]["Secret"]
    assert secret["Fn::GetAtt"][0] in whole.all("AWS::SecretsManager::Secret")
    decrypt, read = whole.some("AWS::IAM::Policy", "SenderDefaultPolicy")["PolicyDocument"][
        "Statement"
    ]
    assert read["Resource"] == secret
    assert "secretsmanager:GetSecretValue" in read["Action"]
    assert decrypt["Action"] == "kms:Decrypt"
    assert "given:Export" in json.dumps(decrypt["Resource"])
    setup = whole.some("AWS::IAM::Policy", "JobsSetupRole")["PolicyDocument"]["Statement"]
    assert [secret] == [each["Resource"] for each in setup if each["Resource"] == secret]
    for key in whole.all("Custom::OjsKey").values():
        assert any("SetupRoleDefaultPolicy" in each for each in key["DependsOn"])
        assert any("SetupStep" in each for each in key["DependsOn"])


# --- what is declared ----------------------------------------------------------------------------


def declared(made: Made) -> dict[str, dict[str, Any]]:
    return {
        each["Properties"]["Name"]: each["Properties"]
        for each in made.all("Custom::OjsDeclared").values()
    }


def test_what_is_declared_is_asked_of_the_server(whole: Made, plain: Made) -> None:
    found = declared(whole)
    asked = {
        name: (each["Set"]["Method"], each["Set"]["Path"], json.loads(each["Set"]["Body"]))
        for name, each in found.items()
    }
    queue = {"max_size": 10_000, "rate_limit": {"limit": 100, "period": "PT1S"}, "lanes": 2}
    pool = {"queues": {"mail": {"weight": 3}, "other/ones": {"weight": 1}}, "concurrency": 50}
    cron = {"name": "nightly", "expression": "0 3 * * *", "type": "tidy", "args": []}
    limit = {"concurrency": 5, "rate": {"limit": 100, "period": "PT1M"}}
    assert asked == {
        "queue mail": ("PUT", "/ojs/v1/queues/mail/config", queue),
        "pool workers": ("PUT", "/ojs/v1/admin/pools/workers", pool),
        "cron nightly": ("POST", "/ojs/v1/cron", {**cron, "queue": "mail"}),
        "rate limit smtp: all": ("PUT", "/ojs/v1/rate-limits/smtp%3A%20all/override", limit),
    }
    for method, path, _ in asked.values():
        assert method in contract.at(path)
    # A queue has jobs; the others go when nobody declares them.
    back = {name: each["TakeBack"]["Path"] for name, each in found.items() if "TakeBack" in each}
    assert back == {
        "pool workers": "/ojs/v1/admin/pools/workers",
        "cron nightly": "/ojs/v1/cron/nightly",
        "rate limit smtp: all": "/ojs/v1/rate-limits/smtp%3A%20all/override",
    }
    assert all("DELETE" in contract.at(path) for path in back.values())
    assert not any("Declare" in name for name in plain.all("AWS::Lambda::Function"))


def test_what_declares_waits_for_the_setup_and_for_its_role(whole: Made) -> None:
    (name,) = (each for each in whole.all("AWS::Lambda::Function") if "Declare" in each)
    function = whole.all("AWS::Lambda::Function")[name]
    assert any("SetupStep" in each for each in function["DependsOn"])
    assert any("DeclareRoleDefaultPolicy" in each for each in function["DependsOn"])
    # It asks nobody for a key: nothing but CloudFormation reaches it. All others ask.
    asks = {
        each: its["Properties"]["Environment"]["Variables"].get("OJS_AUTHORIZER")
        for each, its in whole.all("AWS::Lambda::Function").items()
    }
    assert [each for each, authorizer in asks.items() if authorizer == "none"] == [name]
    assert not any(
        name in json.dumps(each) for each in whole.all("AWS::Lambda::Permission").values()
    )
    resources = whole.all("Custom::OjsDeclared")
    (queue,) = (each for each, its in resources.items() if "queue" in its["Properties"]["Name"])
    for each, its in resources.items():
        assert its["Properties"]["ServiceToken"] == {"Fn::GetAtt": [name, "Arn"]}
        assert its["Properties"]["ServiceTimeout"] == "300"
        # A cron job of a queue, or a pool, comes after the queue.
        assert (queue in its["DependsOn"]) == (each != queue)
    allowed = whole.some("AWS::IAM::Policy", "JobsDeclareRole")["PolicyDocument"]["Statement"]
    admin = whole.some("AWS::IAM::Policy", "JobsAdminRole")["PolicyDocument"]["Statement"]
    assert [{**each, "Resource": ""} for each in allowed[1:]] == [
        {**each, "Resource": ""} for each in admin[1:]
    ]


# --- what happens --------------------------------------------------------------------------------


def test_events_are_sent_where_somebody_listens(whole: Made) -> None:
    rules = {
        json.dumps(each["Properties"]["EventPattern"]["detail-type"]): each["Properties"]
        for name, each in whole.all("AWS::Events::Rule").items()
        if "EventPattern" in each["Properties"]
    }
    assert set(rules) == {'["job.completed"]', '[{"prefix": "job."}]', '["dead_letter.added"]'}
    assert all(each["EventPattern"]["source"] == ["ojs"] for each in rules.values())
    for name in ("JobsStreamFunction", "JobsSweepFunction"):
        variables = whole.some("AWS::Lambda::Function", name)["Environment"]["Variables"]
        # What is on the bus anyway needs no entry.
        assert variables["OJS_BUS_TYPES"] == "job.*,job.completed"


def test_metrics_are_those_that_the_functions_write(whole: Made) -> None:
    service = {"name": "service", "value": "ojs-shop"}
    of_all, of_one = whole.jobs.metric_dead_letters(), whole.jobs.metric_oldest_job("mail")
    assert (of_all.namespace, of_all.metric_name) == ("OJS", "ojs.dead_letter.total")
    assert of_all.dimensions == {"service": service["value"]}
    assert of_one.metric_name == "ojs.queue.oldest_age"
    assert of_one.dimensions == {"service": "ojs-shop", "queue": "mail"}


# --- bridges -------------------------------------------------------------------------------------


def test_a_bridge_takes_from_its_queue_what_is_stored_and_may_do_no_more(whole: Made) -> None:
    mapping = next(
        each["Properties"]
        for each in whole.all("AWS::Lambda::EventSourceMapping").values()
        if "sqs" in json.dumps(each["Properties"]["EventSourceArn"])
    )
    assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert (mapping["BatchSize"], mapping["MaximumBatchingWindowInSeconds"]) == (50, 1)
    assert mapping["ScalingConfig"] == {"MaximumConcurrency": 5}
    (bridge,) = (
        each["Properties"]
        for each in whole.all("AWS::Lambda::Function").values()
        if each["Properties"]["Handler"] == "functions.bridge.handler.handler"
    )
    # A queue hides messages for 30 s unless it says otherwise.
    assert bridge["Timeout"] < 30
    variables = bridge["Environment"]["Variables"]
    told = {name: value for name, value in variables.items() if "BRIDGE" in name}
    assert told == {
        "OJS_BRIDGE_TYPE": "mail.send", "OJS_BRIDGE_QUEUE": "mail", "OJS_BRIDGE_BODY": "json",
    }  # fmt: skip
    assert "OJS_AUTHORIZER" not in variables
    statements = [
        statement
        for policy in whole.all("AWS::IAM::Policy").values()
        if policy["Properties"]["Roles"] == [{"Ref": bridge["Role"]["Fn::GetAtt"][0]}]
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]
    ]
    actions = {
        action
        for statement in statements
        for action in (
            statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
        )
    }
    assert {each for each in actions if each.startswith("sqs:")} == {
        "sqs:ChangeMessageVisibility", "sqs:DeleteMessage", "sqs:GetQueueAttributes",
        "sqs:GetQueueUrl", "sqs:ReceiveMessage",
    }  # fmt: skip
    assert not {each for each in actions if each.startswith(("events:", "secretsmanager:"))}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"to": "mail"}, "job_type"),
        ({"body": "text"}, "job_type"),
        ({"job_type": "a", "body": "xml"}, "body: must be json or text, but is 'xml'"),
        ({"job_type": "a", "batch_size": 101}, "batch_size: must be 1 to 100, but is 101"),
        ({"job_type": "a", "batch_size": 0}, "batch_size: must be 1 to 100, but is 0"),
        ({"job_type": "a", "alarm_age_s": 59}, "alarm_age_s: must be at least 60, but is 59"),
    ],
)
def test_a_bridge_that_contradicts_itself_is_refused(
    code: Callable[[], lambda_.Code], arguments: dict[str, Any], message: str
) -> None:
    stack = Stack(App(), "shop", env=PLACE)
    jobs = OpenJobSpec(stack, "Jobs", code=code())
    with pytest.raises(ValueError, match=message):
        jobs.add_sqs_bridge(sqs.Queue(stack, "Orders"), **arguments)


def test_a_bridge_over_a_queue_that_aws_would_not_take_is_refused(
    code: Callable[[], lambda_.Code],
) -> None:
    stack = Stack(App(), "shop", env=PLACE)
    jobs = OpenJobSpec(stack, "Jobs", code=code())
    brief = sqs.Queue(stack, "Brief", visibility_timeout=Duration.seconds(20))
    with pytest.raises(ValueError, match="at least the function's timeout of 29 s, but is 20 s"):
        jobs.add_sqs_bridge(brief)
    with pytest.raises(ValueError, match="at most 10 for a FIFO queue"):
        jobs.add_sqs_bridge(sqs.Queue(stack, "Ordered", fifo=True), batch_size=11)
    assert "Bridges" not in [each.node.id for each in jobs.node.children]


def test_a_bridge_that_is_behind_or_gives_messages_up_is_an_alarm(
    code: Callable[[], lambda_.Code],
) -> None:
    stack = Stack(App(), "shop", env=PLACE)
    topic = sns.Topic(stack, "Told")
    jobs = OpenJobSpec(stack, "Jobs", alarm_topics=[topic], code=code())
    lost = sqs.Queue(stack, "Lost")
    orders = sqs.Queue(
        stack, "Orders", dead_letter_queue=sqs.DeadLetterQueue(max_receive_count=5, queue=lost)
    )
    arn = f"arn:aws:sqs:eu-central-1:{PLACE.account}:of-another-app"
    jobs.add_sqs_bridge(orders, job_type="order.confirm", to="orders")
    jobs.add_sqs_bridge(sqs.Queue.from_queue_arn(stack, "Other", arn), alarm_age_s=120)
    alarms = {
        each["Properties"]["AlarmName"].removeprefix("ojs-dev-"): each["Properties"]
        for each in assertions.Template.from_stack(stack)
        .find_resources("AWS::CloudWatch::Alarm")
        .values()
        if "bridge" in each["Properties"]["AlarmName"]
    }
    assert sorted(alarms) == ["bridge-shop-Orders", "bridge-shop-Orders-lost", "bridge-shop-Other"]
    page = (ROOT / "docs/operations.md").read_text("utf-8")
    for name, metric, queue, threshold, minutes in (
        ("bridge-shop-Orders", "ApproximateAgeOfOldestMessage", orders, 900, 3),
        ("bridge-shop-Orders-lost", "ApproximateNumberOfMessagesVisible", lost, 1, 1),
        ("bridge-shop-Other", "ApproximateAgeOfOldestMessage", None, 120, 3),
    ):
        alarm = alarms[name]
        assert (alarm["MetricName"], alarm["Threshold"]) == (metric, threshold)
        assert (alarm["Period"], alarm["EvaluationPeriods"]) == (60, minutes)
        assert alarm["ComparisonOperator"] == "GreaterThanOrEqualToThreshold"
        assert alarm["TreatMissingData"] == "notBreaching"
        (dimension,) = alarm["Dimensions"]
        told = stack.resolve(queue.queue_name) if queue else "of-another-app"
        assert dimension == {"Name": "QueueName", "Value": told}
        heard = [stack.resolve(topic.topic_arn)]
        assert alarm["AlarmActions"] == alarm["OKActions"] == heard
        assert name.replace("shop-Orders", "…").replace("shop-Other", "…") in page


def test_a_queue_has_one_bridge_and_should_have_a_dead_letter_queue(
    code: Callable[[], lambda_.Code],
) -> None:
    stack = Stack(App(), "shop", env=PLACE)
    jobs = OpenJobSpec(stack, "Jobs", code=code())
    lost = sqs.DeadLetterQueue(max_receive_count=5, queue=sqs.Queue(stack, "Lost"))
    orders, mail = sqs.Queue(stack, "Orders"), sqs.Queue(stack, "Mail", dead_letter_queue=lost)
    jobs.add_sqs_bridge(orders)
    jobs.add_sqs_bridge(mail)
    with pytest.raises(ValueError, match="already has a bridge"):
        jobs.add_sqs_bridge(mail)
    told = assertions.Annotations.from_stack(stack).find_warning(
        "*", assertions.Match.string_like_regexp("no dead-letter queue")
    )
    assert [each.id.rpartition("/")[0].rpartition("/")[2] for each in told] == ["shop-Orders"]
