import { useEffect, useMemo, useState } from "preact/hooks";
import { call, get, type Json, limited, query, save, seg } from "../api";
import { Bulk, follow, type Kind, Selection } from "../bulk";
import { Chart } from "../chart";
import { number, plural, written } from "../format";
import { usePoll } from "../live";
import { go, refine, useRoute } from "../route";
import { Act, ask, Bars, Card, Empty, Link, Page, Pager, parsed, Table, tell, Text, Time, Trouble, When } from "../ui";
import { JOB } from "./jobs";
import { whole } from "./queues";

const FILTERS = ["queue", "type", "error_type", "since", "until", "args"] as const;
// A count reads at most this many pages of 100 dead letters.
const COUNTED = 4;
const KINDS: Record<"retry" | "purge", Kind> = {
  retry: { verb: "retry", past: "retried", noun: "dead letter" },
  purge: { verb: "delete", past: "deleted", noun: "dead letter" },
};

const GONE = "This permanently deletes the jobs, results, and errors. This can't be undone.";
const NOTHING = "Select dead letters first";

/** `P30D` as `30 days`; other durations unchanged. */
const days = (iso: string) => iso.replace(/^P(\d+)D$/, (_, count) => plural(Number(count), "day"));

export function DeadLetters() {
  const { query: asked } = useRoute();
  const only = limited();
  const filter = Object.fromEntries(FILTERS.map((name) => [name, asked.get(name) ?? undefined]).filter(([, value]) => value)) as Record<string, string>;
  const some = Object.keys(filter).length > 0;
  const blocked = only && !filter.queue;
  const [pages, setPages] = useState(1);
  const [picked, pick] = useState(new Set<string>());
  const [all, setAll] = useState(false);
  const choose = (next: Set<string>) => { setAll(false); pick(next); };
  const text = JSON.stringify(filter);
  useEffect(() => { setPages(1); choose(new Set()); }, [text]);
  const stats = usePoll((signal) => (only ? Promise.resolve(null) : get("/dead-letter/stats", signal)), [Boolean(only)], { everyMs: 60_000 });
  const read = usePoll(async (signal) => {
    if (blocked) return { items: [], more: false, total: 0 };
    return listed(filter, pages * 50, signal, (filter.queue ? 2 : 3) * pages);
  }, [text, pages], { everyMs: pages === 1 ? 20_000 : 0 });
  const chosen = all ? new Set((read.data?.items ?? []).map((job: Json) => job.id as string)) : picked;
  const retryWith = asked.get("id");
  useEffect(() => {
    if (retryWith) void get(`/dead-letter/${seg(retryWith)}`).then((job) => change(job, read.again), (error: Error) => tell(error.message, true));
  }, [retryWith]);
  const done = () => { choose(new Set()); read.again(); stats.again(); };
  const many = (act: "retry" | "purge") => async () => {
    const word = act === "retry" ? "Retry" : "Delete";
    if (!all) {
      ask({
        title: `${word} ${plural(chosen.size, "dead letter")}?`, button: word, danger: act === "purge",
        text: act === "purge" ? GONE : "The jobs become available, with attempts reset to 0.",
        act: async () => {
          let good = 0, last = "";
          for (const id of chosen)
            await (act === "retry" ? call("POST", `/admin/dead-letter/${seg(id)}/retry`) : call("DELETE", `/admin/dead-letter/${seg(id)}`)).then(() => good++, (error: Error) => { last = error.message; });
          tell(`${number(good)} of ${plural(chosen.size, "dead letter")} ${KINDS[act].past}${last && `. ${last}`}`, good < chosen.size);
          done();
        },
      });
      return;
    }
    const found = await count(filter, stats.data);
    ask({
      title: `${word} ${found}?`, button: word, danger: act === "purge",
      text: act === "purge" ? GONE : "The jobs become available, with attempts reset to 0, oldest first. If a queue is at capacity, the retry waits.",
      act: async () => {
        const means = some ? { filter } : { all: true };
        const answer = act === "retry" ? await call("POST", "/admin/dead-letter/retry", { ...means, confirm: true }) : await call("DELETE", "/admin/dead-letter", { ...means, confirm: true });
        follow("/admin/dead-letter", answer.operation, KINDS[act], done);
        done();
      },
    });
  };
  const find = (event: SubmitEvent) => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    refine(Object.fromEntries(["queue", "type", "error_type", "args"].map((name) => [name, (form.elements.namedItem(name) as HTMLInputElement).value.trim()])));
  };
  return (
    <Page title="Dead letters" read={stats} about={`Jobs that failed permanently. Retained for ${stats.data ? days(stats.data.retention.max_age) : "30 days"} or until you retry or delete them.`}>
      <Bulk />
      {!only && (stats.data || !stats.error) && <div class="cards">
        <div class="wide"><Trend /></div>
        <Card title="By error"><When read={stats}>{(data) => data?.total ? <Bars of={data.by_error_type} to={(name) => `/dead-letters${query({ ...filter, error_type: name })}`} /> : <p class="dim">No dead letters</p>}</When></Card>
        <Card title="By queue"><When read={stats}>{(data) => data?.total ? <Bars of={data.by_queue} to={(name) => `/dead-letters${query({ ...filter, queue: name })}`} /> : <p class="dim">No dead letters</p>}</When></Card>
      </div>}
      <Card>
        <form key={text} class="filters" onSubmit={find} role="search">
          <label>Queue <input name="queue" defaultValue={filter.queue} spellcheck={false} /></label>
          <label>Type <input name="type" defaultValue={filter.type} spellcheck={false} /></label>
          <label>Error <input name="error_type" defaultValue={filter.error_type} spellcheck={false} /></label>
          <label>Arguments contain <input name="args" defaultValue={filter.args} placeholder="text or $[0].id=7" spellcheck={false} /></label>
          <div class="row"><button type="submit" class="main">Search</button>{some && <button type="button" onClick={() => go("/dead-letters")}>Clear</button>}</div>
        </form>
      </Card>
      {filter.queue && <Rules queue={filter.queue} />}
      {read.data && read.data.items.length > 0 && <ByError items={read.data.items} more={read.data.more} />}
      <Card>
        {blocked ? <Empty title="Select a queue">Your key has access to some queues only. Enter one of them above.</Empty> : <>
          <Trouble read={read} />
          <When read={read}>{(data) => <>
            <Selection count={chosen.size} all={all} total={data.total} noun="dead letter" filtered={some}
              offered={data.items.length > 0 && chosen.size !== data.total} select={(every) => { pick(new Set()); setAll(every); }}>
              <Act small disabled={!chosen.size} why={chosen.size ? undefined : NOTHING} on={many("retry")}>{all ? "Retry all" : "Retry"}</Act>
              <Act small danger disabled={!chosen.size} why={chosen.size ? undefined : NOTHING} on={many("purge")}>{all ? "Delete all" : "Delete"}</Act>
            </Selection>
            <Table rows={data.items} label="Dead letters" part={data.more} id={(job) => job.id} chosen={chosen} choose={choose}
              empty={<Empty title={some ? "No matches" : "No dead letters"}>{some && <Link to="/dead-letters">Clear filters</Link>}</Empty>}
              columns={[
                JOB.id!, JOB.type!, JOB.queue!,
                { name: "Error", cell: (job: Json) => <><strong><bdi>{job.error?.type ?? "Unknown"}</bdi></strong> <span class="dim"><bdi>{String(job.error?.message ?? "").slice(0, 160)}</bdi></span></>, by: (job: Json) => job.error?.type ?? "" },
                { name: "Discarded", cell: (job: Json) => <Time at={job.discarded_at} />, by: (job: Json) => job.discarded_at },
                JOB.args!,
                { name: "", cell: (job: Json) => <span class="row"><Act small of={job.id} on={async () => { await call("POST", `/admin/dead-letter/${seg(job.id)}/retry`); tell("Job retried"); done(); }}>Retry</Act><Act small of={job.id} on={() => change(job, done)}>Edit and retry</Act></span> },
              ]} />
            <Pager shown={data.items.length} total={data.total} more={data.more} busy={read.busy} one="dead letter" order=", newest first" on={() => setPages(pages + 1)} />
          </>}</When>
        </>}
      </Card>
      {stats.data && <p class="dim">Default retention: {days(stats.data.retention.max_age)}, at most {number(stats.data.retention.max_count)} dead letters. A queue can override it. Next deletion of expired dead letters: <Time at={stats.data.retention.next_prune_at} />. With <code>pruning_policy: archive</code>, a queue first writes them to the payload bucket.</p>}
    </Page>
  );
}

