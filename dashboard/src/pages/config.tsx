import { useState } from "preact/hooks";
import { ApiError, call, can, get, type Json } from "../api";
import { usePoll } from "../live";
import { Card, ErrorText, Field, parsed, type Question, refusalOf, refusals, tell, Time, Trouble, When } from "../ui";

// Every field of a queue's configuration: what it is, and in what form it is written.
const FIELDS: Question[] = [
  { name: "max_size", label: "Most jobs", kind: "number", help: "Jobs that are not final; 0 is no bound." },
  { name: "max_size_bytes", label: "Most bytes", kind: "number", help: "Bytes of those jobs; 0 is no bound." },
  { name: "overflow_policy", label: "When it is full", kind: "choice", choices: [["reject", "reject: pushes are refused"], ["block", "block: pushes wait for room"], ["drop_oldest", "drop_oldest: the oldest waiting job goes"]] },
  { name: "warning_threshold", label: "Warn at", kind: "number", help: "How full, 0.0 to 1.0, when pushes are told so." },
  { name: "concurrency", label: "Most running at a time", kind: "number", help: "Jobs; empty: no limit. Exact, however many workers fetch." },
  { name: "rate_limit", label: "Rate limit", kind: "json", help: 'Most jobs handed out in a period: {"limit": 100, "period": "PT1M"}. Empty: none.' },
  { name: "visibility_timeout", label: "Lease", kind: "number", help: "Seconds that a worker has a job before it must be heard of again; up to 12 hours." },
  { name: "default_timeout", label: "Attempt may run", kind: "number", help: "Seconds; a job may say otherwise." },
  { name: "default_retry", label: "Retries", kind: "json", help: "The retry policy of jobs that bring none." },
  { name: "retention", label: "Ended jobs are kept", kind: "json", help: "ISO 8601 durations for completed, discarded and cancelled." },
  { name: "dead_letter", label: "Dead letters are kept", kind: "json", help: "retention.max_age, retention.max_count; pruning_policy: delete, or archive to the payload bucket." },
  { name: "dead_letter_queue", label: "Copies of dead letters go to", help: "Another queue; empty: none." },
  { name: "dead_letter_max_size", label: "Most copies that wait there", kind: "number" },
  { name: "dead_letter_ttl", label: "A copy waits", help: "ISO 8601, as P14D." },
  { name: "replay_rules", label: "Replay rules", kind: "json", help: 'Dead letters that come back by themselves: [{"name": "…", "filter": {"error_type": "…"}, "delay": "PT1H", "max_replays": 3}].' },
  { name: "allowed_job_types", label: "Job types it takes", kind: "list", help: "One a line; * stands for any characters." },
  { name: "producers", label: "Who may push", kind: "list", help: "Names of keys, one a line; * alone is everybody." },
  { name: "tenant_fairness", label: "Tenants take turns", kind: "json", help: "enabled, strategy, weights, default_weight." },
  { name: "lanes", label: "Lanes", kind: "number", help: "Parallel lines: more throughput, no exact order. Never fewer than before." },
  { name: "require_lease_token", label: "Lease token needed", kind: "choice", choices: [["", "as not set"], ["true", "yes"], ["false", "no"]], help: "An ack or nack that does not show the job's lease token is refused." },
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
    if (Number.isNaN(Number(text))) throw new ApiError(0, "no number", "", { field: of.name, reason: "must be a number" });
    return Number(text);
  }
  if (of.choices?.some(([value]) => value === "true")) return text === "true";
  return text;
}

/** A queue's configuration, or that for new queues; only what is changed is sent. */
export function ConfigForm({ path, title }: { path: string; title: string }) {
  const read = usePoll((signal) => get(path, signal), 0, [path]);
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
        tell(`Saved: ${Object.keys(changed).join(", ")}.`);
        saved();
      } else tell("Nothing was changed.");
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
            note={<><code>{of.name}</code>{sources[of.name] && <span class="dim"> from the {sources[of.name] === "queue" ? "queue itself" : sources[of.name] === "system" ? "system's defaults" : "policy for new queues"}</span>}</>} />
        ))}
      </fieldset>
      {lost && <p class="notice bad" role="alert"><ErrorText error={error} /></p>}
      <div class="row end">
        <span class="dim">{writable ? "Only what you change is sent; an emptied field goes back to its default." : "Your key may not change this: admin:write is needed."}{data.updated_at && <> Changed <Time at={data.updated_at} />.</>}</span>
        <button type="submit" class="main" disabled={!writable || busy}>Save</button>
      </div>
    </form>
  );
}
