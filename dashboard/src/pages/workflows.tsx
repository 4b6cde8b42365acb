import { useMemo, useState } from "preact/hooks";
import { call, get, type Json, query, seg } from "../api";
import { duration, label, number } from "../format";
import { usePoll } from "../live";
import { href } from "../route";
import { Act, ask, Card, Empty, Facts, JobLink, Link, Page, Pager, State, Table, tell, Text, Time, When } from "../ui";
import { Failure } from "./job";

export function Workflows() {
  const [pages, setPages] = useState(1);
  const read = usePoll(async (signal) => {
    const items: Json[] = [];
    let cursor: string | undefined, total: number | undefined;
    for (let page = 0; page < pages; page++) {
      const answer = await get(`/workflows${query({ limit: 50, cursor })}`, signal);
      items.push(...answer.items);
      total ??= answer.total;
      cursor = answer.pagination.next_cursor;
      if (!cursor) break;
    }
    // Failed workflows first, then running ones, then the others; newest first in each group.
    const rank = (each: Json) => (each.state === "failed" ? 0 : each.state === "running" ? 1 : 2);
    items.sort((a, b) => rank(a) - rank(b) || String(b.created_at).localeCompare(String(a.created_at)));
    return { items, total, more: Boolean(cursor) };
  }, [pages], { everyMs: 15_000 * pages });
  return (
    <Page title="Workflows" read={read} about="Failed workflows first, then running ones.">
      <Card>
        <When read={read}>{(data) => <>
          <Table rows={data.items} label="Workflows" part={data.more} id={(each) => each.id}
            empty={<Empty title="No workflows">Create chains, groups, batches, or graphs of jobs with the Python library.</Empty>}
            columns={[
              { name: "Workflow", cell: (each) => <Link to={`/workflows/${seg(each.id)}`}>{each.name ?? each.id}</Link>, by: (each) => each.name ?? each.id },
              { name: "State", cell: (each) => <State of={each.state} />, by: (each) => each.state },
              { name: "Type", cell: (each) => each.type, by: (each) => each.type },
              { name: "Completed", right: true, cell: (each) => <>{number(each.steps_completed ?? 0)} / {number(each.steps_total ?? 0)} <progress max={Math.max(1, each.steps_total ?? 1)} value={each.steps_completed ?? 0} aria-label={`Completed steps of ${each.name ?? each.id}`} /></>, by: (each) => (each.steps_completed ?? 0) / Math.max(1, each.steps_total ?? 1) },
              { name: "Failed", right: true, cell: (each) => number(each.metadata?.failed_count ?? 0), by: (each) => each.metadata?.failed_count ?? 0 },
              { name: "Created", cell: (each) => <Time at={each.created_at} />, by: (each) => each.created_at },
              { name: "Updated", cell: (each) => <Time at={each.updated_at} />, by: (each) => each.updated_at ?? "" },
            ]} />
          <Pager shown={data.items.length} total={data.total} more={data.more} busy={read.busy} one="workflow" on={() => setPages(pages + 1)} />
        </>}</When>
      </Card>
    </Page>
  );
}

interface Node { id: number; label: string; state: string; took: string; job?: string; level: number; row: number }
const DRAWN = 150;

