import { ApiError, call, get, type Json, query, save, seg } from "../api";
import { duration, number, percent } from "../format";
import { usePoll } from "../live";
import { Act, ask, Card, Empty, Facts, Meter, Page, QueueLink, State, Table, tell, Trouble, When } from "../ui";
import { whole } from "./queues";

const STRATEGIES: [string, string][] = [
  ["round-robin", "round-robin: equal shares"], ["weighted", "weighted: by weights"],
  ["strict", "strict: in the order of the list"], ["least-loaded", "least-loaded: the worker with the fewest jobs"],
];

/** Parses one queue per line: a name, or a name and a weight such as `mail=3`. */
function queuesOf(text: string): Json {
  const rows = text.split("\n").map((line) => line.split("=").map((part) => part.trim())).filter(([name]) => name);
  if (!rows.some(([, weight]) => weight)) return rows.map(([name]) => name);
  return Object.fromEntries(rows.map(([name, weight]) => {
    if (weight && !/^\d+$/.test(weight)) throw new ApiError(0, "invalid weight", "", { field: "queues", reason: `weight must be a whole number, but is ${weight}` });
    return [name, { weight: Number(weight ?? 1) }];
  }));
}

export function Pools() {
  const read = usePoll((signal) => get("/admin/pools?limit=100", signal), []);
  const edit = (pool?: Json) => () => ask({
    title: pool ? `Edit pool ${pool.name}` : "Create worker pool", button: pool ? "Save" : "Create",
    text: pool && "These values replace the configured values.",
    questions: [
      ...(pool ? [] : [{ name: "name", label: "Name" }]),
      { name: "queues", label: "Queues", kind: "list", value: pool?.queues.map((name: string) => (pool.weights?.[name] ? `${name}=${pool.weights[name]}` : name)).join("\n"), help: "One per line, in order; with a weight: mail=3." },
      { name: "strategy", label: "Strategy", kind: "choice", choices: STRATEGIES, value: pool?.strategy ?? "round-robin" },
      { name: "concurrency", label: "Concurrency limit", kind: "number", value: pool?.concurrency === undefined ? "" : String(pool.concurrency), help: "Empty: unlimited." },
      { name: "isolated", label: "Isolated: only workers of this pool get jobs of its queues", kind: "check", value: pool?.isolated ? "true" : "" },
    ],
    act: async ({ name, queues, strategy, concurrency, isolated }) => {
      await save("PUT", `/admin/pools/${seg(pool?.name ?? name)}`, {
        queues: queuesOf(queues!), strategy, isolated: Boolean(isolated),
        ...(concurrency && { concurrency: whole(concurrency, "concurrency") }),
        ...(pool?.starvation_prevention && { starvation_prevention: pool.starvation_prevention }),
        ...(pool?.tenant_fairness && { tenant_fairness: pool.tenant_fairness }),
      }, pool);
      tell(`Pool ${pool?.name ?? name} saved`);
      read.again();
    },
  });
  const workers = Object.fromEntries((read.data?.items ?? []).map((pool: Json) => [pool.name, pool.active_workers ?? 0]));
  return (
    <Page title="Worker pools" read={read} about="How workers are shared between queues: target shares, and actual shares of the last minute." actions={<Act on={edit()}>Create pool</Act>}>
      <When read={read}>{(data) => <>
        {!data.items.length && <Card><Empty title="No worker pools">Each worker fetches from the queues in its own list.</Empty></Card>}
        {data.items.map((pool: Json) => (
          <Card key={pool.name} title={<bdi>{pool.name}</bdi>} actions={<>
            <Act small of={pool.name} on={edit(pool)}>Edit</Act>
            <Act small danger of={pool.name} on={() => ask({ title: `Delete pool ${pool.name}?`, text: "Its queues and jobs are not deleted. This can't be undone.", button: "Delete pool", danger: true, act: async () => { await call("DELETE", `/admin/pools/${seg(pool.name)}`); tell(`Pool ${pool.name} deleted`); read.again(); } })}>Delete</Act>
          </>}>
            <Facts of={[
              ["Strategy", pool.strategy], ["Workers", number(pool.active_workers ?? 0)],
              ["Active", pool.concurrency ? <Meter value={pool.active_jobs} of={pool.concurrency} label="Active" /> : number(pool.active_jobs ?? 0)],
              ["Isolated", pool.isolated ? "Yes" : "No"],
            ]} />
            <Shares pool={pool.name} workers={workers} />
          </Card>
        ))}
      </>}</When>
      <Card title="All queues"><Shares workers={workers} /></Card>
    </Page>
  );
}

/** The share of each queue. `workers` has the number of workers of each pool: without any, no queue is starved. */
function Shares({ pool, workers }: { pool?: string; workers: Record<string, number> }) {
  const read = usePoll((signal) => get(`/admin/scheduling/stats${query({ pool })}`, signal), [pool]);
  return (
    <>
      <Trouble read={read} />
      <When read={read}>{(data) => {
        const rows: Json[] = data.queues;
        const none = <span class="dim">–</span>;
        const weights = rows.reduce((sum, row) => sum + row.weight, 0) || 1;
        const dispatched = rows.some((row) => row.dispatch_count_1m);
        return <Table rows={rows} part={data.pagination.has_more} label={pool ? `Shares of ${pool}` : "Shares of all queues"} id={(row) => row.name} empty={<p class="dim">No queues</p>} columns={[
          { name: "Queue", cell: (row) => <><QueueLink name={row.name} /> {row.starved && (workers[row.pool ?? pool] ?? 1) > 0 && <State of="starved" />}</>, by: (row) => row.name },
          ...(pool ? [{ name: "Target share", right: true, cell: (row: Json) => percent(row.weight / weights), by: (row: Json) => row.weight }] : []),
          { name: "Actual share", right: true, cell: (row) => (dispatched ? percent(row.dispatch_ratio_1m) : none), by: (row) => row.dispatch_ratio_1m },
          { name: "Dispatched/min", right: true, cell: (row) => number(row.dispatch_count_1m), by: (row) => row.dispatch_count_1m },
          { name: "Active", right: true, cell: (row) => number(row.active_jobs), by: (row) => row.active_jobs },
          { name: "Avg. wait", right: true, cell: (row) => (row.dispatch_count_1m ? duration(row.avg_wait_ms) : none), by: (row) => row.avg_wait_ms },
        ]} />;
      }}</When>
    </>
  );
}
