import { useEffect, useRef, useState } from "preact/hooks";
import { can, call, get, type Json, limited, query, seg } from "../api";
import { capital, json, label, number, percent, plural } from "../format";
import { usePoll, type Read } from "../live";
import { go, href, refine, useRoute } from "../route";
import { Act, ask, Card, type Column, Count, DateField, Empty, JobLink, Page, Pager, QueueLink, parsed, State, Table, tell, Text, Time, Trouble, When } from "../ui";
import { Bulk, follow, type Kind, Selection } from "../bulk";
import { Latency } from "./latency";
import { whole } from "./queues";

const PAGE = 50;
// The server limits the read units of a response, so a response can have few jobs or none although
// more match. A page therefore reads several responses, until it is half full. Without a queue a
// response can cost twice as much, so the first page reads fewer of them.
const FIRST_ANSWERS = 4;
const MORE_ANSWERS = 6;

interface Found { items: Json[]; next?: string; total?: number; unsearched: number }

/** A page of jobs from at most `answers` responses. */
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

/** Matching jobs, refreshed while only the first page is loaded. */
export function useJobs(filter: Record<string, string | undefined>, answers = FIRST_ANSWERS): Read<Found> & { more: () => void } {
  const [extra, add] = useState<Found | null>(null);
  const [busy, set] = useState(false);
  const text = JSON.stringify(filter);
  const read = usePoll((signal) => list(filter, undefined, answers, signal), [text], {
    everyMs: extra ? 0 : undefined, about: filter.queue ? `queue:${filter.queue}` : "all",
  });
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
  attempt: { name: "Attempt", right: true, cell: (job) => `${job.attempt} / ${job.max_attempts}`, by: (job) => job.attempt },
  priority: { name: "Priority", right: true, cell: (job) => job.priority, by: (job) => job.priority },
  created: { name: "Created", cell: (job) => <Time at={job.created_at} />, by: (job) => job.created_at ?? "" },
  args: { name: "Arguments", cell: (job) => job.args === undefined ? <span class="dim">on its page</span> : <code class="cut">{args(job)}</code> },
};

const STATES = ["", "available", "active", "scheduled", "retryable", "pending", "completed", "cancelled", "discarded"];

/** The counters of the states, of one queue or of all. Each is a filter. */
function Totals({ queue, state }: { queue?: string; state?: string }) {
  const read = usePoll((signal) => get(queue ? `/queues/${seg(queue)}/stats` : "/admin/stats", signal), [queue], { about: queue ? `queue:${queue}` : "all" });
  const counts = queue ? read.data?.stats : read.data?.jobs;
  if (read.error?.status === 404) return null;
  return (
    <>
      <Trouble read={read} />
      <div class="numbers" role="group" aria-label="Jobs by state">
        {STATES.slice(1).map((each) => <Count key={each} label={label(each)} of={counts?.[each]} current={each === state} to={`/jobs${query({ queue, state: each === state ? "" : each })}`} />)}
      </div>
      {read.data && <p class="dim note">Counted for {queue ? <>queue <bdi>{queue}</bdi></> : "all queues"} <Time at={read.data.computed_at} />. Other filters do not change these counts.</p>}
    </>
  );
}

/** Values of a filter, with their counts. */
function Facet(props: { title: string; name: string; counts: [string, number][]; now?: string; note: string }) {
  if (!props.counts.length) return null;
  return (
    <div class="facet" role="group" aria-label={props.title}>
      <span class="dim">{props.title}</span>
      {props.counts.map(([value, count]) => (
        <button key={value} type="button" class="small" aria-pressed={props.now === value} onClick={() => refine({ [props.name]: props.now === value ? undefined : value })}><bdi>{value}</bdi> <strong>{number(count)}</strong></button>
      ))}
      <span class="dim">{props.note}</span>
    </div>
  );
}

const UNFINISHED = ["scheduled", "available", "pending", "active", "retryable"];

function Largest() {
  const read = usePoll((signal) => get("/admin/queues?sort=depth&limit=8", signal), [], { everyMs: 60_000 });
  const counts = (read.data?.items ?? []).map((each: Json): [string, number] => [each.name, UNFINISHED.reduce((sum, state) => sum + each.counts[state], 0)]);
  return <Facet title="Queue" name="queue" counts={counts} note="Unfinished jobs of the largest queues, at most 1 minute old" />;
}

