import { useState } from "preact/hooks";
import { call, can, get, type Json, query, seg } from "../api";
import { capital, label, number } from "../format";
import { usePoll } from "../live";
import { Act, ask, Card, Duration, Empty, Pager, parsed, State, Table, tell, Text, Time, Tree, Trouble, When } from "../ui";
import { Failure } from "./job";

/** Whether a job waits for sleeps alone, which an operator can end. */
export const asleep = (job: Json): boolean => job.waiting?.every((wait: Json) => wait.kind === "sleep" || wait.kind === "time") ?? false;

const size = (value: Json) => new TextEncoder().encode(JSON.stringify(value)).length;

/** The stored outcomes of a job with durable code, and its waits. */
export function Durable({ job, final, seen, again }: { job: Json; final: boolean; seen: (steps: Json[]) => void; again: () => void }) {
  const [pages, setPages] = useState(1);
  const path = `/jobs/${seg(job.id)}`;
  const allowed = can("jobs:read") || can("work");
  const read = usePoll(async (signal) => {
    const steps: Json[] = [], waits: Json[] = [];
    let cursor: string | undefined;
    for (let page = 0; allowed && page < pages; page++) {
      const answer = await get(`${path}/steps${query({ cursor })}`, signal);
      steps.push(...answer.steps);
      waits.push(...answer.waits);
      cursor = answer.pagination.next_cursor;
      if (!cursor) break;
    }
    seen(steps);
    return { steps, waits, more: Boolean(cursor) };
  }, [job.id, pages, allowed], { about: `job:${job.id}`, everyMs: final ? 0 : 15_000 * pages });
  const done = (said: string) => {
    tell(said);
    again();
    read.again();
  };
  const waiting: Json[] = job.waiting ?? [];
  const signal = () => ask({
    title: "Send signal", button: "Send",
    text: "The job receives each signal once, also if it waits for the signal later.",
    questions: [
      { name: "signal", label: "Name", value: waiting.find((wait) => wait.kind === "signal")?.name ?? "", required: true },
      { name: "data", label: "Data (JSON)", kind: "json", value: "null" },
    ],
    act: async (answers) => {
      const sent = await call("POST", `${path}/signals/${seg(answers.signal!)}`, { data: parsed(answers.data!, "data") });
      done(sent.woken ? "Signal sent: the job is available" : "Signal sent");
    },
  });
  const forget = (name: string) => ask({
    title: `Forget ${name}?`, button: "Forget", danger: true, dismiss: "Close",
    text: "This deletes the stored outcome. The next attempt runs the step again, with its side effects. This can't be undone.",
    act: async () => {
      await call("DELETE", `${path}/steps/${seg(name)}`);
      done("Step forgotten");
    },
  });
  const fixed = job.state === "active" || job.state === "completed";
  const Forget = ({ of }: { of: string }) => (
    <Act small danger of={of} disabled={fixed} why={fixed ? `Not possible while the job is ${job.state}` : undefined} on={() => forget(of)}>Forget</Act>
  );
  return (
    <div class="wide">
      <Card title="Steps" actions={!final && <Act needs="jobs:write" on={signal}>Send signal</Act>}>
        {waiting.length > 0 && (
          <ul class="waiting" aria-label="Waits for">
            {waiting.map((wait) => <li key={wait.kind + wait.name}>Waits for {wait.kind === "job" ? "child job" : wait.kind} <bdi class="mono">{wait.name}</bdi>, at most until <Time at={wait.until} /></li>)}
          </ul>
        )}
        {!allowed && <p class="dim">Stored steps require the scope jobs:read.</p>}
        <Trouble read={read} />
        {allowed && <When read={read}>{(data) => <>
          <Table rows={data.steps} label="Steps" part={data.more} id={(step) => `${step.kind} ${step.name}`}
            empty={<Empty title="No stored steps" />}
            columns={[
              { name: "Step", cell: (step) => <Text>{step.name}</Text>, by: (step) => step.name },
              { name: "Kind", cell: (step) => (step.kind === "job" ? "Child job" : label(step.kind)), by: (step) => step.kind },
              { name: "State", cell: (step) => <State of={step.status} />, by: (step) => step.status },
              { name: "Attempt", right: true, cell: (step) => number(step.attempt), by: (step) => step.attempt },
              // A signal has no beginning.
              { name: "Began", cell: (step) => <Time at={step.started_at ?? step.stored_at} />, by: (step) => step.started_at ?? step.stored_at },
              { name: "Duration", right: true, cell: (step) => <Duration ms={step.duration_ms} />, by: (step) => step.duration_ms ?? -1 },
              { name: "Bytes", right: true, cell: (step) => number(size(step.result ?? step.error ?? null)), by: (step) => size(step.result ?? step.error ?? null) },
              { name: "Result", cell: (step) => step.error ? <Failure of={step.error} /> : step.result === undefined ? <span class="dim">–</span> : <Result of={step} /> },
              { name: "", cell: (step) => <Forget of={step.name} /> },
            ]} />
          <Pager shown={data.steps.length} more={data.more} busy={read.busy} one="step" on={() => setPages(pages + 1)} />
          {data.waits.length > 0 && <Table rows={data.waits} label="Sleeps and waits" id={(wait) => wait.name} columns={[
            { name: "Wait", cell: (wait) => <Text>{wait.name}</Text>, by: (wait) => wait.name },
            { name: "Kind", cell: (wait) => capital(wait.kind), by: (wait) => wait.kind },
            { name: "Ends", cell: (wait) => <Time at={wait.until} />, by: (wait) => wait.until },
            { name: "Over", cell: (wait) => (wait.over ? "Yes" : "No") },
          ]} />}
        </>}</When>}
      </Card>
    </div>
  );
}

/** A result, folded: many of them are large. */
function Result({ of }: { of: Json }) {
  if (of.result === null || typeof of.result !== "object" && size(of.result) < 80) return <Tree value={of.result} />;
  return typeof of.result === "object" ? <Tree value={of.result} open={0} /> : (
    <details class="json"><summary>{capital(typeof of.result)}</summary><Tree value={of.result} /></details>
  );
}
