"""The construct: a complete job backend in a stack of a CDK app."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

import jsii
from aws_cdk import Duration, Fn, IStableListProducer, Lazy, Stack, Token
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from ojs_aws.cdk import bundling, server
from ojs_aws.cdk.errors import names_construct
from ojs_aws.cdk.functions import (
    API,
    BRIDGING,
    DASHBOARD,
    DECLARING,
    NOTIFY,
    OUTBOX_RELAY,
    OUTCOMES,
    PUSHERS,
    SETUP,
    SOCKET,
    TICKET,
    WEBHOOK,
    FunctionSpec,
    by_name,
    deployed,
)
from ojs_aws.cdk.parts.api import Api
from ojs_aws.cdk.parts.bridge import MessageBody, check_bridge, map_queue
from ojs_aws.cdk.parts.declared import QUEUE, Declared
from ojs_aws.cdk.parts.domain import Domain, domain_of
from ojs_aws.cdk.parts.fargate import (
    MOST_STOP_S,
    FargateWorker,
    TaskNetwork,
    WorkerSize,
    groups_text,
    warn_of_spot,
)
from ojs_aws.cdk.parts.function import (
    FUNCTIONS_VARIABLE,
    HOSTS_VARIABLE,
    Function,
    Resources,
    set_up_first,
)
from ojs_aws.cdk.parts.function_url import FunctionUrl
from ojs_aws.cdk.parts.grants import Granted, key_in_secret, let_read
from ojs_aws.cdk.parts.monitoring import DEAD_LETTERS, OLDEST_AGE, Monitoring, own_metric
from ojs_aws.cdk.parts.network import Network, endpoints
from ojs_aws.cdk.parts.origin import origin_secret
from ojs_aws.cdk.parts.outbox import After, Outbox, OutboxTable, check_outbox
from ojs_aws.cdk.parts.private_api import PrivateApi
from ojs_aws.cdk.parts.push import Queues, Target, prepare, prove_function, target_of
from ojs_aws.cdk.parts.realtime import Realtime
from ojs_aws.cdk.parts.storage import Storage
from ojs_aws.cdk.parts.stream import failure_queue, map_live, map_stream
from ojs_aws.cdk.parts.webhooks import Webhooks
from ojs_aws.cdk.settings import EVENT_PATTERN, DeploymentSettings

if TYPE_CHECKING:
    from aws_cdk import aws_dynamodb as dynamodb
    from aws_cdk import aws_ec2 as ec2
    from aws_cdk import aws_ecs as ecs
    from aws_cdk import aws_iam as iam
    from aws_cdk import aws_secretsmanager as secretsmanager
    from aws_cdk import aws_sns as sns
    from aws_cdk import aws_sqs as sqs

    from ojs_aws.cdk.parts.entry import Entry

_PRODUCE = ("jobs:write", "jobs:read")
_WORK = ("work",)
_READ = ("jobs:read", "admin:read")
# Functions that no job depends on. Without the WebSocket API, workers poll.
_UNWATCHED = (DASHBOARD, NOTIFY, SOCKET, TICKET)
# Lambda's default timeout.
_LAMBDA_TIMEOUT = Duration.seconds(3)


@jsii.implements(IStableListProducer)
class _Names:
    """Names that more are added to until synthesis."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def produce(self) -> list[str]:
        return sorted({*self._names})