/** Opens the form that enqueues a job. */
export const enqueue = (queue = "default") => ask({
  title: "Enqueue job", button: "Enqueue",
  questions: [
    { name: "type", label: "Type", required: true }, { name: "queue", label: "Queue", value: queue },
    { name: "args", label: "Arguments", kind: "json", value: "[]", help: "A JSON array." },
    { name: "meta", label: "Meta", kind: "json", help: "A JSON object. Empty: none." },
    { name: "priority", label: "Priority", kind: "number", value: "0", help: "Higher priorities run first." },
    { name: "delay_until", label: "Run", kind: "later", help: "A time, or a duration from now such as 5m. Empty: now." },
    { name: "max_attempts", label: "Max. attempts", kind: "number", help: "Empty: the queue's setting." },
    { name: "tags", label: "Tags", kind: "list", help: "One per line." },
  ],
  act: async ({ type, queue, args, meta, priority, delay_until, max_attempts, tags }) => {
    const { job } = await call("POST", "/jobs", {
      type, args: parsed(args!, "args"), ...(meta && { meta: parsed(meta, "meta") }),
      options: {
        queue, priority: whole(priority || "0", "priority"), ...(delay_until && { delay_until }), ...(tags && { tags: tags.split("\n").map((tag) => tag.trim()).filter(Boolean) }),
        ...(max_attempts && { retry: { max_attempts: whole(max_attempts, "max_attempts") } }),
      },
    });
    tell("Job enqueued");
    go(`/jobs/${seg(job.id)}`);
  },
});

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
    <Page title="All jobs" actions={<Act needs="jobs:write" on={() => enqueue(filter.queue)}>Enqueue job</Act>}>
      {can("admin:read") && !blocked && <Totals queue={filter.queue} state={filter.state} />}
      {can("admin:read") && !asked.size && !only && <Largest />}
      <Card>
        <form key={JSON.stringify(filter)} class="filters" onSubmit={set} role="search">
          <label>Queue <input name="queue" defaultValue={filter.queue} spellcheck={false} /></label>
          <label>State <select name="state">{STATES.map((state) => <option key={state} value={state} selected={state === (filter.state ?? "")}>{state ? label(state) : "All states"}</option>)}</select></label>
          <label>Type <input name="type" defaultValue={filter.type} placeholder="mail.*" spellcheck={false} /></label>
          <label>Tag <input name="tag" defaultValue={filter.tag} spellcheck={false} /></label>
          <label>Arguments contain <input name="args" defaultValue={filter.args} placeholder="text or $[0].id=7" spellcheck={false} /></label>
          <label>Created after <DateField name="since" value={local(filter.since)} /></label>
          <label>Created before <DateField name="until" value={local(filter.until)} /></label>
          <label>Job ID <input name="id" spellcheck={false} /></label>
          <div class="row">
            <button type="submit" class="main">Search</button>
            {asked.size > 0 && <button type="button" onClick={() => go("/jobs")}>Clear</button>}
          </div>
        </form>
      </Card>
      {blocked ? (
        <Card><Empty title="Select a queue">Your key has access to some queues only. Enter one of them above.</Empty></Card>
      ) : (
        <Listing search filter={filter} columns={["id", "type", "queue", "state", "attempt", "priority", "created", "args"]}
          empty={asked.size ? <Empty title="No matching jobs"><a href={href("/jobs")}>Clear filters</a></Empty> : <Empty title="No jobs" />} />
      )}
    </Page>
  );
}

function local(iso: string | undefined): string {
  if (!iso) return "";
  const date = new Date(iso);
  return new Date(date.valueOf() - 60_000 * date.getTimezoneOffset()).toISOString().slice(0, 16);
}

