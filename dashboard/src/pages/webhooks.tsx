import { useState } from "preact/hooks";
import { call, get, invalid, type Json, parsedSpan, query, save, seg } from "../api";
import { span } from "../format";
import { usePoll } from "../live";
import { refine, useRoute } from "../route";
import { Act, ask, Card, Copy, Duration, Empty, Page, Pager, State, Table, tell, Text, Time, Trouble, When } from "../ui";

const SUBSCRIPTIONS = "/webhooks/subscriptions";
const lines = (text = "") => text.split("\n").map((line) => line.trim()).filter(Boolean);

export function Webhooks() {
  const of = useRoute().query.get("subscription") ?? undefined;
  // A deployment has at most 100 subscriptions.
  const read = usePoll((signal) => get(`${SUBSCRIPTIONS}?limit=100`, signal), [], { everyMs: 60_000, about: "" });
  const [made, show] = useState<{ url: string; secret: string } | null>(null);
  const absent = read.error?.unsupported || read.error?.status === 404;
  const edit = (old?: Json) => () => ask({
    title: old ? "Edit webhook" : "Create webhook", button: old ? "Save" : "Create",
    text: "The server posts each matching event to the URL, signed, at least once. The setting egress_hosts lists the allowed hosts.",
    questions: [
      { name: "url", label: "URL", value: old?.url, help: old ? "Another host requires a new secret." : "An HTTPS URL." },
      { name: "events", label: "Events", kind: "list", value: old ? old.events.join("\n") : "job.completed\njob.discarded", help: "Types or prefixes such as job.*, one per line." },
      { name: "queues", label: "Queues", kind: "list", value: old?.filter.queues.join("\n"), help: "One per line; empty: all." },
      { name: "job_types", label: "Job types", kind: "list", value: old?.filter.job_types.join("\n"), help: "One per line; empty: all." },
      { name: "timeout_s", label: "Timeout", kind: "span", unit: "s", value: span(1_000 * (old?.timeout_s ?? 30)), help: "5s to 60s." },
      ...(old ? [] : [{ name: "secret", label: "Secret", help: "Empty: the server creates one." }]),
    ],
    act: async ({ url, events, queues, job_types, timeout_s, secret }) => {
      if (!lines(events).length) throw invalid("events", "requires at least one type");
      const answer = await save(old ? "PATCH" : "POST", old ? `${SUBSCRIPTIONS}/${seg(old.id)}` : SUBSCRIPTIONS, {
        url, events: lines(events), filter: { queues: lines(queues), job_types: lines(job_types) },
        timeout_s: Number(timeout_s || parsedSpan("30s", "timeout_s", "s")), ...(secret && { secret }),
      }, old);
      tell(old ? "Webhook saved" : "Webhook created");
      if (answer.secret) show({ url: answer.url, secret: answer.secret });
      read.again();
    },
  });
  const rotate = (each: Json) => () => ask({
    title: "Replace the secret?", button: "Replace secret", text: "For 24 hours the current secret signs too.",
    act: async () => {
      show({ url: each.url, secret: (await call("POST", `${SUBSCRIPTIONS}/${seg(each.id)}/rotate-secret`)).secret });
      tell("Secret replaced");
      read.again();
    },
  });
  const test = (each: Json) => async () => {
    const { success, status_code, response_time_ms, error } = await call("POST", `${SUBSCRIPTIONS}/${seg(each.id)}/test`);
    tell(success ? `Test event delivered: status ${status_code} after ${span(response_time_ms)}` : `Test event failed: ${error ?? `status ${status_code}`}`, !success);
  };
  const active = (each: Json, to: boolean) => async () => {
    await save("PATCH", `${SUBSCRIPTIONS}/${seg(each.id)}`, { active: to }, each);
    tell(`Webhook ${to ? "enabled" : "paused"}`);
    read.again();
  };
  const remove = (each: Json) => () => ask({
    title: "Delete webhook?", button: "Delete webhook", danger: true, text: <>No event is sent to <bdi>{each.url}</bdi> anymore. This can't be undone.</>,
    act: async () => {
      await save("DELETE", `${SUBSCRIPTIONS}/${seg(each.id)}`, undefined, each);
      tell("Webhook deleted");
      read.again();
    },
  });
  return (
    <Page title="Webhooks" read={absent ? undefined : read} about="Subscriptions that post events to HTTPS endpoints." actions={!absent && <Act on={edit()}>Create webhook</Act>}>
      {made && (
        <div class="notice warn" role="status">
          <p>Copy the secret of <bdi>{made.url}</bdi> now, it is not shown again: <code>{made.secret}</code></p>
          <span class="row"><Copy text={made.secret} /><button type="button" class="small" onClick={() => show(null)}>Done</button></span>
        </div>
      )}
      <Card>
        {absent ? <Empty title="Webhooks are not enabled">{read.error?.hint || "Set webhooks to true in the deployment."}</Empty> : <When read={read}>{(data) => <>
          <Table rows={data.items as Json[]} label="Webhooks" id={(each) => each.id} empty={<Empty title="No webhooks" />} columns={[
            { name: "URL", cell: (each) => <Text>{each.url}</Text>, by: (each) => each.url },
            { name: "State", cell: (each) => <><State of={each.active ? "active" : each.disabled_reason ? "disabled" : "paused"} /> {each.disabled_reason && <span class="dim">{each.disabled_reason}</span>}</>, by: (each) => String(each.active) },
            { name: "Events", cell: (each) => <Text>{each.events.join(", ")}</Text> },
            { name: "Queues", cell: (each) => <Text>{each.filter.queues.join(", ") || "All"}</Text> },
            { name: "Last delivery", cell: (each) => <><Time at={each.last_delivery_at} /> {each.last_delivery_status}</>, by: (each) => each.last_delivery_at ?? "" },
            { name: "Delivered", right: true, cell: (each) => each.success_count, by: (each) => each.success_count },
            { name: "Failed attempts", right: true, cell: (each) => each.failure_count, by: (each) => each.failure_count },
            { name: "", cell: (each) => <span class="row">
              <button type="button" class="small" aria-label={`Deliveries: ${each.url}`} aria-pressed={of === each.id} onClick={() => refine({ subscription: of === each.id ? undefined : each.id })}>Deliveries</button>
              <Act small of={each.url} on={test(each)}>Test</Act>
              <Act small of={each.url} on={edit(each)}>Edit</Act>
              <Act small of={each.url} on={active(each, !each.active)}>{each.active ? "Pause" : "Enable"}</Act>
              <Act small of={each.url} on={rotate(each)}>Replace secret</Act>
              <Act small danger of={each.url} on={remove(each)}>Delete</Act>
            </span> },
          ]} />
          <Pager shown={data.items.length} total={data.total} more={false} one="webhook" on={() => {}} />
        </>}</When>}
      </Card>
      {of && !absent && <Sent key={of} subscription={of} />}
    </Page>
  );
}

