import { useState } from "preact/hooks";
import { readPages } from "../api";
import { label } from "../format";
import { usePoll } from "../live";
import { Card, Empty, Page, Pager, Table, Text, Time, When } from "../ui";

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
            { name: "Action", cell: (action) => label(String(action.operation).replace(/^(admin|crons)_/, "")), by: (action) => action.operation },
            { name: "Request", cell: (action) => <code><bdi>{action.method} {decoded(action.path)}</bdi></code> },
            { name: "Status", cell: (action) => <span data-tone={action.status < 400 ? "green" : "red"}>{action.status}</span>, by: (action) => action.status ?? 0 },
            { name: "Key", cell: (action) => action.key ? <code>{action.key}</code> : <span class="dim">–</span> },
          ]} />
          <Pager shown={data.items.length} more={data.more} busy={read.busy} what="actions, newest first" on={() => setPages(pages + 1)} />
        </>}</When>
      </Card>
    </Page>
  );
}

function decoded(path: string): string {
  try {
    return decodeURIComponent(path.replace("/ojs/v1", ""));
  } catch {
    return path;
  }
}