/** A list of jobs with actions for the selected ones or for all that match. */
export function Listing(props: { filter: Record<string, string | undefined>; columns: (string | Column<Json>)[]; empty: preact.ComponentChildren; title?: string; search?: boolean; answers?: number }) {
  const read = useJobs(props.filter, props.answers);
  const [words, search] = useState("");
  const [picked, pick] = useState(new Set<string>());
  const [all, setAll] = useState(false);
  const [at, move] = useState(-1);
  const place = useRef<HTMLDivElement>(null);
  const loaded = read.data?.items ?? [];
  const jobs = words ? loaded.filter((job) => json([job.id, job.type, job.queue, job.tags, job.meta, job.args, job.error, job.result]).toLowerCase().includes(words.toLowerCase())) : loaded;
  const types = new Map<string, number>();
  for (const { type } of loaded) types.set(type, (types.get(type) ?? 0) + 1);
  const text = JSON.stringify(props.filter);
  const chosen = all ? new Set(jobs.map((job) => job.id as string)) : picked;
  const choose = (next: Set<string>) => { setAll(false); pick(next); };
  useEffect(() => { choose(new Set()); search(""); }, [text]);
  // The current values for the key handler: keys can be faster than the next render.
  const now = useRef({ at, chosen, jobs });
  now.current = { at, chosen, jobs: now.current.jobs };
  useEffect(() => {
    // j and k move, x selects, Enter opens, except in form fields.
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
  // `include` selects fields of the response, not jobs.
  const named = Object.fromEntries(Object.entries(props.filter).filter(([name, value]) => value && name !== "include"));
  return (
    <>
      <Bulk />
      <Card title={props.title} actions={<span class="dim hint"><kbd>j</kbd> <kbd>k</kbd> move, <kbd>x</kbd> select, <kbd>Enter</kbd> open</span>}>
        <Trouble read={read} />
        <When read={read}>{(data) => (
          <div ref={place}>
            <Actions chosen={[...chosen]} all={all} filter={named} total={data.next ? data.total : data.items.length} shown={data.items.length}
              select={(every) => { pick(new Set()); setAll(every); }} done={() => { choose(new Set()); read.again(); }} />
            {props.search && <>
              <Facet title="Type" name="type" now={props.filter.type} counts={[...types].sort((a, b) => b[1] - a[1]).slice(0, 8)} note={`Counted in the ${plural(loaded.length, "loaded job")}`} />
              <div class="facet">
                <label>Search loaded jobs <input type="search" value={words} onInput={(event) => search(event.currentTarget.value)} placeholder="ID, type, meta, arguments, error" spellcheck={false} /></label>
                {words && <span class="dim" role="status">{number(jobs.length)} of {plural(loaded.length, "loaded job")}{data.next ? ". Load more jobs to search more" : ""}</span>}
              </div>
            </>}
            <Table rows={jobs} seen={(rows) => { now.current.jobs = rows; }} columns={columns} label={props.title ?? "Jobs"} part={Boolean(data.next)} id={(job) => job.id} chosen={chosen} choose={choose} at={at} empty={words ? <Empty title="No matches in the loaded jobs" /> : data.next ? <Empty title="No matches so far">Only a part of the jobs was searched. A search in one queue is faster.</Empty> : props.empty} />
            <Pager shown={data.items.length} total={data.total} more={Boolean(data.next)} busy={read.busy} one="job" on={read.more} />
            {data.unsearched > 0 && <p class="dim">{plural(data.unsearched, "job")} not searched: the arguments are too large for the job record.</p>}
          </div>
        )}</When>
      </Card>
      {props.search && <Latency jobs={jobs} />}
    </>
  );
}

const KINDS: Record<"retry" | "cancel" | "delete", Kind> = {
  retry: { verb: "retry", past: "retried", noun: "job" },
  cancel: { verb: "cancel", past: "cancelled", noun: "job" },
  delete: { verb: "delete", past: "deleted", noun: "job" },
};

function Actions(props: { chosen: string[]; all: boolean; filter: Record<string, string | undefined>; total?: number; shown: number; select: (all: boolean) => void; done: () => void }) {
  const { chosen, all, filter, done } = props;
  const some = chosen.length > 0;
  const filtered = Object.keys(filter).length > 0;
  const many = (act: keyof typeof KINDS) => async () => {
    const kind = KINDS[act];
    const means = all ? { filter } : { job_ids: chosen };
    const counted = await call("POST", `/admin/jobs/bulk/${act}`, { ...means, dry_run: true });
    const count = counted.matched ?? 0;
    const fits = all ? count : (counted.items as Json[] | undefined)?.filter((each) => each.state !== "skipped").length ?? count;
    const running = counted.operation?.state === "running";
    ask({
      title: `${capital(kind.verb)} ${running ? "at least " : ""}${plural(fits, "job")}?`,
      text: <p>{EFFECT[act]} {!all && fits < chosen.length && `${number(chosen.length - fits)} of ${number(chosen.length)} can't be ${kind.past} in their state.`}</p>,
      button: `${capital(kind.verb)} ${fits === 1 ? "job" : "jobs"}`, danger: act !== "retry", dismiss: "Close",
      act: async () => {
        const answer = await call("POST", `/admin/jobs/bulk/${act}`, { ...means, confirm: true });
        follow("/admin/jobs/bulk", answer.operation, kind, done);
        if (!answer.operation) tell(`${plural(answer.succeeded ?? 0, "job")} ${kind.past}`);
        done();
      },
    });
  };
  const each = async (past: string, one: (id: string) => Promise<unknown>) => {
    let good = 0;
    let last = "";
    for (const id of chosen) {
      await one(id).then(() => good++, (error: Error) => { last = error.message; });
    }
    tell(`${number(good)} of ${plural(chosen.length, "job")} ${past}${last && `. ${last}`}`, good < chosen.length);
    done();
  };
  const priority = () => ask({
    title: `Set priority of ${plural(chosen.length, "job")}`, button: "Set priority",
    questions: [{ name: "priority", label: "Priority", kind: "number", help: "Higher priorities run first.", value: "0" }],
    act: async (answers) => {
      const value = whole(answers.priority!, "priority");
      await each("updated", (id) => call("PATCH", `/admin/jobs/${seg(id)}`, { priority: value }));
    },
  });
  const of = all ? "all matching" : some ? plural(chosen.length, "job") : "";
  const why = some ? undefined : "Select jobs first";
  const single = some && !all;
  const whyOne = single ? undefined : all ? "Not available for all matching jobs" : why;
  return (
    <Selection count={chosen.length} all={all} total={props.total} noun="job" filtered={filtered}
      offered={filtered && props.shown > 0 && chosen.length !== props.total} select={props.select}>
      <Act small disabled={!some} why={why} on={many("retry")} of={of}>Retry</Act>
      <Act small disabled={!some} why={why} on={many("cancel")} danger of={of}>Cancel</Act>
      <Act small disabled={!some} why={why} on={many("delete")} danger of={of}>Delete</Act>
      <Act small disabled={!single} why={whyOne} on={() => each("available", (id) => call("POST", `/admin/jobs/${seg(id)}/run`))}>Run now</Act>
      <Act small disabled={!single} why={whyOne} on={priority}>Set priority</Act>
    </Selection>
  );
}

const EFFECT = {
  retry: "Retryable jobs and dead letters become available immediately.",
  cancel: "The jobs do not run again. Workers of active jobs are notified at their next heartbeat. This can't be undone.",
  delete: "This permanently deletes the jobs, results, and errors. Unfinished jobs are not deleted. This can't be undone.",
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
    { name: "Lease expires", cell: (job) => <Time at={job.lease_expires_at} />, by: (job) => job.lease_expires_at ?? "" },
    { name: "Progress", cell: (job) => job.progress === undefined ? <span class="dim">–</span> : <Progress of={job} /> },
    "attempt", "args",
  ];
  return (
    <Page title="Active jobs" about="Jobs that workers have leased, with their progress.">
      {only && !queue ? <Card><Empty title="Select a queue">Your key has access to some queues only: <ul class="plain">{only.map((name) => <li key={name}><a href={href(`/running${query({ queue: name })}`)}><bdi>{name}</bdi></a></li>)}</ul></Empty></Card> : (
        <Listing title="Active" filter={{ state: "active", worker_id: worker, queue, include: "args" }} columns={columns}
          empty={<Empty title="No active jobs"><a href={href("/jobs?state=available")}>View available jobs</a></Empty>} />
      )}
    </Page>
  );
}

function Progress({ of }: { of: Json }) {
  const progress = typeof of.progress === "object" ? of.progress : { percentage: of.progress };
  const part = progress.percentage ?? progress.progress;
  return <span title={progress.message}>{part === undefined ? <Text>{progress.message}</Text> : <><progress max={1} value={part} aria-label={`Progress of ${of.id}`} /> {percent(part)}</>}</span>;
}

export function Waiting() {
  const { query: asked } = useRoute();
  const queue = asked.get("queue") ?? undefined;
  const only = limited();
  const due = (name: string, field: string): Column<Json> => ({ name, cell: (job) => <Time at={job[field] ?? job.scheduled_at ?? job.next_retry_at} />, by: (job) => job[field] ?? job.scheduled_at ?? "" });
  if (only && !queue)
    return <Page title="Scheduled & retries"><Card><Empty title="Select a queue">Your key has access to some queues only: <ul class="plain">{only.map((name) => <li key={name}><a href={href(`/waiting${query({ queue: name })}`)}><bdi>{name}</bdi></a></li>)}</ul></Empty></Card></Page>;
  return (
    <Page title="Scheduled & retries" about="Jobs that become available at a later time. In one queue, they are sorted by that time.">
      <Card>
        <form key={queue} class="filters" role="search" onSubmit={(event) => { event.preventDefault(); refine({ queue: ((event.currentTarget as HTMLFormElement).elements.namedItem("queue") as HTMLInputElement).value.trim() }); }}>
          <label>Queue <input name="queue" defaultValue={queue} spellcheck={false} /></label>
          <button type="submit" class="main">Search</button>
        </form>
      </Card>
      <Listing title="Retryable" answers={3} filter={{ state: "retryable", queue }}
        columns={["id", "type", "queue", "attempt", due("Next attempt", "next_retry_at"), { name: "Error", cell: (job) => <Text>{job.error?.type}</Text> }, "args"]}
        empty={<Empty title="No retryable jobs" />} />
      <Listing title="Scheduled" answers={3} filter={{ state: "scheduled", queue }}
        columns={["id", "type", "queue", due("Scheduled for", "scheduled_at"), "priority", "created", "args"]}
        empty={<Empty title="No scheduled jobs">To schedule a job, enqueue it with <code>delay_until</code>.</Empty>} />
    </Page>
  );
}

