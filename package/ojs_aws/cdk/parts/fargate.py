"""Workers on ECS: a Fargate service that scales with its backlog (ADR 44)."""

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

# The same pattern as the functions' setting OJS_WORKER_GROUPS; a test compares them.
GROUP_PATTERN = r"[a-z][a-z0-9-]{0,39}"
_QUEUE = re.compile(r"[a-z0-9][a-z0-9\-\.]{0,254}")
# Lease of the library's worker in seconds. A task needs more time to stop: within that time it
# returns unfinished jobs, and the leases of all other jobs have expired.
LEASE_S = 60
# Fargate's maximum time between SIGTERM and SIGKILL in seconds.
MOST_STOP_S = 120
# Characters, of the 4 KB that a function's environment can have.
MOST_GROUPS = 2_000
_SET = {"OJS_URL", "OJS_KEY", "OJS_AUTH", "OJS_QUEUES"}
_MINUTE = Duration.minutes(1)
# Time for a new task to start, register, and appear in the metric.
_COOLDOWN = Duration.minutes(3)


@dataclass(frozen=True)
class WorkerSize:
    """Number and size of the tasks.

    Attributes:
        min_tasks: Minimum number of tasks, 0 or more. Default: 1.
        max_tasks: Maximum number of tasks, 1 or more. Default: 10.
        jobs_per_task: Available and active jobs per task, more than 0. Default: 10.
        cpu: CPU units; 1024 units are one core. Default: 256.
        memory_mb: Memory in MB. Default: 512.
    """

    min_tasks: int = 1
    max_tasks: int = 10
    jobs_per_task: float = 10
    cpu: int = 256
    memory_mb: int = 512

    def __post_init__(self) -> None:
        """Raise ValueError for a value out of range."""
        if self.min_tasks < 0:
            raise ValueError("min_tasks: must be 0 or more")
        if self.max_tasks < max(1, self.min_tasks):
            raise ValueError("max_tasks: must be at least 1, and at least min_tasks")
        if not self.jobs_per_task > 0:
            raise ValueError("jobs_per_task: must be more than 0")


