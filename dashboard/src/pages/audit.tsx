import { useState } from "preact/hooks";
import { call, can, type Json, readPages } from "../api";
import { json, label } from "../format";
import { usePoll } from "../live";
import { Act, ask, Card, Empty, Page, Pager, Table, tell, Text, Time, When } from "../ui";

/** The path of an operation below the API's base path. */
const below = (path: string) => path.replace("/ojs/v1", "");

const verb = (action: Json) => label(String(action.operation).replace(/^(admin|crons)_/, ""));

/** The fields of a configuration by their path, with their values as JSON. */
function fields(value: Json, path = ""): [string, string][] {
  if (!path && !value) return [];
  if (value === null || typeof value !== "object" || Array.isArray(value) || (path && !Object.keys(value).length)) return [[path, json(value)]];
  return Object.entries(value).flatMap(([name, each]) => fields(each, path ? `${path}.${name}` : name));
}

function changes(action: Json): { field: string; before?: string; after?: string }[] {
  const before = new Map(fields(action.before)), after = new Map(fields(action.after));
  return [...new Set([...before.keys(), ...after.keys()])].map((field) => ({ field, before: before.get(field), after: after.get(field) })).filter((each) => each.before !== each.after);
}

/** Shows the values before and after an action, and undoes it. */
function show(action: Json, done: () => void): void {
  const { undo } = action;
  const needs = action.resource === "cron" ? "jobs:write" : "admin:write";
  const allowed = undo && can(needs);
  ask({
    title: `${verb(action)}: ${action.name ?? action.resource}`, dismiss: "Close", button: allowed && "Undo",
    text: <>
      <Card>
        {action.omitted ? <p>The values are too large for the audit log.</p> : <Table rows={changes(action)} label="Changes" id={(each) => each.field} empty={<p>No value changed.</p>} columns={[
          { name: "Field", cell: (each) => <Text>{each.field}</Text> },
          { name: "Before", cell: (each) => <Text>{each.before}</Text> },
          { name: "After", cell: (each) => <Text>{each.after}</Text> },
        ]} />}
      </Card>
      <p>{allowed ? "Undo restores the values before, unless they have changed since." : undo ? `To undo this action, a key requires the scope ${needs}.` : "This action can't be undone."}</p>
    </>,
    act: async () => {
      await call(undo.method, below(undo.path), undo.body, undefined, undo.headers);
      tell(`${verb(action)}: undone`);
      done();
    },
  });
}

export function Audit() {
  const [pages, setPages] = useState(1);
  const read = usePoll((signal) => readPages("/admin/actions", pages, 50, signal), [pages], { everyMs: 30_000 * pages, about: "" });
  return (
    <Page title="Audit log" read={read} about="Changes by operators in the last 90 days: each request that requires admin:write or changes a cron job or workflow, from the dashboard and from other clients.">
      <Card>
        <When read={read}>{(data) => <>
          <Table rows={data.items} label="Actions" part={data.more} id={(action) => action.id} empty={<Empty title="No changes in the last 90 days" />} columns={[
            { name: "Time", cell: (action) => <Time at={action.at} /> },
            { name: "Actor", cell: (action) => action.actor ? <Text>{action.actor}</Text> : <span class="dim">no authentication</span>, by: (action) => action.actor ?? "" },
            { name: "Action", cell: (action) => verb(action), by: (action) => action.operation },
            { name: "Request", cell: (action) => <code><bdi>{action.method} {decoded(action.path)}</bdi></code> },
            { name: "Status", cell: (action) => <span data-tone={action.status < 400 ? "green" : "red"}>{action.status}</span>, by: (action) => action.status ?? 0 },
            { name: "Key", cell: (action) => action.key ? <code>{action.key}</code> : <span class="dim">–</span> },
            { name: "", cell: (action) => action.resource && <Act small needs="admin:read" of={`${verb(action)} ${action.name ?? ""}`} on={() => show(action, read.again)}>Changes</Act> },
          ]} />
          <Pager shown={data.items.length} more={data.more} busy={read.busy} one="action" order=", newest first" on={() => setPages(pages + 1)} />
        </>}</When>
      </Card>
    </Page>
  );
}

function decoded(path: string): string {
  try {
    return decodeURIComponent(below(path));
  } catch {
    return path;
  }
}
