import { useEffect, useState } from "preact/hooks";
import { call, get, type Json, query, save, seg } from "../api";
import { json, moment } from "../format";
import { usePoll } from "../live";
import { go } from "../route";
import { described } from "../schedule";
import { Act, ask, Card, Empty, Facts, JobLink, JsonCard, Link, Page, Pager, parsed, QueueLink, State, Table, tell, Text, Time, Trouble, When } from "../ui";

const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;

/** The form that creates a cron job, or edits one. Large args are only changed with other clients. */
const edit = (done: (name: string) => void, old?: Json) => () => ask({
  title: old ? `Edit cron job ${old.name}` : "Create cron job", button: old ? "Save" : "Create",
  questions: [
    ...(old ? [] : [{ name: "name", label: "Name" }]),
    { name: "expression", label: "Schedule", value: old?.expression ?? "0 9 * * MON-FRI", help: "Five or six fields, an alias such as @daily, or an interval such as @every 15m." },
    { name: "timezone", label: "Time zone", value: old?.timezone ?? ZONE },
    { name: "type", label: "Job type", value: old?.type },
    { name: "queue", label: "Queue", value: old?.queue ?? "default" },
    ...(old && !old.args ? [] : [{ name: "args", label: "Args", kind: "json" as const, value: old ? json(old.args, 2) : "[]" }]),
  ],
  watch: ({ expression, timezone }) => <Preview expression={expression ?? ""} timezone={timezone ?? ""} />,
  act: async ({ name = old?.name, expression, timezone, type, queue, args }) => {
    const body = { expression, timezone, type, ...(args !== undefined && { args: parsed(args, "args") }), options: { queue } };
    await (old ? save("PATCH", `/cron/${seg(name)}`, body, old) : call("POST", "/cron", { name, ...body }));
    tell(`Cron job ${name} ${old ? "saved" : "created"}`);
    done(name);
  },
});

export function Crons() {
  const read = usePoll((signal) => get("/cron?limit=100", signal), []);
  return (
    <Page title="Cron jobs" read={read} about="Schedules that enqueue a job at each run." actions={<Act needs="jobs:write" on={edit((name) => go(`/cron/${seg(name)}`))}>Create cron job</Act>}>
      <Card>
        <When read={read}>{(data) => <>
          <Table rows={data.items as Json[]} label="Cron jobs" part={data.pagination.has_more} id={(cron) => cron.name}
            empty={<Empty title="No cron jobs">Create one here, with the Python library, or in your CDK app.</Empty>}
            columns={[
              { name: "Name", cell: (cron) => <><Link to={`/cron/${seg(cron.name)}`}>{cron.name}</Link> {cron.status !== "active" && <State of={cron.status} />}</>, by: (cron) => cron.name },
              { name: "Schedule", cell: (cron) => <><Schedule of={cron} /> <span class="dim">{cron.timezone}</span></> },
              { name: "Next run", cell: (cron) => <Time at={cron.next_run_at} />, by: (cron) => cron.next_run_at ?? "9" },
              { name: "Last run", cell: (cron) => <Time at={cron.last_run_at} />, by: (cron) => cron.last_run_at ?? "" },
              { name: "Job type", cell: (cron) => <Text>{cron.type}</Text> },
              { name: "Queue", cell: (cron) => <QueueLink name={cron.queue} /> },
              { name: "Runs", right: true, cell: (cron) => cron.run_count, by: (cron) => cron.run_count },
              { name: "", cell: (cron) => <Acts cron={cron} done={read.again} /> },
            ]} />
          <Pager shown={data.items.length} total={data.total} more={false} one="cron job" on={() => {}} />
        </>}</When>
      </Card>
    </Page>
  );
}

/** A schedule in words, and its next five runs in the time zone of the reader. */
function Preview({ expression, timezone }: { expression: string; timezone: string }) {
  const [of, set] = useState({ expression, timezone });
  useEffect(() => {
    const timer = setTimeout(() => set({ expression, timezone }), 400);
    return () => clearTimeout(timer);
  }, [expression, timezone]);
  const read = usePoll((signal) => (of.expression ? get(`/cron/preview${query(of)}`, signal) : Promise.resolve({ firings: [] })), [of], { everyMs: 0 });
  return (
    <div class="preview" role="status">
      <p><strong>{described(expression)}</strong></p>
      {read.error ? <p class="dim">No preview: <bdi>{String(read.error.details.reason ?? read.error.message)}</bdi></p> : read.data?.firings.length > 0 && <>
        <p class="dim">Next runs in your time zone ({ZONE}):</p>
        <ol>{read.data.firings.slice(0, 5).map(({ at }: Json) => <li key={at}>{moment(at)}</li>)}</ol>
      </>}
    </div>
  );
}

