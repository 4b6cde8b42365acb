import { get, type Json, parsedLimit, save, seg } from "../api";
import { number, written } from "../format";
import { usePoll } from "../live";
import { Act, ask, Card, Empty, Meter, Page, Pager, State, Table, tell, Text, Time, When } from "../ui";
import { whole } from "./queues";

export function Limits() {
  const read = usePoll((signal) => get("/rate-limits?limit=50", signal), []);
  const override = (limit?: Json) => () => ask({
    title: limit ? `Set override for ${limit.key}` : "Set override", button: "Set override",
    text: "The override replaces the limits of the jobs until it expires or you remove it.",
    questions: [
      ...(limit ? [] : [{ name: "key", label: "Key" }]),
      { name: "concurrency", label: "Concurrency limit", kind: "number", value: limit?.concurrency?.limit === undefined ? "" : String(limit.concurrency.limit) },
      { name: "rate", label: "Rate", help: "Dispatches per period, for example 100 per 1m. Empty: unlimited.", value: limit?.rate ? `${limit.rate.limit} per ${written(limit.rate.period)}` : "" },
      { name: "expires_at", label: "Expires", kind: "later", help: "A time, or a duration from now such as 1h. Empty: never." },
    ],
    act: async ({ key, concurrency, rate, expires_at }) => {
      await save("PUT", `/rate-limits/${seg(limit?.key ?? key)}/override`, {
        ...(concurrency && { concurrency: whole(concurrency, "concurrency") }),
        ...(rate && { rate: parsedLimit(rate) }),
        ...(expires_at && { expires_at }),
      }, limit);
      tell("Override active");
      read.again();
    },
  });
  return (
    <Page title="Rate limits" read={read} about="Limits that jobs set by key, with their usage and overrides. Limits of queues are on the page of the queue." actions={<Act on={override()}>Set override</Act>}>
      <Card>
        <When read={read}>{(data) => <>
          <Table rows={data.items as Json[]} label="Rate limits" part={data.pagination.has_more} id={(limit) => limit.key}
            empty={<Empty title="No rate limits">Enqueue a job with <code>{'"rate_limit": {"key": "api.example.org", "concurrency": 5}'}</code>.</Empty>}
            columns={[
              { name: "Key", cell: (limit) => <Text>{limit.key}</Text>, by: (limit) => limit.key },
              { name: "Active", cell: (limit) => limit.concurrency?.limit !== undefined ? <Meter value={limit.concurrency.active} of={limit.concurrency.limit} label="Active" /> : <span class="dim">no limit</span> },
              { name: "Rate", cell: (limit) => limit.rate ? <><Meter value={limit.rate.current_count ?? 0} of={limit.rate.limit} label="Dispatched" /> <span class="dim">per {written(limit.rate.period)}</span></> : limit.throttle ? `${limit.throttle.limit ?? 1} per ${written(limit.throttle.period)}` : <span class="dim">no limit</span> },
              { name: "Available", right: true, cell: (limit) => limit.waiting === undefined ? <span class="dim">–</span> : number(limit.waiting) },
              { name: "State", cell: (limit) => <>{limit.throttled && <State of="throttled" />}{limit.override && <> <State of="overridden" /> {limit.override.expires_at && <>until <Time at={limit.override.expires_at} /></>}</>}{limit.paused_until && <> paused until <Time at={limit.paused_until} /></>}</> },
              { name: "", cell: (limit) => <span class="row">
                <Act small of={limit.key} on={override(limit)}>Set override</Act>
                {(limit.override || limit.paused_until) && <Act small of={limit.key} on={async () => { await save("DELETE", `/rate-limits/${seg(limit.key)}/override`, undefined, limit); tell("Override removed"); read.again(); }}>Remove override</Act>}
              </span> },
            ]} />
          <Pager shown={data.items.length} total={data.total} more={data.pagination.has_more} one="key" order=", by name" on={() => tell("Only the first 50 keys are shown")} />
        </>}</When>
      </Card>
    </Page>
  );
}