/** The jobs of a workflow as nodes, and their dependencies as edges. */
function graph(steps: Json[], type: string): { nodes: Node[]; edges: [number, number][] } {
  const nodes: Node[] = [];
  const edges: [number, number][] = [];
  // Places steps after `before` and returns the steps that others can follow.
  const place = (all: Json[], form: string, before: number[]): number[] => {
    const callbacks = all.filter((step) => step.callback);
    const plain = all.filter((step) => !step.callback);
    let ends: number[] = [];
    if (form === "chain") {
      ends = before;
      for (const step of plain) ends = one(step, ends);
    } else {
      const named = new Map<string, number[]>();
      const waited = new Set<string>();
      for (const step of plain) for (const id of step.depends_on ?? []) waited.add(id);
      const left = [...plain];
      while (left.length) {
        const at = left.findIndex((step) => (step.depends_on ?? []).every((id: string) => named.has(id)));
        const step = left.splice(Math.max(0, at), 1)[0]!;
        const after = (step.depends_on ?? []).flatMap((id: string) => named.get(id) ?? []);
        const out = one(step, after.length ? after : before);
        if (step.id) named.set(step.id, out);
        if (!step.id || !waited.has(step.id)) ends.push(...out);
      }
    }
    for (const step of callbacks) one(step, ends);
    return ends.length ? ends : before;
  };
  const one = (step: Json, before: number[]): number[] => {
    if (step.steps) return place(step.steps, step.type, before);
    const level = 1 + Math.max(-1, ...before.map((id) => nodes.find((node) => node.id === id)?.level ?? -1));
    const name = step.name ?? given(step);
    nodes.push({ id: step.node, label: name && name !== step.type ? `${name}: ${step.type}` : step.type, state: step.job_state === "active" ? "active" : step.state, took: took(step), job: step.job_id ?? undefined, level, row: nodes.filter((node) => node.level === level).length });
    for (const id of before) edges.push([id, step.node]);
    return [step.node];
  };
  place(steps, type, []);
  return { nodes, edges };
}

/** How long a step has run, or ran. */
function took(step: Json): string {
  const end = step.completed_at ?? step.finished_at;
  return step.started_at && (end || step.job_state === "active") ? duration(Math.max(0, (end ? Date.parse(end) : Date.now()) - Date.parse(step.started_at))) : "";
}

// The ID that a client set for a step. Without one, the server uses the index.
function given(step: Json): string | undefined {
  return step.id === String(step.index) ? undefined : step.id;
}

const W = 190, H = 46, GAP_X = 54, GAP_Y = 16;
const at = (node: Node) => ({ x: 8 + node.level * (W + GAP_X), y: 8 + node.row * (H + GAP_Y) });

function Graph({ steps, type }: { steps: Json[]; type: string }) {
  const { nodes, edges } = useMemo(() => graph(steps, type), [steps, type]);
  if (nodes.length > DRAWN) return <p class="dim">{number(nodes.length)} jobs are too many for a graph. See the list of steps.</p>;
  const width = 16 + (1 + Math.max(0, ...nodes.map((node) => node.level))) * (W + GAP_X) - GAP_X;
  const height = 16 + (1 + Math.max(0, ...nodes.map((node) => node.row))) * (H + GAP_Y) - GAP_Y;
  const by = new Map(nodes.map((node) => [node.id, node]));
  return (
    <><p class="row legend">{[...new Set(nodes.map((node) => node.state))].map((state) => <span key={state}><State of={state} /> <strong>{nodes.filter((node) => node.state === state).length}</strong></span>)}</p>
    <div class="graph" tabIndex={0} role="region" aria-label="Graph of the workflow">
      <svg width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="group" aria-label={`${nodes.length} jobs`}>
        {edges.map(([from, to]) => {
          const a = at(by.get(from)!), b = at(by.get(to)!), x = a.x + W, y = a.y + H / 2, end = b.y + H / 2;
          return <path key={`${from}-${to}`} d={`M${x} ${y} C${x + GAP_X / 2} ${y} ${b.x - GAP_X / 2} ${end} ${b.x} ${end}`} />;
        })}
        {nodes.map((node) => {
          const { x, y } = at(node);
          const box = (
            <g data-state={/^[a-z_-]+$/.test(node.state) ? node.state : "unknown"}>
              <rect x={x} y={y} width={W} height={H} rx="9" />
              <text x={x + 12} y={y + 20}>{node.label.length > 26 ? `${node.label.slice(0, 25)}…` : node.label}</text>
              <text class="dim" x={x + 12} y={y + 36}>{label(node.state)}{node.took && ` · ${node.took}`}</text>
              <title>{`${node.label}: ${label(node.state)}${node.took && `, ${node.took}`}`}</title>
            </g>
          );
          return node.job ? <a key={node.id} href={href(`/jobs/${seg(node.job)}`)}>{box}</a> : <g key={node.id}>{box}</g>;
        })}
      </svg>
    </div></>
  );
}