class OpenJobSpec(Construct):
    """An Open Job Spec backend: HTTP API, functions, table, schedules, events, and alarms.

        jobs = OpenJobSpec(self, "Jobs", settings=DeploymentSettings(stage="prod"))
        jobs.add_queue("mail", max_size=10_000)
        jobs.grant_produce(shop.task_role)

    docs/construct.md lists the created resources, their retention, and their costs.
    """

    url: str
    """URL of the API, without a trailing slash."""
    api: Entry
    """Endpoint of the API: an `Api`, a `FunctionUrl`, or a `PrivateApi`."""
    storage: Storage
    origin_secret: secretsmanager.ISecret | None
    """Secret that a `Firewall` adds to each request. None with waf=false."""
    bus: events.EventBus
    """Event bus to which the backend emits events."""
    queues: Queues | None
    """Queues of push delivery. None with push=false."""
    webhooks: Webhooks | None
    """Queue of webhooks. None with webhooks=false."""
    realtime: Realtime | None
    """WebSocket API. None with realtime=off."""
    prove: lambda_.Function | None
    """Function that `ojs-aws prove` pushes jobs to. None with prove=false."""
    pushed_to: dict[str, Sequence[Construct]]
    """Permission and configuration of each push target, by path of its function or alias."""
    functions: Mapping[str, lambda_.Function]
    """Functions by name: jobs, workers, admin, dashboard, stream, sweep, setup, authorizer.

    With an `entry` other than http_api, api replaces jobs, workers, admin, dashboard, and
    authorizer. With push=true also dispatch, sender, and outcomes. With webhooks=true
    also webhook. With realtime=wake or all also
    ticket and socket, with all also notify."""

    @names_construct
    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        settings: DeploymentSettings | None = None,
        storage: Storage | None = None,
        domain: Domain | None = None,
        realtime_domain: Domain | None = None,
        alarm_topics: Sequence[sns.ITopic] = (),
        network: Network | None = None,
        vpc_endpoints: Sequence[ec2.IVpcEndpoint] = (),
        code: lambda_.Code | None = None,
    ) -> None:
        """Add a backend to a stack.

        Args:
            scope: Stack or construct that contains the backend.
            name: ID of the construct.
            settings: Settings of the deployment. `stage` must be unique within an account and
                region. Default: `DeploymentSettings()`.
            storage: Table, bucket, and keys, for example from another stack. Default: created here.
            domain: Domain name of the API. Can't be combined with `settings.domain_name`.
            realtime_domain: Domain name of the WebSocket API. Can't be combined with
                `settings.realtime_domain`.
            alarm_topics: SNS topics that receive alarms, in addition to those in the settings.
            network: VPC that functions run in. Default: no VPC.
            vpc_endpoints: VPC endpoints for the service execute-api. Required with
                `entry="private_api"`, rejected otherwise.
            code: Bundle of the functions. Default: built now, which requires pip.

        Raises:
            ValueError: Two properties contradict each other, or `stage` is used twice.
            BundlingError: pip or the compiler failed.
        """
        super().__init__(scope, name)
        settings = settings or DeploymentSettings()
        if network and network.endpoints and "realtime" not in settings.model_fields_set:
            # Connections have no VPC endpoint. The subnets can have another route to them.
            settings = settings.model_copy(update={"realtime": "off"})
        self.settings = settings
        self._refuse_twins()
        _check_places(settings, domain, realtime_domain, vpc_endpoints)
        self.domain = domain or domain_of(self, settings.domain_name, settings)
        self.storage = storage or Storage(self, "Storage", settings=settings)
        table, key = self.storage.table, self.storage.key
        self.origin_secret = origin_secret(self, key) if settings.waf else None
        self.failures = failure_queue(self, key, settings)
        self.bus = events.EventBus(
            Construct(self, "Events"),
            "Bus",
            # A fixed name: rules in other stacks refer to it.
            event_bus_name=settings.service,
            description=f"Open Job Spec events of {settings.service}",
        )
        self._push = Construct(self, "Push")
        self.queues = (
            Queues(self._push, "Queues", key=key, settings=settings) if settings.push else None
        )
        self.webhooks = (
            Webhooks(self, "Webhooks", key=key, settings=settings) if settings.webhooks else None
        )
        self.realtime = self._realtime(realtime_domain)
        self._metric_queues: list[str] = []
        self._bus_types = set(settings.bus_types)
        self._code = code or bundling.code(settings)
        self._network = network
        self._resources = Resources(
            table=table,
            bucket=self.storage.bucket,
            bus=self.bus,
            failures=self.failures,
            secret=self.storage.secret,
            origin=self.origin_secret if settings.asks_for_origin else None,
            key=key,
            queues=self.queues.by_name if self.queues else {},
            webhooks=self.webhooks.queue if self.webhooks else None,
            realtime=self.realtime,
        )
        specs = {spec: self._function(spec) for spec in self._deployed()}
        self.functions = {spec.name: function for spec, function in specs.items()}
        others = [function for name, function in self.functions.items() if name != SETUP]
        self._setup_step = set_up_first(self, self.functions[SETUP], others, self.storage, settings)
        self.api = self._entry(specs, vpc_endpoints)
        self.url = self.api.url
        _call_every_minute(self, self.functions["sweep"], by_name("sweep").description)
        map_stream(self, table, self.functions["stream"], self.failures, settings)
        self._connect(table)
        self._map_queues(specs)
        self.monitoring = Monitoring(
            self,
            "Monitoring",
            api=self.api,
            table=table,
            # Alarms cover the functions that jobs depend on.
            functions={n: each for n, each in self.functions.items() if n not in _UNWATCHED},
            failures=self.failures,
            queues=self.queues,
            webhooks=self.webhooks,
            bus=self.bus,
            topics=alarm_topics,
            settings=settings,
        )
        if network is not None and network.endpoints:
            secrets = settings.authorizer == "keys" or settings.asks_for_origin
            endpoints(self, network, secrets=secrets, invokes=settings.push)
        self._declared: Declared | None = None
        # The name and the queues of each role with grants, with authorizer=iam.
        self._limits: dict[str, tuple[str, list[str] | None]] = {}
        self._rules = 0
        self._push_functions = list(settings.push_functions)
        self._egress_hosts = list(settings.egress_hosts)
        self.pushed_to = {}
        # Queues of the key of each function with durable code.
        self._durable: dict[str, list[str]] = {}
        self._workers: list[FargateWorker] = []
        self.prove = prove_function(self, settings) if settings.prove else None
        if self.prove is not None:
            self._pushes_to(target_of(self, self.prove))

    def _deployed(self) -> Sequence[FunctionSpec]:
        settings = self.settings
        return deployed(
            settings.authorizer,
            settings.entry,
            push=settings.push,
            dashboard=settings.web_dashboard,
            realtime=settings.realtime,
            webhooks=settings.webhooks,
        )

    def _realtime(self, domain: Domain | None) -> Realtime | None:
        """Create the WebSocket API, without routes."""
        settings = self.settings
        if settings.realtime == "off":
            return None
        domain = domain or domain_of(self, settings.realtime_domain, settings, "GivenRealtime")
        return Realtime(self, "Realtime", api_domain=self.domain, domain=domain, settings=settings)

    def _connect(self, table: dynamodb.ITable) -> None:
        """Add the functions of the WebSocket API to it, and to the stream."""
        if self.realtime is None:
            return
        socket = self.functions[SOCKET]
        # Pages of the dashboard, and those that can use the API.
        origins = ",".join([self.url, *self.settings.cors_origins])
        socket.add_environment("OJS_SOCKET_ORIGINS", origins)
        self.realtime.route(socket, self.functions[TICKET])
        if self.settings.realtime == "all":
            map_live(self, table, self.functions[NOTIFY])

    def _map_queues(self, specs: Iterable[FunctionSpec]) -> None:
        """Map the queues of push deliveries and of webhooks to their functions."""
        if self.queues is not None:
            for spec in specs:
                if spec.consumes:
                    self.queues.map(spec.consumes, self.functions[spec.name])
            self.queues.told_by(self.functions[OUTCOMES])
        if self.webhooks is not None:
            self.webhooks.map(self.functions[WEBHOOK])

    def _entry(
        self,
        functions: Mapping[FunctionSpec, lambda_.Function],
        vpc_endpoints: Sequence[ec2.IVpcEndpoint],
    ) -> Entry:
        """Create the endpoint of the API."""
        settings = self.settings
        if settings.entry == "http_api":
            key, domain = self.storage.key, self.domain
            return Api(self, "Api", functions=functions, key=key, domain=domain, settings=settings)
        function = self.functions[API]
        if settings.entry == "private_api":
            return PrivateApi(
                self, "Entry", function=function, endpoints=vpc_endpoints, settings=settings
            )
        return FunctionUrl(self, "Entry", function=function, settings=settings)

    def _function(
        self, spec: FunctionSpec, scope: Construct | None = None, name: str | None = None
    ) -> lambda_.Function:
        return Function(
            scope or self,
            name or spec.name.capitalize(),
            spec=spec,
            code=self._code,
            resources=self._resources,
            network=self._network,
            settings=self.settings,
        ).function

    def _set_up(self, function: lambda_.Function) -> lambda_.Function:
        """Make the function depend on the check of the table. Returns the function."""
        step = cast("lambda_.CfnFunction", function.node.default_child)
        step.add_resource_dependency(self._setup_step)
        return function

    def _refuse_twins(self) -> None:
        """Reject a second deployment with the same stage: both would use the same names."""
        place = Stack.of(self).environment
        for other in self.node.root.node.find_all():
            if (
                isinstance(other, OpenJobSpec)
                and other is not self
                and other.settings.stage == self.settings.stage
                and Stack.of(other).environment == place
            ):
                raise ValueError(
                    f"stage: {self.settings.stage!r} is already used by {other.node.path}."
                    " Set another stage"
                )

    # --- grants -------------------------------------------------------------------------------

    @names_construct
    def grant_produce(
        self, grantee: iam.IGrantable, *, queues: Sequence[str] | None = None
    ) -> Granted:
        """Grant a role the scopes `jobs:write` and `jobs:read`: enqueue, read, cancel, retry jobs.

        With `authorizer=iam`, the grant is a policy for signed requests, and with `queues` also a
        record of the role. With `authorizer=keys`, it is an access key in a separate secret that
        the role can read.

        Args:
            grantee: Role, or a construct with a role.
            queues: Queue names that the key or the role is limited to. `*` at the end matches any
                text. Default: all queues.

        Returns:
            The grant, and with `authorizer=keys` the secret.

        Raises:
            ValueError: `authorizer` is jwt, where the issuer grants scopes. Or with
                `authorizer=iam`, an earlier grant of the role has other queues.
        """
        return self._grant(grantee, "produce", _PRODUCE, queues)

    @names_construct
    def grant_work(
        self, grantee: iam.IGrantable, *, queues: Sequence[str] | None = None
    ) -> Granted:
        """Grant a role the scope `work`: fetch jobs and report on them.

        Args:
            grantee: Role, or a construct with a role.
            queues: Queue names that the key or the role is limited to. See `grant_produce`.

        Returns:
            The grant, and with `authorizer=keys` the secret.

        Raises:
            ValueError: See `grant_produce`.
        """
        return self._grant(grantee, "work", _WORK, queues)

    @names_construct
    def grant_read(
        self, grantee: iam.IGrantable, *, queues: Sequence[str] | None = None
    ) -> Granted:
        """Grant a role the scopes `jobs:read` and `admin:read`: read jobs, queues, and statistics.

        Args:
            grantee: Role, or a construct with a role.
            queues: Queue names that the key or the role is limited to. See `grant_produce`.

        Returns:
            The grant, and with `authorizer=keys` the secret.

        Raises:
            ValueError: See `grant_produce`.
        """
        return self._grant(grantee, "read", _READ, queues)

    @names_construct
    def add_key(
        self,
        name: str,
        *,
        scopes: Sequence[str],
        queues: Sequence[str] | None = None,
        readers: Sequence[iam.IGrantable] = (),
    ) -> secretsmanager.ISecret:
        """Create an access key in a separate secret.

        The key is revoked when you remove the declaration. To replace it, change `name`. If you
        change scopes or queues, the secret receives a new key.

        Args:
            name: Name of the key. Jobs show it as their producer.
            scopes: Scopes of the key.
            queues: Queue names that the key is limited to. Default: all queues.
            readers: Roles that can read the secret.

        Returns:
            The secret.

        Raises:
            ValueError: `authorizer` is not keys, or `name` or a scope is invalid.
        """
        if self.settings.authorizer != "keys":
            raise ValueError(
                f"add_key: requires authorizer=keys, but authorizer is {self.settings.authorizer}"
            )
        secret = key_in_secret(
            self,
            name,
            scopes,
            queues,
            setup=self.functions[SETUP],
            step=self._setup_step,
            storage=self.storage,
        )
        for reader in readers:
            let_read(secret, reader, self.storage)
        return secret

    def _grant(
        self,
        grantee: iam.IGrantable,
        what: str,
        scopes: Sequence[str],
        queues: Sequence[str] | None,
    ) -> Granted:
        match self.settings.authorizer:
            case "jwt":
                raise ValueError(
                    f"grant_{what}: not supported with authorizer=jwt. Configure the issuer to"
                    f" grant the scopes {', '.join(scopes)}"
                )
            case "iam":
                self._limit(grantee, what, scopes, queues)
                return Granted(self.api.grant(grantee, scopes))
        node = getattr(grantee, "node", None)
        if node is None:
            raise ValueError(f"grant_{what}: grantee must have a role. Otherwise use add_key")
        name = f"{node.path.replace('/', '-')}-{what}"
        secret = self.add_key(name, scopes=scopes, queues=queues)
        return Granted(let_read(secret, grantee, self.storage), secret)

    def _limit(
        self,
        grantee: iam.IGrantable,
        what: str,
        scopes: Sequence[str],
        queues: Sequence[str] | None,
        name: str | None = None,
    ) -> None:
        """Declare the queues of a role that signs its requests. Policies can't limit queues."""
        role = cast("iam.IRole", grantee.grant_principal)
        arn = getattr(role, "role_arn", None)
        if arn is None:
            if queues is not None:
                raise ValueError(f"grant_{what}: grantee must have a role if queues is set")
            return
        # The same role can be imported twice.
        known = role.node.path if Token.is_unresolved(arn) else arn
        own = name or role.node.path.replace("/", "-")
        wanted = None if queues is None else sorted(set(queues))
        name, limit = self._limits.setdefault(known, (own, wanted))
        if limit != wanted:
            raise ValueError(
                f"grant_{what}: queues of {role.node.path} must be {limit or 'omitted'}, as in an"
                f" earlier grant, but is {wanted}. A role has the same queues in all grants"
            )
        if queues is not None:
            self.declared.role(name, arn, scopes=scopes, queues=queues)

    # --- workers ------------------------------------------------------------------------------

    @names_construct
    def add_fargate_worker(
        self,
        name: str,
        image: ecs.ContainerImage,
        *,
        queues: Sequence[str],
        min_tasks: int = 1,
        max_tasks: int = 10,
        jobs_per_task: float = 10,
        cpu: int = 256,
        memory_mb: int = 512,
        place: TaskNetwork | None = None,
        command: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        stop_s: int = MOST_STOP_S,
    ) -> FargateWorker:
        """Add a Fargate service whose tasks fetch jobs from these queues only.

        The service adds tasks while it has more than `jobs_per_task` available and active jobs per
        task. With `min_tasks=0`, no task runs while the queues are empty, and the first job waits
        about 3 minutes for a task.

        The program receives the URL of the API in `OJS_URL`, its queues in `OJS_QUEUES`, and with
        `authorizer=keys` its key in `OJS_KEY`. With `iam` it signs requests as its task role.

        Args:
            name: Name of the worker: 1 to 40 lowercase letters, digits, and hyphens.
            image: Container image of the program.
            queues: Queues to fetch from.
            min_tasks: Minimum number of tasks, 0 or more. Default: 1.
            max_tasks: Maximum number of tasks. Default: 10.
            jobs_per_task: Number of jobs that one task runs at a time, or a small multiple.
                Default: 10.
            cpu: CPU units; 1024 units are one core. Must form a valid Fargate pair with
                `memory_mb`. Default: 256.
            memory_mb: Memory in MB. Default: 512.
            place: Cluster, VPC, and Spot. Default: a new VPC with public subnets.
            command: Command of the container. Default: the image's command.
            environment: More environment variables.
            stop_s: Seconds between SIGTERM and SIGKILL, 61 to 120. Default: 120.

        Returns:
            The worker, with its service, task role, and container.

        Raises:
            ValueError: A property is out of range, two of them contradict each other, or
                `authorizer` is jwt.
        """
        if self.settings.authorizer == "jwt":
            raise ValueError(
                "add_fargate_worker: not supported with authorizer=jwt, where the issuer creates"
                " tokens. Use authorizer=keys or iam"
            )
        worker = FargateWorker(
            self,
            name,
            image=image,
            queues=queues,
            url=self.url,
            settings=self.settings,
            size=WorkerSize(min_tasks, max_tasks, jobs_per_task, cpu, memory_mb),
            place=place or TaskNetwork(),
            command=command,
            environment=environment or {},
            stop_s=stop_s,
            key=self.storage.key,
        )
        if self.settings.authorizer == "keys":
            granted = self.grant_work(worker.reader, queues=worker.queues)
            assert granted.secret is not None
            worker.show(granted.secret)
        else:
            worker.container.add_environment("OJS_AUTH", "iam")
            self._limit(worker.task_role, "work", _WORK, worker.queues, f"worker {name}")
            self.grant_work(worker.task_role, queues=worker.queues)
        warn_of_spot(worker, place or TaskNetwork())
        self._workers.append(worker)
        self.functions["sweep"].add_environment("OJS_WORKER_GROUPS", groups_text(self._workers))
        return worker

    # --- declared resources -------------------------------------------------------------------

    @property
    def declared(self) -> Declared:
        """Applies the declared resources to the server. Created on first use."""
        if self._declared is None:
            function = self._set_up(self._function(DECLARING))
            caller = f"{self.settings.service}-app"
            self._declared = Declared(self, "Declared", function=function, caller=caller)
        return self._declared

    @names_construct
    def add_queue(
        self,
        name: str,
        *,
        max_size: int | None = None,
        overflow_policy: str | None = None,
        concurrency: int | None = None,
        rate_limit: tuple[int, str] | None = None,
        lanes: int | None = None,
        visibility_timeout_s: int | None = None,
        dead_letter_queue: str | None = None,
        metrics: bool = False,
        config: Mapping[str, object] | None = None,
    ) -> None:
        """Declare a queue. Omitted fields keep their current value, or their default.

        If you remove the declaration, the queue and its jobs stay.

        Args:
            name: Name of the queue.
            max_size: Maximum number of jobs in the queue.
            overflow_policy: Behavior at capacity: `reject`, `block`, or `drop_oldest`.
            concurrency: Maximum number of active jobs.
            rate_limit: Maximum number of starts per ISO 8601 duration, for example `(100, "PT1M")`.
            lanes: Number of lanes.
            visibility_timeout_s: Default lease in seconds.
            dead_letter_queue: Queue that receives copies of dead letters.
            metrics: Whether CloudWatch always receives the age of the oldest job and the number of
                dead letters, at each level of the setting `metrics`. Two metrics, about $0.60 per
                month.
            config: Other fields of the queue's configuration (docs/queues.md). None resets a field.

        Raises:
            ValueError: A field is set as an argument and in `config`.
        """
        if metrics:
            self._meter(name)
        self.declared.put(
            QUEUE,
            name,
            "/ojs/v1/queues/{}/config",
            {
                "max_size": max_size,
                "overflow_policy": overflow_policy,
                "concurrency": concurrency,
                "rate_limit": rate_limit and {"limit": rate_limit[0], "period": rate_limit[1]},
                "lanes": lanes,
                "visibility_timeout": visibility_timeout_s,
                "dead_letter_queue": dead_letter_queue,
            },
            config,
        )

    @names_construct
    def add_pool(
        self,
        name: str,
        *,
        queues: Sequence[str] | Mapping[str, int],
        concurrency: int | None = None,
        strategy: str | None = None,
        isolated: bool | None = None,
        config: Mapping[str, object] | None = None,
    ) -> None:
        """Declare a worker pool.

        If you remove the declaration, the pool is deleted, unless it has workers.

        Args:
            name: Name of the pool.
            queues: Queues of the pool, or weights by queue.
            concurrency: Maximum number of active jobs.
            strategy: Order of the queues: `strict`, `weighted`, `round-robin`, or `least-loaded`.
            isolated: Whether only workers of this pool fetch from its queues.
            config: Other fields of the pool (docs/fair-scheduling.md).

        Raises:
            ValueError: A field is set as an argument and in `config`.
        """
        weights = (
            {each: {"weight": queues[each]} for each in queues}
            if isinstance(queues, Mapping)
            else None
        )
        self.declared.put(
            "pool",
            name,
            "/ojs/v1/admin/pools/{}",
            {
                "queues": weights or list(queues),
                "concurrency": concurrency,
                "strategy": strategy,
                "isolated": isolated,
            },
            config,
            removed_with=True,
        )

    @names_construct
    def add_cron(
        self,
        name: str,
        *,
        expression: str,
        job_type: str,
        args: Sequence[object] = (),
        queue: str | None = None,
        timezone: str | None = None,
        overlap_policy: str | None = None,
        config: Mapping[str, object] | None = None,
    ) -> None:
        """Declare a cron job (docs/cron.md).

        If you remove the declaration, the cron job is deleted. Its jobs stay.

        Args:
            name: Name of the cron job.
            expression: Cron expression with 5 or 6 fields, an alias, or an interval.
            job_type: Type of the jobs.
            args: Arguments of the jobs.
            queue: Queue of the jobs. Default: `default`.
            timezone: IANA name of the time zone. Default: UTC.
            overlap_policy: Behavior if the previous job is not finished.
            config: Other fields of the cron job.

        Raises:
            ValueError: A field is set as an argument and in `config`.
        """
        self.declared.put(
            "cron",
            name,
            "/ojs/v1/cron/{}",
            {
                "name": name,
                "expression": expression,
                "type": job_type,
                "args": list(args),
                "queue": queue,
                "timezone": timezone,
                "overlap_policy": overlap_policy,
            },
            config,
            method="POST",
            removed_with=True,
        )

    @names_construct
    def add_rate_limit(
        self,
        key: str,
        *,
        concurrency: int | None = None,
        rate: tuple[int, str] | None = None,
        config: Mapping[str, object] | None = None,
    ) -> None:
        """Declare an override for a rate limit key. It replaces the limits that jobs specify.

        If you remove the declaration, the override is removed.

        Args:
            key: Rate limit key.
            concurrency: Maximum number of active jobs.
            rate: Maximum number of starts per ISO 8601 duration, for example `(100, "PT1M")`.
            config: Other fields of the override (docs/rate-limits.md).

        Raises:
            ValueError: A field is set as an argument and in `config`.
        """
        self.declared.put(
            "rate limit",
            key,
            "/ojs/v1/rate-limits/{}/override",
            {
                "concurrency": concurrency,
                "rate": rate and {"limit": rate[0], "period": rate[1]},
            },
            config,
            removed_with=True,
        )

    # --- push delivery ------------------------------------------------------------------------

    @names_construct
    def add_worker(
        self,
        function: lambda_.IFunction,
        *,
        queues: Sequence[str],
        concurrency: int | None = None,
        name: str | None = None,
        timeout: Duration | None = None,
        form: str | None = None,
        job_types: Sequence[str] | None = None,
        durable: bool = False,
        config: Mapping[str, object] | None = None,
    ) -> None:
        """Push the jobs of these queues to a Lambda function, an alias, or a version.

        The function can send results to the queue of outcomes, and nothing else. If you remove the
        declaration, the delivery is deleted. Its jobs stay.

        With `durable=True`, the function also gets the scope `work` for these queues, and the
        variables that the library needs to store steps: `OJS_URL`, and `OJS_KEY_SECRET` or
        `OJS_AUTH`.

        Args:
            function: Lambda function, alias, or version.
            queues: Queues of the delivery.
            concurrency: Maximum number of jobs in progress.
            name: Name of the delivery. Default: the first queue.
            timeout: Maximum duration of one job. Default: the function's timeout.
            form: Format of the event: `direct`, `push`, or `sqs`.
            job_types: Job types to push. Default: all types.
            durable: Whether the code of the jobs uses steps, sleeps, or signals.
            config: Other fields of the delivery (docs/push.md).

        Raises:
            ValueError: push=false, or `timeout` is shorter than the function's timeout. Or the
                function is in another account or region, its role is unknown, or it has an
                asynchronous invocation configuration. Or `durable` is set, and the function is in
                another stack or imported, or the deployment has `authorizer=jwt` or
                `entry=function_url`.
        """
        if self.queues is None:
            raise ValueError("add_worker: requires push=true in the settings")
        target = target_of(self, function)
        own = getattr(target.function, "timeout", None)
        if isinstance(target.function, lambda_.Function):
            own = own or _LAMBDA_TIMEOUT
        if timeout and own and timeout.to_milliseconds() < own.to_milliseconds():
            raise ValueError(
                f"timeout: must be at least the timeout of {target.function.node.path}"
                f" ({own.to_human_string()}), but is {timeout.to_human_string()}"
            )
        timeout = timeout or own
        granted = self._let_store(target, queues) if durable else ()
        self._deliver(
            name or queues[0],
            {
                "target": {"function": target.arn},
                "queues": list(queues),
                "concurrency": concurrency,
                "timeout_ms": timeout and timeout.to_milliseconds(),
                "form": form,
                "job_types": None if job_types is None else list(job_types),
            },
            config,
            after=[*self._pushes_to(target), *granted],
        )

    @names_construct
    def add_endpoint(
        self,
        name: str,
        url: str,
        *,
        queues: Sequence[str],
        secret: secretsmanager.ISecret,
        concurrency: int | None = None,
        timeout: Duration | None = None,
        job_types: Sequence[str] | None = None,
        config: Mapping[str, object] | None = None,
    ) -> None:
        """Push the jobs of these queues to an HTTPS endpoint.

        Args:
            name: Name of the delivery.
            url: URL of the endpoint.
            queues: Queues of the delivery.
            secret: Secret that signs requests. The server reads it at deployment. No template
                contains it.
            concurrency: Maximum number of jobs in progress.
            timeout: Maximum duration of one job.
            job_types: Job types to push. Default: all types.
            config: Other fields of the delivery (docs/push.md).

        Raises:
            ValueError: push=false.
        """
        if self.queues is None:
            raise ValueError("add_endpoint: requires push=true in the settings")
        self._egress_hosts.append(_host(url))
        self._tell_pushers(HOSTS_VARIABLE, self._egress_hosts, self.functions[SETUP])
        self._deliver(
            name,
            {
                "target": {"endpoint": url},
                "queues": list(queues),
                "concurrency": concurrency,
                "timeout_ms": timeout and timeout.to_milliseconds(),
                "job_types": None if job_types is None else list(job_types),
            },
            config,
            secrets={"signing_secret": secret},
        )

    def _deliver(
        self,
        name: str,
        fields: Mapping[str, object],
        config: Mapping[str, object] | None,
        *,
        secrets: Mapping[str, secretsmanager.ISecret] | None = None,
        after: Sequence[Construct] = (),
    ) -> None:
        self.declared.put(
            "delivery",
            name,
            "/ojs/v1/admin/deliveries/{}",
            fields,
            config,
            secrets=secrets,
            removed_with=True,
            after=[*after, *(self.functions[each] for each in PUSHERS)],
        )

    def _tell_pushers(
        self, variable: str, values: Sequence[str], *others: lambda_.Function
    ) -> Sequence[lambda_.Function]:
        """Set a variable of the functions that check deliveries. Returns those that push jobs."""
        # The function that processes requests sends the test calls.
        answering = "admin" if self.settings.entry == "http_api" else API
        knowing = [self.functions[each] for each in (answering, *PUSHERS)]
        for function in (*knowing, self.declared.function, *others):
            function.add_environment(variable, ",".join(dict.fromkeys(values)))
        return knowing

    def _pushes_to(self, target: Target) -> Sequence[Construct]:
        """Grant the access to a target once, for all its deliveries."""
        place = target.path
        if place in self.pushed_to:
            return self.pushed_to[place]
        for other in self.node.root.node.find_all():
            if isinstance(other, OpenJobSpec) and place in other.pushed_to:
                raise ValueError(
                    f"function: {target.function.node.path} already sends its outcomes to"
                    f" {other.node.path}. A function can have one deployment"
                )
        self._push_functions.append(target.function.function_arn)
        knowing = self._tell_pushers(FUNCTIONS_VARIABLE, self._push_functions)
        self.pushed_to[place] = prepare(
            # The ID depends on the target only, so it doesn't change with other targets.
            Construct(self._push, place.replace("/", " ")),
            target,
            knowing,
            settles=self.functions[OUTCOMES],
            key=self.storage.key,
            settings=self.settings,
        )
        return self.pushed_to[place]

    def _let_store(self, target: Target, queues: Sequence[str]) -> Sequence[Construct]:
        """Grant a function the scope `work` for these queues, and tell it the server.

        Returns the constructs that must exist before a job is pushed. Raises ValueError.
        """
        function = target.function
        if not isinstance(function, lambda_.Function) or Stack.of(function) is not Stack.of(self):
            raise ValueError(
                f"durable: {function.node.path} must be a function of the stack of"
                f" {self.node.path}, because its variables refer to the backend. Otherwise set"
                " them yourself (docs/construct.md)"
            )
        if self.settings.entry == "function_url":
            raise ValueError(
                "durable: not supported with entry=function_url, whose URL depends on the"
                " functions that it pushes to"
            )
        if (known := self._durable.get(function.node.path)) is not None:
            known += queues
            return ()
        keys = self.settings.authorizer == "keys"
        known = self._durable[function.node.path] = [*queues]
        limit = Lazy.list(_Names(known)) if keys else None
        granted = self.grant_work(function, queues=limit)
        function.add_environment("OJS_URL", self.url)
        if granted.secret is None:
            function.add_environment("OJS_AUTH", "iam")
            return ()
        function.add_environment("OJS_KEY_SECRET", granted.secret.secret_arn)
        # The secret has no key before.
        inside = granted.secret.node.scope
        return () if inside is None else [cast("Construct", inside)]

    # --- SQS bridges --------------------------------------------------------------------------

    @names_construct
    def add_sqs_bridge(
        self,
        queue: sqs.IQueue,
        *,
        job_type: str | None = None,
        to: str = "default",
        body: MessageBody = "json",
        batch_size: int = 10,
        max_concurrency: int | None = None,
        alarm_age_s: int = 900,
    ) -> lambda_.Function:
        """Create one job for each message of an SQS queue. A duplicate message creates no job.

        The only argument of the job is the message's body. A message is deleted when its job is
        stored. An invalid message returns to the queue, and moves to the queue's dead-letter queue
        after the maximum number of receives. An alarm reports messages in a dead-letter queue of
        this app.

        Args:
            queue: SQS queue.
            job_type: Type of the jobs. Default: each body is a complete job, as in
                `POST /ojs/v1/jobs`.
            to: Queue of the jobs. Default: `default`.
            body: `json` to parse the body, or `text` to pass it unchanged. Default: `json`.
            batch_size: Maximum number of messages per invocation, 1 to 100 (FIFO: 1 to 10).
                Default: 10.
            max_concurrency: Maximum number of concurrent invocations, 2 or more. Default: no limit.
            alarm_age_s: Age of the oldest message in seconds that raises an alarm, 60 or more.
                Default: 900.

        Returns:
            The function that creates the jobs.

        Raises:
            ValueError: A property is out of range, or the queue already has a bridge.
        """
        check_bridge(queue, job_type, to, body, batch_size, alarm_age_s)
        bridges = self.node.try_find_child("Bridges") or Construct(self, "Bridges")
        name = queue.node.path.replace("/", "-")
        if bridges.node.try_find_child(name):
            raise ValueError(f"queue: {queue.node.path} already has a bridge")
        function = self._set_up(self._function(BRIDGING, cast("Construct", bridges), name))
        if job_type is not None:
            function.add_environment("OJS_BRIDGE_TYPE", job_type)
        function.add_environment("OJS_BRIDGE_QUEUE", to)
        function.add_environment("OJS_BRIDGE_BODY", body)
        map_queue(function, queue, batch_size=batch_size, max_concurrency=max_concurrency)
        self.monitoring.watch_bridge(name, queue, alarm_age_s)
        return function

    # --- outboxes -----------------------------------------------------------------------------

    @names_construct
    def outbox_table(self, name: str) -> dynamodb.Table:
        """Create a table for items with jobs, which an application writes in its transactions.

        `add_outbox` creates the jobs. The application needs `dynamodb:PutItem` on the table.

        Args:
            name: ID of the construct.

        Returns:
            The table. Its key is `id`. It is deleted or retained like the deployment's table.
        """
        return OutboxTable(self, name, storage=self.storage, settings=self.settings)

    @names_construct
    def add_outbox(
        self,
        table: dynamodb.ITable,
        *,
        attribute: str = "ojs_job",
        ordered: bool = False,
        after: After | None = None,
        queues: Sequence[str] | None = None,
        types: Sequence[str] | None = None,
        window_s: int = 0,
        alarm_age_s: int = 300,
    ) -> lambda_.Function:
        """Create exactly one job for each item of a table (docs/outbox.md).

        Who can write to the table can enqueue jobs. An own table brings a job whenever the
        attribute of an item changes. Alarms report refused items, waiting jobs, and a stream that
        is behind.

        Args:
            table: Table of `outbox_table`, or an own table whose stream has NEW_AND_OLD_IMAGES.
            attribute: Attribute with the job as JSON. Default: `ojs_job`.
            ordered: If true, jobs are stored in the order of the stream: it waits while a queue is
                full. Default: false, jobs that can't be stored wait in an SQS queue.
            after: `delete` to delete items whose jobs are stored, `keep` to keep them for a week.
                Default: `delete`, and `keep` for an own table, whose items don't change.
            queues: Queues of the jobs. `*` at the end matches any text. Default: all queues.
            types: Job types, in the same format. Default: all types.
            window_s: Time in seconds that Lambda waits for a full batch, 0 to 300. Default: 0.
            alarm_age_s: Age in seconds of the oldest item or job that raises an alarm, 60 or more.
                Default: 300.

        Returns:
            The function that creates the jobs.

        Raises:
            ValueError: A property is out of range, the table has no suitable stream, or it already
                has an outbox.
        """
        check_outbox(table, after, queues, types, window_s, alarm_age_s)
        outboxes = self.node.try_find_child("Outboxes") or Construct(self, "Outboxes")
        name = table.node.path.replace("/", "-")
        if outboxes.node.try_find_child(name):
            raise ValueError(f"table: {table.node.path} already has an outbox")
        outbox = Outbox(
            cast("Construct", outboxes),
            name,
            table=table,
            key=self.storage.key,
            settings=self.settings,
        )
        function = self._set_up(self._function(OUTBOX_RELAY, outbox, "Relay"))
        allowed = {
            limit: list(names) for limit, names in (("queues", queues), ("types", types)) if names
        }
        keep = after == "keep"
        outbox.map(function, window_s, attribute=attribute, ordered=ordered, keep=keep, **allowed)
        self.monitoring.watch_outbox(name, function, outbox, alarm_age_s)
        return function

    # --- events and metrics -------------------------------------------------------------------

    @names_construct
    def on_event(self, pattern: str, target: events.IRuleTarget) -> events.Rule:
        """Send events of a type to a target.

        If the event bus doesn't receive this type yet, it does from now on, for $1 per million
        events.

        Args:
            pattern: Event type such as `dead_letter.added`, `job.*` for all types with this prefix,
                or `*`.
            target: Target of the EventBridge rule.

        Returns:
            The rule.

        Raises:
            ValueError: `pattern` is not an event type or pattern.
        """
        if not re.fullmatch(EVENT_PATTERN, pattern):
            raise ValueError(
                f"pattern: must be an event type such as job.completed, job.*, or *,"
                f" but is {pattern!r}"
            )
        kind, star, _ = pattern.partition("*")
        self._rules += 1
        if not any(_covers(each, pattern) for each in (*server.ALWAYS_ON_BUS, *self._bus_types)):
            self._bus_types.add(pattern)
            for name in ("stream", "sweep"):
                types = ",".join(sorted(self._bus_types))
                self.functions[name].add_environment("OJS_BUS_TYPES", types)
        wanted = events.Match.prefix(kind) if star else [pattern]
        return events.Rule(
            self,
            f"On {pattern} {self._rules}",
            event_bus=self.bus,
            event_pattern=events.EventPattern(source=["ojs"], detail_type=wanted),
            targets=[target],
        )

    @names_construct
    def metric_oldest_job(
        self, queue: str | None = None, *, period: Duration | None = None
    ) -> cloudwatch.Metric:
        """Age of the oldest available job in seconds.

        Args:
            queue: Queue of the metric. Default: all queues.
            period: Period of the metric. Default: 1 minute.

        Returns:
            The metric, with the statistic Maximum.

        CloudWatch charges for the metric in each hour. See the setting `metrics`.
        """
        return self._gauge(OLDEST_AGE, queue, period)

    @names_construct
    def metric_dead_letters(
        self, queue: str | None = None, *, period: Duration | None = None
    ) -> cloudwatch.Metric:
        """Number of dead letters.

        Args:
            queue: Queue of the metric. Default: all queues.
            period: Period of the metric. Default: 1 minute.

        Returns:
            The metric, with the statistic Maximum.

        CloudWatch charges for the metric in each hour. See the setting `metrics`.
        """
        return self._gauge(DEAD_LETTERS, queue, period)

    def _gauge(self, name: str, queue: str | None, period: Duration | None) -> cloudwatch.Metric:
        self._meter("*" if queue is None else queue)
        dimensions = {} if queue is None else {"queue": queue}
        return own_metric(self.settings, name, period=period or Duration.minutes(1), **dimensions)

    def _meter(self, queue: str) -> None:
        """Always write the oldest job and the dead letters of a queue; `*`: of all together."""
        if queue not in self._metric_queues:
            self._metric_queues.append(queue)
            names = ",".join(sorted(self._metric_queues))
            self.functions["sweep"].add_environment("OJS_METRIC_QUEUES", names)


