"""Workers on ECS: a service on Fargate that is as large as its backlog asks for (ADR 44)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aws_cdk import Annotations, Duration
from aws_cdk import aws_applicationautoscaling as scaling
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_ecs as ecs
from constructs import Construct

from ojs_aws.cdk.parts.acknowledgement import acknowledge
from ojs_aws.cdk.parts.log_group import log_group
from ojs_aws.cdk.parts.monitoring import BACKLOG, MISSING, own_metric

if TYPE_CHECKING:
    from aws_cdk import aws_iam as iam
    from aws_cdk import aws_kms as kms
    from aws_cdk import aws_secretsmanager as secretsmanager

    from ojs_aws.cdk.settings import DeploymentSettings

# As the functions' own setting has it (OJS_WORKER_GROUPS); a test compares the two.
GROUP_PATTERN = r"[a-z][a-z0-9-]{0,39}"
_QUEUE = re.compile(r"[a-z0-9][a-z0-9\-\.]{0,254}")
# The lease of the library's worker. A task must be let live for longer than that: what it could not
# finish is given back by then, and whatever dies without a word is free anyway.
LEASE_S = 60
# The longest that Fargate waits between SIGTERM and SIGKILL.
MOST_STOP_S = 120
# Of a function's 4 KB of environment.
MOST_GROUPS = 2_000
_SET = {"OJS_URL", "OJS_KEY", "OJS_AUTH", "OJS_QUEUES"}
_MINUTE = Duration.minutes(1)
# A task that was started is given so long to come up, register, and be counted.
_COOLDOWN = Duration.minutes(3)


@dataclass(frozen=True)
class WorkerSize:
    """How many tasks there may be, and what each has."""

    min_tasks: int = 1
    max_tasks: int = 10
    jobs_per_task: float = 10
    cpu: int = 256
    memory_mb: int = 512

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot be."""
        if self.min_tasks < 0:
            raise ValueError("min_tasks: must not be below 0")
        if self.max_tasks < max(1, self.min_tasks):
            raise ValueError("max_tasks: must be at least 1, and not below min_tasks")
        if not self.jobs_per_task > 0:
            raise ValueError("jobs_per_task: must be above 0")