const flat = (steps: Json[], before = ""): Json[] =>
  steps.flatMap((step) => (step.steps ? flat(step.steps, `${before}${step.name ?? step.type} › `) : [{ ...step, before }]));

export function WorkflowPage({ name: id }: { name: string }) {
  const read = usePoll((signal) => get(`/workflows/${seg(id)}`, signal), [id]);
  const flow = read.data;
  const over = flow && ["completed", "failed", "cancelled"].includes(flow.state);
  const steps: Json[] = flow?.steps ?? flow?.workflow?.steps ?? [];
  const bad = (step: Json) => (step.state === "failed" || step.job_state === "discarded" ? 0 : step.job_state === "active" ? 1 : 2);
  const list = useMemo(() => flat(steps).sort((a, b) => bad(a) - bad(b) || a.node - b.node), [steps]);
  return (
    <Page title={flow?.name ?? "Workflow"} read={read} about={<><code>{id}</code></>} actions={flow && <>
      {over && <Act needs="jobs:write" on={() => ask({ title: "Retry workflow?", text: "Failed and cancelled steps run again. Completed steps do not.", button: "Retry", act: async () => { await call("POST", `/workflows/${seg(id)}/retry`); tell("Workflow retried"); read.again(); } })}>Retry</Act>}
      {!over && <Act needs="jobs:write" danger on={() => ask({ title: "Cancel workflow?", text: "Its unfinished jobs are cancelled. This can't be undone.", button: "Cancel workflow", dismiss: "Close", danger: true, act: async () => { await call("POST", `/workflows/${seg(id)}/cancel`); tell("Workflow cancelled"); read.again(); } })}>Cancel</Act>}
    </>}>
      {read.error?.status === 404 && <Empty title="Workflow not found"><Link to="/workflows">View all workflows</Link></Empty>}
      <When read={read}>{(data) => <>
        <Card>
          <Facts of={[
            ["State", <State of={data.state} />], ["Type", data.type],
            ["Completed jobs", `${number(data.jobs_completed ?? 0)} of ${number(data.jobs_total ?? data.steps_total ?? 0)}`],
            ["Failed", number(data.metadata?.failed_count ?? 0)],
            ["Created", <Time at={data.created_at} />], ["Updated", <Time at={data.updated_at} />],
          ]} />
        </Card>
        <Card title="Graph"><Graph steps={steps} type={data.type} /></Card>
        <Card title="Steps">
          <Table rows={list} label="Steps" id={(step) => String(step.node)} columns={[
            { name: "Step", cell: (step) => <><span class="dim"><bdi>{step.before}</bdi></span><bdi>{step.name ?? given(step) ?? step.type}</bdi>{step.callback && <span class="dim"> on {typeof step.callback === "string" ? step.callback : JSON.stringify(step.callback)}</span>}</> },
            { name: "Type", cell: (step) => <Text>{step.type}</Text> },
            { name: "State", cell: (step) => <State of={step.job_state === "active" ? "active" : step.state} />, by: (step) => step.state },
            { name: "Depends on", cell: (step) => <Text>{step.depends_on?.join(", ")}</Text> },
            { name: "Job", cell: (step) => step.job_id ? <JobLink id={step.job_id} /> : <span class="dim">Not started</span> },
            { name: "Started", cell: (step) => <Time at={step.started_at} /> },
            { name: "Duration", right: true, cell: (step) => took(step) || <span class="dim">–</span> },
            { name: "Error", cell: (step) => step.error ? <Failure of={step.error} /> : <span class="dim">–</span> },
          ]} />
        </Card>
      </>}</When>
    </Page>
  );
}