@dataclass(frozen=True)
class TaskNetwork:
    """Cluster and network of the tasks.

    Without `cluster` and `vpc`, a new VPC has public subnets in two zones, no NAT gateway, and no
    open ports.

    Attributes:
        cluster: Existing cluster. Can't be combined with `vpc`.
        vpc: VPC of a new cluster.
        public_ip: Whether tasks have public IP addresses. Required without a NAT gateway or VPC
            endpoints.
        spot: Whether to use Fargate Spot, at about a third of the price. AWS can stop a task with a
            notice of two minutes. The worker then returns its jobs.
        x86_64: Whether the image is for x86_64 instead of arm64.
    """

    cluster: ecs.ICluster | None = None
    vpc: ec2.IVpc | None = None
    subnets: ec2.SubnetSelection | None = None
    security_groups: Sequence[ec2.ISecurityGroup] | None = None
    public_ip: bool | None = None
    spot: bool = False
    x86_64: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for contradicting values."""
        if self.cluster is not None and self.vpc is not None:
            raise ValueError("vpc: can't be combined with cluster, which has a VPC")


class FargateWorker(Construct):
    """A service whose tasks fetch jobs from queues."""

    task_role: iam.IRole
    """Role of the program. It has only the permissions that you grant."""
    service: ecs.FargateService
    """The ECS service."""
    container: ecs.ContainerDefinition
    """Container of the program."""

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
        place: TaskNetwork,
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
            # Time between SIGTERM and SIGKILL.
            stop_timeout=Duration.seconds(stop_s),
            # Reaps zombie processes and forwards signals.
            linux_parameters=ecs.LinuxParameters(self, "Linux", init_process_enabled=True),
        )
        acknowledge(
            task,
            "AwsSolutions-ECS2",
            "The URL of the API and queue names are not secrets. The key comes from a secret.",
        )
        self.task_role = task.task_role
        self._execution_role = task.obtain_execution_role()
        acknowledge(
            self._execution_role,
            "AwsSolutions-IAM5[Resource::*]",
            "ecr:GetAuthorizationToken doesn't support resources.",
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
            # If new tasks can't start, ECS rolls back to the previous version.
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
        """Pass the key in this secret to the program as OJS_KEY."""
        self.container.add_secret("OJS_KEY", ecs.Secret.from_secrets_manager(secret))

    @property
    def reader(self) -> iam.IRole:
        """Role that reads secrets for the program."""
        return self._execution_role

    # --- inside -------------------------------------------------------------------------------

    def _cluster(self, place: TaskNetwork) -> ecs.Cluster:
        vpc = place.vpc or self._vpc()
        cluster = ecs.Cluster(self, "Cluster", vpc=vpc, enable_fargate_capacity_providers=True)
        acknowledge(
            cluster,
            "AwsSolutions-ECS4",
            "Container Insights costs more than the workers' own metric, which scaling requires.",
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
            vpc,
            "AwsSolutions-VPC7",
            "No port is open in this VPC. For flow logs, pass your own VPC.",
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
        # Missing data changes nothing: neither alarm of the target is raised without data.
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
        """Start the first task. Target tracking multiplies, so it can't scale up from zero.

        It adds one task instead of setting a number: if all workers are out of sight for a short
        time, the service must not shrink.
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
            alarm_description=f"Jobs are available for {self.name}, but no worker is active. "
            "Likely cause: the service has scaled to zero. Next step: none, this starts a task.",
            metric=self.metric_missing(),
            threshold=1,
            comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
            evaluation_periods=1,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
        )
        alarm.add_alarm_action(actions.ApplicationScalingAction(step))

    def metric_backlog(self) -> cloudwatch.Metric:
        """Available and active jobs per worker of these queues."""
        return own_metric(self._settings, BACKLOG, period=_MINUTE, group=self.name)

    def metric_missing(self) -> cloudwatch.Metric:
        """1 if jobs are available and no worker is active, otherwise 0."""
        return own_metric(self._settings, MISSING, period=_MINUTE, group=self.name)


def _check(name: str, queues: Sequence[str], environment: Mapping[str, str], stop_s: int) -> None:
    if not re.fullmatch(GROUP_PATTERN, name):
        raise ValueError(
            "name: must be 1 to 40 lowercase letters, digits, and hyphens, and start with a "
            f"letter, but is {name!r}"
        )
    if isinstance(queues, str) or not queues:
        raise ValueError("queues: must be a list of one or more names")
    if wrong := [each for each in queues if not _QUEUE.fullmatch(each)]:
        raise ValueError(f"queues: {wrong[0]!r} is not a valid queue name")
    if taken := sorted(_SET & set(environment)):
        raise ValueError(f"environment: the construct sets {taken[0]}. Remove it")
    if not LEASE_S < stop_s <= MOST_STOP_S:
        raise ValueError(
            f"stop_s: must be more than {LEASE_S} (the lease of a job) and at most {MOST_STOP_S} "
            f"(the maximum of Fargate), but is {stop_s}"
        )


def warn_of_spot(worker: FargateWorker, place: TaskNetwork) -> None:
    """Add a note that the given cluster must support Spot capacity."""
    if place.spot and place.cluster is not None:
        Annotations.of(worker).add_info(
            f"The cluster of {worker.name} must have the capacity provider FARGATE_SPOT. "
            "Set enable_fargate_capacity_providers."
        )


def groups_text(workers: Iterable[FargateWorker]) -> str:
    """Return the queues of all workers as a function's environment variable.

    Raises ValueError if it is too long: the environment of a function can have 4 KB.
    """
    text = json.dumps({worker.name: worker.queues for worker in workers})
    if len(text) > MOST_GROUPS:
        raise ValueError(
            f"queues: the names of all workers' queues must have at most {MOST_GROUPS} characters"
            f" in total, but have {len(text)}"
        )
    return text
