import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, call, can, get, type Json, limited, query, seg } from "../api";
import { duration, label, number, plural, written } from "../format";
import { usePoll } from "../live";
import { go, refine, useRoute } from "../route";
import { Act, ask, Card, Empty, Facts, Link, Menu, Meter, Count, Page, Pager, QueueLink, Spark, State, Table, tell, Text, Time, Trouble, When, type Column } from "../ui";
import { History } from "./overview";
import { ConfigForm } from "./config";
import { enqueue } from "./jobs";

const STATES = ["scheduled", "available", "pending", "active", "retryable"] as const;
const depth = (queue: Json) => STATES.reduce((sum, state) => sum + (queue.counts?.[state] ?? 0), 0);

/** Depths by queue since the page was opened: sparklines without more requests. */
const seen = new Map<string, number[]>();

function note(queues: Json[]): void {
  for (const queue of queues) {
    const values = [...(seen.get(queue.name) ?? []), depth(queue)].slice(-40);
    seen.set(queue.name, values);
  }
}

const COLUMNS: Column<Json>[] = [
  { name: "Queue", order: "name", cell: (q) => <><QueueLink name={q.name} /> {q.state !== "active" && <State of={q.state} />}</> },
  { name: "Available", order: "available", right: true, cell: (q) => number(q.counts.available) },
  { name: "Active", order: "active", right: true, cell: (q) => q.configuration.concurrency ? <Meter value={q.counts.active} of={q.configuration.concurrency} label="Active" /> : number(q.counts.active) },
  { name: "Scheduled", order: "later", right: true, cell: (q) => number(q.counts.scheduled + q.counts.retryable) },
  { name: "Depth", order: "depth", right: true, cell: (q) => q.configuration.max_size ? <Meter value={depth(q)} of={q.configuration.max_size} label="Depth" /> : number(depth(q)) },
  { name: "Oldest available", order: "oldest", right: true, cell: (q) => <Time at={q.oldest_available_at} /> },
  { name: "Completed/min", order: "processed", right: true, cell: (q) => q.throughput.processed_per_minute },
  { name: "Discarded/min", order: "failed", right: true, cell: (q) => q.throughput.failed_per_minute },
  { name: "Rate limit", cell: (q) => q.configuration.rate_limit ? `${q.configuration.rate_limit.limit} per ${written(q.configuration.rate_limit.period)}` : <span class="dim">–</span> },
  { name: "Lanes", right: true, cell: (q) => q.configuration.lanes },
  { name: "Trend", cell: (q) => { const v = seen.get(q.name) ?? []; return v.length > 1 ? <Spark values={v} label={`Depth of ${q.name} since the page was opened: from ${v[0]} to ${v.at(-1)}`} /> : <span class="dim">–</span>; } },
];

