import { useState } from "preact/hooks";
import { BASE, call, can, get, key, type Json, seg } from "../api";
import { capital, duration, json, percent, plural, quoted } from "../format";
import { useBox } from "../box";
import { now, usePoll } from "../live";
import { href } from "../route";
import { Act, ask, Card, Copy, Empty, Facts, JobLink, JsonCard, Link, Page, QueueLink, State, tell, Text, Time, Trouble, When } from "../ui";
import { asleep, Durable } from "./durable";
import { whole } from "./queues";

const FINAL = new Set(["completed", "cancelled", "discarded"]);

// The options of an enqueue request that a job's record contains.
const OPTIONS = ["priority", "tags", "retry", "unique", "rate_limit", "expires_at", "timeout"];

/** A curl command that enqueues a copy of the job. */
function curl(job: Json): string {
  const options = Object.fromEntries([["queue", job.queue], ...OPTIONS.filter((name) => job[name] !== undefined && job[name] !== 0).map((name) => [name, job[name]])]);
  const body = { type: job.type, args: job.args ?? [], ...(job.meta && Object.keys(job.meta).length ? { meta: job.meta } : {}), options };
  return [
    `curl ${location.origin}${BASE}/jobs -H 'Content-Type: application/json' \\`,
    ...(key.get() ? ['  -H "Authorization: Bearer $OJS_KEY" \\'] : []),
    `  -d ${quoted(json(body))}`,
  ].join("\n");
}

