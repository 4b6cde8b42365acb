import { call, get, type Json, parsedLimit, seg } from "../api";
import { number } from "../format";
import { usePoll } from "../live";
import { Act, ask, Card, Empty, Meter, Page, Pager, State, Table, tell, Text, Time, When } from "../ui";
import { whole } from "./queues";

export function Limits() {
  const read = usePoll((signal) => get("/rate-limits?limit=50", signal), 15_000, []);
  const override = (limit?: Json) => () => ask({
    title: limit ? `Override ${limit.key}` : "Override a limit", button: "Override it",
    text: "It takes the place of what jobs bring, until it is taken back or its time is over.",
    questions: [
      ...(limit ? [] : [{ name: "key", label: "Key" }]),
      { name: "concurrency", label: "Most running at a time", kind: "number", value: limit?.concurrency?.limit === undefined ? "" : String(limit.concurrency.limit) },
      { name: "rate", label: "Rate", help: "So many in a period: 100 / PT1M. Empty: none.", value: limit?.rate ? `${limit.rate.limit} / ${limit.rate.period}` : "" },
      { name: "expires_at", label: "Until", help: "A time, or a duration from now such as +PT1H. Empty: until it is taken back." },
    ],
    act: async ({ key, concurrency, rate, expires_at }) => {
      await call("PUT", `/rate-limits/${seg(limit?.key ?? key)}/override`, {
        ...(concurrency && { concurrency: whole(concurrency, "concurrency") }),
        ...(rate && { rate: parsedLimit(rate) }),
        ...(expires_at && { expires_at }),
      });
      tell("It holds from now on.");
      read.again();
    },
  });
  return (
    <Page title="Limits" read={read} about="Limits of jobs by key: how they stand, and who overrides them. Those of queues are with the queues." actions={<Act on={override()}>Override a key …</Act>}>
      <Card>
        <When read={read}>{(data) => <>
          <Table rows={data.items as Json[]} label="Limits" part={data.pagination.has_more} id={(limit) => limit.key}
            empty={<Empty title="No job has brought a limit.">Push one with <code>{'"rate_limit": {"key": "api.example.org", "concurrency": 5}'}</code>.</Empty>}
            columns={[
              { name: "Key", cell: (limit) => <Text>{limit.key}</Text>, by: (limit) => limit.key },
              { name: "Running", cell: (limit) => limit.concurrency?.limit !== undefined ? <Meter value={limit.concurrency.active} of={limit.concurrency.limit} label="Running" /> : <span class="dim">no limit</span> },
              { name: "Rate", cell: (limit) => limit.rate ? <><Meter value={limit.rate.current_count ?? 0} of={limit.rate.limit} label="Started" /> <span class="dim">in {limit.rate.period}</span></> : limit.throttle ? `${limit.throttle.limit ?? 1} / ${limit.throttle.period}` : <span class="dim">no limit</span> },
              { name: "Waiting", right: true, wide: true, cell: (limit) => limit.waiting === undefined ? <span class="dim">–</span> : number(limit.waiting) },
              { name: "State", cell: (limit) => <>{limit.throttled && <State of="throttled" />}{limit.override && <> <State of="overridden" /> {limit.override.expires_at && <>until <Time at={limit.override.expires_at} /></>}</>}{limit.paused_until && <> paused until <Time at={limit.paused_until} /></>}</> },
              { name: "", cell: (limit) => <span class="row">
                <Act small of={limit.key} on={override(limit)}>Override …</Act>
                {(limit.override || limit.paused_until) && <Act small of={limit.key} on={async () => { await call("DELETE", `/rate-limits/${seg(limit.key)}/override`); tell("As its jobs have it."); read.again(); }}>Take back</Act>}
              </span> },
            ]} />
          <Pager shown={data.items.length} total={data.total} more={data.pagination.has_more} what="keys, in order" on={() => tell("The first 50 keys are shown.")} />
        </>}</When>
      </Card>
    </Page>
  );
}
