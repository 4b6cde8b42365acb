import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, call, can, get, type Json, limited, query, seg } from "../api";
import { duration, number, plural } from "../format";
import { usePoll } from "../live";
import { go, refine, useRoute } from "../route";
import { Act, ask, Card, Empty, Facts, Link, Meter, Count, Page, Pager, QueueLink, Spark, State, Table, tell, Text, Time, Trouble, When, type Column } from "../ui";
import { History } from "./overview";
import { ConfigForm } from "./config";

const STATES = ["scheduled", "available", "pending", "active", "retryable"] as const;
const depth = (queue: Json) => STATES.reduce((sum, state) => sum + (queue.counts?.[state] ?? 0), 0);

/** Depths as this page has seen them, by queue: a sparkline that costs no request. */
const seen = new Map<string, number[]>();

function note(queues: Json[]): void {
  for (const queue of queues) {
    const values = [...(seen.get(queue.name) ?? []), depth(queue)].slice(-40);
    seen.set(queue.name, values);
  }
}

const COLUMNS: Column<Json>[] = [
  { name: "Queue", order: "name", cell: (q) => <><QueueLink name={q.name} /> {q.state !== "active" && <State of={q.state} />}</> },
  { name: "Waiting", order: "available", right: true, cell: (q) => number(q.counts.available) },
  { name: "Running", order: "active", right: true, cell: (q) => q.configuration.concurrency ? <Meter value={q.counts.active} of={q.configuration.concurrency} label="Running" /> : number(q.counts.active) },
  { name: "Later", order: "later", right: true, wide: true, cell: (q) => number(q.counts.scheduled + q.counts.retryable) },
  { name: "Depth", order: "depth", right: true, cell: (q) => q.configuration.max_size ? <Meter value={depth(q)} of={q.configuration.max_size} label="Depth" /> : number(depth(q)) },
  { name: "Oldest", order: "oldest", right: true, cell: (q) => <Time at={q.oldest_available_at} /> },
  { name: "Done / min", order: "processed", right: true, cell: (q) => q.throughput.processed_per_minute },
  { name: "Given up / min", order: "failed", right: true, wide: true, cell: (q) => q.throughput.failed_per_minute },
  { name: "Rate limit", wide: true, cell: (q) => q.configuration.rate_limit ? `${q.configuration.rate_limit.limit} / ${q.configuration.rate_limit.period}` : <span class="dim">–</span> },
  { name: "Lanes", right: true, wide: true, cell: (q) => q.configuration.lanes },
  { name: "Depth, lately", wide: true, cell: (q) => { const v = seen.get(q.name) ?? []; return v.length > 1 ? <Spark values={v} label={`Depth of ${q.name} since this page is open: from ${v[0]} to ${v.at(-1)}`} /> : <span class="dim">–</span>; } },
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
  }, only ? 0 : 20_000 * pages, [pages, sort, Boolean(only)]);
  const open = (event: SubmitEvent) => {
    event.preventDefault();
    if (wanted) go(`/queues/${seg(wanted)}`);
  };
  const create = () => ask({
    title: "Make a queue", button: "Make it",
    text: "A queue is made by its first job, too. Made here it can be configured before that.",
    questions: [
      { name: "name", label: "Name", help: "Small letters, digits, and . - _ between them." },
      { name: "max_size", label: "Most jobs (max_size)", kind: "number", help: "Empty: no bound." },
      { name: "concurrency", label: "Most running at a time (concurrency)", kind: "number", help: "Empty: no limit." },
    ],
    act: async ({ name, max_size, concurrency }) => {
      await call("POST", "/queues", { name, ...(max_size && { max_size: whole(max_size, "max_size") }), ...(concurrency && { concurrency: whole(concurrency, "concurrency") }) });
      tell(`Queue ${name} is there.`);
      go(`/queues/${seg(name!)}`);
    },
  });
  const shown = (read.data?.items ?? []).filter((queue) => queue.name.includes(wanted));
  return (
    <Page title="Queues" read={only ? undefined : read} actions={<Act on={create}>Make a queue</Act>}>
      <Card>
        <form class="filters" onSubmit={open}>
          <label>Name <input type="search" value={wanted} onInput={(event) => want(event.currentTarget.value.trim())} placeholder="part of a name; Enter opens it" spellcheck={false} /></label>
        </form>
        {only ? (
          <Empty title="Your key is limited to some queues.">
            <p>A list of all is not for it; open one by its name.</p>
            <ul class="plain">{only.map((name) => <li key={name}>{name.endsWith("*") ? <Text>{name}</Text> : <QueueLink name={name} />}</li>)}</ul>
          </Empty>
        ) : (
          <When read={read}>{(data) => (
            <>
              <Table rows={shown} columns={COLUMNS} label="Queues" id={(queue) => queue.name}
                order={{ now: sort, want: (order) => refine({ sort: order === "name" ? undefined : order }) }}
                empty={<Empty title={sort !== "name" && !wanted ? "No queue has any of it." : wanted ? "None of those that are shown has this in its name." : "There is no queue yet."}>{wanted ? "Enter opens the queue of this very name." : sort !== "name" ? <Link to="/queues">All queues, in order of name</Link> : "Push a job, and its queue is made."}</Empty>} />
              <Pager shown={data.items.length} total={data.total} more={data.more} busy={read.busy} what={sort === "name" ? "queues, in order of name" : "queues that have any of it, the most first, as counted within the last minute"} on={() => setPages(pages + 4)} />
            </>
          )}</When>
        )}
      </Card>
    </Page>
  );
}

