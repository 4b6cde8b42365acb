"""Push delivery in the template: its queues, who reads and writes them, and the functions that jobs
are pushed to.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import pytest
from aws_cdk import App, Duration, Environment, Stack, assertions
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_secretsmanager as secretsmanager
from aws_cdk import aws_sns as sns
from cdk_nag import AwsSolutionsChecks

from examples.log_report.app import LogReportStack
from functions.messages import SPARE_MS
from infra import ROOT
from ojs.domain.delivery import delivery
from ojs.domain.events.types import EventType
from ojs_aws.cdk import DeploymentSettings, OpenJobSpec, Storage, bundling, server
from ojs_aws.cdk.functions import PUSHERS, QUEUES, by_name
from ojs_aws.cdk.parts import monitoring
from ojs_aws.cdk.parts.function import FUNCTIONS_VARIABLE, QUEUE_VARIABLES
from ojs_aws.cdk.parts.push import MAX_EVENT_AGE_S

if TYPE_CHECKING:
    from collections.abc import Callable

PLACE = Environment(account="123456789012", region="eu-central-1")
QUEUE, MAPPING = "AWS::SQS::Queue", "AWS::Lambda::EventSourceMapping"
TOLD, POLICY = "AWS::Lambda::EventInvokeConfig", "AWS::IAM::Policy"
NAMED = f":sqs:{PLACE.region}:{PLACE.account}:ojs-shop-outcomes"
OUTCOMES = {"Fn::Join": ["", ["arn:", {"Ref": "AWS::Partition"}, NAMED]]}
CALLED = f":lambda:{PLACE.region}:{PLACE.account}:function:ojs-shop-outcomes"
SETTLES = {"Fn::Join": ["", ["arn:", {"Ref": "AWS::Partition"}, CALLED]]}


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], lambda_.Code]:
    stub = tmp_path_factory.mktemp("stub")
    (stub / "handler.py").write_text("# stands for the bundle\n")
    return lambda: lambda_.Code.from_asset(str(stub))


def function(stack: Stack, name: str, **more: Any) -> lambda_.Function:
    return lambda_.Function(
        stack,
        name,
        code=lambda_.Code.from_inline("def handler(event, context): ..."),
        handler="index.handler",
        runtime=cast("Any", lambda_.Runtime.PYTHON_3_13),
        **more,
    )


class Shop:
    """A backend, three functions beside it and one in another stack, and an endpoint."""

    def __init__(self, code: Callable[[], lambda_.Code]) -> None:
        self.app = app = App()
        self.stack = stack = Stack(app, "shop", env=PLACE)
        self.elsewhere = Stack(app, "elsewhere", env=PLACE)
        storage = Stack(app, "kept", env=PLACE)
        settings = DeploymentSettings(stage="shop", push=True)
        key = kms.Key(storage, "Key", enable_key_rotation=True)
        topic = sns.Topic.from_topic_arn(
            stack, "Ops", f"arn:aws:sns:eu-central-1:{PLACE.account}:ops"
        )
        self.jobs = jobs = OpenJobSpec(
            stack,
            "Jobs",
            settings=settings,
            storage=Storage(storage, "Storage", settings=settings, key=key),
            alarm_topics=[topic],
            code=code(),
        )
        self.plain = function(stack, "Plain", timeout=Duration.seconds(20))
        self.aliased = function(stack, "Aliased")
        far = function(self.elsewhere, "Far")
        jobs.add_worker(self.plain, queues=["mail", "news"], concurrency=5, job_types=["mail.send"])
        jobs.add_worker(self.plain, queues=["bulk"], form="sqs", config={"batch_size": 10})
        jobs.add_worker(
            self.aliased.add_alias("live"), queues=["live"], timeout=Duration.minutes(1)
        )
        jobs.add_worker(self.aliased.current_version, queues=["fixed"])
        jobs.add_worker(far, queues=["far"], name="far-away")
        secret = secretsmanager.Secret.from_secret_complete_arn(
            stack,
            "Signed",
            f"arn:aws:secretsmanager:eu-central-1:{PLACE.account}:secret:hook-abcdef",
        )
        jobs.add_endpoint("hook", "https://example.com/jobs", queues=["hooks"], secret=secret)
        self.template = assertions.Template.from_stack(stack)
        self.far = assertions.Template.from_stack(self.elsewhere)

    def all(self, kind: str) -> dict[str, dict[str, Any]]:
        return {
            name: {**each.get("Properties", {}), "after": each.get("DependsOn", [])}
            for name, each in self.template.find_resources(kind).items()
        }

    def id_of(self, made: lambda_.Function) -> str:
        return self.stack.get_logical_id(cast("lambda_.CfnFunction", made.node.default_child))

    def variables(self, name: str) -> dict[str, Any]:
        (found,) = (
            each["Environment"]["Variables"]
            for each in self.all("AWS::Lambda::Function").values()
            if each["Handler"] == f"functions.{name}.handler.handler"
        )
        return dict(found)


@pytest.fixture(scope="module")
def shop(code: Callable[[], lambda_.Code]) -> Shop:
    return Shop(code)


# --- the queues ----------------------------------------------------------------------------------


def test_without_push_nothing_of_it_is_made(synthesis: Any) -> None:
    assert len(synthesis.resources(QUEUE)) == len(synthesis.resources(MAPPING)) == 1
    for each in synthesis.resources("AWS::Lambda::Function").values():
        assert not {*QUEUE_VARIABLES.values(), FUNCTIONS_VARIABLE} & set(
            each["Environment"]["Variables"]
        )
    # That of the sweep, which tells nobody.
    assert "DestinationConfig" not in synthesis.one(TOLD)


def test_each_queue_waits_six_times_as_long_as_its_function_and_puts_aside(with_jwt: Any) -> None:
    found = {
        name.removeprefix("PushQueues")[:-8]: each
        for name, each in with_jwt.resources(QUEUE).items()
        if name.startswith("PushQueues")
    }
    assert set(found) == {"Failures", *(each.capitalize() for each in QUEUES)}
    (failures,) = (name for name in with_jwt.resources(QUEUE) if name.startswith("PushQueuesFail"))
    for name in PUSHERS:
        spec = by_name(name)
        assert spec.consumes is not None
        queue = found[spec.consumes.capitalize()]
        assert queue["VisibilityTimeout"] == 6 * spec.timeout_s
        assert queue["RedrivePolicy"] == {
            "deadLetterTargetArn": {"Fn::GetAtt": [failures, "Arn"]}, "maxReceiveCount": 5,
        }  # fmt: skip
        # What is put aside is as old as it was, and must not be gone at once.
        assert queue["MessageRetentionPeriod"] <= 4 * 86_400
    assert found["Failures"]["MessageRetentionPeriod"] == 14 * 86_400
    assert found["Outcomes"]["QueueName"] == "ojs-dev-outcomes"
    # A run that died is repeated while the lease of what it was to settle still lasts.
    lasts_ms = delivery.EVENT_AGE_MS + delivery.GRACE_MS
    assert found["Outcomes"]["VisibilityTimeout"] * 1_000 <= lasts_ms
    # Whoever is told to stop has time to do so.
    assert all(by_name(name).timeout_s * 1_000 > 2 * SPARE_MS for name in PUSHERS)


def test_each_queue_calls_its_function_a_bounded_number_of_times_at_once(with_jwt: Any) -> None:
    functions = with_jwt.resources("AWS::Lambda::Function")
    mapped = {
        functions[each["FunctionName"]["Ref"]]["Handler"].split(".")[1]: each
        for each in with_jwt.resources(MAPPING).values()
        if "ScalingConfig" in each
    }
    assert set(mapped) == set(PUSHERS)
    for name, each in mapped.items():
        assert each["ScalingConfig"] == {"MaximumConcurrency": 20}
        assert each["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
        # The sender waits for one endpoint after the other.
        assert each["BatchSize"] == (1 if name == "sender" else 10)
        assert each["MaximumBatchingWindowInSeconds"] == 0
        (queue, _) = each["EventSourceArn"]["Fn::GetAtt"]
        assert queue.startswith(f"PushQueues{str(by_name(name).consumes).capitalize()}")


def test_functions_know_the_queues_that_they_write_and_what_may_be_named(with_jwt: Any) -> None:
    variables = {
        each["Handler"].split(".")[1]: each["Environment"]["Variables"]
        for each in with_jwt.resources("AWS::Lambda::Function").values()
    }
    wakes = {name for name, each in variables.items() if "OJS_DISPATCH_QUEUE" in each}
    assert wakes == {"jobs", "workers", "admin", "stream", "sweep", *PUSHERS}
    assert {name for name, each in variables.items() if "OJS_SEND_QUEUE" in each} == set(PUSHERS)
    naming = {name: each.get("OJS_PUSH_FUNCTIONS") for name, each in variables.items()}
    (arn,) = {value for value in naming.values() if value}
    assert arn.endswith(":function:thumbnails")
    assert {name for name, value in naming.items() if value} == {"admin", *PUSHERS}


def test_leases_count_on_the_event_age_that_is_set() -> None:
    assert delivery.EVENT_AGE_MS == MAX_EVENT_AGE_S * 1_000


# --- functions that jobs are pushed to -----------------------------------------------------------


def test_prove_adds_one_function_that_may_write_its_log_and_send_outcomes(
    code: Callable[[], lambda_.Code],
) -> None:
    stack = Stack(App(), "proving", env=PLACE)
    settings = DeploymentSettings(stage="shop", push=True, prove=True)
    jobs = OpenJobSpec(stack, "Jobs", settings=settings, code=code())
    assert jobs.prove is not None
    found = assertions.Template.from_stack(stack)
    (told,) = (
        each["Properties"] for each in found.find_resources(TOLD).values()
        if each["Properties"]["FunctionName"] == stack.resolve(jobs.prove.function_name)
        and "DestinationConfig" in each["Properties"]
    )  # fmt: skip
    assert set(told["DestinationConfig"]) == {"OnSuccess", "OnFailure"}
    role = stack.resolve(jobs.prove.role.role_name) if jobs.prove.role else None
    allowed = {
        action if isinstance(action, str) else tuple(action)
        for each in found.find_resources(POLICY).values() if role in each["Properties"]["Roles"]
        for statement in each["Properties"]["PolicyDocument"]["Statement"]
        for action in [statement["Action"]]
    }  # fmt: skip
    assert allowed == {
        ("logs:CreateLogStream", "logs:PutLogEvents"), "sqs:SendMessage", "lambda:InvokeFunction",
    }  # fmt: skip


def test_prove_requires_push() -> None:
    with pytest.raises(ValueError, match="prove"):
        DeploymentSettings(prove=True)


def test_no_finding_without_a_written_reason(shop: Shop) -> None:
    report = AwsSolutionsChecks(shop.app).validate_scope(shop.app)
    own = [
        f"{each.rule_name}: {place.construct_path}"
        for each in report.violations
        for place in each.violating_resources
        # Not the functions of the test, with CDK's roles.
        if str(place.construct_path).startswith("shop/Jobs/")
    ]
    assert own == []


def test_deliveries_are_declared_as_the_server_takes_them(shop: Shop) -> None:
    asked = {
        each["Name"]: (each["Set"]["Path"], each["Set"]["Body"], each["TakeBack"]["Path"])
        for each in shop.all("Custom::OjsDeclared").values()
    }
    place = "/ojs/v1/admin/deliveries/"
    assert {name: path for name, (path, _, _) in asked.items()} == {
        f"delivery {name}": place + name
        for name in ("mail", "bulk", "live", "fixed", "far-away", "hook")
    }
    assert all(path == back for path, _, back in asked.values())
    body = "".join(
        part
        if isinstance(part, str)
        else f"arn:aws:lambda:eu-central-1:{PLACE.account}:function:plain"
        for part in asked["delivery mail"][1]["Fn::Join"][1]
    )
    made = json.loads(body)
    assert made == {
        "target": {"function": f"arn:aws:lambda:eu-central-1:{PLACE.account}:function:plain"},
        "queues": ["mail", "news"], "concurrency": 5, "timeout_ms": 20_000,
        "job_types": ["mail.send"],
    }  # fmt: skip
    # What a function has that says nothing is three seconds.
    assert '"timeout_ms": 3000' in json.dumps(asked["delivery fixed"][1]).replace('\\"', '"')
    assert '"timeout_ms": 60000' in json.dumps(asked["delivery live"][1]).replace('\\"', '"')
    assert json.loads(asked["delivery hook"][1]) == {
        "target": {"endpoint": "https://example.com/jobs"}, "queues": ["hooks"],
    }  # fmt: skip


def test_a_secret_is_named_and_never_shown(shop: Shop) -> None:
    (hook,) = (
        each for each in shop.all("Custom::OjsDeclared").values() if each["Name"] == "delivery hook"
    )
    arn = f"arn:aws:secretsmanager:eu-central-1:{PLACE.account}:secret:hook-abcdef"
    assert hook["Set"]["Secrets"] == {"signing_secret": arn}
    read = [
        policy
        for policy in shop.all(POLICY).values()
        for each in policy["PolicyDocument"]["Statement"]
        if each["Resource"] == arn
    ]
    assert len(read) == 1
    assert "Declare" in read[0]["Roles"][0]["Ref"]


def test_a_function_tells_of_a_success_at_once_and_of_the_rest_by_the_queue(shop: Shop) -> None:
    told = [
        each
        for name, each in shop.all(TOLD).items()
        if "DestinationConfig" in each and "QueuesUntold" not in name
    ]
    # Two deliveries of one function share it; an alias and a version have their own.
    assert len(told) == 4
    qualifiers = [each["Qualifier"] for each in told]
    assert qualifiers[:2] == ["$LATEST", "live"]
    for each in told:
        assert (each["MaximumEventAgeInSeconds"], each["MaximumRetryAttempts"]) == (60, 0)
        assert each["DestinationConfig"] == {
            "OnSuccess": {"Destination": SETTLES}, "OnFailure": {"Destination": OUTCOMES},
        }  # fmt: skip


def test_an_outcome_that_cannot_be_settled_comes_again(shop: Shop) -> None:
    (settling,) = (
        each
        for each in shop.all("AWS::Lambda::Function").values()
        if each["Handler"] == "functions.outcomes.handler.handler"
    )
    assert settling["FunctionName"] == "ojs-shop-outcomes"
    assert "OJS_OUTCOME_QUEUE" in settling["Environment"]["Variables"]
    (again,) = (each for name, each in shop.all(TOLD).items() if "QueuesUntold" in name)
    # Twice, after a minute and two more; then it waits in the queue, which has a dead-letter queue.
    assert (again["MaximumRetryAttempts"], again["MaximumEventAgeInSeconds"]) == (2, 21_600)
    assert list(again["DestinationConfig"]) == ["OnFailure"]
    (queue, _) = again["DestinationConfig"]["OnFailure"]["Destination"]["Fn::GetAtt"]
    assert "QueuesOutcomes" in queue
    may = [
        each
        for name, policy in shop.all(POLICY).items()
        if name.startswith("JobsOutcomes")
        for each in policy["PolicyDocument"]["Statement"]
        if each.get("Sid") == "Outcomes"
    ]
    assert "sqs:SendMessage" in may[0]["Action"]


def test_a_chain_of_jobs_is_no_endless_loop(shop: Shop) -> None:
    """Lambda would end one after 16 jobs, each pushed by whoever settled the one before."""
    loops = {
        name: each["RecursiveLoop"]
        for name, each in shop.all("AWS::Lambda::Function").items()
        if "RecursiveLoop" in each
    }
    assert set(loops.values()) == {"Allow"}
    ours = {f"Jobs{name.capitalize()}" for name in PUSHERS}
    assert {name.split("Function")[0] for name in loops if name.startswith("Jobs")} == ours
    assert {shop.id_of(shop.plain), shop.id_of(shop.aliased)} < set(loops)


def test_its_role_may_tell_these_two_and_nothing_else(shop: Shop) -> None:
    for template in (shop.template, shop.far):
        policies = [
            each["Properties"]["PolicyDocument"]["Statement"]
            for name, each in template.find_resources(POLICY).items()
            if name.startswith(("Plain", "Aliased", "Far"))
        ]
        assert policies
        for tell, call, encrypt in policies:
            assert (tell["Action"], tell["Resource"]) == ("sqs:SendMessage", OUTCOMES)
            assert (call["Action"], call["Resource"]) == ("lambda:InvokeFunction", SETTLES)
            assert encrypt["Condition"]["StringEquals"] == {
                "kms:ViaService": "sqs.eu-central-1.amazonaws.com"
            }
            assert "kept:Export" in json.dumps(encrypt["Resource"])


def test_only_who_pushes_may_invoke_it(shop: Shop) -> None:
    found = [
        each
        for each in shop.all(POLICY).values()
        if each["PolicyDocument"]["Statement"][0]["Action"] == "lambda:InvokeFunction"
    ]
    assert len(found) == 4
    for each in found:
        (statement,) = each["PolicyDocument"]["Statement"]
        assert isinstance(statement["Resource"], dict)
        # One function, alias or version, by what CloudFormation makes of it.
        assert "*" not in json.dumps(statement)
        roles = sorted(role["Ref"] for role in each["Roles"])
        assert [role.removeprefix("Jobs").split("Role")[0] for role in roles] == [
            "Admin", "Dispatch", "Outcomes", "Sender",
        ]  # fmt: skip
    for name in ("admin", "declare", *PUSHERS):
        named = shop.variables(name)["OJS_PUSH_FUNCTIONS"]["Fn::Join"][1]
        # Without alias or version, and each once.
        assert {"Fn::GetAtt": [shop.id_of(shop.plain), "Arn"]} in named
        assert {"Fn::GetAtt": [shop.id_of(shop.aliased), "Arn"]} in named
        assert len([part for part in named if isinstance(part, dict)]) == 3
    assert "OJS_PUSH_FUNCTIONS" not in shop.variables("jobs")


def test_a_delivery_comes_after_all_that_it_needs(shop: Shop) -> None:
    told, policies = shop.all(TOLD), shop.all(POLICY)
    (mail,) = (
        each for each in shop.all("Custom::OjsDeclared").values() if each["Name"] == "delivery mail"
    )
    after = set(mail["after"])
    assert len(after & set(told)) == 1
    assert any(
        policies[each]["PolicyDocument"]["Statement"][0]["Action"] == "lambda:InvokeFunction"
        for each in after & set(policies)
    )
    for name in ("Dispatch", "Outcomes", "Sender", "Declare"):
        assert any(each.startswith(f"Jobs{name}Function") for each in after), name
    # Lambda looks at the policy of the function's role when it is told where to.
    for config in told.values():
        if config["Qualifier"] == "live":
            assert any(
                each.startswith("AliasedServiceRoleDefaultPolicy") for each in config["after"]
            )


def test_a_stack_with_a_function_does_not_wait_for_the_backend(shop: Shop) -> None:
    assert shop.elsewhere not in shop.elsewhere.dependencies
    assert "shop:Export" not in json.dumps(shop.far.to_json())


def test_what_cannot_be_pushed_to_is_refused(shop: Shop, code: Callable[[], lambda_.Code]) -> None:
    jobs, stack = shop.jobs, Stack(App(), "other", env=PLACE)

    def imported(region: str, account: str) -> lambda_.IFunction:
        arn = f"arn:aws:lambda:{region}:{account}:function:f"
        return lambda_.Function.from_function_arn(shop.stack, f"{region} {account}", arn)

    account = str(PLACE.account)
    for other, why in (
        (
            imported("eu-west-1", account),
            "in the region of the deployment, eu-central-1, but is in eu-west-1",
        ),
        (
            imported("eu-central-1", "9" * 12),
            "in the account of the deployment, .* but is in 999999999999",
        ),
        (imported("eu-central-1", account), "the role of .* is unknown"),
        (function(shop.stack, "Retries", retry_attempts=1), "already has destinations"),
    ):
        with pytest.raises(ValueError, match=why):
            jobs.add_worker(other, queues=["x"])
    with pytest.raises(
        ValueError, match="timeout: must be at least the timeout of shop/Plain \\(20 seconds\\)"
    ):
        jobs.add_worker(shop.plain, queues=["x"], timeout=Duration.seconds(19))
    blue = OpenJobSpec(
        shop.stack, "Blue", settings=DeploymentSettings(stage="blue", push=True), code=code()
    )
    with pytest.raises(ValueError, match="shop/Plain already sends its outcomes to shop/Jobs"):
        blue.add_worker(shop.plain, queues=["x"])
    silent = OpenJobSpec(stack, "Jobs", code=code())
    with pytest.raises(ValueError, match="add_worker: requires push=true"):
        silent.add_worker(shop.plain, queues=["x"])
    secret = secretsmanager.Secret.from_secret_name_v2(stack, "Named", "hook")
    with pytest.raises(ValueError, match="add_endpoint: requires push=true"):
        silent.add_endpoint("x", "https://example.com", queues=["x"], secret=secret)


# --- what operators hear of ----------------------------------------------------------------------


def test_what_waits_too_long_or_is_put_aside_is_an_alarm(shop: Shop) -> None:
    alarms = {
        each["AlarmName"].removeprefix("ojs-shop-"): each
        for each in shop.all("AWS::CloudWatch::Alarm").values()
    }
    page = (ROOT / "docs/operations.md").read_text("utf-8")
    for name, metric, queue, threshold in (
        ("push-outcomes", "ApproximateAgeOfOldestMessage", "Outcomes", 120),
        ("push-send", "ApproximateAgeOfOldestMessage", "Send", 120),
        ("push-failures", "ApproximateNumberOfMessagesVisible", "Failures", 1),
    ):
        alarm = alarms[name]
        assert (alarm["MetricName"], alarm["Threshold"]) == (metric, threshold)
        (dimension,) = alarm["Dimensions"]
        assert dimension["Value"]["Fn::GetAtt"][0].startswith(f"JobsPushQueues{queue}")
        assert alarm["AlarmActions"]
        assert f"| `{name}` |" in page
    assert f"`alarm_push_age_s` ({DeploymentSettings().alarm_push_age_s})" in page


def test_a_delivery_that_is_disabled_is_told_where_alarms_are(shop: Shop) -> None:
    (rule,) = (
        each
        for each in shop.all("AWS::Events::Rule").values()
        if each.get("EventPattern", {}).get("detail-type") == [monitoring.DELIVERY_DISABLED]
    )
    assert rule["EventPattern"]["source"] == ["ojs"]
    (target,) = rule["Targets"]
    assert target["Arn"] == f"arn:aws:sns:eu-central-1:{PLACE.account}:ops"
    assert monitoring.DELIVERY_DISABLED == EventType.DELIVERY_DISABLED
    # It is on the bus whatever the settings say.
    assert "delivery.*" in server.ALWAYS_ON_BUS


def test_the_example_is_whole(
    code: Callable[[], lambda_.Code], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundling, "code", lambda _settings: code())
    template = assertions.Template.from_stack(LogReportStack(App(), "log-report"))
    names = {
        each["Properties"]["Name"]
        for each in template.find_resources("Custom::OjsDeclared").values()
    }
    assert names == {"queue reports", "delivery reports"}
    (allowed,) = (
        [
            (each["Action"], json.dumps(each["Resource"]))
            for each in policy["Properties"]["PolicyDocument"]["Statement"]
        ]
        for name, policy in template.find_resources(POLICY).items()
        if name.startswith("WorkerServiceRole")
    )
    assert [action for action, _ in allowed] == [
        "s3:GetObject", "s3:PutObject", "s3:ListBucket", "sqs:SendMessage",
        "lambda:InvokeFunction",
    ]  # fmt: skip
    assert "/logs/*" in allowed[0][1]
    assert "/reports/*" in allowed[1][1]


# --- durable code --------------------------------------------------------------------------------


def durable_stack(code: Callable[[], lambda_.Code], **settings: Any) -> tuple[Stack, OpenJobSpec]:
    stack = Stack(App(), "durable", env=PLACE)
    given = DeploymentSettings(stage="durable", push=True, **settings)
    through = ec2.InterfaceVpcEndpoint.from_interface_vpc_endpoint_attributes(
        stack, "Through", port=443, vpc_endpoint_id="vpce-1"
    )
    private: list[ec2.IVpcEndpoint] = [through] if given.entry == "private_api" else []
    jobs = OpenJobSpec(stack, "Jobs", settings=given, code=code(), vpc_endpoints=private)
    return stack, jobs


def statements(template: assertions.Template, action: str) -> list[dict[str, Any]]:
    return [
        statement
        for policy in template.find_resources("AWS::IAM::Policy").values()
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]
        if action in str(statement["Action"]) and "Worker" in str(policy["Properties"]["Roles"])
    ]


def variables_of(template: assertions.Template) -> dict[str, Any]:
    (found,) = (
        each["Properties"]["Environment"]["Variables"]
        for name, each in template.find_resources("AWS::Lambda::Function").items()
        if name.startswith("Worker")
    )
    return dict(found)


@pytest.mark.parametrize("entry", ["http_api", "private_api"])
def test_a_durable_function_knows_the_server_and_its_key(
    code: Callable[[], lambda_.Code], entry: str
) -> None:
    stack, jobs = durable_stack(code, entry=entry)
    worker = function(stack, "Worker")
    jobs.add_worker(worker, queues=["orders"], durable=True)
    jobs.add_worker(worker, queues=["refunds", "orders"], name="more", durable=True)
    jobs.add_worker(function(stack, "Plain"), queues=["mail"])
    template = assertions.Template.from_stack(stack)
    (key,) = template.find_resources("Custom::OjsKey").values()
    assert key["Properties"]["Scopes"] == ["work"]
    assert key["Properties"]["Queues"] == ["orders", "refunds"]
    found = variables_of(template)
    assert found["OJS_KEY_SECRET"] == key["Properties"]["Secret"]
    assert found["OJS_URL"] == stack.resolve(jobs.url)
    assert set(found) == {"OJS_URL", "OJS_KEY_SECRET"}
    (reads,) = statements(template, "secretsmanager:GetSecretValue")
    assert reads["Resource"] == key["Properties"]["Secret"]
    # No job is pushed before the secret has the key.
    after = [
        each["DependsOn"]
        for each in template.find_resources("Custom::OjsDeclared").values()
        if "orders" in str(each["Properties"]) and "more" not in str(each["Properties"])
    ]
    (key_id,) = template.find_resources("Custom::OjsKey")
    assert after
    assert all(key_id in each for each in after)


def test_with_iam_a_durable_function_signs(code: Callable[[], lambda_.Code]) -> None:
    stack, jobs = durable_stack(code, authorizer="iam")
    jobs.add_worker(function(stack, "Worker"), queues=["orders"], durable=True)
    template = assertions.Template.from_stack(stack)
    assert variables_of(template)["OJS_AUTH"] == "iam"
    (invokes,) = statements(template, "execute-api:Invoke")
    paths = str(invokes["Resource"])
    for path in ("jobs/*/steps", "jobs/*/checkpoint", "workers/nack"):
        assert path in paths
    assert "jobs/*/signals" not in paths


def test_a_durable_function_that_cannot_know_the_server_is_refused(
    code: Callable[[], lambda_.Code],
) -> None:
    stack, jobs = durable_stack(code)
    elsewhere = function(Stack(App(), "other", env=PLACE), "Worker")
    arn = f"arn:aws:lambda:eu-central-1:{PLACE.account}:function:f"
    role = iam.Role.from_role_arn(stack, "Role", f"arn:aws:iam::{PLACE.account}:role/r")
    imported = lambda_.Function.from_function_attributes(
        stack, "Imported", function_arn=arn, role=role
    )
    for each in (elsewhere, imported):
        with pytest.raises(ValueError, match="must be a function of the stack of durable/Jobs"):
            jobs.add_worker(each, queues=["x"], durable=True)
    for settings, why in (
        ({"entry": "function_url", "reserved_concurrency": {"api": 50}},
         "not supported with entry=function_url"),
        ({"authorizer": "jwt", "jwt_issuer": "https://a.example", "jwt_audience": ["a"]},
         "grant_work: not supported with authorizer=jwt"),
    ):  # fmt: skip
        stack, jobs = durable_stack(code, **settings)
        with pytest.raises(ValueError, match=why):
            jobs.add_worker(function(stack, "Worker"), queues=["x"], durable=True)
