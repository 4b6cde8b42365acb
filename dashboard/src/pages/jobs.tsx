import { useEffect, useRef, useState } from "preact/hooks";
import { can, call, get, type Json, limited, query, seg } from "../api";
import { json, number, percent, plural } from "../format";
import { usePoll, type Read } from "../live";
import { go, href, refine, useRoute } from "../route";
import { Act, ask, Card, type Column, Empty, JobLink, Page, Pager, QueueLink, State, Table, tell, Text, Time, Trouble, When } from "../ui";
import { Bulk, follow } from "../bulk";
import { whole } from "./queues";

const PAGE = 50;
// An answer of the server is bounded by what it costs, and may be short, or empty, although more
// follows. So many are asked for one after the other, until a page is half full: fewer of all queues,
// of which an answer may cost twice as much, until the reader wants to look further.
const FIRST_ANSWERS = 4;
const MORE_ANSWERS = 6;

interface Found { items: Json[]; next?: string; total?: number; unsearched: number }

/** A page of jobs: goes on where an answer was short, up to so many answers. */
async function list(filter: Record<string, string | undefined>, cursor: string | undefined, answers: number, signal: AbortSignal): Promise<Found> {
  const found: Found = { items: [], next: cursor, unsearched: 0 };
  const path = can("admin:read") ? "/admin/jobs" : "/jobs";
  for (let asked = 0; asked < answers; asked++) {
    const answer = await get(path + query({ ...filter, limit: PAGE, cursor: found.next }), signal);
    found.items.push(...answer.items);
    found.next = answer.pagination.next_cursor;
    if (!answer.pagination.total_unknown) found.total ??= answer.total;
    found.unsearched += answer.unsearched ?? 0;
    if (!found.next || found.items.length >= PAGE / 2) break;
  }
  return found;
}

/** Jobs that fit, read again while only the first page shows. */
export function useJobs(filter: Record<string, string | undefined>, everyMs: number): Read<Found> & { more: () => void } {
  const [extra, add] = useState<Found | null>(null);
  const [busy, set] = useState(false);
  const text = JSON.stringify(filter);
  const read = usePoll((signal) => list(filter, undefined, filter.queue ? MORE_ANSWERS : FIRST_ANSWERS, signal), extra ? 0 : everyMs, [text]);
  useEffect(() => add(null), [text]);
  const data = read.data && extra ? { ...read.data, ...extra, total: read.data.total, items: [...read.data.items, ...extra.items] } : read.data;
  const more = async () => {
    set(true);
    try {
      const next = await list(filter, data!.next, MORE_ANSWERS, new AbortController().signal);
      add({ ...next, items: [...(extra?.items ?? []), ...next.items], unsearched: data!.unsearched + next.unsearched });
    } catch (error) {
      tell((error as Error).message, true);
    } finally {
      set(false);
    }
  };
  return { ...read, data, busy: read.busy || busy, more };
}

const args = (job: Json) => (job.args === undefined ? "" : json(job.args));

export const JOB: Record<string, Column<Json>> = {
  id: { name: "Job", cell: (job) => <JobLink id={job.id} /> },
  type: { name: "Type", cell: (job) => <Text>{job.type}</Text>, by: (job) => job.type },
  queue: { name: "Queue", cell: (job) => <QueueLink name={job.queue} />, by: (job) => job.queue },
  state: { name: "State", cell: (job) => <State of={job.dead_letter ? "dead-letter" : job.state} />, by: (job) => job.state },
  attempt: { name: "Attempt", right: true, wide: true, cell: (job) => `${job.attempt} / ${job.max_attempts}`, by: (job) => job.attempt },
  priority: { name: "Priority", right: true, wide: true, cell: (job) => job.priority, by: (job) => job.priority },
  created: { name: "Pushed", wide: true, cell: (job) => <Time at={job.created_at} />, by: (job) => job.created_at ?? "" },
  args: { name: "Args", wide: true, cell: (job) => <code class="cut"><bdi>{args(job)}</bdi></code> },
};

const STATES = ["", "available", "active", "scheduled", "retryable", "pending", "completed", "cancelled", "discarded"];

