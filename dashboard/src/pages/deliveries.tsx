import { useState } from "preact/hooks";
import { ApiError, call, get, type Json, save, seg } from "../api";
import { duration, number, span } from "../format";
import { usePoll } from "../live";
import { Act, ask, Card, Empty, JsonCard, Page, Pager, parsed, QueueLink, State, Table, tell, Text, Time, When } from "../ui";
import { whole } from "./queues";

const KINDS: [string, string][] = [["endpoint", "Endpoint: HTTPS URL"], ["function", "Function: Lambda ARN"], ["handler", "Handler: module:function (local server only)"]];
const FORMS: [string, string][] = [["", "Default of the target"], ["direct", "direct: the job"], ["push", "push: the body that endpoints receive"], ["sqs", "sqs: an SQS event with one or more jobs"]];
const lines = (text: string) => text.split("\n").map((line) => line.trim()).filter(Boolean);
const where = (target: Json): [string, string] => (Object.entries(target ?? {})[0] as [string, string] | undefined) ?? ["", ""];

/** The request that replaces a delivery. Without a new signing secret, the server keeps the current ones. */
function described(old: Json | undefined, answers: Record<string, string>): Json {
  const { kind, target, queues, pool, job_types, concurrency, timeout_ms, form, batch_size, signing_secret } = answers;
  if (queues && pool) throw new ApiError(0, "two sources", "", { field: "pool", reason: "can't be combined with queues. Enter one of them" });
  return {
    target: { [kind!]: target },
    ...(queues && { queues: lines(queues) }), ...(pool && { pool }), job_types: lines(job_types ?? ""),
    ...(concurrency && { concurrency: whole(concurrency, "concurrency") }),
    ...(timeout_ms && { timeout_ms: whole(timeout_ms, "timeout_ms") }),
    ...(batch_size && { batch_size: whole(batch_size, "batch_size") }),
    ...(form && { form }), ...(signing_secret && { signing_secret }), paused: Boolean(old?.paused),
  };
}

