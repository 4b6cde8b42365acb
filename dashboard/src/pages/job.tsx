import { BASE, call, can, get, key, type Json, seg } from "../api";
import { duration, json, percent, quoted } from "../format";
import { usePoll } from "../live";
import { href } from "../route";
import { Act, ask, Card, Copy, Empty, Facts, JsonCard, Link, Page, QueueLink, State, tell, Text, Time, Trouble, When } from "../ui";
import { whole } from "./queues";

const ENDED = new Set(["completed", "cancelled", "discarded"]);

// What a push may say of a job, of what an answer shows.
const PUSHED = ["priority", "tags", "retry", "unique", "rate_limit", "expires_at", "timeout"];

/** The same job, pushed anew with curl. */
function curl(job: Json): string {
  const options = Object.fromEntries([["queue", job.queue], ...PUSHED.filter((name) => job[name] !== undefined && job[name] !== 0).map((name) => [name, job[name]])]);
  const body = { type: job.type, args: job.args ?? [], ...(job.meta && Object.keys(job.meta).length ? { meta: job.meta } : {}), options };
  return [
    `curl ${location.origin}${BASE}/jobs -H 'Content-Type: application/json' \\`,
    ...(key.get() ? ['  -H "Authorization: Bearer $OJS_KEY" \\'] : []),
    `  -d ${quoted(json(body))}`,
  ].join("\n");
}

export function JobPage({ name: id }: { name: string }) {
  const admin = can("admin:read");
  const read = usePoll(async (signal) => {
    const answer = await get(`${admin ? "/admin" : ""}/jobs/${seg(id)}`, signal);
    return { ...answer.job, ...answer } as Json;
  }, 10_000, [id]);
  const history = usePoll((signal) => (can("jobs:read") ? get(`/jobs/${seg(id)}/history`, signal) : Promise.resolve({ events: [] })), 20_000, [id]);
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
    ask({ title, text, button, danger: true, act: async () => { await act(); } });
  const change = () => ask({
    title: "Change this job", button: "Change it",
    text: "It stays in the same state, elsewhere in line. To move it takes jobs:write as well.",
    questions: [
      { name: "priority", label: "Priority", kind: "number", value: String(job!.priority), help: "Higher goes first." },
      { name: "queue", label: "Queue", value: job!.queue },
    ],
    act: async ({ priority, queue }) => {
      await call("PATCH", path, {
        ...(priority !== String(job!.priority) && { priority: whole(priority!, "priority") }),
        ...(queue !== job!.queue && { queue }),
      });
      tell("Changed.");
      read.again();
    },
  });
  const cron = job?.cron_name ?? job?.cron ?? job?.meta?.["ojs.cron"];
  const workflow = job?.workflow_id ?? job?.workflow?.id;
  return (
    <Page
      title={job?.type ?? "Job"} read={read}
      about={<><code>{id}</code> <Copy text={id} label="Copy id" /></>}
      actions={job && <>
        {(state === "retryable" || job.dead_letter) && <Act on={does("retry", "It is available again.")}>Retry</Act>}
        {job.dead_letter && <Link to={`/dead-letters?id=${seg(id)}`} class="button">Retry with changes …</Link>}
        {(state === "scheduled" || state === "retryable") && <Act on={does("run", "It is available now.")}>Run now</Act>}
        {["available", "scheduled", "retryable", "pending"].includes(state) && <Act on={change}>Change …</Act>}
        {!ENDED.has(state) && <Act danger on={sure("Cancel this job?", "It is not done any more. This cannot be taken back.", "Cancel the job", does("cancel", "Cancelled."))}>Cancel …</Act>}
        {ENDED.has(state) && <Act danger on={sure("Delete this job?", "It goes for good, with its payload, result and errors.", "Delete for good", does("", "Deleted.", "DELETE"))}>Delete …</Act>}
      </>}
    >
      {read.error?.status === 404 && <Empty title="There is no such job."><p>It was deleted, its time to be kept is over, or the id is another one. <a href={href("/jobs")}>Find jobs</a></p></Empty>}
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
              ["Lease", state === "active" && data.lease_expires_at && <>ends <Time at={data.lease_expires_at} /></>],
              ["Progress", data.progress !== undefined && <Text>{typeof data.progress === "object" ? JSON.stringify(data.progress) : `${percent(data.progress)} ${data.progress_message ?? ""}`}</Text>],
              ["Workflow", workflow && <Link to={`/workflows/${seg(workflow)}`}>{workflow}</Link>],
              ["Cron job", typeof cron === "string" && <Link to={`/cron/${seg(cron)}`}>{cron}</Link>],
            ]} />
          </Card>
          <Card title="Times">
            <Facts of={([
              ["Pushed", "created_at"], ["Due", "scheduled_at"], ["Available", "enqueued_at"], ["Started", "started_at"],
              ["Next attempt", "next_retry_at"], ["Ended", "completed_at"], ["Cancelled", "cancelled_at"], ["Expires", "expires_at"],
            ] as const).map(([label, field]) => [label, data[field] && <Time at={data[field]} />])} />
            {data.started_at && data.enqueued_at && <p class="dim">Waited {duration(Date.parse(data.started_at) - Date.parse(data.enqueued_at))}{data.completed_at && <>, ran {duration(Date.parse(data.completed_at) - Date.parse(data.started_at))}</>}.</p>}
          </Card>
          <Card title="What happened">
            <Trouble read={history} />
            <When read={history}>{(told) => <Timeline events={told.events} errors={data.errors ?? []} approximate={told.approximate} />}</When>
          </Card>
          <JsonCard title="Args" value={data.args} />
          {data.meta && Object.keys(data.meta).length > 0 && <JsonCard title="Meta" value={data.meta} />}
          {data.result !== undefined && <JsonCard title="Result" value={data.result} />}
          {data.omitted && <Card title="Left out"><p>Too large for an answer: <code>{data.omitted.join(", ")}</code>.</p></Card>}
          {data.retry_policy && <JsonCard title="Retry policy" value={data.retry_policy} />}
          <div class="wide"><Card title="The same job as curl" actions={<Copy text={curl(data)} />}><pre tabIndex={0}><bdi>{curl(data)}</bdi></pre></Card></div>
        </div>
      </>}</When>
    </Page>
  );
}

const EVENTS: Record<string, string> = {
  "job.created": "pushed", "job.attempt_started": "started", "job.attempt_failed": "failed",
  "job.attempt_completed": "done", "job.state_changed": "became",
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
          <strong>{event.data?.attempt ? `Attempt ${event.data.attempt} ` : ""}{EVENTS[event.event_type] ?? String(event.event_type).replace(/^job\./, "").replaceAll("_", " ")}</strong>{" "}
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
      {!rows.length && !rest.length && <p class="dim">Nothing is told of it.</p>}
      {approximate && <p class="dim">From what the job itself keeps; <a href={href("/events")}>events</a> have the rest of the last seven days.</p>}
    </>
  );
}

export function Failure({ of }: { of: Json }) {
  const trace: string[] = of.backtrace ?? of.stack_trace ?? [];
  return (
    <div class="failure">
      <p><strong><bdi>{of.type ?? of.code ?? "Error"}</bdi></strong> <bdi>{of.message}</bdi></p>
      {trace.length > 0 && (
        <details><summary>Backtrace, {trace.length} lines</summary><pre tabIndex={0}><bdi>{Array.isArray(trace) ? trace.join("\n") : String(trace)}</bdi></pre></details>
      )}
    </div>
  );
}
