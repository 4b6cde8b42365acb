import { useState } from "preact/hooks";
import { ApiError, can, get, invalid, type Json, parsedLimit, parsedSpan, save } from "../api";
import { span, written } from "../format";
import { usePoll } from "../live";
import { Card, Field, parsed, type Question, Refusal, refusalOf, refusals, tell, Time, Trouble, When } from "../ui";

// All fields of a queue's settings, with their form controls.
const FIELDS: Question[] = [
  { name: "max_size", label: "Max. jobs", kind: "number", help: "Unfinished jobs; 0: unlimited." },
  { name: "max_size_bytes", label: "Max. size (bytes)", kind: "number", help: "Bytes of unfinished jobs; 0: unlimited." },
  { name: "overflow_policy", label: "Overflow policy", kind: "choice", choices: [["reject", "reject: return an error"], ["block", "block: wait for capacity"], ["drop_oldest", "drop_oldest: discard the oldest available job"]] },
  { name: "warning_threshold", label: "Warning threshold", kind: "number", help: "0.0 to 1.0 of the maximum. Above it, responses to enqueue requests include a warning." },
  { name: "concurrency", label: "Concurrency limit", kind: "number", help: "Active jobs across all workers; empty: unlimited." },
  { name: "rate_limit", label: "Rate limit", kind: "text", help: "Dispatches per period, for example 100 per 1m. Empty: unlimited." },
  { name: "visibility_timeout", label: "Lease duration", kind: "span", unit: "s", help: "A worker must send a heartbeat within this time; at most 12h." },
  { name: "default_timeout", label: "Timeout", kind: "span", unit: "s", help: "Maximum duration of an attempt. A job can override it." },
  { name: "default_retry.max_attempts", label: "Max. attempts", kind: "number", help: "For jobs without their own retry policy." },
  { name: "default_retry.initial_interval", label: "First retry after", kind: "span" },
  { name: "default_retry.backoff_coefficient", label: "Backoff coefficient", kind: "number", help: "Factor between two intervals." },
  { name: "default_retry.max_interval", label: "Max. interval", kind: "span" },
  { name: "retention.completed", label: "Retention: completed", kind: "span", help: "For example 7d." },
  { name: "retention.cancelled", label: "Retention: cancelled", kind: "span" },
  { name: "retention.discarded", label: "Retention: discarded", kind: "span" },
  { name: "dead_letter.retention.max_age", label: "Dead letters: max. age", kind: "span" },
  { name: "dead_letter.retention.max_count", label: "Dead letters: max. count", kind: "number" },
  { name: "dead_letter.pruning_policy", label: "Dead letters: pruning", kind: "choice", choices: [["delete", "delete"], ["archive", "archive: to the payload bucket"]] },
  { name: "dead_letter_queue", label: "Dead letter queue", help: "The queue that receives copies of dead letters; empty: none." },
  { name: "dead_letter_max_size", label: "Dead letter queue: max. jobs", kind: "number" },
  { name: "dead_letter_ttl", label: "Dead letter queue TTL", kind: "span", help: "For example 14d." },
  { name: "replay_rules", label: "Replay rules", kind: "json", help: 'Retry matching dead letters automatically: [{"name": "…", "filter": {"error_type": "…"}, "delay": "PT1H", "max_replays": 3}].' },
  { name: "allowed_job_types", label: "Allowed job types", kind: "list", help: "One per line; * matches any characters." },
  { name: "producers", label: "Allowed producers", kind: "list", help: "Key names, one per line; *: all producers." },
  { name: "tenant_fairness", label: "Tenant fairness", kind: "json", help: "enabled, strategy, weights, default_weight: see the page on tenant fairness." },
  { name: "lanes", label: "Lanes", kind: "number", help: "More lanes: more throughput, no exact order. Can't be reduced." },
  { name: "require_lease_token", label: "Require lease token", kind: "choice", choices: [["", "Default"], ["true", "Yes"], ["false", "No"]], help: "Reject an ack or nack without the job's lease token." },
];

function shown(of: Question, value: Json): string {
  if (value === undefined || value === null) return "";
  if (of.kind === "span") return of.unit === "s" ? span(1_000 * value) : written(value);
  if (of.name === "rate_limit") return `${value.limit} per ${written(value.period)}`;
  if (of.kind === "json") return JSON.stringify(value, null, 2);
  if (of.kind === "list") return value.join("\n");
  return String(value);
}