export function Deliveries() {
  // A deployment has at most 100 deliveries, so one page contains all of them.
  const read = usePoll((signal) => get("/admin/deliveries?limit=100", signal), []);
  const [open, show] = useState<string | null>(null);
  const absent = read.error?.unsupported || read.error?.status === 404;
  const items: Json[] = read.data?.items ?? [];
  const opened = items.find((each) => each.name === open);
  const edit = (old?: Json) => () => {
    const [kind, target] = where(old?.target);
    ask({
      title: old ? `Edit delivery ${old.name}` : "Create push delivery", button: old ? "Save" : "Create",
      text: "A queue can have one delivery. The setting push_functions of the deployment lists the allowed functions.",
      questions: [
        ...(old ? [] : [{ name: "name", label: "Name" }]),
        { name: "kind", label: "Target type", kind: "choice", choices: KINDS, value: kind || "endpoint" },
        { name: "target", label: "Target", value: target, help: "The URL, the ARN, or module:function." },
        { name: "queues", label: "Queues", kind: "list", value: (old?.queues ?? []).join("\n"), help: "One per line. Leave empty if you enter a pool." },
        { name: "pool", label: "Worker pool", value: old?.pool },
        { name: "job_types", label: "Job types", kind: "list", value: (old?.job_types ?? []).join("\n"), help: "One per line; empty: all. Jobs of other types stay available for workers that fetch." },
        { name: "concurrency", label: "Concurrency", kind: "number", value: String(old?.concurrency ?? 10) },
        { name: "timeout_ms", label: "Timeout", kind: "span", unit: "ms", value: span(old?.timeout_ms ?? 30_000), help: "Maximum duration of one job." },
        { name: "form", label: "Event format", kind: "choice", choices: FORMS, value: old?.form ?? "" },
        { name: "batch_size", label: "Batch size", kind: "number", value: old ? String(old.batch_size) : "", help: "Jobs per event. Requires the format sqs." },
        { name: "signing_secret", label: "Signing secret", help: old ? "Empty: unchanged." : "Required for endpoints. It is never shown again." },
      ],
      act: async (answers) => {
        const name = old?.name ?? answers.name;
        if (!name) throw new ApiError(0, "no name", "", { field: "name", reason: "is required" });
        await save("PUT", `/admin/deliveries/${seg(name)}`, described(old, answers), old);
        tell(`${name} saved`);
        read.again();
      },
    });
  };
  const test = (each: Json) => () => ask({
    title: `Test delivery ${each.name}`, button: "Send test event",
    text: "Sends a test event to the current target. No job is created. The test waits up to 20 seconds.",
    questions: [{ name: "type", label: "Type", value: each.job_types[0]?.includes("*") ? "test" : each.job_types[0] ?? "test" }, { name: "args", label: "Arguments", kind: "json", value: "[]" }],
    act: async ({ type, args }) => {
      const result = await call("POST", `/admin/deliveries/${seg(each.name)}/test`, { type, args: parsed(args!, "args") });
      const more = result.error ? `${result.error.type ?? result.error.code ?? ""} ${result.error.message ?? ""}` : result.result === undefined ? "" : JSON.stringify(result.result);
      tell(`${each.name}: ${result.outcome} after ${duration(result.duration_ms)}. ${more.slice(0, 300)}`, result.outcome !== "completed");
      read.again();
    },
  });
  const does = (each: Json, act: "pause" | "resume") => async () => {
    await call("POST", `/admin/deliveries/${seg(each.name)}/${act}`);
    tell(`${each.name} ${act}d`);
    read.again();
  };
  const remove = (each: Json) => () => ask({
    title: `Delete delivery ${each.name}?`, text: "Its jobs stay in their queues, available for workers that fetch. This can't be undone.", button: "Delete delivery", danger: true,
    act: async () => {
      await save("DELETE", `/admin/deliveries/${seg(each.name)}`, undefined, each);
      tell(`${each.name} deleted`);
      read.again();
    },
  });
  const count = (name: string) => ({ right: true, cell: (each: Json) => number(each.statistics[name]), by: (each: Json) => each.statistics[name] as number });
  return (
    <Page title="Push deliveries" read={absent ? undefined : read} about="Send jobs to Lambda functions and HTTPS endpoints, without a polling worker."
      actions={!absent && <Act on={edit()}>Create delivery</Act>}>
      <Card>
        {absent ? (
          <Empty title="Push delivery is not enabled"><p>Workers fetch the jobs of this deployment. {read.error?.hint}</p></Empty>
        ) : (
          <When read={read}>{(data) => <>
            <Table rows={items} label="Deliveries" id={(each) => each.name} empty={<Empty title="No deliveries">Create one here, with the Python library, or in your CDK app.</Empty>} columns={[
              { name: "Name", cell: (each) => <button type="button" class="small" aria-expanded={open === each.name} onClick={() => show(open === each.name ? null : each.name)}><bdi>{each.name}</bdi></button>, by: (each) => each.name },
              { name: "State", cell: (each) => <>
                <State of={each.state} />{" "}
                {each.disabled_reason && <span class="dim">{each.disabled_reason} <Time at={each.disabled_at} /></span>}
                {each.breaker !== "closed" && <State of={`breaker-${each.breaker}`} />}
                {each.backoff_until && <span class="dim">paused until <Time at={each.backoff_until} /></span>}
              </>, by: (each) => each.state },
              { name: "Target", cell: (each) => <Text>{where(each.target)[1]}</Text>, by: (each) => where(each.target)[1] },
              { name: "Queues", cell: (each) => <>
                {each.pool ? <>pool <bdi>{each.pool}</bdi></> : (each.queues ?? []).map((name: string) => <span key={name} class="tag"><QueueLink name={name} /></span>)}
                {each.job_types.length > 0 && <span class="dim"> <bdi>{each.job_types.join(", ")}</bdi></span>}
              </> },
              { name: "Sent", ...count("pushed") }, { name: "Completed", ...count("completed") }, { name: "Failed", ...count("failed") },
              { name: "Faults", ...count("faults") }, { name: "Throttled", ...count("throttled") },
              { name: "Concurrency", right: true, cell: (each) => number(each.concurrency), by: (each) => each.concurrency },
              { name: "", cell: (each) => <span class="row">
                {each.state === "active"
                  ? <Act small of={each.name} on={does(each, "pause")}>Pause</Act>
                  : <Act small of={each.name} on={does(each, "resume")}>Resume</Act>}
                <Act small of={each.name} on={test(each)}>Test</Act>
                <Act small of={each.name} on={edit(each)}>Edit</Act>
                <Act small danger of={each.name} on={remove(each)}>Delete</Act>
              </span> },
            ]} />
            <Pager shown={items.length} total={data.total} more={false} one="delivery" many="deliveries" order=", by name" on={() => {}} />
          </>}</When>
        )}
      </Card>
      {opened && <JsonCard title={<bdi>{opened.name}</bdi>} value={opened} />}
    </Page>
  );
}
