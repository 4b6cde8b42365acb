import { useState } from "preact/hooks";
import { get, type Json, query } from "../api";
import { usePoll } from "../live";
import { Card, Empty, Page, Pager, Table, Text, Time, When } from "../ui";

export function Audit() {
  const [pages, setPages] = useState(1);
  const read = usePoll(async (signal) => {
    const items: Json[] = [];
    let cursor: string | undefined;
    for (let page = 0; page < pages; page++) {
      const answer = await get(`/admin/actions${query({ limit: 50, cursor })}`, signal);
      items.push(...answer.items);
      cursor = answer.pagination.next_cursor;
      if (!cursor) break;
    }
    return { items, more: Boolean(cursor) };
  }, 30_000 * pages, [pages]);
  return (
    <Page title="Audit" read={read} about="What operators did in the last 90 days, here and everywhere else: each request that needs admin:write, or changes a cron job or workflow, with the name on its key.">
      <Card>
        <When read={read}>{(data) => <>
          <Table rows={data.items} label="Actions" part={data.more} id={(action) => action.id} empty={<Empty title="Nobody has changed anything yet.">What is done here is listed here.</Empty>} columns={[
            { name: "When", cell: (action) => <Time at={action.at} /> },
            { name: "Who", cell: (action) => action.actor ? <Text>{action.actor}</Text> : <span class="dim">no key needed</span>, by: (action) => action.actor ?? "" },
            { name: "Action", cell: (action) => String(action.operation).replace(/^(admin|crons)_/, "").replaceAll("_", " "), by: (action) => action.operation },
            { name: "Request", cell: (action) => <code><bdi>{action.method} {decoded(action.path)}</bdi></code> },
            { name: "Answer", cell: (action) => <span data-tone={action.status < 400 ? "green" : "red"}>{action.status}</span>, by: (action) => action.status ?? 0 },
            { name: "Key", wide: true, cell: (action) => action.key ? <code>{action.key}</code> : <span class="dim">–</span> },
          ]} />
          <Pager shown={data.items.length} more={data.more} busy={read.busy} what="actions, latest first" on={() => setPages(pages + 1)} />
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
