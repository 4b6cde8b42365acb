"""The construct: a whole job backend in a stack of a CDK app."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from aws_cdk import Duration, Fn, Stack, Token
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from ojs_aws.cdk import bundling, server
from ojs_aws.cdk.functions import (
    API,
    BRIDGING,
    DASHBOARD,
    DECLARING,
    OUTCOMES,
    PUSHERS,
    SETUP,
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
    Place,
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
from ojs_aws.cdk.parts.private_api import PrivateApi
from ojs_aws.cdk.parts.push import Queues, Target, prepare, target_of
from ojs_aws.cdk.parts.storage import Storage
from ojs_aws.cdk.parts.stream import failure_queue, map_stream
from ojs_aws.cdk.settings import EVENT_PATTERN, DeploymentSettings

if TYPE_CHECKING:
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
# What Lambda gives a function that says nothing.
_LAMBDA_TIMEOUT = Duration.seconds(3)


class OpenJobSpec(Construct):
    """An Open Job Spec backend: HTTP API, functions, table, schedules, events, alarms.

        jobs = OpenJobSpec(self, "Jobs", settings=DeploymentSettings(stage="prod"))
        jobs.add_queue("mail", max_size=10_000)
        jobs.grant_produce(shop.task_role)

    What it makes and keeps, and what each choice costs: docs/construct.md.
    """

    url: str
    """Where the API is, without a slash at the end."""
    api: Entry
    """What requests come through: an `Api`, a `FunctionUrl` or a `PrivateApi`."""
    storage: Storage
    origin_secret: secretsmanager.ISecret | None
    """What a `Firewall` adds to each request; None with waf=false."""
    bus: events.EventBus
    """The event bus that the backend tells what happens."""
    queues: Queues | None
    """The queues of push delivery; None with push=false."""
    pushed_to: dict[str, Sequence[Construct]]
    """What lets jobs be pushed to functions, by the path of the function, alias or version."""
    functions: Mapping[str, lambda_.Function]
    """Its functions by name: jobs, workers, admin, dashboard, stream, sweep, setup, authorizer; in
    place of the first four and the last api, unless `entry` is http_api; with push=true dispatch,
    sender and outcomes."""

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        settings: DeploymentSettings | None = None,
        storage: Storage | None = None,
        domain: Domain | None = None,
        alarm_topics: Sequence[sns.ITopic] = (),
        network: Network | None = None,
        vpc_endpoints: Sequence[ec2.IVpcEndpoint] = (),
        code: lambda_.Code | None = None,
    ) -> None:
        """Add a backend to a stack.

        `settings`: all that can be chosen by a number or a word; its `stage` is the name of the
        deployment, and must be another one for each in an account and region.
        `storage`: table, bucket and keys, made beforehand, perhaps in a stack of their own or of
        given parts; without it they are made here.
        `domain`: a name for the API, in place of that in the settings.
        `alarm_topics`: topics that alarms are sent to, beside those in the settings.
        `network`: the VPC that functions run in; without it they run in none.
        `vpc_endpoints`: with `entry="private_api"`, the VPC endpoints of the service execute-api
        through which callers come.
        `code`: the functions' bundle; without it, it is built now, which takes pip.

        Raises ValueError for what contradicts itself, and BundlingError when pip fails.
        """
        super().__init__(scope, name)
        settings = settings or DeploymentSettings()
        self.settings = settings
        self._refuse_twins()
        if domain is not None and settings.domain_name:
            raise ValueError("domain: settings.domain_name has a name already")
        if domain is not None and settings.entry != "http_api":
            raise ValueError("domain: only with entry=http_api")
        if (settings.entry == "private_api") != bool(vpc_endpoints):
            raise ValueError("vpc_endpoints: they and entry=private_api go together")
        self.domain = domain or domain_of(self, settings)
        self.storage = storage or Storage(self, "Storage", settings=settings)
        table, key = self.storage.table, self.storage.key
        self.origin_secret = origin_secret(self, key) if settings.waf else None
        self.failures = failure_queue(self, key, settings)
        self.bus = events.EventBus(
            Construct(self, "Events"),
            "Bus",
            # A name that can be known beforehand: rules are made elsewhere, and name it.
            event_bus_name=settings.service,
            description=f"Open Job Spec events of {settings.service}",
        )
        self._push = Construct(self, "Push")
        self.queues = (
            Queues(self._push, "Queues", key=key, settings=settings) if settings.push else None
        )
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
        )
        specs = {spec: self._function(spec) for spec in self._deployed()}
        self.functions = {spec.name: function for spec, function in specs.items()}
        others = [function for name, function in self.functions.items() if name != SETUP]
        self._setup_step = set_up_first(self, self.functions[SETUP], others, self.storage.secret)
        self.api = self._entry(specs, vpc_endpoints)
        self.url = self.api.url
        _call_every_minute(self, self.functions["sweep"], by_name("sweep").description)
        map_stream(self, table, self.functions["stream"], self.failures, settings)
        for spec in specs:
            if self.queues is not None and spec.consumes:
                self.queues.map(spec.consumes, self.functions[spec.name])
        if self.queues is not None:
            self.queues.told_by(self.functions[OUTCOMES])
        self.monitoring = Monitoring(
            self,
            "Monitoring",
            api=self.api,
            table=table,
            # Alarms look at what jobs depend on.
            functions={n: each for n, each in self.functions.items() if n != DASHBOARD},
            failures=self.failures,
            queues=self.queues,
            bus=self.bus,
            topics=alarm_topics,
            settings=settings,
        )
        if network is not None and network.endpoints:
            secrets = settings.authorizer == "keys" or settings.asks_for_origin
            endpoints(self, network, secrets=secrets, invokes=settings.push)
        self._declared: Declared | None = None
        self._rules = 0
        self._push_functions = list(settings.push_functions)
        self._egress_hosts = list(settings.egress_hosts)
        self.pushed_to = {}
        self._workers: list[FargateWorker] = []

    def _deployed(self) -> Sequence[FunctionSpec]:
        settings = self.settings
        return deployed(
            settings.authorizer,
            settings.entry,
            push=settings.push,
            dashboard=settings.web_dashboard,
        )

    def _entry(
        self,
        functions: Mapping[FunctionSpec, lambda_.Function],
        vpc_endpoints: Sequence[ec2.IVpcEndpoint],
    ) -> Entry:
        """What requests come through."""
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
        """The same function, made when the table has been looked at."""
        step = cast("lambda_.CfnFunction", function.node.default_child)
        step.add_resource_dependency(self._setup_step)
        return function

    def _refuse_twins(self) -> None:
        """Two deployments of one name would write each other's metrics, and fail when deployed."""
        place = Stack.of(self).environment
        for other in self.node.root.node.find_all():
            if (
                isinstance(other, OpenJobSpec)
                and other is not self
                and other.settings.stage == self.settings.stage
                and Stack.of(other).environment == place
            ):
                raise ValueError(
                    f"stage: {other.node.path} has the name {self.settings.stage} already"
                )

    # --- who may do what ----------------------------------------------------------------------

    def grant_produce(
        self, grantee: iam.IGrantable, *, queues: Sequence[str] | None = None
    ) -> Granted:
        """Let a role push jobs, and read, cancel and retry them (`jobs:write`, `jobs:read`).

        `authorizer=iam`: by a policy, for requests signed with SigV4. `authorizer=keys`: by a key
        in a secret of its own that the role may read; `queues` limits it (`*` at the end stands
        for any text). Raises ValueError for `authorizer=jwt`, where the issuer gives scopes, and
        for `queues` with `authorizer=iam`, as policies know paths and no queues.
        """
        return self._grant(grantee, "produce", _PRODUCE, queues)

    def grant_work(
        self, grantee: iam.IGrantable, *, queues: Sequence[str] | None = None
    ) -> Granted:
        """Let a role fetch jobs and report on them (`work`), as `grant_produce` does."""
        return self._grant(grantee, "work", _WORK, queues)

    def grant_read(
        self, grantee: iam.IGrantable, *, queues: Sequence[str] | None = None
    ) -> Granted:
        """Let a role read jobs, queues and all that operators see (`jobs:read`, `admin:read`), as
        `grant_produce` does.
        """
        return self._grant(grantee, "read", _READ, queues)

    def add_key(
        self,
        name: str,
        *,
        scopes: Sequence[str],
        queues: Sequence[str] | None = None,
        readers: Sequence[iam.IGrantable] = (),
    ) -> secretsmanager.ISecret:
        """A key of the API, in a secret of its own that `readers` may read. Jobs show `name` as
        their producer.

        It is revoked when it is no longer declared. To replace it, give it another `name`. Scopes
        and queues cannot be changed: another key takes its place in the secret. Raises ValueError
        unless `authorizer=keys`.
        """
        if self.settings.authorizer != "keys":
            raise ValueError(f"add_key: authorizer={self.settings.authorizer} knows no keys")
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
                    f"grant_{what}: with authorizer=jwt the issuer says who may do what; give the "
                    f"client the scopes {', '.join(scopes)} there"
                )
            case "iam" if queues is not None:
                raise ValueError(
                    f"grant_{what}: queues: a policy knows paths and no queues; take "
                    "authorizer=keys, or leave it out for all queues"
                )
            case "iam":
                return Granted(self.api.grant(grantee, scopes))
        node = getattr(grantee, "node", None)
        if node is None:
            raise ValueError(f"grant_{what}: takes a role, or what has one; or use add_key")
        name = f"{node.path.replace('/', '-')}-{what}"
        secret = self.add_key(name, scopes=scopes, queues=queues)
        return Granted(let_read(secret, grantee, self.storage), secret)

    # --- who works ----------------------------------------------------------------------------

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
        place: Place | None = None,
        command: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        stop_s: int = MOST_STOP_S,
    ) -> FargateWorker:
        """A service on Fargate whose tasks take jobs from these queues, and no others.

        The service grows while there are more than `jobs_per_task` jobs, waiting or running, for
        each task: as many as a task runs at once, or a small multiple. With `min_tasks=0` none runs
        while there is nothing to do, and the first job waits some three minutes for one. `cpu`
        (1024 is one core) and `memory_mb` must be a pair that Fargate has. `place`: cluster, VPC,
        Spot. The program finds the API in OJS_URL, its key in OJS_KEY (`authorizer=keys`; with
        `iam` it signs as its task role), its queues in OJS_QUEUES. It is told to stop by SIGTERM,
        and has `stop_s` seconds.

        Raises ValueError for what contradicts itself, and for `authorizer=jwt`.
        """
        if self.settings.authorizer == "jwt":
            raise ValueError("add_fargate_worker: with authorizer=jwt the issuer gives tokens")
        worker = FargateWorker(
            self,
            name,
            image=image,
            queues=queues,
            url=self.url,
            settings=self.settings,
            size=WorkerSize(min_tasks, max_tasks, jobs_per_task, cpu, memory_mb),
            place=place or Place(),
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
            self.grant_work(worker.task_role)
            worker.container.add_environment("OJS_AUTH", "iam")
            self.declared.role(
                f"worker {name}", worker.task_role.role_arn, scopes=_WORK, queues=worker.queues
            )
        warn_of_spot(worker, place or Place())
        self._workers.append(worker)
        self.functions["sweep"].add_environment("OJS_WORKER_GROUPS", groups_text(self._workers))
        return worker

    # --- what is declared ---------------------------------------------------------------------

    @property
    def declared(self) -> Declared:
        """What sets queues and the like as the app says; made when there is any."""
        if self._declared is None:
            function = self._set_up(self._function(DECLARING))
            caller = f"{self.settings.service}-app"
            self._declared = Declared(self, "Declared", function=function, caller=caller)
        return self._declared

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
        config: Mapping[str, object] | None = None,
    ) -> None:
        """A queue with this configuration; what is not named stays as it is, or at its default.

        `max_size`: jobs that it takes. `overflow_policy`: reject, block or drop_oldest.
        `concurrency`: jobs that run at a time. `rate_limit`: so many starts in an ISO 8601
        duration, `(100, "PT1M")`. `config`: any other field of a queue's configuration
        (docs/queues.md); None takes a field back. A queue that is no longer declared stays, with
        its jobs. Raises ValueError for a field that is there twice.
        """
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
        """A worker pool over these queues, by weight if `queues` has weights.

        `config`: any other field of a pool (docs/fair-scheduling.md). It is removed when it is no
        longer declared, unless workers are in it.
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
        """A job of this type, pushed again and again, as docs/cron.md says.

        `expression`: in five or six fields, an alias or an interval. `timezone`: an IANA name; UTC
        if not given. `config`: any other field. It ends when it is no longer declared; its jobs
        stay.
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

    def add_rate_limit(
        self,
        key: str,
        *,
        concurrency: int | None = None,
        rate: tuple[int, str] | None = None,
        config: Mapping[str, object] | None = None,
    ) -> None:
        """Limits for all jobs with this key, in place of those that the jobs bring.

        `rate`: so many starts in an ISO 8601 duration, `(100, "PT1M")`. `config`: any other field
        of an override (docs/rate-limits.md). It is taken back when it is no longer declared.
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

    # --- where jobs are pushed ----------------------------------------------------------------

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
        config: Mapping[str, object] | None = None,
    ) -> None:
        """Push the jobs of these queues to a Lambda function, its alias or its version.

        `concurrency`: jobs that run there at a time. `name`: of the delivery; the first queue's if
        not given. `timeout`: how long the function may take; what it is configured with if not
        given. `form`: of the event: direct, push or sqs. `config`: any other field of a delivery
        (docs/push.md). It is deleted when it is no longer declared; its jobs stay.

        The function may tell the queue of outcomes what became of an event, and nothing else.
        Raises ValueError for push=false, for a function in another account or region, for one whose
        role is not known, for one with destinations, retries or an event age of its own,
        and for a timeout that ends before the function's.
        """
        if self.queues is None:
            raise ValueError("add_worker: push=false in the settings: nothing would push")
        target = target_of(self, function)
        own = getattr(target.function, "timeout", None)
        if isinstance(target.function, lambda_.Function):
            own = own or _LAMBDA_TIMEOUT
        if timeout and own and timeout.to_milliseconds() < own.to_milliseconds():
            raise ValueError(
                f"timeout: {target.function.node.path} may run for {own.to_human_string()}: its "
                "job would be given to another run before"
            )
        timeout = timeout or own
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
            after=self._pushes_to(target),
        )

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

        `secret`: holds what pushes are signed with; it is read when the delivery is declared, and
        never in a template. The other arguments are those of `add_worker`. Raises ValueError for
        push=false.
        """
        if self.queues is None:
            raise ValueError("add_endpoint: push=false in the settings: nothing would push")
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
        """Set a variable of what checks deliveries; returns what sends jobs to their targets."""
        # What answers requests makes test calls.
        answering = "admin" if self.settings.entry == "http_api" else API
        knowing = [self.functions[each] for each in (answering, *PUSHERS)]
        for function in (*knowing, self.declared.function, *others):
            function.add_environment(variable, ",".join(dict.fromkeys(values)))
        return knowing

    def _pushes_to(self, target: Target) -> Sequence[Construct]:
        """What lets jobs be pushed to this target; a function has it once, for all deliveries."""
        place = target.path
        if place in self.pushed_to:
            return self.pushed_to[place]
        for other in self.node.root.node.find_all():
            if isinstance(other, OpenJobSpec) and place in other.pushed_to:
                raise ValueError(
                    f"function: {target.function.node.path} tells {other.node.path} already what "
                    "becomes of its events; a function tells one deployment"
                )
        self._push_functions.append(target.function.function_arn)
        knowing = self._tell_pushers(FUNCTIONS_VARIABLE, self._push_functions)
        self.pushed_to[place] = prepare(
            # Of the same name whatever else is added.
            Construct(self._push, place.replace("/", " ")),
            target,
            knowing,
            settles=self.functions[OUTCOMES],
            key=self.storage.key,
            settings=self.settings,
        )
        return self.pushed_to[place]

    # --- what comes from elsewhere ------------------------------------------------------------

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
        """Make a job of each message of an SQS queue, at most one of each.

        The job has this type, is in queue `to`, and its one argument is the message's body: what
        its JSON says, or with `body="text"` the text itself. Without `job_type` the body is a whole
        job, as `POST /ojs/v1/jobs` takes it. A message goes when its job is stored; one that is
        none goes back, and in the end to the dead-letter queue that `queue` has. `batch_size`: up
        to so many messages for each call, 1 to 100. `max_concurrency`: so many calls at a time, 2
        or more. `alarm_age_s`: an alarm is raised when a message has waited for so many seconds, 60
        or more; another one when there is anything in the dead-letter queue, if it is of this app.
        The function it makes; raises ValueError for what contradicts itself.
        """
        check_bridge(queue, job_type, to, body, batch_size, alarm_age_s)
        bridges = self.node.try_find_child("Bridges") or Construct(self, "Bridges")
        name = queue.node.path.replace("/", "-")
        if bridges.node.try_find_child(name):
            raise ValueError(f"queue: {queue.node.path} has a bridge already")
        function = self._set_up(self._function(BRIDGING, cast("Construct", bridges), name))
        if job_type is not None:
            function.add_environment("OJS_BRIDGE_TYPE", job_type)
        function.add_environment("OJS_BRIDGE_QUEUE", to)
        function.add_environment("OJS_BRIDGE_BODY", body)
        map_queue(function, queue, batch_size=batch_size, max_concurrency=max_concurrency)
        self.monitoring.watch_bridge(name, queue, alarm_age_s)
        return function

    # --- what happens -------------------------------------------------------------------------

    def on_event(self, pattern: str, target: events.IRuleTarget) -> events.Rule:
        """Hand events of this type to a target: `dead_letter.added`, or `job.*` for all of a kind.

        Types that are not on the event bus anyway are sent there from now on, for one dollar a
        million; how many events that are is up to the jobs.
        """
        if not re.fullmatch(EVENT_PATTERN, pattern):
            raise ValueError(f"pattern: {pattern!r} is none: job.completed, job.* or *")
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

    def metric_oldest_job(
        self, queue: str | None = None, *, period: Duration | None = None
    ) -> cloudwatch.Metric:
        """How long the job that waits longest has been in line (s); of all queues without one.

        Raises ValueError for a queue where `queue_metrics=off`: there is no such metric.
        """
        return self._gauge(OLDEST_AGE, queue, period)

    def metric_dead_letters(
        self, queue: str | None = None, *, period: Duration | None = None
    ) -> cloudwatch.Metric:
        """How many dead letters there are, as `metric_oldest_job`."""
        return self._gauge(DEAD_LETTERS, queue, period)

    def _gauge(self, name: str, queue: str | None, period: Duration | None) -> cloudwatch.Metric:
        if queue is not None and self.settings.queue_metrics == "off":
            raise ValueError("queue: queue_metrics=off, so no queue has metrics of its own")
        if queue is not None and queue not in self._metric_queues:
            self._metric_queues.append(queue)
            names = ",".join(sorted(self._metric_queues))
            self.functions["sweep"].add_environment("OJS_METRIC_QUEUES", names)
        dimensions = {} if queue is None else {"queue": queue}
        return own_metric(self.settings, name, period=period or Duration.minutes(1), **dimensions)


def _host(url: str) -> str:
    """The host of an endpoint, also of one that is known only at deployment."""
    if Token.is_unresolved(url):
        return Fn.select(0, Fn.split(":", Fn.select(2, Fn.split("/", url))))
    return (urlsplit(url).hostname or "").rstrip(".")


def _covers(wider: str, pattern: str) -> bool:
    return pattern == wider or (wider.endswith("*") and pattern.startswith(wider[:-1]))


def _call_every_minute(scope: Construct, function: lambda_.Function, description: str) -> None:
    """Have EventBridge call the sweep.

    A run that failed is not repeated: the next one, a minute later, takes up what it left. Neither
    EventBridge nor Lambda's own queue for asynchronous calls may pile up old runs.
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
