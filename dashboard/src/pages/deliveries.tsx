import { call, get, type Json, seg } from "../api";
import { number } from "../format";
import { usePoll } from "../live";
import { Act, ask, Card, Empty, JsonCard, Page, State, Table, tell, Text, Time, When } from "../ui";
import { useState } from "preact/hooks";

// What has columns of its own; statistics that an answer has beside it are shown as they are.
const list = (value: Json) => (Array.isArray(value) ? value.join(", ") : value === undefined || value === null ? "" : String(value));

export function Deliveries() {
  const read = usePoll((signal) => get("/admin/deliveries", signal), 15_000, []);
  const [open, show] = useState<string | null>(null);
  const absent = read.error?.notOffered || read.error?.status === 404;
  const items: Json[] = read.data?.items ?? read.data?.deliveries ?? [];
  const opened = items.find((each) => each.name === open);
  const does = (each: Json, act: string) => async () => {
    await call("POST", `/admin/deliveries/${seg(each.name)}/${act}`);
    tell(`${each.name}: ${act}d.`);
    read.again();
  };
  return (
    <Page title="Deliveries" read={absent ? undefined : read} about="Jobs that are taken to functions and endpoints, without a worker that asks for them.">
      <Card>
        {absent ? (
          <Empty title="Not offered by this server."><p>Jobs are fetched by workers here. {read.error?.hint}</p></Empty>
        ) : (
          <When read={read}>{() => <Table rows={items} label="Deliveries" id={(each) => each.name} empty={<Empty title="No deliveries.">Make one with the library, or in your CDK app.</Empty>} columns={[
            { name: "Name", cell: (each) => <button type="button" class="small" aria-expanded={open === each.name} onClick={() => show(open === each.name ? null : each.name)}><bdi>{each.name}</bdi></button>, by: (each) => each.name },
            { name: "State", cell: (each) => <State of={each.disabled ? "disabled" : each.paused ? "paused" : each.state ?? "active"} /> },
            { name: "Target", cell: (each) => <Text>{typeof each.target === "object" ? JSON.stringify(each.target) : each.target}</Text> },
            { name: "Queues", cell: (each) => <Text>{list(each.queues)}</Text> },
            { name: "Types", wide: true, cell: (each) => <Text>{list(each.job_types)}</Text> },
            { name: "At a time", right: true, cell: (each) => each.concurrency === undefined ? "–" : number(each.concurrency) },
            { name: "Time-out", right: true, wide: true, cell: (each) => each.timeout_ms === undefined ? "–" : `${number(each.timeout_ms)} ms` },
            { name: "Changed", wide: true, cell: (each) => <Time at={each.updated_at ?? each.created_at} /> },
            { name: "", cell: (each) => <span class="row">
              <Act small of={each.name} on={does(each, each.paused ? "resume" : "pause")}>{each.paused ? "Resume" : "Pause"}</Act>
              <Act small danger of={each.name} on={() => ask({ title: `Delete ${each.name}?`, text: "Its jobs stay in their queues and wait for workers.", button: "Delete it", danger: true, act: async () => { await call("DELETE", `/admin/deliveries/${seg(each.name)}`); tell("Deleted."); read.again(); } })}>Delete …</Act>
            </span> },
          ]} />}</When>
        )}
      </Card>
      {opened && <JsonCard title={opened.name} value={opened} />}
    </Page>
  );
}
