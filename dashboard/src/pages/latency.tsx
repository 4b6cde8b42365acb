import type { Json } from "../api";
import { number } from "../format";
import { Card, Duration, QueueLink, Table, Text } from "../ui";

interface Row { queue: string; type: string; waits: number[]; runs: number[]; failed: number; perMinute: number }

/** The value below which this part of the sorted values is. */
export const quantile = (sorted: number[], part: number) => sorted[Math.max(0, Math.ceil(part * sorted.length) - 1)];

function rows(jobs: Json[]): Row[] {
  const found = new Map<string, Row & { from: number; to: number }>();
  for (const job of jobs) {
    const [queued, began, ended] = [job.enqueued_at, job.started_at, job.completed_at].map((at) => Date.parse(at ?? ""));
    if (!(began! >= queued!) || !(ended! >= began!)) continue;
    const key = JSON.stringify([job.queue, job.type]);
    const row = found.get(key) ?? { queue: job.queue, type: job.type, waits: [] as number[], runs: [] as number[], failed: 0, perMinute: 0, from: ended!, to: ended! };
    row.waits.push(began! - queued!);
    row.runs.push(ended! - began!);
    row.failed += job.state === "completed" ? 0 : 1;
    row.from = Math.min(row.from, ended!);
    row.to = Math.max(row.to, ended!);
    found.set(key, row);
  }
  for (const row of found.values()) {
    row.waits.sort((a, b) => a - b);
    row.runs.sort((a, b) => a - b);
    if (row.to > row.from) row.perMinute = ((row.runs.length - 1) * 60_000) / (row.to - row.from);
  }
  return [...found.values()].sort((a, b) => b.runs.length - a.runs.length);
}

/** Percentiles of wait and run time, and throughput, of finished jobs that are loaded. */
export function Latency({ jobs }: { jobs: Json[] }) {
  const all = rows(jobs);
  if (!all.length) return null;
  const at = (name: string, of: "waits" | "runs", part: number) => ({ name, right: true, cell: (row: Row) => <Duration ms={quantile(row[of], part)} />, by: (row: Row) => quantile(row[of], part)! });
  const count = all.reduce((sum, row) => sum + row.runs.length, 0);
  return (
    <Card title="Latency and throughput">
      <p class="dim">Of the {number(count)} finished jobs that are loaded. Wait is the time from available to the latest start.</p>
      <Table rows={all} label="Latency by queue and type" id={(row) => JSON.stringify([row.queue, row.type])} columns={[
        { name: "Type", cell: (row) => <Text>{row.type}</Text>, by: (row) => row.type },
        { name: "Queue", cell: (row) => <QueueLink name={row.queue} />, by: (row) => row.queue },
        { name: "Jobs", right: true, cell: (row) => number(row.runs.length), by: (row) => row.runs.length },
        { name: "Jobs/min", right: true, cell: (row) => (row.perMinute ? number(Math.round(10 * row.perMinute) / 10) : "–"), by: (row) => row.perMinute },
        { name: "Discarded", right: true, cell: (row) => number(row.failed), by: (row) => row.failed },
        at("Wait p50", "waits", 0.5), at("Wait p95", "waits", 0.95), at("Run p50", "runs", 0.5), at("Run p95", "runs", 0.95), at("Run p99", "runs", 0.99),
      ]} />
    </Card>
  );
}