async function listed(filter: Record<string, string>, wanted: number, signal?: AbortSignal, answers = 8) {
  const items: Json[] = [];
  let cursor: string | undefined;
  let total: number | undefined;
  for (let tries = 0; tries < answers && items.length < wanted; tries++) {
    const answer = await get(`/dead-letter${query({ ...filter, limit: Math.min(100, wanted - items.length), cursor })}`, signal);
    items.push(...answer.items);
    total ??= answer.total;
    cursor = answer.pagination.next_cursor;
    if (!cursor) break;
  }
  return { items, total, more: Boolean(cursor) };
}

/** The number of matching dead letters as text: from the statistics or the list's total, otherwise counted up to a limit. */
async function count(filter: Record<string, string>, stats: Json): Promise<string> {
  const names = Object.keys(filter);
  if (!names.length && stats) return plural(stats.total, "dead letter");
  const known = names.length === 1 && stats && ({ queue: stats.by_queue, error_type: stats.by_error_type, type: stats.by_type } as Json)[names[0]!]?.[filter[names[0]!]!];
  if (known !== undefined && known !== false && known !== null) return plural(known, "dead letter");
  const { items, more, total } = await listed(filter, COUNTED * 100);
  return total !== undefined ? plural(total, "dead letter") : `${more ? "at least " : ""}${plural(items.length, "dead letter")}`;
}