export function Queues() {
  const only = limited();
  const sort = useRoute().query.get("sort") ?? "name";
  const [pages, setPages] = useState(1);
  const [wanted, want] = useState("");
  useEffect(() => setPages(1), [sort]);
  const read = usePoll(async (signal) => {
    const items: Json[] = [];
    let cursor: string | undefined;
    let total: number | undefined;
    let more = false;
    for (let page = 0; page < pages; page++) {
      const answer = await get(`/admin/queues${query({ cursor, sort: sort === "name" ? "" : sort })}`, signal);
      items.push(...answer.items);
      cursor = answer.pagination.next_cursor;
      if (!answer.pagination.total_unknown) total = answer.total ?? total;
      more = Boolean(cursor);
      if (!more) break;
    }
    note(items);
    return { items, total, more };
  }, [pages, sort, Boolean(only)], { everyMs: only ? 0 : 20_000 * pages });
  const open = (event: SubmitEvent) => {
    event.preventDefault();
    if (wanted) go(`/queues/${seg(wanted)}`);
  };
  const create = () => ask({
    title: "Create queue", button: "Create",
    text: "A queue is also created by its first job. Create it here to change its settings first.",
    questions: [
      { name: "name", label: "Name", help: "Lower-case letters and digits, with . - _ between them." },
      { name: "max_size", label: "Max. jobs (max_size)", kind: "number", help: "Empty: unlimited." },
      { name: "concurrency", label: "Concurrency limit (concurrency)", kind: "number", help: "Empty: unlimited." },
    ],
    act: async ({ name, max_size, concurrency }) => {
      await call("POST", "/queues", { name, ...(max_size && { max_size: whole(max_size, "max_size") }), ...(concurrency && { concurrency: whole(concurrency, "concurrency") }) });
      tell(`Queue ${name} created`);
      go(`/queues/${seg(name!)}`);
    },
  });
  const shown = (read.data?.items ?? []).filter((queue) => queue.name.includes(wanted));
  return (
    <Page title="Queues" read={only ? undefined : read} actions={<Act on={create}>Create queue</Act>}>
      <Card>
        <form class="filters" onSubmit={open}>
          <label>Name <input type="search" value={wanted} onInput={(event) => want(event.currentTarget.value.trim())} placeholder="Filter by name" spellcheck={false} /></label>
        </form>
        {only ? (
          <Empty title="Select a queue">
            <p>Your key has access to these queues only:</p>
            <ul class="plain">{only.map((name) => <li key={name}>{name.endsWith("*") ? <Text>{name}</Text> : <QueueLink name={name} />}</li>)}</ul>
          </Empty>
        ) : (
          <When read={read}>{(data) => (
            <>
              <Table rows={shown} columns={COLUMNS} label="Queues" id={(queue) => queue.name}
                order={{ now: sort, want: (order) => refine({ sort: order === "name" ? undefined : order }) }}
                empty={<Empty title={wanted ? "No matches" : sort !== "name" ? "No queue has a value in this column" : "No queues"}>{wanted ? "Press Enter to open the queue with exactly this name." : sort !== "name" ? <Link to="/queues">View all queues by name</Link> : "The first job creates its queue."}</Empty>} />
              <Pager shown={data.items.length} total={data.total} more={data.more} busy={read.busy} one="queue" order={sort === "name" ? ", by name" : " with a value in this column, largest first, at most 1 minute old"} on={() => setPages(pages + 4)} />
            </>
          )}</When>
        )}
      </Card>
    </Page>
  );
}

export function whole(text: string, field: string): number {
  const value = Number(text);
  if (!Number.isInteger(value)) throw new ApiError(0, "invalid number", "", { field, reason: "must be a whole number" });
  return value;
}