export function JobPage({ name: id }: { name: string }) {
  const admin = can("admin:read");
  const about = `job:${id}`;
  const read = usePoll(async (signal) => {
    const answer = await get(`${admin ? "/admin" : ""}/jobs/${seg(id)}`, signal);
    return { ...answer.job, ...answer } as Json;
  }, [id], { about });
  const history = usePoll((signal) => (can("jobs:read") ? get(`/jobs/${seg(id)}/history`, signal) : Promise.resolve({ events: [] })), [id], { about });
  const [steps, setSteps] = useState<Json[]>([]);
  const job = read.data;
  const path = `/admin/jobs/${seg(id)}`;
  const state: string = job?.state ?? "";
  const does = (act: string, said: string, method = "POST") => async () => {
    await call(method, act ? `${path}/${act}` : path);
    tell(said);
    read.again();
    history.again();
  };
  const sure = (title: string, text: string, button: string, act: () => Promise<unknown>) => () =>
    ask({ title, text, button, danger: true, dismiss: "Close", act: async () => { await act(); } });
  const change = () => ask({
    title: "Edit job", button: "Save",
    text: "The job keeps its state. Moving it to another queue also requires the scope jobs:write.",
    questions: [
      { name: "priority", label: "Priority", kind: "number", value: String(job!.priority), help: "Higher priorities run first." },
      { name: "queue", label: "Queue", value: job!.queue },
    ],
    act: async ({ priority, queue }) => {
      await call("PATCH", path, {
        ...(priority !== String(job!.priority) && { priority: whole(priority!, "priority") }),
        ...(queue !== job!.queue && { queue }),
      });
      tell("Job updated");
      read.again();
    },
  });
  const cron = job?.cron_name ?? job?.cron ?? job?.meta?.["ojs.cron"];
  const workflow = job?.workflow_id ?? job?.workflow?.id;
  return (
    <Page
      title={job?.type ?? "Job"} read={read}
      about={<><code>{id}</code> <Copy text={id} label="Copy ID" /></>}
      actions={job && <>
        {(state === "retryable" || job.dead_letter) && <Act on={does("retry", "Job retried")}>Retry</Act>}
        {job.dead_letter && <Link to={`/dead-letters?id=${seg(id)}`} class="button">Edit and retry</Link>}
        {(state === "scheduled" || state === "retryable") && (!job.waiting || asleep(job)) && <Act on={does("run", "Job is available")}>{job.waiting ? "End sleep" : "Run now"}</Act>}
        {["available", "scheduled", "retryable", "pending"].includes(state) && <Act on={change}>Edit</Act>}
        {!FINAL.has(state) && <Act danger on={sure("Cancel job?", "The job does not run again. If it is active, its worker is notified at the next heartbeat. This can't be undone.", "Cancel job", does("cancel", "Job cancelled"))}>Cancel</Act>}
        {FINAL.has(state) && <Act danger on={sure("Delete job?", "This permanently deletes the job, its result, and its errors. This can't be undone.", "Delete job", does("", "Job deleted", "DELETE"))}>Delete</Act>}
      </>}
    >
      {read.error?.status === 404 && <Empty title="Job not found"><p>It was deleted, its retention ended, or the ID is wrong. <a href={href("/jobs")}>Search jobs</a></p></Empty>}
      <When read={read}>{(data) => <>
        <div class="cards">
          <Card title="Job">
            <Facts of={[
              ["State", <State of={data.dead_letter ? "dead-letter" : data.state} />],
              ["Queue", <QueueLink name={data.queue} />],
              ["Attempt", `${data.attempt} of ${data.max_attempts}`],
              ["Priority", data.priority],
              ["Tags", data.tags?.length ? data.tags.map((tag: string) => <Link key={tag} to={`/jobs?tag=${seg(tag)}`} class="tag">{tag}</Link>) : ""],
              ["Producer", data.producer && <Text>{data.producer}</Text>],
              ["Changed by", data.changed_by && <Text>{data.changed_by}</Text>],
              ["Worker", data.worker_id && <Link to={`/running?worker_id=${seg(data.worker_id)}`}>{data.worker_id}</Link>],
              ["Lease", state === "active" && data.lease_expires_at && <>expires <Time at={data.lease_expires_at} /></>],
              ["Progress", data.progress !== undefined && <Text>{typeof data.progress === "object" ? JSON.stringify(data.progress) : `${percent(data.progress)} ${data.progress_message ?? ""}`}</Text>],
              ["Workflow", workflow && <Link to={`/workflows/${seg(workflow)}`}>{workflow}</Link>],
              ["Parent", data.parent && <><JobLink id={data.parent.job_id} /> <Text>{data.parent.name}</Text></>],
              ["Code version", data.durable?.version],
              ["Forgiven attempts", data.durable?.forgiven_attempts || ""],
              ["Started over", data.durable?.epoch ? plural(data.durable.epoch, "time") : ""],
              ["Cron job", typeof cron === "string" && <Link to={`/cron/${seg(cron)}`}>{cron}</Link>],
            ]} />
          </Card>
          <Card title="Timeline">
            <Facts of={([
              ["Created", "created_at"], ["Scheduled for", "scheduled_at"], ["Available", "enqueued_at"], ["Started", "started_at"],
              ["Next attempt", "next_retry_at"], ["Finished", "completed_at"], ["Cancelled", "cancelled_at"], ["Expires", "expires_at"],
            ] as const).map(([label, field]) => [label, data[field] && <Time at={data[field]} />])} />
            {data.started_at && data.enqueued_at && data.started_at >= data.enqueued_at && <p class="dim">Wait {duration(Date.parse(data.started_at) - Date.parse(data.enqueued_at))}{data.completed_at && <> · Run {duration(Date.parse(data.completed_at) - Date.parse(data.started_at))}</>}</p>}
          </Card>
          <div class="wide"><Run job={data} events={history.data?.events ?? []} steps={steps} /></div>
          <Card title="History">
            <Trouble read={history} />
            <When read={history}>{(past) => <Timeline events={past.events} errors={data.errors ?? []} approximate={past.approximate} />}</When>
          </Card>
          {data.durable && <Durable job={data} final={FINAL.has(state)} seen={setSteps} again={() => { read.again(); history.again(); }} />}
          <JsonCard title="Arguments" value={data.args} />
          {data.meta && Object.keys(data.meta).length > 0 && <JsonCard title="Meta" value={data.meta} />}
          {data.result !== undefined && <JsonCard title="Result" value={data.result} />}
          {data.omitted && <Card title="Not shown"><p>Too large for the response: <code>{data.omitted.join(", ")}</code>.</p></Card>}
          {data.retry_policy && <JsonCard title="Retry policy" value={data.retry_policy} />}
          <div class="wide"><Card title="Enqueue again (curl)" actions={<Copy text={curl(data)} />}><pre tabIndex={0}><bdi>{curl(data)}</bdi></pre></Card></div>
        </div>
      </>}</When>
    </Page>
  );
}

interface Part { name: string; state: string; from: number; to: number; bad?: boolean }

/** The parts of a run: scheduled, available, active by attempt, waiting for a retry; and its steps. */
function parts(job: Json, events: Json[], steps: Json[], now: number): Part[] {
  const found: Part[] = [];
  let open: Part | undefined;
  const begin = (name: string, state: string, from: number) => {
    if (open) found.push({ ...open, to: from });
    open = name ? { name, state, from, to: now } : undefined;
  };
  for (const { event_type: type, timestamp, data } of events) {
    const at = Date.parse(timestamp);
    if (type === "job.created") {
      const due = Date.parse(job.scheduled_at ?? "");
      if (due > at) begin("Scheduled", "scheduled", at);
      if (!(due > now)) begin("Available", "available", due > at ? due : at);
    } else if (type === "job.attempt_started") begin(`Attempt ${data?.attempt || 1}`, "active", at);
    else if (type === "job.attempt_failed") {
      // The record of a job with a later attempt has no start of this one.
      if (open?.state === "available") Object.assign(open, { name: `Wait and attempt ${data?.attempt ?? ""}`, state: "active" });
      if (open) open.bad = true;
      begin("Waits for retry", "retryable", at);
    } else if (type === "job.attempt_completed" || FINAL.has(data?.to)) begin("", "", at);
    else if (data?.to === "available" && open?.state !== "available") begin("Available", "available", at);
    else if (data?.to === "retryable" && open?.state !== "retryable") begin("Waits for retry", "retryable", at);
  }
  // The record of a suspended job doesn't contain the end of its attempt. The time of its latest step is shown instead.
  if (job.waiting?.length && open?.state === "active")
    begin(`Waits for ${job.waiting.map((wait: Json) => wait.kind).join(", ")}`, "scheduled", Math.max(open.from, ...steps.map((step) => Date.parse(step.stored_at))));
  if (open) found.push({ ...open, to: FINAL.has(job.state) ? Date.parse(job.completed_at ?? job.cancelled_at ?? "") || open.from : Math.max(now, open.from) });
  for (const step of steps)
    if (step.started_at) found.push({ name: step.name, state: "step", from: Date.parse(step.started_at), to: Date.parse(step.started_at) + (step.duration_ms ?? 0), bad: Boolean(step.error) });
  // A part of no time, for example of a job that failed permanently, tells nothing.
  return found.filter((part) => part.state === "active" || part.state === "step" || part.to > part.from);
}