function change(job: Json, done: () => void): void {
  ask({
    title: "Edit and retry", button: "Retry",
    text: <p>Changes require the scope <code>jobs:write</code>. The name of your key is stored in <code>changed_by</code>.</p>,
    questions: [
      { name: "args", label: "Arguments", kind: "json", value: JSON.stringify(job.args ?? [], null, 2) },
      { name: "meta", label: "Meta changes", kind: "json", value: "{}", help: "Merged into the job's meta; null removes a key." },
      { name: "queue", label: "Queue", value: job.queue },
      { name: "max_attempts", label: "Max. attempts", kind: "number", value: String(job.max_attempts) },
    ],
    act: async ({ args, meta, queue, max_attempts }) => {
      const changedArgs = parsed(args!, "args");
      const over = parsed(meta || "{}", "meta");
      const override = {
        ...(JSON.stringify(changedArgs) !== JSON.stringify(job.args) && { args: changedArgs }),
        ...(Object.keys(over).length && { meta: over }),
        ...(queue !== job.queue && { queue }),
        ...(max_attempts !== String(job.max_attempts) && { retry: { max_attempts: whole(max_attempts!, "max_attempts") } }),
      };
      await call("POST", `/admin/dead-letter/${seg(job.id)}/retry`, Object.keys(override).length ? { override } : undefined);
      tell("Job retried");
      done();
    },
  });
}

/** Discarded jobs per hour in the last seven days. */
function Trend() {
  const read = usePoll((signal) => get(`/admin/stats/history${query({ period: "1h", since: new Date(Date.now() - 7 * 86_400_000).toISOString() })}`, signal), [], { everyMs: 300_000 });
  const [shown, show] = useState<{ times: number[]; values: number[] }>({ times: [], values: [] });
  useEffect(() => {
    const points: Json[] = read.data?.data ?? [];
    show({ times: points.map((point) => Date.parse(point.timestamp) / 1_000), values: points.map((point) => point.failed ?? 0) });
  }, [read.data]);
  const [lines, set] = useState([{ name: "Discarded", color: "red", values: shown.values }]);
  useEffect(() => set([{ name: "Discarded", color: "red", values: shown.values }]), [shown]);
  return <Card title="Discarded per hour, 7 days"><Trouble read={read} />{shown.times.length > 0 && lines[0]!.values.length === shown.times.length && <Chart label="Discarded jobs per hour" times={shown.times} lines={lines} height={130} />}</Card>;
}

const SIZES_MS = [60_000, 3_600_000, 6 * 3_600_000, 86_400_000];
const COLORS = ["red", "amber", "blue", "green"];

