import { call, can, get, type Json, limited } from "../api";
import { duration } from "../format";
import { usePoll } from "../live";
import { Act, ask, Card, Empty, Facts, Page, State, tell, Text, Time, Trouble, When } from "../ui";
import { ConfigForm } from "./config";
import { condition } from "./overview";

export function Settings() {
  if (!can("admin:read") || limited())
    return <Page title="Settings"><Card><Empty title="Missing scope admin:read">This page requires a key with this scope for all queues.</Empty></Card></Page>;
  return <All />;
}

function All() {
  const config = usePoll((signal) => get("/admin/system/config", signal), [], { everyMs: 0 });
  const health = usePoll((signal) => get("/health", signal), [], { everyMs: 30_000, about: "" });
  const maintenance = usePoll((signal) => get("/admin/system/maintenance", signal), [], { everyMs: 30_000, about: "" });
  const middleware = usePoll((signal) => get("/middleware", signal), [], { everyMs: 0 });
  const begin = () => ask({
    title: "Enable maintenance mode?", button: "Enable maintenance mode", danger: true,
    text: "The server dispatches no jobs until you disable maintenance mode. It accepts new jobs, and active jobs continue.",
    questions: [
      { name: "reason", label: "Reason", help: "Shown to all operators." },
      { name: "estimated_duration", label: "Estimated duration", help: "For example 30m. Maintenance mode does not end automatically." },
    ],
    act: async ({ reason, estimated_duration }) => {
      await call("POST", "/admin/system/maintenance", { enabled: true, ...(reason && { reason }), ...(estimated_duration && { estimated_duration }) });
      tell("Maintenance mode enabled");
      maintenance.again();
    },
  });
  const end = async () => {
    await call("POST", "/admin/system/maintenance", { enabled: false });
    tell("Maintenance mode disabled");
    maintenance.again();
  };
  return (
    <Page title="Settings" about="The settings of the deployment are read-only here. Change them in your CDK app.">
      <div class="cards">
        <Card title="Deployment">
          <Trouble read={config} />
          <When read={config}>{(data) => <Facts of={[
            ["Name", <Text>{data.service}</Text>], ["Version", data.version], ["Authentication", data.authorizer],
            ["Queues", data.strict_queues ? "Created by operators only" : "Created by their first job"],
            ["Event bus", data.event_bus ? "Yes" : "No"], ["Additional events on the bus", data.bus_types.join(", ")], ["Time zone rules", data.time_zone_data],
          ]} />}</When>
        </Card>
        <Card title="Health">
          <Trouble read={health} />
          <When read={health}>{(data) => <Facts of={[
            ["Server", <State of={condition(data.status)} />], ["DynamoDB", <><State of={condition(data.backend.status)} /> {data.backend.latency_ms !== undefined && `${data.backend.latency_ms} ms`}</>],
            ["Uptime", duration(1_000 * data.uptime_seconds)], ["Specification", data.version],
          ]} />}</When>
        </Card>
        <Card title="Maintenance mode" actions={maintenance.data && (maintenance.data.enabled ? <Act on={end}>Disable</Act> : <Act danger on={begin}>Enable</Act>)}>
          <Trouble read={maintenance} />
          <When read={maintenance}>{(data) => data.enabled ? <Facts of={[["Enabled", <Time at={data.started_at} />], ["Reason", <Text>{data.reason}</Text>], ["Estimated end", <Time at={data.ends_at} />]]} /> : <p class="good">Disabled</p>}</When>
        </Card>
        <Card title="Middleware">
          <Trouble read={middleware} />
          <When read={middleware}>{(data) => data.enqueue.length ? <ol>{data.enqueue.map((each: Json) => <li key={each.order}><code><bdi>{each.name}</bdi></code></li>)}</ol> : <p class="dim">No middleware</p>}</When>
        </Card>
      </div>
      <ConfigForm path="/queues/_default/config" title="Defaults for new queues" />
    </Page>
  );
}