export function QueuePage({ name }: { name: string }) {
  const read = usePoll((signal) => get(`/queues/${seg(name)}`, signal), [name], { about: `queue:${name}` });
  const values = useRef<number[]>([]);
  useEffect(() => {
    if (read.data) values.current = [...values.current, read.data.depth].slice(-60);
  }, [read.data]);
  const path = `/queues/${seg(name)}`;
  const queue = read.data;
  const pause = async () => {
    await call("POST", `/admin${path}/${queue.paused ? "resume" : "pause"}`);
    tell(`${name} ${queue.paused ? "resumed" : "paused"}`);
    read.again();
  };
  const remove = async () => {
    // Read again, because the numbers of the page can be a minute old.
    const { depth: jobs, running } = await get(path);
    ask({
    title: `Delete queue ${name}?`, button: "Delete queue", danger: true,
    text: <p>The queue has {plural(jobs, "unfinished job")}, {number(running)} of them active. This permanently deletes the queue's settings. This can't be undone.</p>,
    questions: [
      { name: "strategy", label: "Jobs in the queue", kind: "choice", value: "reject", choices: [
        ["reject", "Delete only an empty queue"], ["drain", "Drain: workers finish the jobs first"],
        ["discard", "Discard the jobs"], ["move", "Move the jobs to another queue"],
      ] },
      { name: "target_queue", label: "Target queue", help: "Only for a move." },
    ],
    act: async ({ strategy, target_queue }) => {
      const answer = await call("DELETE", path, { strategy, ...(target_queue && { target_queue }) });
      tell(`${name}: ${answer?.state ?? "deleted"}, ${plural(answer?.jobs_affected ?? 0, "job")}.`);
      read.again();
    },
    });
  };
  const purge = () => ask({
    title: `Purge finished jobs of ${name}?`, button: "Count jobs", danger: true,
    text: "This permanently deletes the jobs, results, and errors. Unfinished jobs are not deleted.",
    questions: [
      { name: "state", label: "State", kind: "choice", value: "completed", choices: [["completed", "Completed"], ["cancelled", "Cancelled"], ["discarded", "Discarded, including dead letters"]] },
      { name: "older_than", label: "Finished before", kind: "span", help: "A duration such as 7d. Empty: all." },
    ],
    act: async ({ state, older_than }) => {
      const filter = { queue: name, state, ...(older_than && { older_than }) };
      const { matched } = await call("POST", "/admin/jobs/bulk/delete", { filter, dry_run: true });
      return {
        title: `Delete ${plural(matched ?? 0, "job")}?`, button: "Delete jobs", danger: true, text: "This can't be undone.",
        act: async () => {
          const done = await call("POST", "/admin/jobs/bulk/delete", { filter, confirm: true });
          tell(`${plural(done.succeeded ?? done.deleted ?? 0, "job")} deleted${done.operation?.state === "running" ? ". The server deletes the other jobs in the background" : ""}`);
          read.again();
        },
      };
    },
  });
  return (
    <Page
      title={name} read={read} about={queue && <>Queue, <State of={queue.state} /> since <Time at={queue.updated_at ?? queue.created_at} />{queue.deletion && <>, deletion in progress ({queue.deletion.strategy})</>}</>}
      actions={queue && <>
        <Link to={`/jobs${query({ queue: name })}`} class="button">View jobs</Link>
        <Act needs="jobs:write" on={() => enqueue(name)}>Enqueue job</Act>
        <Act on={pause}>{queue.paused ? "Resume" : "Pause"}</Act>
        <Menu>
          <Act on={purge} danger>Purge finished jobs</Act>
          <Act on={remove} danger>Delete queue</Act>
        </Menu>
      </>}
    >
      {read.error?.status === 404 && <Empty title="Queue not found"><Link to="/queues">View all queues</Link></Empty>}
      <When read={read}>{(data) => <>
        <div class="numbers">
          {STATES.map((state) => <Count key={state} label={label(state)} of={data.stats[state]} to={`/jobs${query({ queue: name, state })}`} tone={state === "retryable" ? "amber" : state === "active" ? "blue" : undefined} />)}
          <Count label="Dead letters" of={data.stats.dead_letter} to={`/dead-letters${query({ queue: name })}`} tone="red" />
        </div>
        <div class="cards">
          <div class="wide">{can("admin:read") && <History queue={name} />}</div>
          <Card title="Current">
            {data.config.max_size && <Meter value={data.depth} of={data.config.max_size} label="Depth" named />}
            {data.config.concurrency && <Meter value={data.running} of={data.config.concurrency} label="Active" named />}
            {values.current.length > 1 && <Spark values={values.current} label={`Depth since the page was opened, now ${data.depth}`} />}
            <Facts of={[
              ["Oldest available", <Time at={data.stats.oldest_available_at} />],
              ["Enqueued today", number(data.stats.enqueued_today)],
              ["Completed today", number(data.stats.completed_today)],
              ["Discarded today", number(data.stats.failed_today)],
              ["Avg. wait", data.stats.avg_wait_ms === undefined ? "–" : duration(data.stats.avg_wait_ms)],
              ["Avg. run time", data.stats.avg_duration_ms === undefined ? "–" : duration(data.stats.avg_duration_ms)],
              ["Error rate", data.stats.error_rate === undefined ? "" : `${(100 * data.stats.error_rate).toFixed(1)} %`],
            ]} />
          </Card>
          <Priorities name={name} />
        </div>
        <ConfigForm path={`/admin${path}/config`} title="Settings" />
      </>}</When>
    </Page>
  );
}

function Priorities({ name }: { name: string }) {
  const read = usePoll((signal) => get(`/queues/${seg(name)}/priority-stats`, signal), [name], { everyMs: 60_000, about: `queue:${name}` });
  return (
    <Card title="Available by priority">
      <Trouble read={read} />
      <When read={read}>{(data) => data.distribution.length ? (
        <ul class="rank">{data.distribution.map((each: Json) => <li key={each.priority}><span>{each.priority}</span><span>{number(each.count)}</span></li>)}</ul>
      ) : <p class="dim">No available jobs</p>}</When>
    </Card>
  );
}
