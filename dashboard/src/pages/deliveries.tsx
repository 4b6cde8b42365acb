import { useState } from "preact/hooks";
import { ApiError, call, get, type Json, seg } from "../api";
import { duration, number } from "../format";
import { usePoll } from "../live";
import { Act, ask, Card, Empty, JsonCard, Page, Pager, parsed, QueueLink, State, Table, tell, Text, Time, When } from "../ui";
import { whole } from "./queues";

const KINDS: [string, string][] = [["endpoint", "endpoint: an https URL"], ["function", "function: the ARN of a Lambda function"], ["handler", "handler: module:function, on the local server"]];
const FORMS: [string, string][] = [["", "as is usual for the target"], ["direct", "direct: the job"], ["push", "push: as an endpoint gets it"], ["sqs", "sqs: as an event of a queue"]];
const lines = (text: string) => text.split("\n").map((line) => line.trim()).filter(Boolean);
const where = (target: Json): [string, string] => (Object.entries(target ?? {})[0] as [string, string] | undefined) ?? ["", ""];

/** A delivery is replaced as a whole; its signing secrets stay unless new ones are given. */
function described(old: Json | undefined, answers: Record<string, string>): Json {
  const { kind, target, queues, pool, job_types, concurrency, timeout_ms, form, batch_size, signing_secret } = answers;
  if (queues && pool) throw new ApiError(0, "two", "", { field: "pool", reason: "is for deliveries that name no queues" });
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
  // At most a hundred there are: one page has them all.
  const read = usePoll((signal) => get("/admin/deliveries?limit=100", signal), 15_000, []);
  const [open, show] = useState<string | null>(null);
  const absent = read.error?.notOffered || read.error?.status === 404;
  const items: Json[] = read.data?.items ?? [];
  const opened = items.find((each) => each.name === open);
  const edit = (old?: Json) => () => {
    const [kind, target] = where(old?.target);
    ask({
      title: old ? `Change ${old.name}` : "Make a delivery", button: old ? "Change it" : "Make it",
      text: "A queue has one delivery. Which functions may be named the deployment says (push_functions).",
      questions: [
        ...(old ? [] : [{ name: "name", label: "Name" }]),
        { name: "kind", label: "Jobs go to", kind: "choice", choices: KINDS, value: kind || "endpoint" },
        { name: "target", label: "Where", value: target, help: "The URL, the ARN, or module:function." },
        { name: "queues", label: "Queues", kind: "list", value: (old?.queues ?? []).join("\n"), help: "One a line; or a pool." },
        { name: "pool", label: "Worker pool", value: old?.pool },
        { name: "job_types", label: "Types of jobs", kind: "list", value: (old?.job_types ?? []).join("\n"), help: "One a line; empty: all. Others stay for workers that fetch." },
        { name: "concurrency", label: "Most pushes at a time", kind: "number", value: String(old?.concurrency ?? 10) },
        { name: "timeout_ms", label: "Time-out", kind: "number", value: String(old?.timeout_ms ?? 30_000), help: "Milliseconds that the target may take." },
        { name: "form", label: "What the target gets", kind: "choice", choices: FORMS, value: old?.form ?? "" },
        { name: "batch_size", label: "Jobs of one event", kind: "number", value: old ? String(old.batch_size) : "", help: "With the form sqs alone." },
        { name: "signing_secret", label: "Signing secret", help: old ? "Empty: as it is." : "Endpoints need one. It is never shown again." },
      ],
      act: async (answers) => {
        const name = old?.name ?? answers.name;
        if (!name) throw new ApiError(0, "no name", "", { field: "name", reason: "is needed" });
        await call("PUT", `/admin/deliveries/${seg(name)}`, described(old, answers));
        tell(`${name}: saved.`);
        read.again();
      },
    });
  };
  const test = (each: Json) => () => ask({
    title: `Test ${each.name}`, button: "Push it",
    text: "One push that no job stands for, to the target as it is now. It waits up to 20 seconds.",
    questions: [{ name: "type", label: "Type", value: each.job_types[0]?.includes("*") ? "test" : each.job_types[0] ?? "test" }, { name: "args", label: "Args", kind: "json", value: "[]" }],
    act: async ({ type, args }) => {
      const told = await call("POST", `/admin/deliveries/${seg(each.name)}/test`, { type, args: parsed(args!, "args") });
      const more = told.error ? `${told.error.type ?? told.error.code ?? ""} ${told.error.message ?? ""}` : told.result === undefined ? "" : JSON.stringify(told.result);
      tell(`${each.name}: ${told.outcome} after ${duration(told.duration_ms)}. ${more.slice(0, 300)}`, told.outcome !== "completed");
      read.again();
    },
  });
  const does = (each: Json, act: "pause" | "resume") => async () => {
    await call("POST", `/admin/deliveries/${seg(each.name)}/${act}`);
    tell(`${each.name}: ${act}d.`);
    read.again();
  };
  const remove = (each: Json) => () => ask({
    title: `Delete ${each.name}?`, text: "Its jobs stay in their queues and wait for workers.", button: "Delete it", danger: true,
    act: async () => {
      await call("DELETE", `/admin/deliveries/${seg(each.name)}`);
      tell("Deleted.");
      read.again();
    },
  });
  const count = (name: string) => ({ right: true, cell: (each: Json) => number(each.statistics[name]), by: (each: Json) => each.statistics[name] as number });
  return (
    <Page title="Deliveries" read={absent ? undefined : read} about="Jobs that are taken to functions and endpoints, without a worker that asks for them."
      actions={!absent && <Act on={edit()}>Make a delivery …</Act>}>
      <Card>
        {absent ? (
          <Empty title="Not offered by this server."><p>Jobs are fetched by workers here. {read.error?.hint}</p></Empty>
        ) : (
          <When read={read}>{(data) => <>
            <Table rows={items} label="Deliveries" id={(each) => each.name} empty={<Empty title="No deliveries.">Make one here, with the library, or in your CDK app.</Empty>} columns={[
              { name: "Name", cell: (each) => <button type="button" class="small" aria-expanded={open === each.name} onClick={() => show(open === each.name ? null : each.name)}><bdi>{each.name}</bdi></button>, by: (each) => each.name },
              { name: "State", cell: (each) => <>
                <State of={each.state} />{" "}
                {each.disabled_reason && <span class="dim">{each.disabled_reason} <Time at={each.disabled_at} /></span>}
                {each.breaker !== "closed" && <State of={`breaker-${each.breaker}`} />}
                {each.backoff_until && <span class="dim">left alone until <Time at={each.backoff_until} /></span>}
              </>, by: (each) => each.state },
              { name: "Target", cell: (each) => <Text>{where(each.target)[1]}</Text>, by: (each) => where(each.target)[1] },
              { name: "Serves", cell: (each) => <>
                {each.pool ? <>pool <bdi>{each.pool}</bdi></> : (each.queues ?? []).map((name: string) => <span key={name} class="tag"><QueueLink name={name} /></span>)}
                {each.job_types.length > 0 && <span class="dim"> <bdi>{each.job_types.join(", ")}</bdi></span>}
              </> },
              { name: "Pushed", ...count("pushed") }, { name: "Done", ...count("completed") }, { name: "Failed", ...count("failed") },
              { name: "Faults", wide: true, ...count("faults") }, { name: "Throttled", wide: true, ...count("throttled") },
              { name: "At a time", wide: true, right: true, cell: (each) => number(each.concurrency), by: (each) => each.concurrency },
              { name: "", cell: (each) => <span class="row">
                {each.state === "active"
                  ? <Act small of={each.name} on={does(each, "pause")}>Pause</Act>
                  : <Act small of={each.name} on={does(each, "resume")}>Resume</Act>}
                <Act small of={each.name} on={test(each)}>Test …</Act>
                <Act small of={each.name} on={edit(each)}>Change …</Act>
                <Act small danger of={each.name} on={remove(each)}>Delete …</Act>
              </span> },
            ]} />
            <Pager shown={items.length} total={data.total} more={false} what="deliveries, in order of name" on={() => {}} />
          </>}</When>
        )}
      </Card>
      {opened && <JsonCard title={<bdi>{opened.name}</bdi>} value={opened} />}
    </Page>
  );
}