function meant(of: Question, text: string): Json {
  if (!text) return null;
  if (of.kind === "span") return parsedSpan(text, of.name, of.unit);
  if (of.name === "rate_limit") return parsedLimit(text, of.name);
  if (of.kind === "json") return parsed(text, of.name);
  if (of.kind === "list") return text.split("\n").map((line) => line.trim()).filter(Boolean);
  if (of.kind === "number") {
    if (Number.isNaN(Number(text))) throw invalid(of.name, "must be a number");
    return Number(text);
  }
  if (of.choices?.some(([value]) => value === "true")) return text === "true";
  return text;
}

const valueOf = (config: Json, name: string) => name.split(".").reduce((value: Json, part) => value?.[part], config);

/** Sets a part of a setting. `changed` then has the whole setting: the server replaces it. */
function change(changed: Record<string, Json>, name: string, value: Json, before: Json): void {
  const [top, ...rest] = name.split(".") as [string, ...string[]];
  const last = rest.pop();
  if (!last) {
    changed[top] = value;
    return;
  }
  let part: Json = (changed[top] ??= structuredClone(before ?? {}));
  for (const each of rest) part = part[each] ??= {};
  if (value === null) delete part[last];
  else part[last] = value;
}

/** The settings of a queue, or the defaults of new queues. Only changed fields are sent. */
export function ConfigForm({ path, title }: { path: string; title: string }) {
  const read = usePoll((signal) => get(path, signal), [path], { everyMs: 0 });
  return (
    <Card title={title}>
      <Trouble read={read} />
      <When read={read}>{(data) => <Fields key={read.at} path={path} data={data} saved={read.again} />}</When>
    </Card>
  );
}

function Fields({ path, data, saved }: { path: string; data: Json; saved: () => void }) {
  const [error, fail] = useState<ApiError | null>(null);
  const [busy, set] = useState(false);
  const writable = can("admin:write");
  const sources = data.config_sources ?? {};
  const source = (name: string) => sources[name.split(".", 1)[0]!];
  const send = async (event: SubmitEvent) => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    fail(null);
    set(true);
    try {
      const changed: Record<string, Json> = {};
      for (const of of FIELDS) {
        const text = (form.elements.namedItem(of.name) as HTMLInputElement).value.trim();
        const top = of.name.split(".", 1)[0]!;
        if (text !== shown(of, valueOf(data.config, of.name)).trim()) change(changed, of.name, meant(of, text), sources[top] === "system" ? {} : data.config[top]);
      }
      for (const [name, value] of Object.entries(changed)) if (value && typeof value === "object" && !Array.isArray(value) && !Object.keys(value).length) changed[name] = null;
      if (Object.keys(changed).length) {
        await save("PUT", path, changed, data);
        tell(`Saved: ${Object.keys(changed).join(", ")}`);
        saved();
      } else tell("No changes to save");
    } catch (thrown) {
      fail(thrown instanceof ApiError ? thrown : new ApiError(0, String(thrown)));
    } finally {
      set(false);
    }
  };
  const refused = refusals(error);
  const lost = error && !FIELDS.some((of) => refusalOf(refused, of.name));
  return (
    <form onSubmit={send} noValidate>
      <fieldset disabled={!writable} class="config">
        <legend class="hidden">Fields</legend>
        {FIELDS.map((of) => (
          <Field key={of.name} of={{ ...of, label: of.label, value: shown(of, valueOf(data.config, of.name)) }} refused={refusalOf(refused, of.name)}
            note={<><code>{of.name}</code>{source(of.name) && <span class="dim"> · {source(of.name) === "queue" ? "Custom" : source(of.name) === "system" ? "Default" : "Default for new queues"}</span>}</>} />
        ))}
      </fieldset>
      {lost && <Refusal error={error} />}
      <div class="row end">
        <span class="dim">{writable ? "Clear a field to restore its default." : "Missing scope admin:write."}{data.updated_at && <> Updated <Time at={data.updated_at} />.</>}</span>
        <button type="submit" class="main" disabled={!writable || busy}>Save</button>
      </div>
    </form>
  );
}