/** The schedule as text, if it has a common form, and the expression. */
function Schedule({ of }: { of: Json }) {
  const text = described(of.expression);
  return <>{text && <>{text} </>}<code class={text && "dim"}><bdi>{of.expression}</bdi></code></>;
}

function Acts({ cron, done, gone }: { cron: Json; done: () => void; gone?: () => void }) {
  const path = `/cron/${seg(cron.name)}`;
  const paused = cron.status === "paused" || !cron.enabled;
  return (
    <span class="row">
      <Act small needs="jobs:write" of={cron.name} on={async () => { await call("POST", `${path}/trigger`); tell(`${cron.name}: job enqueued`); done(); }}>Run now</Act>
      <Act small needs="jobs:write" of={cron.name} on={async () => { await call("POST", `${path}/${paused ? "resume" : "pause"}`); tell(`${cron.name} ${paused ? "resumed" : "paused"}`); done(); }}>{paused ? "Resume" : "Pause"}</Act>
      <Act small danger needs="jobs:write" of={cron.name} on={() => ask({ title: `Delete cron job ${cron.name}?`, text: "The schedule is deleted and stops running. Jobs that it enqueued are not deleted. This can't be undone.", button: "Delete cron job", danger: true, act: async () => { await save("DELETE", path, undefined, cron); tell(`${cron.name} deleted`); (gone ?? done)(); } })}>Delete</Act>
    </span>
  );
}

export function CronPage({ name }: { name: string }) {
  const read = usePoll((signal) => get(`/cron/${seg(name)}`, signal), [name]);
  const cron = read.data;
  const history = usePoll((signal) => get(`/cron/${seg(name)}/history`, signal), [name]);
  const expression = cron?.expression, timezone = cron?.timezone;
  const next = usePoll((signal) => (expression ? get(`/cron/preview?${new URLSearchParams({ expression, timezone })}`, signal) : Promise.resolve({ firings: [] })), [expression, timezone], { everyMs: 0 });
  return (
    <Page title={name} read={read} about="Cron job" actions={cron && <>
      <Act small needs="jobs:write" of={name} on={edit(read.again, cron)}>Edit</Act>
      <Acts cron={cron} done={() => { read.again(); history.again(); }} gone={() => go("/cron")} />
    </>}>
      {read.error?.status === 404 && <Empty title="Cron job not found"><Link to="/cron">View all cron jobs</Link></Empty>}
      <When read={read}>{(data) => <div class="cards">
        <Card title="Definition"><Facts of={[
          ["State", <State of={data.status} />], ["Schedule", <Schedule of={data} />], ["Time zone", data.timezone],
          ["Next run", <Time at={data.next_run_at} />], ["Last run", <Time at={data.last_run_at} />],
          ["Last job", data.last_job_id && <JobLink id={data.last_job_id} />], ["Runs", data.run_count],
          ["Overlap policy", data.overlap_policy], ["Queue", <QueueLink name={data.queue} />], ["Description", data.description],
        ]} /></Card>
        <Card title="Upcoming runs">
          <Trouble read={next} />
          <When read={next}>{(preview) => <ul class="rank">{preview.firings.map((each: Json) => <li key={each.at}><span>{each.local.replace("T", " ")}</span><span class="dim">{moment(each.at)}</span><Time at={each.at} /></li>)}</ul>}</When>
        </Card>
        <JsonCard title="Job template" value={data.job_template} />
        <Card title="History">
          <Trouble read={history} />
          <When read={history}>{(past) => <Table rows={past.executions as Json[]} label="History" id={(each) => each.scheduled_at ?? each.scheduled_time ?? each.id ?? JSON.stringify(each)} empty={<p class="dim">No runs</p>} columns={[
            { name: "Scheduled for", cell: (each) => <Time at={each.scheduled_at ?? each.scheduled_time} /> },
            { name: "Result", cell: (each) => <><State of={each.status ?? each.outcome ?? each.state} /> <Text>{each.reason}</Text></> },
            { name: "Job", cell: (each) => each.job_id ? <JobLink id={each.job_id} /> : <span class="dim">–</span> },
          ]} />}</When>
        </Card>
      </div>}</When>
    </Page>
  );
}
