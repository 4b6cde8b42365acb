import { ApiError, call, get, type Json, query, seg } from "../api";
import { number, percent } from "../format";
import { usePoll } from "../live";
import { Act, ask, Card, Empty, Facts, Meter, Page, QueueLink, State, Table, tell, Trouble, When } from "../ui";
import { whole } from "./queues";

const STRATEGIES: [string, string][] = [
  ["round-robin", "round-robin: each in turn"], ["weighted", "weighted: by weights"],
  ["strict", "strict: in order"], ["least-loaded", "least-loaded: the worker with the fewest jobs"],
];

/** `mail=3` a line, or names alone. */
function queuesOf(text: string): Json {
  const rows = text.split("\n").map((line) => line.split("=").map((part) => part.trim())).filter(([name]) => name);
  if (!rows.some(([, weight]) => weight)) return rows.map(([name]) => name);
  return Object.fromEntries(rows.map(([name, weight]) => {
    if (weight && !/^\d+$/.test(weight)) throw new ApiError(0, "no weight", "", { field: "queues", reason: `${weight} is no weight` });
    return [name, { weight: Number(weight ?? 1) }];
  }));
}

export function Pools() {
  const read = usePoll((signal) => get("/admin/pools?limit=100", signal), 20_000, []);
  const edit = (pool?: Json) => () => ask({
    title: pool ? `Change ${pool.name}` : "Make a worker pool", button: pool ? "Change it" : "Make it",
    text: pool && "What is said here takes the place of what is configured.",
    questions: [
      ...(pool ? [] : [{ name: "name", label: "Name" }]),
      { name: "queues", label: "Queues", kind: "list", value: pool?.queues.map((name: string) => (pool.weights?.[name] ? `${name}=${pool.weights[name]}` : name)).join("\n"), help: "One a line, in order; with weights: mail=3." },
      { name: "strategy", label: "Strategy", kind: "choice", choices: STRATEGIES, value: pool?.strategy ?? "round-robin" },
      { name: "concurrency", label: "Most running at a time", kind: "number", value: pool?.concurrency === undefined ? "" : String(pool.concurrency), help: "Empty: no limit." },
      { name: "isolated", label: "Others get nothing of its queues", kind: "check", value: pool?.isolated ? "true" : "" },
    ],
    act: async ({ name, queues, strategy, concurrency, isolated }) => {
      await call("PUT", `/admin/pools/${seg(pool?.name ?? name)}`, {
        queues: queuesOf(queues!), strategy, isolated: Boolean(isolated),
        ...(concurrency && { concurrency: whole(concurrency, "concurrency") }),
        ...(pool?.starvation_prevention && { starvation_prevention: pool.starvation_prevention }),
        ...(pool?.tenant_fairness && { tenant_fairness: pool.tenant_fairness }),
      });
      tell("Saved.");
      read.again();
    },
  });
  return (
    <Page title="Pools and fairness" read={read} about="Who is served, and in what order: what is configured, and what queues were given in the last minute." actions={<Act on={edit()}>Make a pool …</Act>}>
      <When read={read}>{(data) => <>
        {!data.items.length && <Card><Empty title="No worker pools.">Without one each worker fetches from the queues that it names.</Empty></Card>}
        {data.items.map((pool: Json) => (
          <Card key={pool.name} title={<bdi>{pool.name}</bdi>} actions={<>
            <Act small of={pool.name} on={edit(pool)}>Change …</Act>
            <Act small danger of={pool.name} on={() => ask({ title: `Remove the pool ${pool.name}?`, text: "Its queues and jobs stay.", button: "Remove it", danger: true, act: async () => { await call("DELETE", `/admin/pools/${seg(pool.name)}`); tell("Removed."); read.again(); } })}>Remove …</Act>
          </>}>
            <Facts of={[
              ["Strategy", pool.strategy], ["Workers", number(pool.active_workers ?? 0)],
              ["Running", pool.concurrency ? <Meter value={pool.active_jobs} of={pool.concurrency} label="Running" /> : number(pool.active_jobs ?? 0)],
              ["Isolated", pool.isolated ? "yes" : "no"],
            ]} />
            <Shares pool={pool.name} />
          </Card>
        ))}
      </>}</When>
      <Card title="All queues"><Shares /></Card>
    </Page>
  );
}

function Shares({ pool }: { pool?: string }) {
  const read = usePoll((signal) => get(`/admin/scheduling/stats${query({ pool })}`, signal), 20_000, [pool]);
  return (
    <>
      <Trouble read={read} />
      <When read={read}>{(data) => {
        const rows: Json[] = data.queues;
        const weights = rows.reduce((sum, row) => sum + row.weight, 0) || 1;
        return <Table rows={rows} part={data.pagination.has_more} label={pool ? `Shares of ${pool}` : "Shares of all queues"} id={(row) => row.name} empty={<p class="dim">No queues.</p>} columns={[
          { name: "Queue", cell: (row) => <><QueueLink name={row.name} /> {row.starved && <State of="starved" />}</>, by: (row) => row.name },
          ...(pool ? [{ name: "Configured", right: true, cell: (row: Json) => percent(row.weight / weights), by: (row: Json) => row.weight }] : []),
          { name: "Given", right: true, cell: (row) => percent(row.dispatch_ratio_1m), by: (row) => row.dispatch_ratio_1m },
          { name: "Started in a minute", right: true, cell: (row) => number(row.dispatch_count_1m), by: (row) => row.dispatch_count_1m },
          { name: "Running", right: true, cell: (row) => number(row.active_jobs), by: (row) => row.active_jobs },
          { name: "Wait", right: true, wide: true, cell: (row) => `${number(row.avg_wait_ms)} ms`, by: (row) => row.avg_wait_ms },
        ]} />;
      }}</When>
    </>
  );
}