export function whole(text: string, field: string): number {
  const value = Number(text);
  if (!Number.isInteger(value)) throw new ApiError(0, "no number", "", { field, reason: "must be a whole number" });
  return value;
}

export function QueuePage({ name }: { name: string }) {
  const read = usePoll((signal) => get(`/queues/${seg(name)}`, signal), 10_000, [name]);
  const values = useRef<number[]>([]);
  useEffect(() => {
    if (read.data) values.current = [...values.current, read.data.depth].slice(-60);
  }, [read.data]);
  const path = `/queues/${seg(name)}`;
  const queue = read.data;
  const pause = async () => {
    await call("POST", `/admin${path}/${queue.paused ? "resume" : "pause"}`);
    tell(queue.paused ? `${name} hands out jobs again.` : `${name} hands out no more jobs.`);
    read.again();
  };
  const remove = async () => {
    // Counted now: what the page shows may be some seconds old.
    const { depth: jobs, running } = await get(path);
    ask({
    title: `Delete ${name}?`, button: "Delete the queue", danger: true,
    text: <p>Not final in it: {plural(jobs, "job")}, {number(running)} of them running. Its configuration goes, too. This cannot be taken back.</p>,
    questions: [
      { name: "strategy", label: "What becomes of its jobs", kind: "choice", value: "reject", choices: [
        ["reject", "Only delete it if it is empty"], ["drain", "Drain: workers finish them first"],
        ["discard", "Discard those that wait"], ["move", "Move those that wait to another queue"],
      ] },
      { name: "target_queue", label: "Other queue", help: "Where they are moved to." },
    ],
    act: async ({ strategy, target_queue }) => {
      const answer = await call("DELETE", path, { strategy, ...(target_queue && { target_queue }) });
      tell(`${name}: ${answer?.state ?? "deleted"}, ${plural(answer?.jobs_affected ?? 0, "job")}.`);
      read.again();
    },
    });
  };
  const purge = () => ask({
    title: `Delete jobs of ${name} that have ended?`, button: "Delete them", danger: true,
    text: "They go for good, with results and errors. Jobs that have not ended stay.",
    questions: [
      { name: "state", label: "Which", kind: "choice", value: "completed", choices: [["completed", "Completed"], ["cancelled", "Cancelled"], ["discarded", "Discarded, dead letters among them"]] },
      { name: "older_than", label: "Ended before", help: "A duration such as P7D, or empty: all." },
    ],
    act: async ({ state, older_than }) => {
      const filter = { queue: name, state, ...(older_than && { older_than }) };
      const { matched } = await call("POST", "/admin/jobs/bulk/delete", { filter, dry_run: true });
      return {
        title: `Delete ${plural(matched ?? 0, "job")}?`, button: "Delete for good", danger: true,
        act: async () => {
          const done = await call("POST", "/admin/jobs/bulk/delete", { filter, confirm: true });
          tell(`${plural(done.succeeded ?? done.deleted ?? 0, "job")} deleted${done.operation?.state === "running" ? "; the rest follows" : ""}.`);
          read.again();
        },
      };
    },
  });
  return (
    <Page
      title={name} read={read} about={queue && <>Queue, <State of={queue.state} /> since <Time at={queue.updated_at ?? queue.created_at} />{queue.deletion && <>, being deleted ({queue.deletion.strategy})</>}</>}
      actions={queue && <>
        <Link to={`/jobs${query({ queue: name })}`} class="button">Its jobs</Link>
        <Act on={pause}>{queue.paused ? "Resume" : "Pause"}</Act>
        <Act on={purge} danger>Delete ended jobs …</Act>
        <Act on={remove} danger>Delete …</Act>
      </>}
    >
      {read.error?.status === 404 && <Empty title="There is no such queue.">It is made by its first job, or <Link to="/queues">by you</Link>.</Empty>}
      <When read={read}>{(data) => <>
        <div class="numbers">
          {STATES.map((state) => <Count key={state} label={state} of={data.stats[state]} to={`/jobs${query({ queue: name, state })}`} tone={state === "retryable" ? "amber" : state === "active" ? "blue" : undefined} />)}
          <Count label="dead letters" of={data.stats.dead_letter} to={`/dead-letters${query({ queue: name })}`} tone="red" />
        </div>
        <div class="cards">
          <div class="wide">{can("admin:read") && <History queue={name} />}</div>
          <Card title="Now">
            {data.config.max_size && <Meter value={data.depth} of={data.config.max_size} label="Depth" named />}
            {data.config.concurrency && <Meter value={data.running} of={data.config.concurrency} label="Running" named />}
            {values.current.length > 1 && <Spark values={values.current} label={`Depth since this page is open, now ${data.depth}`} />}
            <Facts of={[
              ["Oldest waiting", <Time at={data.stats.oldest_available_at} />],
              ["Came in today", number(data.stats.enqueued_today)],
              ["Done today", number(data.stats.completed_today)],
              ["Given up today", number(data.stats.failed_today)],
              ["Wait, on average", data.stats.avg_wait_ms === undefined ? "" : duration(data.stats.avg_wait_ms)],
              ["Run, on average", data.stats.avg_duration_ms === undefined ? "" : duration(data.stats.avg_duration_ms)],
              ["Attempts that failed", data.stats.error_rate === undefined ? "" : `${(100 * data.stats.error_rate).toFixed(1)} %`],
            ]} />
          </Card>
          <Priorities name={name} />
        </div>
        <ConfigForm path={`/admin${path}/config`} title="Configuration" />
      </>}</When>
    </Page>
  );
}

function Priorities({ name }: { name: string }) {
  const read = usePoll((signal) => get(`/queues/${seg(name)}/priority-stats`, signal), 60_000, [name]);
  return (
    <Card title="Waiting, by priority">
      <Trouble read={read} />
      <When read={read}>{(data) => data.distribution.length ? (
        <ul class="rank">{data.distribution.map((each: Json) => <li key={each.priority}><span>{each.priority}</span><span>{number(each.count)}</span></li>)}</ul>
      ) : <p class="dim">Nothing waits.</p>}</When>
    </Card>
  );
}
