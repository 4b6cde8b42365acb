import { useState } from "preact/hooks";
import { ApiError, call, can, get, type Json } from "../api";
import { usePoll } from "../live";
import { Card, ErrorText, Field, parsed, type Question, refusalOf, refusals, tell, Time, Trouble, When } from "../ui";

// All fields of a queue's settings, with their form controls.
const FIELDS: Question[] = [
  { name: "max_size", label: "Max. jobs", kind: "number", help: "Unfinished jobs; 0: unlimited." },
  { name: "max_size_bytes", label: "Max. size (bytes)", kind: "number", help: "Bytes of unfinished jobs; 0: unlimited." },
  { name: "overflow_policy", label: "Overflow policy", kind: "choice", choices: [["reject", "reject: return an error"], ["block", "block: wait for capacity"], ["drop_oldest", "drop_oldest: discard the oldest available job"]] },
  { name: "warning_threshold", label: "Warning threshold", kind: "number", help: "0.0 to 1.0 of the maximum. Above it, responses to enqueue requests include a warning." },
  { name: "concurrency", label: "Concurrency limit", kind: "number", help: "Active jobs across all workers; empty: unlimited." },
  { name: "rate_limit", label: "Rate limit", kind: "json", help: 'Dispatches per period: {"limit": 100, "period": "PT1M"}. Empty: unlimited.' },
  { name: "visibility_timeout", label: "Lease duration (s)", kind: "number", help: "A worker must send a heartbeat within this time; at most 12 hours." },
  { name: "default_timeout", label: "Timeout (s)", kind: "number", help: "Maximum duration of an attempt. A job can override it." },
  { name: "default_retry", label: "Retry policy", kind: "json", help: "For jobs without their own policy." },
  { name: "retention", label: "Retention", kind: "json", help: "ISO 8601 durations for completed, discarded, and cancelled." },
  { name: "dead_letter", label: "Dead letter retention", kind: "json", help: "retention.max_age, retention.max_count; pruning_policy: delete, or archive to the payload bucket." },
  { name: "dead_letter_queue", label: "Dead letter queue", help: "The queue that receives copies of dead letters; empty: none." },
  { name: "dead_letter_max_size", label: "Dead letter queue: max. jobs", kind: "number" },
  { name: "dead_letter_ttl", label: "Dead letter queue TTL", help: "ISO 8601 duration, for example P14D." },
  { name: "replay_rules", label: "Replay rules", kind: "json", help: 'Retry matching dead letters automatically: [{"name": "…", "filter": {"error_type": "…"}, "delay": "PT1H", "max_replays": 3}].' },
  { name: "allowed_job_types", label: "Allowed job types", kind: "list", help: "One per line; * matches any characters." },
  { name: "producers", label: "Allowed producers", kind: "list", help: "Key names, one per line; *: all producers." },
  { name: "tenant_fairness", label: "Tenant fairness", kind: "json", help: "enabled, strategy, weights, default_weight." },
  { name: "lanes", label: "Lanes", kind: "number", help: "More lanes: more throughput, no exact order. Can't be reduced." },
  { name: "require_lease_token", label: "Require lease token", kind: "choice", choices: [["", "Default"], ["true", "Yes"], ["false", "No"]], help: "Reject an ack or nack without the job's lease token." },
];

function shown(of: Question, value: Json): string {
  if (value === undefined || value === null) return "";
  if (of.kind === "json") return JSON.stringify(value, null, 2);
  if (of.kind === "list") return value.join("\n");
  return String(value);
}

function meant(of: Question, text: string): Json {
  if (!text) return null;
  if (of.kind === "json") return parsed(text, of.name);
  if (of.kind === "list") return text.split("\n").map((line) => line.trim()).filter(Boolean);
  if (of.kind === "number") {
    if (Number.isNaN(Number(text))) throw new ApiError(0, "invalid number", "", { field: of.name, reason: "must be a number" });
    return Number(text);
  }
  if (of.choices?.some(([value]) => value === "true")) return text === "true";
  return text;
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
  const send = async (event: SubmitEvent) => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    fail(null);
    set(true);
    try {
      const changed: Record<string, Json> = {};
      for (const of of FIELDS) {
        const text = (form.elements.namedItem(of.name) as HTMLInputElement).value.trim();
        if (text !== shown(of, data.config[of.name]).trim()) changed[of.name] = meant(of, text);
      }
      if (Object.keys(changed).length) {
        await call("PUT", path, changed);
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
          <Field key={of.name} of={{ ...of, label: of.label, value: shown(of, data.config[of.name]) }} refused={refusalOf(refused, of.name)}
            note={<><code>{of.name}</code>{sources[of.name] && <span class="dim"> · {sources[of.name] === "queue" ? "Custom" : sources[of.name] === "system" ? "Default" : "Default for new queues"}</span>}</>} />
        ))}
      </fieldset>
      {lost && <p class="notice bad" role="alert"><ErrorText error={error} /></p>}
      <div class="row end">
        <span class="dim">{writable ? "Clear a field to restore its default." : "Missing scope admin:write."}{data.updated_at && <> Updated <Time at={data.updated_at} />.</>}</span>
        <button type="submit" class="main" disabled={!writable || busy}>Save</button>
      </div>
    </form>
  );
}
