import { call, get, type Json, query, seg } from "../api";
import { number } from "../format";
import { usePoll } from "../live";
import { Act, ask, Card, Count, Empty, Link, Page, Pager, QueueLink, State, Table, tell, Text, Time, When } from "../ui";

export function Workers() {
  const read = usePoll((signal) => get("/admin/workers?limit=100", signal), [], { about: "" });
  const direct = (worker: Json, directive: string, said: string) => async () => {
    await call("POST", "/admin/workers/directive", { worker_id: worker.id, directive });
    tell(`${worker.id} ${said} at its next heartbeat`);
    read.again();
  };
  return (
    <Page title="Workers" read={read} about="Registered workers and workers of pools. Select a worker to view its active jobs.">
      <When read={read}>{(data) => <>
        <div class="numbers">
          <Count label="Running" of={data.summary.running} tone="green" /><Count label="Quiet" of={data.summary.quiet} tone="amber" /><Count label="Stale" of={data.summary.stale} tone="red" />
        </div>
        <Card>
          <Table rows={data.items as Json[]} label="Workers" part={data.pagination.has_more} id={(worker) => worker.id}
            empty={<Empty title="No workers">Workers of the Python library register automatically. Other workers that only fetch are not listed.</Empty>}
            columns={[
              { name: "Worker", cell: (worker) => <Link to={`/running${query({ worker_id: worker.id })}`}>{worker.id}</Link>, by: (worker) => worker.id },
              { name: "State", cell: (worker) => <><State of={worker.state} /> {worker.directive !== "running" && <span class="dim">Requested: {worker.directive}</span>}</>, by: (worker) => worker.state },
              { name: "Jobs", right: true, cell: (worker) => `${number(worker.active_jobs ?? 0)}${worker.concurrency ? ` / ${number(worker.concurrency)}` : ""}`, by: (worker) => worker.active_jobs ?? 0 },
              { name: "Last heartbeat", cell: (worker) => <Time at={worker.last_heartbeat_at} />, by: (worker) => worker.last_heartbeat_at ?? "" },
              { name: "Queues", cell: (worker) => (worker.queues ?? []).map((name: string) => <span key={name} class="tag"><QueueLink name={name} /></span>) },
              { name: "Pool", cell: (worker) => <Text>{worker.pool}</Text> },
              { name: "Host", cell: (worker) => <Text>{worker.hostname}</Text> },
              { name: "", cell: (worker) => <span class="row">
                {worker.directive === "running"
                  ? <Act small of={worker.id} on={direct(worker, "quiet", "stops fetching")}>Quiet</Act>
                  : <Act small of={worker.id} on={direct(worker, "running", "resumes")}>Resume</Act>}
                <Act small danger of={worker.id} on={() => ask({ title: `Terminate worker ${worker.id}?`, text: "The worker stops fetching, finishes its active jobs if it can, and exits. It does not restart automatically.", button: "Terminate worker", danger: true, act: () => direct(worker, "terminate", "terminates")() })}>Terminate</Act>
                {worker.state === "stale" && <Act small danger of={worker.id} on={() => ask({ title: `Remove worker ${worker.id}?`, text: "The record appears again if the worker sends a heartbeat.", button: "Remove worker", danger: true, act: async () => { await call("DELETE", `/admin/workers/${seg(worker.id)}`); tell(`${worker.id} removed`); read.again(); } })}>Remove</Act>}
              </span> },
            ]} />
          <Pager shown={data.items.length} total={data.total} more={false} one="worker" on={() => {}} />
        </Card>
      </>}</When>
    </Page>
  );
}
