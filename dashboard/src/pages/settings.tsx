import { call, can, get, type Json, limited } from "../api";
import { duration } from "../format";
import { usePoll } from "../live";
import { Act, ask, Card, Empty, Facts, Page, State, tell, Text, Time, Trouble, When } from "../ui";
import { ConfigForm } from "./config";

export function Settings() {
  if (!can("admin:read") || limited())
    return <Page title="Settings"><Card><Empty title="Your key may not read this.">It takes admin:read, for all queues.</Empty></Card></Page>;
  return <All />;
}

function All() {
  const config = usePoll((signal) => get("/admin/system/config", signal), 0, []);
  const health = usePoll((signal) => get("/health", signal), 30_000, []);
  const maintenance = usePoll((signal) => get("/admin/system/maintenance", signal), 30_000, []);
  const middleware = usePoll((signal) => get("/middleware", signal), 0, []);
  const begin = () => ask({
    title: "Begin maintenance?", button: "Begin it", danger: true,
    text: "No job is handed out until you end it. Pushes are taken, and running jobs go on.",
    questions: [
      { name: "reason", label: "Why", help: "Others are told." },
      { name: "estimated_duration", label: "For about", help: "Such as 30m; it does not end by itself." },
    ],
    act: async ({ reason, estimated_duration }) => {
      await call("POST", "/admin/system/maintenance", { enabled: true, ...(reason && { reason }), ...(estimated_duration && { estimated_duration }) });
      tell("Maintenance has begun.");
      maintenance.again();
    },
  });
  const end = async () => {
    await call("POST", "/admin/system/maintenance", { enabled: false });
    tell("Jobs are handed out again.");
    maintenance.again();
  };
  return (
    <Page title="Settings" about="What the deployment was made with is read only here: change it in your CDK app.">
      <div class="cards">
        <Card title="Deployment">
          <Trouble read={config} />
          <When read={config}>{(data) => <Facts of={[
            ["Name", <Text>{data.service}</Text>], ["Version", data.version], ["Callers are known by", data.authorizer],
            ["Queues", data.strict_queues ? "only those that an operator made" : "made by their first job"],
            ["Event bus", data.event_bus ? "yes" : "no"], ["On the bus, too", data.bus_types.join(", ")], ["Time zone rules", data.time_zone_data],
          ]} />}</When>
        </Card>
        <Card title="Health">
          <Trouble read={health} />
          <When read={health}>{(data) => <Facts of={[
            ["Server", <State of={data.status} />], ["Table", <><State of={data.backend.status} /> {data.backend.latency_ms !== undefined && `${data.backend.latency_ms} ms`}</>],
            ["Up for", duration(1_000 * data.uptime_seconds)], ["Specification", data.version],
          ]} />}</When>
        </Card>
        <Card title="Maintenance" actions={maintenance.data && (maintenance.data.enabled ? <Act on={end}>End it</Act> : <Act danger on={begin}>Begin …</Act>)}>
          <Trouble read={maintenance} />
          <When read={maintenance}>{(data) => data.enabled ? <Facts of={[["Since", <Time at={data.started_at} />], ["Why", <Text>{data.reason}</Text>], ["Until about", <Time at={data.ends_at} />]]} /> : <p class="good">Off: jobs are handed out.</p>}</When>
        </Card>
        <Card title="Middleware">
          <Trouble read={middleware} />
          <When read={middleware}>{(data) => data.enqueue.length ? <ol>{data.enqueue.map((each: Json) => <li key={each.order}><code><bdi>{each.name}</bdi></code></li>)}</ol> : <p class="dim">None: jobs are stored as they come.</p>}</When>
        </Card>
      </div>
      <ConfigForm path="/queues/_default/config" title="Policy for new queues" />
    </Page>
  );
}