function Sent({ subscription }: { subscription: string }) {
  const read = usePoll((signal) => get(`/webhooks/deliveries${query({ subscription, limit: 50 })}`, signal), [subscription], { about: "" });
  return (
    <Card title="Deliveries">
      <Trouble read={read} />
      <When read={read}>{(data) => <>
        <Table rows={data.items as Json[]} label="Deliveries" part={data.pagination.has_more} id={(each) => each.id} empty={<Empty title="No deliveries">Failed deliveries are retained for 30 days, with the latest 50 successes.</Empty>} columns={[
          { name: "Event", cell: (each) => <Text>{each.event_type}</Text>, by: (each) => each.event_type },
          { name: "State", cell: (each) => <State of={each.status} />, by: (each) => each.status },
          { name: "Attempts", right: true, cell: (each) => each.attempts, by: (each) => each.attempts },
          { name: "Status", right: true, cell: (each) => each.status_code ?? "–", by: (each) => each.status_code ?? 0 },
          { name: "Duration", right: true, cell: (each) => <Duration ms={each.response_time_ms} />, by: (each) => each.response_time_ms ?? 0 },
          { name: "Created", cell: (each) => <Time at={each.created_at} />, by: (each) => each.created_at },
          { name: "Next attempt", cell: (each) => <Time at={each.next_attempt_at} /> },
          { name: "Error", cell: (each) => <Text>{each.error}</Text> },
          { name: "", cell: (each) => each.status === "dead" && <Act small of={each.id} on={async () => { await call("POST", `/webhooks/deliveries/${seg(each.id)}/retry`); tell("Delivery is sent again"); read.again(); }}>Retry</Act> },
        ]} />
        <Pager shown={data.items.length} more={false} one="delivery" many={data.pagination.has_more ? "latest deliveries" : "deliveries"} on={() => {}} />
      </>}</When>
    </Card>
  );
}
