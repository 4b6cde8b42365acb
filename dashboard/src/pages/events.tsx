import { useEffect, useRef, useState } from "preact/hooks";
import { get, type Json, limited, query, seg } from "../api";
import { json } from "../format";
import { useBox } from "../box";
import { usePoll } from "../live";
import { live } from "../socket";
import { go, refine, useRoute } from "../route";
import { Card, Empty, Link, Loading, Page, Pager, Table, tell, Text, Time, Trouble } from "../ui";

const KEPT = 500;

export function Events() {
  const { query: asked } = useRoute();
  const filter = { types: asked.get("types") ?? undefined, queues: asked.get("queues") ?? undefined, job_types: asked.get("job_types") ?? undefined };
  const text = JSON.stringify(filter);
  const only = limited();
  const blocked = only && !filter.queues;
  const following = useBox(live);
  const seen = useRef<{ after?: string; of: string }>({ of: text });
  const [events, set] = useState<Json[]>([]);
  // The cursor of older matching events. A response can have few events or none, although more exist.
  const [older, setOlder] = useState<string | undefined>();
  const [busy, hold] = useState(false);
  useEffect(() => {
    set([]);
    setOlder(undefined);
    hold(false);
    seen.current = { of: text };
  }, [text]);
  const read = usePoll(async (signal) => {
    if (blocked) return 0;
    const mine = seen.current;
    const answer = await get(`/events${query({ ...filter, limit: 100, after: mine.after })}`, signal);
    if (mine !== seen.current) return 0;
    if (!mine.after) setOlder(answer.pagination.next_cursor);
    mine.after = answer.cursor;
    if (events.length + answer.events.length > KEPT) setOlder(undefined);
    if (answer.events.length) set((was) => [...answer.events.toReversed(), ...was].slice(0, KEPT));
    return answer.events.length;
  }, [text]);
  const showOlder = async () => {
    const mine = seen.current;
    hold(true);
    try {
      const answer = await get(`/events${query({ ...filter, limit: 100, cursor: older })}`);
      if (mine !== seen.current) return;
      setOlder(events.length + answer.events.length < KEPT ? answer.pagination.next_cursor : undefined);
      set((was) => [...was, ...answer.events.toReversed()].slice(0, KEPT));
    } catch (error) {
      tell((error as Error).message, true);
    } finally {
      if (mine === seen.current) hold(false);
    }
  };
  const find = (event: SubmitEvent) => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    refine(Object.fromEntries(["types", "queues", "job_types"].map((name) => [name, (form.elements.namedItem(name) as HTMLInputElement).value.trim()])));
  };
  return (
    <Page title="Events" about={<>Events of the last 7 days, newest first. {following ? "New events are added automatically." : "Updates are paused."}</>}>
      <Card>
        <form key={text} class="filters" onSubmit={find} role="search">
          <label>Types <input name="types" defaultValue={filter.types} placeholder="job.failed,queue.*" spellcheck={false} /></label>
          <label>Queues <input name="queues" defaultValue={filter.queues} spellcheck={false} /></label>
          <label>Job types <input name="job_types" defaultValue={filter.job_types} spellcheck={false} /></label>
          <div class="row"><button type="submit" class="main">Stream</button>{asked.size > 0 && <button type="button" onClick={() => go("/events")}>Clear</button>}</div>
        </form>
      </Card>
      <Card>
        {blocked ? <Empty title="Select a queue">Your key has access to some queues only. Enter one of them above.</Empty> : <>
          <Trouble read={read} />
          <Table rows={events} label="Events" id={(event) => event.id} empty={older ? <Empty title="No matches so far">Only the newest events were searched.</Empty> : read.at ? <Empty title="No matching events">New events are added automatically.</Empty> : read.error ? <></> : <Loading />} columns={[
            { name: "Time", cell: (event) => <Time at={event.time} /> },
            { name: "Event", cell: (event) => <code><bdi>{event.type}</bdi></code>, by: (event) => event.type },
            { name: "Subject", cell: (event) => <Subject of={event} /> },
            { name: "Queue", cell: (event) => <Text>{event.data?.queue}</Text> },
            { name: "Details", cell: (event) => <code class="cut"><bdi>{json(Object.fromEntries(Object.entries(event.data ?? {}).filter(([name]) => name !== "queue")))}</bdi></code> },
          ]} />
          {older && <Pager shown={events.length} more busy={busy} one="event" on={showOlder} />}
        </>}
      </Card>
    </Page>
  );
}

function Subject({ of }: { of: Json }) {
  const id = String(of.subject ?? "");
  const [kind] = String(of.type).split(".");
  if (kind === "job" || kind === "dead_letter") return <Link to={`/jobs/${seg(id)}`} class="mono">{id.slice(-12)}</Link>;
  if (kind === "queue" || kind === "backpressure" || (id && id === of.data?.queue)) return <Link to={`/queues/${seg(id)}`}>{id}</Link>;
  if (kind === "workflow") return <Link to={`/workflows/${seg(id)}`} class="mono">{id.slice(-12)}</Link>;
  if (kind === "cron") return <Link to={`/cron/${seg(of.data?.cron_name ?? id)}`}>{of.data?.cron_name ?? id}</Link>;
  return <Text>{id}</Text>;
}
