import { call, type Json, me, readPages, seg } from "../api";
import { useBox } from "../box";
import { usePoll } from "../live";
import { useState } from "preact/hooks";
import { whole } from "./queues";
import { Act, ask, Card, Copy, Empty, Page, Pager, State, Table, tell, Text, Time, When } from "../ui";

const SCOPES: [string, string][] = [
  ["jobs:write", "enqueue, cancel, and retry jobs"], ["jobs:read", "read jobs and results"], ["work", "fetch jobs and report results"],
  ["admin:read", "read all pages of the dashboard"], ["admin:write", "configure, pause, delete, create keys"],
];

export function Keys() {
  const who = useBox(me)!;
  const [pages, setPages] = useState(1);
  const [made, show] = useState<{ name: string; secret: string } | null>(null);
  const read = usePoll((signal) => readPages("/admin/keys", pages, 100, signal), [pages], { everyMs: 60_000, about: "" });
  if (who.authorizer === "jwt")
    return <Page title="Access keys"><Card><Empty title="This deployment does not support access keys">Clients use access tokens of the issuer (<code>authorizer=jwt</code>). The issuer defines their scopes.</Empty></Card></Page>;
  const create = () => ask({
    title: "Create access key", button: "Create",
    text: <p>A key can't have more scopes or queues than the key that creates it. The secret is shown once.</p>,
    questions: [
      { name: "name", label: "Name", help: "A person or a program. It is the producer of jobs that are enqueued with this key." },
      ...SCOPES.map(([scope, what]) => ({ name: scope, label: scope, kind: "check" as const, help: what })),
      { name: "queues", label: "Queues", kind: "list" as const, help: "One per line; a name can end in *. Empty: all queues." },
      { name: "tenant", label: "Tenant", help: "The only tenant of the key. Its queues are then names of the tenant. Empty: none." },
      { name: "max_requests_per_s", label: "Max. requests/s", kind: "number", help: "Empty: no limit." },
      { name: "expires_at", label: "Expires", kind: "later", help: "A time, or a duration from now such as 90d. Empty: when the key that creates it expires, or never." },
    ],
    act: async (answers) => {
      const queues = answers.queues!.split("\n").map((line) => line.trim()).filter(Boolean);
      const answer = await call("POST", "/admin/keys", {
        name: answers.name, scopes: SCOPES.map(([scope]) => scope).filter((scope) => answers[scope]),
        ...(queues.length && { queues }), ...(answers.tenant && { tenant: answers.tenant }),
        ...(answers.max_requests_per_s && { max_requests_per_s: whole(answers.max_requests_per_s, "max_requests_per_s") }), ...(answers.expires_at && { expires_at: answers.expires_at }),
      });
      show({ name: answers.name!, secret: answer.secret });
      read.again();
    },
  });
  const revoke = (key: Json) => () => ask({
    title: `Revoke key ${key.name}?`, button: "Revoke key", danger: true,
    text: <p>The server rejects requests with this key within about 1 minute. This can't be undone. {key.id === who.key && <strong>You are signed in with this key.</strong>}</p>,
    questions: [{ name: "made", label: "Also revoke all keys that it created", kind: "check", help: "Includes keys that those keys created. Use this for a stolen key." }],
    act: async ({ made: also }) => {
      const answer = await call("DELETE", `/admin/keys/${seg(key.id)}${also ? "?made=revoke" : ""}`);
      tell(`Key ${key.name} revoked${answer?.also_revoked?.length ? `, with ${answer.also_revoked.length} keys that it created` : ""}`);
      read.again();
    },
  });
  return (
    <Page title="Access keys" read={read} about={who.authorizer === "none" ? "This server does not require authentication, so keys have no effect." : "Keys of clients, workers, and operators, with their scopes."} actions={<Act on={create}>Create key</Act>}>
      {made && (
        <div class="notice warn" role="status">
          <p>Key <strong><bdi>{made.name}</bdi></strong> created. Copy the secret now, it is not shown again: <code>{made.secret}</code></p>
          <span class="row"><Copy text={made.secret} label="Copy" /><button type="button" class="small" onClick={() => show(null)}>Done</button></span>
        </div>
      )}
      <Card>
        <When read={read}>{(data) => <>
          <Table rows={data.items} label="Access keys" part={data.more} id={(key) => key.id} empty={<Empty title="No keys">Create one key for each program.</Empty>} columns={[
            { name: "Name", cell: (key) => <><Text>{key.name}</Text>{key.id === who.key && <span class="dim"> (yours)</span>}</>, by: (key) => key.name },
            { name: "State", cell: (key) => <State of={key.state} />, by: (key) => key.state },
            { name: "Scopes", cell: (key) => key.scopes.map((scope: string) => <span key={scope} class="tag">{scope}</span>) },
            { name: "Queues", cell: (key) => key.queues ? <Text>{key.queues.join(", ")}</Text> : "All" },
            { name: "Tenant", cell: (key) => key.tenant ? <Text>{key.tenant}</Text> : "–", by: (key) => key.tenant ?? "" },
            { name: "Max. requests/s", right: true, cell: (key) => key.max_requests_per_s ?? "–", by: (key) => key.max_requests_per_s ?? 0 },
            { name: "Last used", cell: (key) => <Time at={key.last_used_at} />, by: (key) => key.last_used_at ?? "" },
            { name: "Expires", cell: (key) => <Time at={key.revoked_at ?? key.expires_at} />, by: (key) => key.expires_at ?? "" },
            { name: "Created by", cell: (key) => <Text>{key.made_by}</Text>, by: (key) => key.made_by ?? "" },
            { name: "ID", cell: (key) => <code>{key.id}</code> },
            { name: "", cell: (key) => key.state === "active" && <Act small danger of={`${key.name}, ${key.id}`} on={revoke(key)}>Revoke</Act> },
          ]} />
          <Pager shown={data.items.length} more={data.more} busy={read.busy} one="key" order=", oldest first" on={() => setPages(pages + 1)} />
        </>}</When>
      </Card>
    </Page>
  );
}