export function Jobs() {
  const { query: asked } = useRoute();
  const only = limited();
  const of = (name: string) => asked.get(name) ?? undefined;
  const filter = { queue: of("queue"), state: of("state"), type: of("type"), tag: of("tag"), worker_id: of("worker_id"), since: of("since"), until: of("until"), args: of("args") };
  const blocked = only && !filter.queue;
  const set = (event: SubmitEvent) => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    const value = (name: string) => (form.elements.namedItem(name) as HTMLInputElement).value.trim();
    const time = (name: string) => value(name) && new Date(value(name)).toISOString();
    if (value("id")) return go(`/jobs/${seg(value("id"))}`);
    refine({ queue: value("queue"), state: value("state"), type: value("type"), tag: value("tag"), args: value("args"), since: time("since"), until: time("until") });
  };
  return (
    <Page title="Jobs">
      <Card>
        <form key={JSON.stringify(filter)} class="filters" onSubmit={set} role="search">
          <label>Queue <input name="queue" defaultValue={filter.queue} spellcheck={false} /></label>
          <label>State <select name="state">{STATES.map((state) => <option key={state} value={state} selected={state === (filter.state ?? "")}>{state || "any"}</option>)}</select></label>
          <label>Type <input name="type" defaultValue={filter.type} placeholder="mail.*" spellcheck={false} /></label>
          <label>Tag <input name="tag" defaultValue={filter.tag} spellcheck={false} /></label>
          <label>Text in args <input name="args" defaultValue={filter.args} placeholder="text, or $[0].id=7" spellcheck={false} /></label>
          <label>Pushed since <input name="since" type="datetime-local" defaultValue={local(filter.since)} /></label>
          <label>before <input name="until" type="datetime-local" defaultValue={local(filter.until)} /></label>
          <label>Id <input name="id" spellcheck={false} /></label>
          <div class="row">
            <button type="submit" class="main">Find</button>
            {asked.size > 0 && <button type="button" onClick={() => go("/jobs")}>Clear</button>}
          </div>
        </form>
      </Card>
      {blocked ? (
        <Card><Empty title="Your key is limited to some queues.">Name one of them above.</Empty></Card>
      ) : (
        <Listing filter={filter} every={15_000} columns={["id", "type", "queue", "state", "attempt", "priority", "created", "args"]}
          empty={<Empty title="No job fits.">{asked.size ? "Take a filter away, or look at another queue." : "Push one, and it shows here."}</Empty>} />
      )}
    </Page>
  );
}

function local(iso: string | undefined): string {
  if (!iso) return "";
  const date = new Date(iso);
  return new Date(date.valueOf() - 60_000 * date.getTimezoneOffset()).toISOString().slice(0, 16);
}