function Run({ job, events, steps }: { job: Json; events: Json[]; steps: Json[] }) {
  const all = parts(job, events, steps, useBox(now));
  if (!all.length) return null;
  const from = Math.min(...all.map((part) => part.from));
  const whole = Math.max(1, Math.max(...all.map((part) => part.to)) - from);
  return (
    <Card title="Run">
      <ol class="run">
        {all.map((part, index) => (
          <li key={index} data-state={part.state} data-bad={part.bad ? "" : undefined}>
            <span><bdi>{part.name}</bdi>{part.bad && " failed"}</span>
            <svg viewBox="0,0,100,1" preserveAspectRatio="none" aria-hidden="true"><rect x={Math.min(99.4, ((part.from - from) / whole) * 100)} width={Math.max(0.6, ((part.to - part.from) / whole) * 100)} height="1" /></svg>
            <span>{duration(part.to - part.from)}</span>
          </li>
        ))}
      </ol>
    </Card>
  );
}

const EVENTS: Record<string, string> = {
  "job.created": "created", "job.attempt_started": "started", "job.attempt_failed": "failed",
  "job.attempt_completed": "completed", "job.state_changed": "",
};

function Timeline({ events, errors, approximate }: { events: Json[]; errors: Json[]; approximate?: boolean }) {
  const placed = new Set<Json>();
  const rows = events.map((event, index) => {
    const before = events[index - 1];
    const took = before && Date.parse(event.timestamp) - Date.parse(before.timestamp);
    const error = /fail/.test(event.event_type) ? errors.find((each) => each.attempt === event.data?.attempt && !placed.has(each)) ?? event.data?.error : undefined;
    if (error) placed.add(error);
    return (
      <li key={event.id} data-bad={error ? "" : undefined}>
        <p>
          <strong>{capital(`${event.data?.attempt ? `Attempt ${event.data.attempt} ` : ""}${event.data?.kind ? `${event.data.kind} ${event.data.status}` : EVENTS[event.event_type] ?? String(event.event_type).replace(/^job\./, "").replaceAll("_", " ")}`)}</strong>{" "}
          {event.data?.name && <bdi class="mono">{event.data.name}</bdi>}{" "}
          {event.data?.to && <State of={event.data.to} />} <Time at={event.timestamp} />
          {took ? <span class="dim"> after {duration(took)}</span> : null}
          {event.actor?.id && event.actor.type !== "system" && <span class="dim"> by <bdi>{event.actor.id}</bdi></span>}
        </p>
        {error && <Failure of={error} />}
      </li>
    );
  });
  const rest = errors.filter((each) => !placed.has(each));
  return (
    <>
      <ol class="timeline">
        {rows}
        {rest.map((error, index) => (
          <li key={index} data-bad=""><p><strong>Attempt {error.attempt} failed</strong> <Time at={error.occurred_at} /></p><Failure of={error} /></li>
        ))}
      </ol>
      {!rows.length && !rest.length && <p class="dim">No history</p>}
      {approximate && <p class="dim">Only times in the job record are shown. <a href={href("/events")}>Events</a> contain the last 7 days.</p>}
    </>
  );
}

export function Failure({ of }: { of: Json }) {
  const trace: string[] = of.backtrace ?? of.stack_trace ?? [];
  return (
    <div class="failure">
      <p><strong><bdi>{of.type ?? of.code ?? "Error"}</bdi></strong> <bdi>{of.message}</bdi></p>
      {trace.length > 0 && (
        <details><summary>Stack trace ({plural(trace.length, "line")})</summary><pre tabIndex={0}><bdi>{Array.isArray(trace) ? trace.join("\n") : String(trace)}</bdi></pre></details>
      )}
    </div>
  );
}