/** The most frequent errors of dead letters over time. The others are added up. */
export function failures(items: Json[]): { times: number[]; lines: { name: string; color: string; values: number[] }[] } {
  const at = items.map((job) => Date.parse(job.discarded_at));
  const from = Math.min(...at), to = Math.max(...at);
  const size = SIZES_MS.find((each) => (to - from) / each <= 60) ?? SIZES_MS.at(-1)!;
  const first = Math.floor(from / size) - 1;
  const count = Math.floor(to / size) - first + 2;
  const by = new Map<string, number[]>();
  items.forEach((job, index) => {
    const name = job.error?.type ?? "Unknown";
    const values = by.get(name) ?? new Array<number>(count).fill(0);
    values[Math.floor(at[index]! / size) - first]!++;
    by.set(name, values);
  });
  const sum = (values: number[]) => values.reduce((a, b) => a + b, 0);
  const all = [...by].sort((a, b) => sum(b[1]) - sum(a[1]));
  const kept = all.length > COLORS.length ? [...all.slice(0, 3), ["Other errors", all.slice(3).reduce((into, [, values]) => into.map((value, i) => value + values[i]!), new Array<number>(count).fill(0))] as [string, number[]]] : all;
  return { times: Array.from({ length: count }, (_, i) => ((first + i) * size) / 1_000), lines: kept.map(([name, values], i) => ({ name, color: COLORS[i]!, values })) };
}

function ByError({ items, more }: { items: Json[]; more: boolean }) {
  const shown = useMemo(() => failures(items), [items]);
  return (
    <Card title="Errors over time">
      <p class="dim">Of the {plural(items.length, more ? "newest matching dead letter" : "matching dead letter")}.</p>
      <Chart label="Dead letters by error" times={shown.times} lines={shown.lines} height={150} />
    </Card>
  );
}

/** The rules that retry dead letters of a queue automatically. */
function Rules({ queue }: { queue: string }) {
  const read = usePoll((signal) => get(`/queues/${seg(queue)}/config`, signal), [queue], { everyMs: 0 });
  const rules: Json[] = read.data?.config.replay_rules ?? [];
  const change = async (next: Json[]) => {
    await save("PUT", `/admin/queues/${seg(queue)}/config`, { replay_rules: next.length ? next : null }, read.data).finally(read.again);
  };
  const add = () => ask({
    title: `Add replay rule to ${queue}`, button: "Add rule",
    text: "Matching dead letters are retried automatically after the delay.",
    questions: [
      { name: "name", label: "Name" },
      { name: "error_type", label: "Error type", help: "Empty: all types." },
      { name: "delay", label: "Delay", kind: "span", value: "1h", help: "For example 90s or 2h 30m. A delay of less than 1 minute takes up to 1 minute." },
      { name: "max_replays", label: "Max. replays per job", kind: "number", value: "3" },
    ],
    act: async ({ name, error_type, delay, max_replays }) => {
      await change([...rules, { name, filter: error_type ? { error_type } : {}, delay, max_replays: whole(max_replays!, "max_replays") }]);
      tell(`Rule ${name} created`);
    },
  });
  return (
    <Card title={`Replay rules of ${queue}`} actions={<><Act small on={add}>Add rule</Act><Link to={`/queues/${seg(queue)}`}>Queue settings</Link></>}>
      <Trouble read={read} />
      <Table rows={rules} label="Replay rules" id={(rule) => rule.name} empty={<p class="dim">No replay rules</p>} columns={[
        { name: "Rule", cell: (rule) => <Text>{rule.name}</Text> },
        { name: "Filter", cell: (rule) => <code><bdi>{JSON.stringify(rule.filter)}</bdi></code> },
        { name: "Delay", cell: (rule) => written(rule.delay) },
        { name: "Max. replays", right: true, cell: (rule) => rule.max_replays },
        { name: "", cell: (rule) => <span class="row">
          <Act small of={rule.name} on={() => change(rules.map((each) => (each === rule ? { ...rule, enabled: !rule.enabled } : each)))}>{rule.enabled ? "Disable" : "Enable"}</Act>
          <Act small danger of={rule.name} on={() => change(rules.filter((each) => each !== rule))}>Remove</Act>
        </span> },
      ]} />
    </Card>
  );
}
