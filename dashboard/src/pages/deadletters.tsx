import { useEffect, useState } from "preact/hooks";
import { call, get, type Json, limited, query, seg } from "../api";
import { follow, Bulk } from "../bulk";
import { Chart } from "../chart";
import { number, plural } from "../format";
import { usePoll } from "../live";
import { go, refine, useRoute } from "../route";
import { Act, ask, Bars, Card, Empty, Link, Page, Pager, parsed, Table, tell, Text, Time, Trouble, When } from "../ui";
import { JOB } from "./jobs";
import { whole } from "./queues";

const FILTERS = ["queue", "type", "error_type", "since", "until", "args"] as const;
const COUNTED = 4; // requests that a count may take, of a hundred each

export function DeadLetters() {
  const { query: asked } = useRoute();
  const only = limited();
  const filter = Object.fromEntries(FILTERS.map((name) => [name, asked.get(name) ?? undefined]).filter(([, value]) => value)) as Record<string, string>;
  const some = Object.keys(filter).length > 0;
  const blocked = only && !filter.queue;
  const [pages, setPages] = useState(1);
  const [chosen, choose] = useState(new Set<string>());
  const text = JSON.stringify(filter);
  useEffect(() => { setPages(1); choose(new Set()); }, [text]);
  const stats = usePoll((signal) => (only ? Promise.resolve(null) : get("/dead-letter/stats", signal)), 60_000, [Boolean(only)]);
  const read = usePoll(async (signal) => {
    if (blocked) return { items: [], more: false, total: 0 };
    return listed(filter, pages * 50, signal);
  }, pages === 1 ? 20_000 : 0, [text, pages]);
  const retryWith = asked.get("id");
  useEffect(() => {
    if (retryWith) void get(`/dead-letter/${seg(retryWith)}`).then((job) => change(job, read.again), (error: Error) => tell(error.message, true));
  }, [retryWith]);
  const done = () => { choose(new Set()); read.again(); stats.again(); };
  const many = (act: "retry" | "purge") => async () => {
    const word = act === "retry" ? "Retry" : "Delete";
    if (chosen.size) {
      ask({
        title: `${word} ${plural(chosen.size, "dead letter")}?`, button: word, danger: act === "purge",
        text: act === "purge" ? "They go for good, with all their errors." : "They are available again, with attempts from 0.",
        act: async () => {
          let good = 0, last = "";
          for (const id of chosen)
            await (act === "retry" ? call("POST", `/admin/dead-letter/${seg(id)}/retry`) : call("DELETE", `/admin/dead-letter/${seg(id)}`)).then(() => good++, (error: Error) => { last = error.message; });
          tell(`${word}: ${number(good)} of ${number(chosen.size)}. ${last}`, good < chosen.size);
          done();
        },
      });
      return;
    }
    const found = await count(filter, stats.data);
    ask({
      title: `${word} ${found}?`, button: word, danger: act === "purge",
      text: act === "purge" ? "They go for good, with all their errors. This cannot be taken back." : "They are available again, with attempts from 0, in the order in which they died. Where a queue is full it waits for room.",
      act: async () => {
        const means = some ? { filter } : { all: true };
        const answer = act === "retry" ? await call("POST", "/admin/dead-letter/retry", { ...means, confirm: true }) : await call("DELETE", "/admin/dead-letter", { ...means, confirm: true });
        follow("/admin/dead-letter", answer.operation, act === "retry" ? "Retry of dead letters" : "Deletion of dead letters", done);
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
    <Page title="Dead letters" read={stats} about="Jobs that could not be done. They stay, with their errors, until somebody sees to them or their time is over.">
      <Bulk />
      {!only && (stats.data || !stats.error) && <div class="cards">
        <div class="wide"><Trend /></div>
        <Card title="By error"><When read={stats}>{(data) => data?.total ? <Bars of={data.by_error_type} to={(name) => `/dead-letters${query({ ...filter, error_type: name })}`} /> : <p class="good">None.</p>}</When></Card>
        <Card title="By queue"><When read={stats}>{(data) => data?.total ? <Bars of={data.by_queue} to={(name) => `/dead-letters${query({ ...filter, queue: name })}`} /> : <p class="good">None.</p>}</When></Card>
      </div>}
      <Card>
        <form key={text} class="filters" onSubmit={find} role="search">
          <label>Queue <input name="queue" defaultValue={filter.queue} spellcheck={false} /></label>
          <label>Type <input name="type" defaultValue={filter.type} spellcheck={false} /></label>
          <label>Error <input name="error_type" defaultValue={filter.error_type} spellcheck={false} /></label>
          <label>Text in args <input name="args" defaultValue={filter.args} placeholder="text, or $[0].id=7" spellcheck={false} /></label>
          <div class="row"><button type="submit" class="main">Find</button>{some && <button type="button" onClick={() => go("/dead-letters")}>Clear</button>}</div>
        </form>
      </Card>
      {filter.queue && <Rules queue={filter.queue} />}
      <Card>
        {blocked ? <Empty title="Your key is limited to some queues.">Name one of them above.</Empty> : <>
          <Trouble read={read} />
          <When read={read}>{(data) => <>
            <div class="row bulk" role="group" aria-label="Actions">
              <span class="dim">{chosen.size ? `${plural(chosen.size, "dead letter")} selected` : some ? "Nothing selected: for all that match" : "Nothing selected: for all of them"}</span>
              <Act small disabled={!data.items.length} on={many("retry")}>{chosen.size ? "Retry" : "Retry all …"}</Act>
              <Act small danger disabled={!data.items.length} on={many("purge")}>{chosen.size ? "Delete …" : "Delete all …"}</Act>
            </div>
            <Table rows={data.items} label="Dead letters" part={data.more} id={(job) => job.id} chosen={chosen} choose={choose}
              empty={<Empty title={some ? "None fits." : "No dead letters."}>{some ? "Take a filter away." : "Nothing has failed for good."}</Empty>}
              columns={[
                JOB.id!, JOB.type!, JOB.queue!,
                { name: "Error", cell: (job: Json) => <><strong><bdi>{job.error?.type ?? "Unknown"}</bdi></strong> <span class="dim"><bdi>{String(job.error?.message ?? "").slice(0, 160)}</bdi></span></>, by: (job: Json) => job.error?.type ?? "" },
                { name: "Died", cell: (job: Json) => <Time at={job.discarded_at} />, by: (job: Json) => job.discarded_at },
                JOB.args!,
                { name: "", cell: (job: Json) => <span class="row"><Act small of={job.id} on={async () => { await call("POST", `/admin/dead-letter/${seg(job.id)}/retry`); tell("It is available again."); done(); }}>Retry</Act><Act small of={job.id} on={() => change(job, done)}>Change …</Act></span> },
              ]} />
            <Pager shown={data.items.length} total={data.total} more={data.more} busy={read.busy} what="dead letters, latest first" on={() => setPages(pages + 1)} />
          </>}</When>
        </>}
      </Card>
      {stats.data && <p class="dim">Kept {stats.data.retention.max_age}, at most {number(stats.data.retention.max_count)}, where a queue does not say otherwise. Pruned next <Time at={stats.data.retention.next_prune_at} />; a queue with <code>pruning_policy: archive</code> has them written to the payload bucket first.</p>}
    </Page>
  );
}

async function listed(filter: Record<string, string>, wanted: number, signal?: AbortSignal) {
  const items: Json[] = [];
  let cursor: string | undefined;
  let total: number | undefined;
  for (let tries = 0; tries < 8 && items.length < wanted; tries++) {
    const answer = await get(`/dead-letter${query({ ...filter, limit: Math.min(100, wanted - items.length), cursor })}`, signal);
    items.push(...answer.items);
    total ??= answer.total;
    cursor = answer.pagination.next_cursor;
    if (!cursor) break;
  }
  return { items, total, more: Boolean(cursor) };
}

/** How many fit: as counted where that is known, else by looking, up to a bound. */
async function count(filter: Record<string, string>, stats: Json): Promise<string> {
  const names = Object.keys(filter);
  if (!names.length && stats) return `all ${plural(stats.total, "dead letter")}`;
  const known = names.length === 1 && stats && ({ queue: stats.by_queue, error_type: stats.by_error_type, type: stats.by_type } as Json)[names[0]!]?.[filter[names[0]!]!];
  if (known !== undefined && known !== false && known !== null) return plural(known, "dead letter");
  const { items, more, total } = await listed(filter, COUNTED * 100);
  return total !== undefined ? plural(total, "dead letter") : `${more ? "at least " : ""}${plural(items.length, "dead letter")}`;
}

function change(job: Json, done: () => void): void {
  ask({
    title: "Retry with changes", button: "Retry",
    text: <p>What is changed is checked as for a push. It takes <code>jobs:write</code> as well, and your name is shown as <code>changed_by</code>.</p>,
    questions: [
      { name: "args", label: "Args", kind: "json", value: JSON.stringify(job.args ?? [], null, 2) },
      { name: "meta", label: "Meta, laid over the job's", kind: "json", value: "{}", help: "null removes a key." },
      { name: "queue", label: "Queue", value: job.queue },
      { name: "max_attempts", label: "Attempts", kind: "number", value: String(job.max_attempts) },
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
      tell("It is available again.");
      done();
    },
  });
}

/** What was given up by the hour, a week back. */
function Trend() {
  const read = usePoll((signal) => get(`/admin/stats/history${query({ period: "1h", since: new Date(Date.now() - 7 * 86_400_000).toISOString() })}`, signal), 300_000, []);
  const [shown, show] = useState<{ times: number[]; values: number[] }>({ times: [], values: [] });
  useEffect(() => {
    const points: Json[] = read.data?.data ?? [];
    show({ times: points.map((point) => Date.parse(point.timestamp) / 1_000), values: points.map((point) => point.failed ?? 0) });
  }, [read.data]);
  const [lines, set] = useState([{ name: "given up", color: "red", values: shown.values }]);
  useEffect(() => set([{ name: "given up", color: "red", values: shown.values }]), [shown]);
  return <Card title="Given up by the hour, last week"><Trouble read={read} />{shown.times.length > 0 && lines[0]!.values.length === shown.times.length && <Chart label="Jobs given up by the hour" times={shown.times} lines={lines} height={130} />}</Card>;
}

/** The rules by which dead letters of a queue come back by themselves. */
function Rules({ queue }: { queue: string }) {
  const read = usePoll((signal) => get(`/queues/${seg(queue)}/config`, signal), 0, [queue]);
  const rules: Json[] = read.data?.config.replay_rules ?? [];
  const save = async (next: Json[]) => {
    await call("PUT", `/admin/queues/${seg(queue)}/config`, { replay_rules: next.length ? next : null });
    read.again();
  };
  const add = () => ask({
    title: `A replay rule for ${queue}`, button: "Add it",
    text: "Dead letters that fit come back by themselves after the delay.",
    questions: [
      { name: "name", label: "Name" },
      { name: "error_type", label: "Only of this error", help: "Empty: of any." },
      { name: "delay", label: "After", value: "PT1H", help: "ISO 8601, above zero; a minute at least in effect." },
      { name: "max_replays", label: "So many times at most", kind: "number", value: "3" },
    ],
    act: async ({ name, error_type, delay, max_replays }) => {
      await save([...rules, { name, filter: error_type ? { error_type } : {}, delay, max_replays: whole(max_replays!, "max_replays") }]);
      tell(`Rule ${name} is there.`);
    },
  });
  return (
    <Card title={`Replay rules of ${queue}`} actions={<><Act small on={add}>Add a rule …</Act><Link to={`/queues/${seg(queue)}`}>Its configuration</Link></>}>
      <Trouble read={read} />
      <Table rows={rules} label="Replay rules" id={(rule) => rule.name} empty={<p class="dim">None: dead letters wait for you.</p>} columns={[
        { name: "Rule", cell: (rule) => <Text>{rule.name}</Text> },
        { name: "Fits", cell: (rule) => <code><bdi>{JSON.stringify(rule.filter)}</bdi></code> },
        { name: "After", cell: (rule) => rule.delay },
        { name: "At most", right: true, cell: (rule) => rule.max_replays },
        { name: "", cell: (rule) => <span class="row">
          <Act small of={rule.name} on={() => save(rules.map((each) => (each === rule ? { ...rule, enabled: !rule.enabled } : each)))}>{rule.enabled ? "Turn off" : "Turn on"}</Act>
          <Act small danger of={rule.name} on={() => save(rules.filter((each) => each !== rule))}>Remove</Act>
        </span> },
      ]} />
    </Card>
  );
}
