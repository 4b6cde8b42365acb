import { call, get, type Json, me, query, seg } from "../api";
import { useBox } from "../box";
import { usePoll } from "../live";
import { useState } from "preact/hooks";
import { Act, ask, Card, Copy, Empty, Page, Pager, State, Table, tell, Text, Time, When } from "../ui";

const SCOPES: [string, string][] = [
  ["jobs:write", "push jobs, cancel and retry them"], ["jobs:read", "read jobs and results"], ["work", "fetch jobs and report on them"],
  ["admin:read", "read all that operators see"], ["admin:write", "configure, pause, delete, make keys"],
];

export function Keys() {
  const who = useBox(me)!;
  const [pages, setPages] = useState(1);
  const [made, show] = useState<{ name: string; secret: string } | null>(null);
  const read = usePoll(async (signal) => {
    const items: Json[] = [];
    let cursor: string | undefined;
    for (let page = 0; page < pages; page++) {
      const answer = await get(`/admin/keys${query({ limit: 100, cursor })}`, signal);
      items.push(...answer.items);
      cursor = answer.pagination.next_cursor;
      if (!cursor) break;
    }
    return { items, more: Boolean(cursor) };
  }, 60_000, [pages]);
  if (who.authorizer === "jwt")
    return <Page title="Keys"><Card><Empty title="This deployment knows no keys.">Callers bring a token of its issuer (<code>authorizer=jwt</code>); who may do what is said there.</Empty></Card></Page>;
  const create = () => ask({
    title: "Make a key", button: "Make it",
    text: <p>Nobody makes a key that may do more than their own. Its secret is shown once.</p>,
    questions: [
      { name: "name", label: "Name", help: "Who holds it: the producer of the jobs that are pushed with it." },
      ...SCOPES.map(([scope, what]) => ({ name: scope, label: scope, kind: "check" as const, help: what })),
      { name: "queues", label: "Only these queues", kind: "list" as const, help: "One a line; one may end in *. Empty: all." },
      { name: "expires_at", label: "Ends", help: "A time, or a duration from now such as +P90D. Empty: when the key ends that made it, or never." },
    ],
    act: async (answers) => {
      const queues = answers.queues!.split("\n").map((line) => line.trim()).filter(Boolean);
      const answer = await call("POST", "/admin/keys", {
        name: answers.name, scopes: SCOPES.map(([scope]) => scope).filter((scope) => answers[scope]),
        ...(queues.length && { queues }), ...(answers.expires_at && { expires_at: answers.expires_at }),
      });
      show({ name: answers.name!, secret: answer.secret });
      read.again();
    },
  });
  const revoke = (key: Json) => () => ask({
    title: `Revoke ${key.name}?`, button: "Revoke it", danger: true,
    text: <p>Whoever has it is refused, within a minute or so. This cannot be taken back. {key.id === who.key && <strong>It is the key that you have signed in with.</strong>}</p>,
    questions: [{ name: "made", label: "All keys that it made, too", kind: "check", help: "And those that these made: for a key that was stolen." }],
    act: async ({ made: also }) => {
      const answer = await call("DELETE", `/admin/keys/${seg(key.id)}${also ? "?made=revoke" : ""}`);
      tell(`Revoked${answer?.also_revoked?.length ? `, with ${answer.also_revoked.length} that it made` : ""}.`);
      read.again();
    },
  });
  return (
    <Page title="Keys" read={read} about={who.authorizer === "none" ? "This server asks for none; keys are of use to one that does." : "Who may do what."} actions={<Act on={create}>Make a key …</Act>}>
      {made && (
        <div class="notice warn" role="status">
          <p>The key of <strong><bdi>{made.name}</bdi></strong>, shown this once: <code>{made.secret}</code></p>
          <span class="row"><Copy text={made.secret} label="Copy the key" /><button type="button" class="small" onClick={() => show(null)}>I have it</button></span>
        </div>
      )}
      <Card>
        <When read={read}>{(data) => <>
          <Table rows={data.items} label="Keys" part={data.more} id={(key) => key.id} empty={<Empty title="No keys.">Make one for each program.</Empty>} columns={[
            { name: "Name", cell: (key) => <><Text>{key.name}</Text>{key.id === who.key && <span class="dim"> (yours)</span>}</>, by: (key) => key.name },
            { name: "State", cell: (key) => <State of={key.state} />, by: (key) => key.state },
            { name: "May", cell: (key) => key.scopes.map((scope: string) => <span key={scope} class="tag">{scope}</span>) },
            { name: "Queues", wide: true, cell: (key) => key.queues ? <Text>{key.queues.join(", ")}</Text> : "all" },
            { name: "Last used", cell: (key) => <Time at={key.last_used_at} />, by: (key) => key.last_used_at ?? "" },
            { name: "Ends", wide: true, cell: (key) => <Time at={key.revoked_at ?? key.expires_at} />, by: (key) => key.expires_at ?? "" },
            { name: "Made by", wide: true, cell: (key) => <Text>{key.made_by}</Text>, by: (key) => key.made_by ?? "" },
            { name: "Id", wide: true, cell: (key) => <code>{key.id}</code> },
            { name: "", cell: (key) => key.state === "active" && <Act small danger of={`${key.name}, ${key.id}`} on={revoke(key)}>Revoke …</Act> },
          ]} />
          <Pager shown={data.items.length} more={data.more} busy={read.busy} what="keys, oldest first" on={() => setPages(pages + 1)} />
        </>}</When>
      </Card>
    </Page>
  );
}