@dataclass(frozen=True)
class Place:
    """Where tasks run.

    `cluster`, or `vpc` for a cluster of its own; without both a VPC is made with public subnets in
    two zones and no NAT gateway, in which nothing listens. `public_ip`: whether tasks have an
    address of their own, as they need where no NAT gateway or endpoints lead out. `spot`: spare
    capacity at about a third of the price, which may be taken away with two minutes' notice: the
    worker gives its jobs back, as at any stop. `x86_64`: the image is for that, not for arm64.
    """

    cluster: ecs.ICluster | None = None
    vpc: ec2.IVpc | None = None
    subnets: ec2.SubnetSelection | None = None
    security_groups: Sequence[ec2.ISecurityGroup] | None = None
    public_ip: bool | None = None
    spot: bool = False
    x86_64: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for what contradicts itself."""
        if self.cluster is not None and self.vpc is not None:
            raise ValueError("vpc: the cluster has one already")


class FargateWorker(Construct):
    """A service whose tasks take jobs from some queues."""

    task_role: iam.IRole
    """What the program may do: nothing but what it is granted."""
    service: ecs.FargateService
    """The service, which other things may be attached to."""
    container: ecs.ContainerDefinition
    """The program."""

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        image: ecs.ContainerImage,
        queues: Sequence[str],
        url: str,
        settings: DeploymentSettings,
        size: WorkerSize,
        place: Place,
        command: Sequence[str] | None,
        environment: Mapping[str, str],
        stop_s: int,
        key: kms.IKey | None,
    ) -> None:
        """Add the service. Raises ValueError."""
        _check(name, queues, environment, stop_s)
        super().__init__(scope, name)
        self.name = name
        self.queues = list(dict.fromkeys(queues))
        self._settings = settings
        cluster = place.cluster or self._cluster(place)
        task = ecs.FargateTaskDefinition(
            self,
            "Task",
            cpu=size.cpu,
            memory_limit_mib=size.memory_mb,
            runtime_platform=ecs.RuntimePlatform(
                cpu_architecture=(
                    ecs.CpuArchitecture.X86_64 if place.x86_64 else ecs.CpuArchitecture.ARM64
                ),
                operating_system_family=ecs.OperatingSystemFamily.LINUX,
            ),
        )
        self.container = task.add_container(
            "worker",
            image=image,
            command=list(command) if command else None,
            environment={"OJS_URL": url, "OJS_QUEUES": ",".join(self.queues), **environment},
            logging=ecs.LogDrivers.aws_logs(
                stream_prefix=name, log_group=log_group(self, settings=settings, key=key)
            ),
            # SIGTERM, then this long until SIGKILL.
            stop_timeout=Duration.seconds(stop_s),
            # Reaps what handlers leave behind, and passes signals on: a program is no init.
            linux_parameters=ecs.LinuxParameters(self, "Linux", init_process_enabled=True),
        )
        acknowledge(
            task,
            "AwsSolutions-ECS2",
            "The address of the API and names of queues are no secrets; the key comes from one.",
        )
        self.task_role = task.task_role
        self._execution_role = task.obtain_execution_role()
        acknowledge(
            self._execution_role,
            "AwsSolutions-IAM5[Resource::*]",
            "ecr:GetAuthorizationToken knows no resources.",
        )
        own_network = place.cluster is None and place.vpc is None
        public_ip = own_network if place.public_ip is None else place.public_ip
        subnets = place.subnets
        if subnets is None and public_ip:
            subnets = ec2.SubnetSelection(subnet_type=ec2.SubnetType.PUBLIC)
        self.service = ecs.FargateService(
            self,
            "Service",
            cluster=cluster,
            task_definition=task,
            assign_public_ip=public_ip,
            vpc_subnets=subnets,
            security_groups=list(place.security_groups) if place.security_groups else None,
            # What cannot start is taken back to what ran before.
            circuit_breaker=ecs.DeploymentCircuitBreaker(enable=True, rollback=True),
            min_healthy_percent=100,
            max_healthy_percent=200,
            capacity_provider_strategies=[
                ecs.CapacityProviderStrategy(capacity_provider="FARGATE_SPOT", weight=1)
            ]
            if place.spot
            else None,
        )
        self._scale(cluster, size)

    def show(self, secret: secretsmanager.ISecret) -> None:
        """Give the program the key in this secret, as OJS_KEY."""
        self.container.add_secret("OJS_KEY", ecs.Secret.from_secrets_manager(secret))

    @property
    def reader(self) -> iam.IRole:
        """The role that reads secrets for the program."""
        return self._execution_role

    # --- inside -------------------------------------------------------------------------------

    def _cluster(self, place: Place) -> ecs.Cluster:
        vpc = place.vpc or self._vpc()
        cluster = ecs.Cluster(self, "Cluster", vpc=vpc, enable_fargate_capacity_providers=True)
        acknowledge(
            cluster,
            "AwsSolutions-ECS4",
            "Container Insights costs more than the workers' own metric, which scaling needs.",
        )
        return cluster

    def _vpc(self) -> ec2.Vpc:
        vpc = ec2.Vpc(
            self,
            "Vpc",
            max_azs=2,
            nat_gateways=0,
            subnet_configuration=[
                ec2.SubnetConfiguration(name="tasks", subnet_type=ec2.SubnetType.PUBLIC)
            ],
            restrict_default_security_group=False,
        )
        acknowledge(
            vpc, "AwsSolutions-VPC7", "Nothing listens in it; who needs flow logs brings a VPC."
        )
        return vpc

    def _scale(self, cluster: ecs.ICluster, size: WorkerSize) -> None:
        target = scaling.ScalableTarget(
            self,
            "Tasks",
            service_namespace=scaling.ServiceNamespace.ECS,
            resource_id=f"service/{cluster.cluster_name}/{self.service.service_name}",
            scalable_dimension="ecs:service:DesiredCount",
            min_capacity=size.min_tasks,
            max_capacity=size.max_tasks,
        )
        target.node.add_dependency(self.service)
        # What is missing changes nothing: neither alarm of a target goes off without data.
        scaling.TargetTrackingScalingPolicy(
            self,
            "Backlog",
            scaling_target=target,
            custom_metric=self.metric_backlog(),
            target_value=size.jobs_per_task,
            scale_out_cooldown=_MINUTE,
            scale_in_cooldown=Duration.minutes(5),
        )
        if size.min_tasks == 0:
            self._from_nothing(target)

    def _from_nothing(self, target: scaling.ScalableTarget) -> None:
        """Start the first task: of nothing no target tracking makes more, as it multiplies.

        One task more, and no number of them: should all workers be out of sight for a moment, the
        service must not become smaller.
        """
        step = scaling.StepScalingAction(
            self,
            "First",
            scaling_target=target,
            adjustment_type=scaling.AdjustmentType.CHANGE_IN_CAPACITY,
            cooldown=_COOLDOWN,
            metric_aggregation_type=scaling.MetricAggregationType.MAXIMUM,
        )
        step.add_adjustment(adjustment=1, lower_bound=0)
        alarm = cloudwatch.Alarm(
            self,
            "NobodyThere",
            alarm_description=f"Jobs wait for {self.name}, and no worker is there",
            metric=self.metric_missing(),
            threshold=1,
            comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
            evaluation_periods=1,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
        )
        alarm.add_alarm_action(actions.ApplicationScalingAction(step))

    def metric_backlog(self) -> cloudwatch.Metric:
        """Jobs that wait or run, for each worker that takes them."""
        return own_metric(self._settings, BACKLOG, period=_MINUTE, group=self.name)

    def metric_missing(self) -> cloudwatch.Metric:
        """1 while jobs wait and there is no worker."""
        return own_metric(self._settings, MISSING, period=_MINUTE, group=self.name)


def _check(name: str, queues: Sequence[str], environment: Mapping[str, str], stop_s: int) -> None:
    if not re.fullmatch(GROUP_PATTERN, name):
        raise ValueError(f"name: {name!r} must be lower case letters, digits and '-', at most 40")
    if isinstance(queues, str) or not queues:
        raise ValueError("queues: a list of names, and at least one")
    if wrong := [each for each in queues if not _QUEUE.fullmatch(each)]:
        raise ValueError(f"queues: {wrong[0]!r} is no name of a queue")
    if taken := sorted(_SET & set(environment)):
        raise ValueError(f"environment: {taken[0]} is set by the construct")
    if not LEASE_S < stop_s <= MOST_STOP_S:
        raise ValueError(
            f"stop_s: must be above {LEASE_S}, the lease of a job, and at most {MOST_STOP_S}, as "
            "Fargate waits no longer"
        )


def warn_of_spot(worker: FargateWorker, place: Place) -> None:
    """Say that a cluster that was given must have the capacity that is asked for."""
    if place.spot and place.cluster is not None:
        Annotations.of(worker).add_info(
            f"The cluster of {worker.name} must have the capacity provider FARGATE_SPOT "
            "(enable_fargate_capacity_providers)."
        )


def groups_text(workers: Iterable[FargateWorker]) -> str:
    """The queues of each worker as the functions' environment has them. Raises ValueError if they
    are too many: a function's whole environment has 4 KB.
    """
    text = json.dumps({worker.name: worker.queues for worker in workers})
    if len(text) > MOST_GROUPS:
        raise ValueError(
            f"queues: those of all workers together have over {MOST_GROUPS} characters"
        )
    return text