def _check_places(
    settings: DeploymentSettings,
    domain: Domain | None,
    realtime_domain: Domain | None,
    vpc_endpoints: Sequence[ec2.IVpcEndpoint],
) -> None:
    """Raise ValueError for domains or VPC endpoints that contradict the settings."""
    if domain is not None and settings.domain_name:
        raise ValueError("domain: can't be combined with settings.domain_name. Set one of them")
    if domain is not None and settings.entry != "http_api":
        raise ValueError(f"domain: requires entry=http_api, but entry is {settings.entry}")
    if realtime_domain is not None and settings.realtime_domain:
        raise ValueError(
            "realtime_domain: can't be combined with settings.realtime_domain. Set one of them"
        )
    if realtime_domain is not None and (settings.realtime == "off" or settings.waf):
        raise ValueError("realtime_domain: requires realtime=wake or all, and waf=false")
    if (settings.entry == "private_api") != bool(vpc_endpoints):
        raise ValueError("vpc_endpoints: required with entry=private_api, and only with it")


def _host(url: str) -> str:
    """Return the host of an endpoint URL. The URL can be a token."""
    if Token.is_unresolved(url):
        return Fn.select(0, Fn.split(":", Fn.select(2, Fn.split("/", url))))
    return (urlsplit(url).hostname or "").rstrip(".")


def _covers(wider: str, pattern: str) -> bool:
    return pattern == wider or (wider.endswith("*") and pattern.startswith(wider[:-1]))


def _call_every_minute(scope: Construct, function: lambda_.Function, description: str) -> None:
    """Schedule the sweep once per minute.

    A failed run is not retried: the next run continues its work a minute later. So neither
    EventBridge nor Lambda's queue for asynchronous events can accumulate old runs.
    """
    minute = Duration.minutes(1)
    function.configure_async_invoke(retry_attempts=0, max_event_age=minute)
    events.Rule(
        Construct(scope, "SweepSchedule"),
        "Rule",
        description=description,
        schedule=events.Schedule.rate(minute),
        targets=[targets.LambdaFunction(function, retry_attempts=0, max_event_age=minute)],
    )
