import { get, type Json, parsedLimit, save, seg } from "../api";
import { number, written } from "../format";
import { usePoll } from "../live";
import { Act, ask, Card, Empty, Meter, Page, Pager, State, Table, tell, Text, Time, When } from "../ui";
import { whole } from "./queues";

const LIMITS: [string, string][] = [["max_concurrency", "Concurrency limit"], ["max_queue_depth", "Max. depth"], ["max_scheduled", "Max. scheduled jobs"], ["max_queues", "Max. queues"]];

export function Tenants() {
  const read = usePoll((signal) => get("/admin/tenants?limit=100", signal), [], { everyMs: 60_000 });
  const absent = read.error?.unsupported || read.error?.status === 404;
  const edit = (old?: Json) => () => ask({
    title: old ? `Edit tenant ${old.id}` : "Create tenant", button: old ? "Save" : "Create",
    questions: [
      ...(old ? [] : [{ name: "id", label: "ID", help: "Letters, digits, and . _ : - between them." }]),
      { name: "name", label: "Name", value: old?.name },
      { name: "state", label: "State", kind: "choice" as const, value: old?.state ?? "active", choices: [["active", "active"], ["suspended", "suspended: no jobs are enqueued or fetched"]] },
      ...LIMITS.map(([name, label]) => ({ name, label, kind: "number" as const, value: old?.limits[name] === undefined ? "" : String(old.limits[name]), help: "Empty: unlimited." })),
      { name: "max_enqueue_rate", label: "Enqueue rate", value: old?.limits.max_enqueue_rate ? `${old.limits.max_enqueue_rate.limit} per ${written(old.limits.max_enqueue_rate.period)}` : "", help: "Jobs per period, for example 1000 per 1m. Empty: unlimited." },
      { name: "priority_boost", label: "Priority boost", kind: "number", value: String(old?.priority_boost ?? 0), help: "Added to the priority of each job." },
    ],
    act: async (answers) => {
      const limits: Record<string, Json> = Object.fromEntries(LIMITS.filter(([name]) => answers[name]).map(([name]) => [name, whole(answers[name]!, name)]));
      if (answers.max_enqueue_rate) limits.max_enqueue_rate = parsedLimit(answers.max_enqueue_rate, "max_enqueue_rate");
      const id = old?.id ?? answers.id;
      await save("PUT", `/admin/tenants/${seg(id)}`, { ...(answers.name && { name: answers.name }), state: answers.state, limits, priority_boost: whole(answers.priority_boost || "0", "priority_boost") }, old);
      tell(`Tenant ${id} saved`);
      read.again();
    },
  });
  const remove = (each: Json) => () => ask({
    title: `Delete tenant ${each.id}?`, button: "Delete tenant", danger: true, text: "Its limits are deleted. A tenant with jobs or active keys can't be deleted. This can't be undone.",
    act: async () => {
      await save("DELETE", `/admin/tenants/${seg(each.id)}`, undefined, each);
      tell(`Tenant ${each.id} deleted`);
      read.again();
    },
  });
  const used = (now: number, of: number | undefined, label: string) => (of ? <Meter value={now} of={of} label={label} /> : number(now));
  return (
    <Page title="Tenants" read={absent ? undefined : read} about="Tenants with separate queues, their limits, and their jobs." actions={!absent && <Act on={edit()}>Create tenant</Act>}>
      <Card>
        {absent ? <Empty title="This server does not support tenants" /> : <When read={read}>{(data) => <>
          <Table rows={data.items as Json[]} label="Tenants" part={data.pagination.has_more} id={(each) => each.id} empty={<Empty title="No tenants">All queues belong to the default tenant.</Empty>} columns={[
            { name: "Tenant", cell: (each) => <Text>{each.id}</Text>, by: (each) => each.id },
            { name: "Name", cell: (each) => <Text>{each.name}</Text>, by: (each) => each.name ?? "" },
            { name: "State", cell: (each) => <State of={each.state} />, by: (each) => each.state },
            { name: "Available", right: true, cell: (each) => used(each.stats.jobs.available, each.limits.max_queue_depth, "Available"), by: (each) => each.stats.jobs.available },
            { name: "Active", right: true, cell: (each) => used(each.stats.jobs.active, each.limits.max_concurrency, "Active"), by: (each) => each.stats.jobs.active },
            { name: "Scheduled", right: true, cell: (each) => used(each.stats.jobs.scheduled, each.limits.max_scheduled, "Scheduled"), by: (each) => each.stats.jobs.scheduled },
            { name: "Enqueue rate", cell: (each) => each.limits.max_enqueue_rate ? `${number(each.limits.max_enqueue_rate.limit)} per ${written(each.limits.max_enqueue_rate.period)}` : <span class="dim">no limit</span> },
            { name: "Created", cell: (each) => <Time at={each.created_at} />, by: (each) => each.created_at },
            { name: "", cell: (each) => <span class="row"><Act small of={each.id} on={edit(each)}>Edit</Act><Act small danger of={each.id} on={remove(each)}>Delete</Act></span> },
          ]} />
          <Pager shown={data.items.length} total={data.total} more={false} one="tenant" order=", by ID" on={() => {}} />
        </>}</When>}
      </Card>
    </Page>
  );
}