/** A list of jobs, to act on some of them or on all that fit. */
export function Listing(props: { filter: Record<string, string | undefined>; every: number; columns: (string | Column<Json>)[]; empty: preact.ComponentChildren; title?: string }) {
  const read = useJobs(props.filter, props.every);
  const [chosen, choose] = useState(new Set<string>());
  const [at, move] = useState(-1);
  const place = useRef<HTMLDivElement>(null);
  const jobs = read.data?.items ?? [];
  const text = JSON.stringify(props.filter);
  useEffect(() => choose(new Set()), [text]);
  // As they are now: keys may come faster than the page is drawn.
  const now = useRef({ at, chosen, jobs });
  now.current = { at, chosen, jobs };
  useEffect(() => {
    // j and k go down and up, x selects, Enter opens; not while somebody types.
    const press = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (target.closest("input, textarea, select, button, a, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
      const { at, chosen, jobs } = now.current;
      const job = jobs[at];
      const step = (to: number) => { now.current.at = to; move(to); };
      if (event.key === "j") step(Math.min(at + 1, jobs.length - 1));
      else if (event.key === "k") step(Math.max(at - 1, 0));
      else if (event.key === "x" && job) {
        const next = new Set(chosen);
        if (!next.delete(job.id)) next.add(job.id);
        now.current.chosen = next;
        choose(next);
      } else if (event.key === "Enter" && job) go(`/jobs/${seg(job.id)}`);
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
  useEffect(() => place.current?.querySelector("[data-at]")?.scrollIntoView({ block: "nearest" }), [at]);
  const columns = props.columns.map((each) => (typeof each === "string" ? JOB[each]! : each));
  const named = Object.fromEntries(Object.entries(props.filter).filter(([, value]) => value));
  return (
    <>
      <Bulk />
      <Card title={props.title} actions={<span class="dim hint"><kbd>j</kbd> <kbd>k</kbd> move, <kbd>x</kbd> select, <kbd>Enter</kbd> open</span>}>
        <Trouble read={read} />
        <When read={read}>{(data) => (
          <div ref={place}>
            <Actions chosen={[...chosen]} filter={named} done={() => { choose(new Set()); read.again(); }} />
            <Table rows={data.items} columns={columns} label={props.title ?? "Jobs"} part={Boolean(data.next)} id={(job) => job.id} chosen={chosen} choose={choose} at={at} empty={data.next ? <Empty title="Nothing found yet.">Not everything has been looked through. A queue, if you name one, is looked through sooner.</Empty> : props.empty} />
            <Pager shown={data.items.length} total={data.total} more={Boolean(data.next)} busy={read.busy} what="jobs" on={read.more} />
            {data.unsearched > 0 && <p class="dim">{plural(data.unsearched, "job")} passed over: what is looked for is too large to be in the job record.</p>}
          </div>
        )}</When>
      </Card>
    </>
  );
}

// What a filter of many jobs calls a field of a listing otherwise.
const BULK_NAMES: Record<string, string> = { since: "enqueued_after", until: "enqueued_before" };

function Actions(props: { chosen: string[]; filter: Record<string, string | undefined>; done: () => void }) {
  const { chosen, filter, done } = props;
  const some = chosen.length > 0;
  const can = Object.keys(filter).length > 0;
  const many = (act: "retry" | "cancel" | "delete") => async () => {
    const means = some ? { job_ids: chosen } : { filter: Object.fromEntries(Object.entries(filter).map(([name, value]) => [BULK_NAMES[name] ?? name, value])) };
    const counted = await call("POST", `/admin/jobs/bulk/${act}`, { ...means, dry_run: true });
    const count = counted.matched ?? 0;
    const fits = some ? (counted.items as Json[] | undefined)?.filter((each) => each.state !== "skipped").length ?? count : count;
    const running = counted.operation?.state === "running";
    ask({
      title: `${act[0]!.toUpperCase()}${act.slice(1)} ${running ? "at least " : ""}${plural(fits, "job")}?`,
      text: <p>{WHAT[act]} {some && fits < chosen.length && `Of the ${number(chosen.length)} selected, ${number(chosen.length - fits)} are in another state and stay as they are.`}</p>,
      button: `${act[0]!.toUpperCase()}${act.slice(1)}`, danger: act !== "retry",
      act: async () => {
        const answer = await call("POST", `/admin/jobs/bulk/${act}`, { ...means, confirm: true });
        follow("/admin/jobs/bulk", answer.operation, act, done);
        if (!answer.operation) tell(`${plural(answer.succeeded ?? 0, "job")}: ${act} done.`);
        done();
      },
    });
  };
  const each = async (what: string, one: (id: string) => Promise<unknown>) => {
    let good = 0;
    let last = "";
    for (const id of chosen) {
      await one(id).then(() => good++, (error: Error) => { last = error.message; });
    }
    tell(`${what}: ${number(good)} of ${number(chosen.length)}.${last ? ` ${last}` : ""}`, good < chosen.length);
    done();
  };
  const priority = () => ask({
    title: `Change the priority of ${plural(chosen.length, "job")}`, button: "Change it",
    questions: [{ name: "priority", label: "Priority", kind: "number", help: "Higher goes first.", value: "0" }],
    act: async (answers) => {
      const value = whole(answers.priority!, "priority");
      await each("Priority changed", (id) => call("PATCH", `/admin/jobs/${seg(id)}`, { priority: value }));
    },
  });
  const of = some ? plural(chosen.length, "job") : can ? "all that match" : "";
  return (
    <div class="row bulk" role="group" aria-label="Actions">
      <span class="dim">{some ? `${plural(chosen.length, "job")} selected` : can ? "Nothing selected: for all that match" : "Select jobs, or filter, to act on them"}</span>
      <Act small disabled={!of} on={many("retry")} of={of}>Retry</Act>
      <Act small disabled={!of} on={many("cancel")} danger of={of}>Cancel</Act>
      <Act small disabled={!of} on={many("delete")} danger of={of}>Delete</Act>
      <Act small disabled={!some} on={() => each("Run now", (id) => call("POST", `/admin/jobs/${seg(id)}/run`))}>Run now</Act>
      <Act small disabled={!some} on={priority}>Priority …</Act>
    </div>
  );
}

const WHAT = {
  retry: "Retryable jobs and dead letters among them are available at once.",
  cancel: "They are not done any more; those that run are told so by their next heartbeat. This cannot be taken back.",
  delete: "Those that have ended go for good, with payload, result and errors. This cannot be taken back.",
};

export function Running() {
  const { query: asked } = useRoute();
  const worker = asked.get("worker_id") ?? undefined;
  const queue = asked.get("queue") ?? undefined;
  const only = limited();
  const columns: (string | Column<Json>)[] = [
    "id", "type", "queue",
    { name: "Worker", cell: (job) => <Text>{job.worker_id}</Text>, by: (job) => job.worker_id ?? "" },
    { name: "Started", cell: (job) => <Time at={job.started_at} />, by: (job) => job.started_at ?? "" },
    { name: "Lease ends", wide: true, cell: (job) => <Time at={job.lease_expires_at} />, by: (job) => job.lease_expires_at ?? "" },
    { name: "Progress", wide: true, cell: (job) => job.progress === undefined ? <span class="dim">–</span> : <Progress of={job} /> },
    "attempt", "args",
  ];
  return (
    <Page title="Running now" about="What workers have, since when, and how far it is.">
      {only && !queue ? <Card><Empty title="Your key is limited to some queues.">Add one: <ul class="plain">{only.map((name) => <li key={name}><a href={href(`/running${query({ queue: name })}`)}><bdi>{name}</bdi></a></li>)}</ul></Empty></Card> : (
        <Listing title="Running" filter={{ state: "active", worker_id: worker, queue, include: "args" }} every={10_000} columns={columns}
          empty={<Empty title="Nothing runs.">Workers fetch jobs from queues; start one, or look at what <a href={href("/jobs?state=available")}>waits</a>.</Empty>} />
      )}
    </Page>
  );
}

function Progress({ of }: { of: Json }) {
  const told = typeof of.progress === "object" ? of.progress : { percentage: of.progress };
  const part = told.percentage ?? told.progress;
  return <span title={told.message}>{part === undefined ? <Text>{told.message}</Text> : <><progress max={1} value={part} aria-label={`Progress of ${of.id}`} /> {percent(part)}</>}</span>;
}

export function Waiting() {
  const { query: asked } = useRoute();
  const queue = asked.get("queue") ?? undefined;
  const only = limited();
  const due = (name: string, field: string): Column<Json> => ({ name, cell: (job) => <Time at={job[field] ?? job.scheduled_at ?? job.next_retry_at} />, by: (job) => job[field] ?? job.scheduled_at ?? "" });
  if (only && !queue)
    return <Page title="Scheduled and retries"><Card><Empty title="Your key is limited to some queues.">Add one: <ul class="plain">{only.map((name) => <li key={name}><a href={href(`/waiting${query({ queue: name })}`)}><bdi>{name}</bdi></a></li>)}</ul></Empty></Card></Page>;
  return (
    <Page title="Scheduled and retries" about="What waits for a time: in the order in which it is due, if you name a queue.">
      <Card>
        <form key={queue} class="filters" role="search" onSubmit={(event) => { event.preventDefault(); refine({ queue: ((event.currentTarget as HTMLFormElement).elements.namedItem("queue") as HTMLInputElement).value.trim() }); }}>
          <label>Queue <input name="queue" defaultValue={queue} spellcheck={false} /></label>
          <button type="submit">Show</button>
        </form>
      </Card>
      <Listing title="To be tried again" filter={{ state: "retryable", queue }} every={15_000}
        columns={["id", "type", "queue", "attempt", due("Next attempt", "next_retry_at"), { name: "Error", wide: true, cell: (job) => <Text>{job.error?.type}</Text> }, "args"]}
        empty={<Empty title="No job is to be tried again.">Jobs that failed, and have attempts left, wait here.</Empty>} />
      <Listing title="Scheduled" filter={{ state: "scheduled", queue }} every={15_000}
        columns={["id", "type", "queue", due("Due", "scheduled_at"), "priority", "created", "args"]}
        empty={<Empty title="No job is scheduled.">Push one with <code>delay_until</code>.</Empty>} />
    </Page>
  );
}

