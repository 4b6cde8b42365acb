"""Workers on ECS: what the construct makes, and what it refuses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from aws_cdk import App, Environment, Stack, assertions
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from cdk_nag import AwsSolutionsChecks

from examples.fargate_worker.app import TextsStack
from ojs.domain.counters.definitions import BACKLOG, MISSING
from ojs.settings import Settings
from ojs_aws.cdk import DeploymentSettings, OpenJobSpec, Storage, TaskNetwork
from ojs_aws.cdk.parts import fargate
from ojs_aws.worker.settings import Settings as WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PLACE = Environment(account="123456789012", region="eu-central-1")


class Made:
    """A synthesised stack."""

    def __init__(self, app: App, stack: Stack) -> None:
        self.app, self.stack = app, stack
        self.template = assertions.Template.from_stack(stack)

    def all(self, kind: str) -> list[Any]:
        return [each.get("Properties", {}) for each in self.template.find_resources(kind).values()]

    def one(self, kind: str) -> Any:
        (found,) = self.all(kind)
        return found

    @property
    def container(self) -> Any:
        (found,) = self.one("AWS::ECS::TaskDefinition")["ContainerDefinitions"]
        return found

    def policies(self, part: str) -> list[Any]:
        """The statements of the policies with this in their logical id."""
        found = self.template.find_resources("AWS::IAM::Policy")
        return [
            statement
            for name, each in found.items()
            if part in name
            for statement in each["Properties"]["PolicyDocument"]["Statement"]
        ]

    def groups(self) -> Any:
        (told,) = (
            each["Environment"]["Variables"]["OJS_WORKER_GROUPS"]
            for each in self.all("AWS::Lambda::Function")
            if "OJS_WORKER_GROUPS" in each.get("Environment", {}).get("Variables", {})
        )
        return json.loads(told)

    def findings(self) -> list[str]:
        report = AwsSolutionsChecks(self.app).validate_scope(self.app)
        return [f"{each.rule_name}: {each.description}" for each in report.violations]


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("stub")
    (made / "handler.py").write_text("# stands for the bundle\n")
    return made


def backend(stub: Path, settings: DeploymentSettings, storage: bool = False) -> OpenJobSpec:
    app = App()
    stack = Stack(app, "shop", env=PLACE)
    kept = Storage(Stack(app, "kept", env=PLACE), "Kept", settings=settings) if storage else None
    code = lambda_.Code.from_asset(str(stub))
    return OpenJobSpec(stack, "Jobs", settings=settings, storage=kept, code=code)


def image() -> ecs.ContainerImage:
    return ecs.ContainerImage.from_registry("shop/mailer")


def with_worker(stub: Path, settings: DeploymentSettings | None = None, **options: Any) -> Made:
    jobs = backend(stub, settings or DeploymentSettings(stage="shop"))
    jobs.add_fargate_worker("mailer", image(), **{"queues": ["mail", "reports"], **options})
    stack = Stack.of(jobs)
    return Made(stack.node.root, stack)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def plain(stub: Path) -> Made:
    return with_worker(stub)


@pytest.fixture(scope="module")
def example(stub: Path) -> Made:
    """The stack of examples/fargate_worker."""
    app = App()
    return Made(app, TextsStack(app, "texts", code=lambda_.Code.from_asset(str(stub))))


def test_the_program_is_told_what_it_needs(plain: Made) -> None:
    told = {each["Name"]: each["Value"] for each in plain.container["Environment"]}
    assert told["OJS_QUEUES"] == "mail,reports"
    assert "OJS_URL" in told
    (secret,) = plain.container["Secrets"]
    assert secret["Name"] == "OJS_KEY"
    (key,) = (e for e in plain.all("Custom::OjsKey") if "mailer" in e["Name"])
    assert (key["Scopes"], key["Queues"]) == (["work"], ["mail", "reports"])
    assert secret["ValueFrom"] == key["Secret"]
    logging = plain.container["LogConfiguration"]
    assert logging["LogDriver"] == "awslogs"
    group = plain.template.to_json()["Resources"][logging["Options"]["awslogs-group"]["Ref"]]
    assert group["Properties"]["RetentionInDays"] == 30


def test_the_program_may_do_nothing_else(plain: Made) -> None:
    """Its role is empty; the one that reads its key for it may read that key."""
    assert plain.policies("mailerTaskTaskRole") == []
    read = [
        each["Resource"]
        for each in plain.policies("mailerTaskExecutionRole")
        if "secretsmanager:GetSecretValue" in each["Action"]
    ]
    assert len({json.dumps(each) for each in read}) == 1


def test_what_runs_is_given_back_before_it_is_killed(plain: Made) -> None:
    stop_s = plain.container["StopTimeout"]
    library = WorkerSettings(queues=["mail"])
    assert stop_s > library.lease_s == fargate.LEASE_S
    assert stop_s > library.grace_s + library.longest_end_s
    assert plain.container["LinuxParameters"] == {"InitProcessEnabled": True, "Capabilities": {}}


def test_deployments_that_fail_are_taken_back(plain: Made) -> None:
    found = plain.one("AWS::ECS::Service")
    breaker = found["DeploymentConfiguration"]["DeploymentCircuitBreaker"]
    assert breaker == {"Enable": True, "Rollback": True}
    # A deployment must not set the number of tasks back to that of the template.
    assert "DesiredCount" not in found


def test_tasks_are_arm64_in_a_vpc_in_which_nothing_listens(plain: Made) -> None:
    runs_on = plain.one("AWS::ECS::TaskDefinition")["RuntimePlatform"]
    assert runs_on == {"CpuArchitecture": "ARM64", "OperatingSystemFamily": "LINUX"}
    network = plain.one("AWS::ECS::Service")["NetworkConfiguration"]["AwsvpcConfiguration"]
    assert network["AssignPublicIp"] == "ENABLED"
    assert plain.all("AWS::EC2::NatGateway") == []
    assert not any(
        each.get("SecurityGroupIngress") for each in plain.all("AWS::EC2::SecurityGroup")
    )


def test_the_service_is_scaled_by_its_backlog(plain: Made) -> None:
    target = plain.one("AWS::ApplicationAutoScaling::ScalableTarget")
    assert (target["MinCapacity"], target["MaxCapacity"]) == (1, 10)
    policy = plain.one("AWS::ApplicationAutoScaling::ScalingPolicy")
    tracked = policy["TargetTrackingScalingPolicyConfiguration"]
    assert tracked["TargetValue"] == 10
    assert tracked["CustomizedMetricSpecification"] == {
        "Namespace": "OJS",
        "MetricName": BACKLOG.name,
        "Dimensions": [
            {"Name": "group", "Value": "mailer"},
            {"Name": "service", "Value": "ojs-shop"},
        ],
        "Statistic": "Maximum",
    }
    assert plain.groups() == {"mailer": ["mail", "reports"]}
    assert all("mailer" not in str(each) for each in plain.all("AWS::CloudWatch::Alarm"))


def test_the_first_task_of_none_is_started_by_a_step(example: Made) -> None:
    target = example.one("AWS::ApplicationAutoScaling::ScalableTarget")
    assert (target["MinCapacity"], target["MaxCapacity"]) == (0, 20)
    steps = [
        each["StepScalingPolicyConfiguration"]
        for each in example.all("AWS::ApplicationAutoScaling::ScalingPolicy")
        if each["PolicyType"] == "StepScaling"
    ]
    (step,) = steps
    # More by one, and never a number: should all workers be out of sight, it must not shrink.
    assert step["AdjustmentType"] == "ChangeInCapacity"
    assert step["StepAdjustments"] == [{"MetricIntervalLowerBound": 0, "ScalingAdjustment": 1}]
    (alarm,) = (
        each
        for each in example.all("AWS::CloudWatch::Alarm")
        if each.get("MetricName") == MISSING.name
    )
    assert alarm["TreatMissingData"] == "notBreaching"
    assert alarm["Threshold"] == 1


def test_the_example_runs_on_spare_capacity(example: Made) -> None:
    used = example.one("AWS::ECS::Service")["CapacityProviderStrategy"]
    assert used == [{"CapacityProvider": "FARGATE_SPOT", "Weight": 1}]
    given = example.one("AWS::ECS::ClusterCapacityProviderAssociations")
    assert "FARGATE_SPOT" in given["CapacityProviders"]


def test_no_finding_without_a_written_reason(plain: Made, example: Made) -> None:
    assert plain.findings() == []
    # That the stack has no account is all there is.
    assert example.findings() == []


def test_a_role_is_given_its_queues_with_iam(stub: Path) -> None:
    made = with_worker(stub, DeploymentSettings(stage="shop", authorizer="iam"))
    assert "Secrets" not in made.container
    assert {"Name": "OJS_AUTH", "Value": "iam"} in made.container["Environment"]
    declared = made.one("Custom::OjsDeclaredRole")
    told = json.dumps(declared["Role"])
    assert "mailer" in told
    assert "TaskRole" in told
    assert '\\"queues\\":[\\"mail\\",\\"reports\\"]' in told
    (statement,) = made.policies("mailerTaskTaskRole")
    assert statement["Action"] == "execute-api:Invoke"
    assert made.findings() == []


def test_with_a_key_of_the_deployments_own(stub: Path) -> None:
    settings = DeploymentSettings(stage="shop", encryption="own")
    jobs = backend(stub, settings, storage=True)
    jobs.add_fargate_worker("mailer", image(), queues=["mail"])
    made = Made(Stack.of(jobs).node.root, Stack.of(jobs))  # type: ignore[arg-type]
    decrypts = [e for e in made.policies("mailerTaskExecutionRole") if "kms:Decrypt" in e["Action"]]
    assert len(decrypts) == 1
    assert made.findings() == []


def test_a_cluster_and_a_place_can_be_brought_along(stub: Path) -> None:
    jobs = backend(stub, DeploymentSettings(stage="shop"))
    stack = Stack.of(jobs)
    vpc = ec2.Vpc(stack, "Vpc", max_azs=2)
    cluster = ecs.Cluster(stack, "Mine", vpc=vpc, enable_fargate_capacity_providers=True)
    group = ec2.SecurityGroup(stack, "Group", vpc=vpc)
    place = TaskNetwork(cluster=cluster, security_groups=[group], spot=True, x86_64=True)
    for name in ("mailer", "reporter"):
        jobs.add_fargate_worker(name, image(), queues=[name], place=place, command=["run", name])
    made = Made(stack.node.root, stack)  # type: ignore[arg-type]
    assert len(made.all("AWS::ECS::Cluster")) == 1
    assert made.groups() == {"mailer": ["mailer"], "reporter": ["reporter"]}
    for service in made.all("AWS::ECS::Service"):
        network = service["NetworkConfiguration"]["AwsvpcConfiguration"]
        assert network["AssignPublicIp"] == "DISABLED"
        assert len(network["SecurityGroups"]) == 1


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"queues": []}, "queues"),
        ({"queues": "mail"}, "queues"),
        ({"queues": ["Mail"]}, "queues"),
        ({"queues": [f"q{number}" * 30 for number in range(30)]}, "queues"),
        ({"min_tasks": -1}, "min_tasks"),
        ({"min_tasks": 3, "max_tasks": 2}, "max_tasks"),
        ({"max_tasks": 0, "min_tasks": 0}, "max_tasks"),
        ({"jobs_per_task": 0}, "jobs_per_task"),
        ({"stop_s": 60}, "stop_s"),
        ({"stop_s": 121}, "stop_s"),
        ({"environment": {"OJS_KEY": "k"}}, "environment"),
    ],
)
def test_what_contradicts_itself_is_refused(
    stub: Path, options: Mapping[str, Any], field: str
) -> None:
    with pytest.raises(ValueError, match=rf"^OpenJobSpec\(\w+\)\.{field}: "):
        with_worker(stub, **options)


def test_what_cannot_be_is_refused(stub: Path) -> None:
    jobs = backend(stub, DeploymentSettings(stage="shop"))
    for name in ("", "Mailer", "1st", "a" * 41):
        with pytest.raises(ValueError, match=r"^OpenJobSpec\(\w+\)\.name: "):
            jobs.add_fargate_worker(name, image(), queues=["mail"])
    with_jwt = DeploymentSettings(
        stage="s",
        authorizer="jwt",
        jwt_issuer="https://id.example.com/",
        jwt_audience=("jobs",),
    )
    with pytest.raises(ValueError, match="authorizer=jwt"):
        with_worker(stub, with_jwt)
    stack = Stack.of(jobs)
    vpc = ec2.Vpc(stack, "Vpc")
    with pytest.raises(ValueError, match=r"^vpc: "):
        TaskNetwork(vpc=vpc, cluster=ecs.Cluster(stack, "Mine", vpc=vpc))


def test_the_functions_read_the_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OJS_TABLE", "table")
    monkeypatch.setenv("OJS_WORKER_GROUPS", '{"mailer": ["mail", "reports"]}')
    assert Settings.from_environment().worker_groups == {"mailer": ("mail", "reports")}
    for wrong in ('{"Mailer": ["mail"]}', '{"mailer": []}', "{"):
        monkeypatch.setenv("OJS_WORKER_GROUPS", wrong)
        with pytest.raises(ValueError, match=r"worker_groups|Expecting"):
            Settings.from_environment()


def test_an_encryption_key_may_be_brought_along(stub: Path) -> None:
    stack = Stack(App(), "probe", env=PLACE)
    key = kms.Key(stack, "Key", enable_key_rotation=True)
    jobs = OpenJobSpec(
        stack,
        "Jobs",
        storage=Storage(stack, "S", settings=DeploymentSettings(), key=key),
        code=lambda_.Code.from_asset(str(stub)),
    )
    jobs.add_fargate_worker("mailer", image(), queues=["mail"])
    template = assertions.Template.from_stack(stack)
    (group,) = (
        each["Properties"]
        for name, each in template.find_resources("AWS::Logs::LogGroup").items()
        if "mailer" in name
    )
    assert stack.resolve(key.key_arn) == group["KmsKeyId"]
