import { useEffect, useState } from "preact/hooks";
import { BASE, can, get, type Json, limited, query } from "../api";
import { Chart } from "../chart";
import { capital, duration, number, plural } from "../format";
import { usePoll } from "../live";
import { href } from "../route";
import { Card, Empty, Link, Count, Page, QueueLink, Text, Time, Trouble, When } from "../ui";

const MINUTE = 60_000;

// The spans of a chart, with the period of its points and the refresh interval. A day and a week have
// one point per hour, because points per minute cost about 20 read units at each refresh.
const SPANS = {
  hour: { label: "1h", said: "last hour", back: 60 * MINUTE, period: "1m", every: MINUTE },
  day: { label: "24h", said: "last 24 hours", back: 24 * 60 * MINUTE, period: "1h", every: 5 * MINUTE },
  week: { label: "7d", said: "last 7 days", back: 7 * 24 * 60 * MINUTE, period: "1h", every: 5 * MINUTE },
} as const;
type Span = keyof typeof SPANS;

export function History({ queue, title = "Throughput", height }: { queue?: string; title?: string; height?: number }) {
  const [span, choose] = useState<Span>("hour");
  const { back, period, every } = SPANS[span];
  const read = usePoll(
    (signal) => get(`/admin/stats/history${query({ period, queue, since: new Date(Date.now() - back).toISOString() })}`, signal),
    [span, queue], { everyMs: every, about: queue === undefined ? "all" : `queue:${queue}` },
  );
  const points: Json[] = read.data?.data ?? [];
  const [shown, show] = useState<{ times: number[]; lines: Parameters<typeof Chart>[0]["lines"] }>({ times: [], lines: [] });
  useEffect(() => {
    const of = (name: string) => points.map((point) => point[name] ?? 0);
    show({
      times: points.map((point) => Date.parse(point.timestamp) / 1_000),
      lines: [
        { name: "Enqueued", color: "blue", values: of("enqueued") },
        { name: "Completed", color: "green", values: of("processed") },
        { name: "Discarded", color: "red", values: of("failed") },
      ],
    });
  }, [read.data]);
  return (
    <Card
      title={title}
      actions={(Object.keys(SPANS) as Span[]).filter((each) => !queue || each !== "week").map((each) => (
        <button key={each} type="button" class="small" aria-pressed={each === span} title={capital(SPANS[each].said)} onClick={() => choose(each)}>{SPANS[each].label}</button>
      ))}
    >
      <Trouble read={read} />
      <When read={read}>{() => <Chart label={`${title}, ${SPANS[span].said}, jobs per ${period === "1m" ? "minute" : "hour"}`} times={shown.times} lines={shown.lines} height={height} />}</When>
    </Card>
  );
}

/** The status of the table for readers. */
export const condition = (status: string | undefined) => (status === "ok" ? "healthy" : status ?? "unknown");

interface Alarm { text: string; to: string; bad: boolean }

/** Conditions that need attention, from the statistics that the page reads anyway. */
function alarms(stats: Json, now: number): Alarm[] {
  const found: Alarm[] = [];
  const { jobs, throughput } = stats;
  const oldest = stats.oldest_available_at ? now - Date.parse(stats.oldest_available_at) : 0;
  if (oldest > 15 * MINUTE)
    found.push({ text: `Oldest available job: ${duration(oldest)}`, to: "/queues?sort=oldest", bad: true });
  if (jobs.available && !stats.workers)
    found.push({ text: `${plural(jobs.available, "available job")}, no active workers`, to: "/workers", bad: true });
  if (throughput.failed_per_minute > 0)
    found.push({ text: `${throughput.failed_per_minute} ${throughput.failed_per_minute === 1 ? "job/min is" : "jobs/min are"} discarded after all retries`, to: "/dead-letters", bad: throughput.failed_per_minute > throughput.processed_per_minute / 10 });
  if (now - Date.parse(stats.computed_at) > 5 * MINUTE)
    found.push({ text: "Statistics are more than 5 minutes old. Check the sweep function", to: "/settings", bad: true });
  return found;
}

export function Overview() {
  const only = limited();
  if (!can("admin:read") || only)
    return (
      <Page title="Overview">
        <Empty title={only ? "Select a queue" : "Missing scope admin:read"}>
          {only ? (
            <>
              <p>Your key has access to these queues only:</p>
              <ul class="plain">{only.map((name) => <li key={name}>{name.endsWith("*") ? <Text>{name}</Text> : <QueueLink name={name} />}</li>)}</ul>
            </>
          ) : (
            <p>Sign in with a key that has this scope. With jobs:read you can view the <a href={href("/jobs")}>jobs of a queue</a>.</p>
          )}
        </Empty>
      </Page>
    );
  return <Everything />;
}

function Everything() {
  // Without a connection eight requests per minute: four for the totals, and one for each slower value.
  const stats = usePoll((signal) => get("/admin/stats", signal), []);
  const health = usePoll(async (signal) => {
    const [is, maintenance] = await Promise.all([get("/health", signal), get("/admin/system/maintenance", signal)]);
    return { is, maintenance };
  }, [], { everyMs: MINUTE, about: "" });
  const dead = usePoll((signal) => get("/dead-letter/stats", signal), [], { everyMs: MINUTE });
  const jobs = stats.data?.jobs;
  const rates = stats.data?.throughput;
  const maintenance = health.data?.maintenance;
  const found = stats.data ? alarms(stats.data, Date.now()) : [];
  return (
    <Page title="Overview" read={stats} about={stats.data && <>Updated <Time at={stats.data.computed_at} /> · {plural(stats.data.queues, "queue")}</>}>
      {maintenance?.enabled && (
        <div class="notice warn" role="status">
          <p><strong>Maintenance mode:</strong> no jobs are dispatched{maintenance.reason && <> (<bdi>{maintenance.reason}</bdi>)</>}. Enabled <Time at={maintenance.started_at} />{maintenance.ends_at && <>, estimated end <Time at={maintenance.ends_at} /></>}.</p>
          <Link to="/settings">Settings</Link>
        </div>
      )}
      <Trouble read={health} />
      {stats.data && !stats.data.queues && (
        <Card><Empty title="No jobs yet">
          <p>Enqueue your first job:</p>
          <pre tabIndex={0}>{`curl ${location.origin}${BASE}/jobs -H 'Content-Type: application/json' \\\n  -d '{"type": "hello", "args": ["world"]}'`}</pre>
        </Empty></Card>
      )}
      <div class="numbers">
        <Count label="Available" of={jobs?.available} to="/jobs?state=available" note={stats.data?.oldest_available_at ? <>Oldest <Time at={stats.data.oldest_available_at} /></> : undefined} />
        <Count label="Active" of={jobs?.active} to="/running" tone="blue" note={stats.data && <>{plural(stats.data.workers, "worker")}</>} />
        <Count label="Completed/min" of={rates?.processed_per_minute} tone="green" />
        <Count label="Discarded/min" of={rates?.failed_per_minute} tone="red" />
        <Count label="Retryable" of={jobs?.retryable} to="/waiting" tone="amber" />
        <Count label="Scheduled" of={jobs?.scheduled} to="/waiting" />
        <Count label="Dead letters" of={stats.data?.dead_letter} to="/dead-letters" tone="red" note={dead.data?.newest_at && <>Last <Time at={dead.data.newest_at} /></>} />
      </div>
      <div class="cards">
        <div class="wide"><History height={260} /></div>
        <Card title="Alerts">
          {found.length ? (
            <ul class="alarms">{found.map((each) => <li key={each.text} data-bad={each.bad ? "" : undefined}><Link to={each.to}>{each.text}</Link></li>)}</ul>
          ) : (
            <p class="good">No alerts</p>
          )}
          {health.data && (
            <p class="dim">
              DynamoDB: {condition(health.data.is.backend?.status)}, {health.data.is.backend?.latency_ms ?? "–"} ms · Version {health.data.is.server_version}
            </p>
          )}
        </Card>
        <Card title="Top errors" actions={<Link to="/dead-letters">View all</Link>}>
          <Trouble read={dead} />
          <When read={dead}>{(data) => data.total ? (
            <ul class="rank">
              {Object.entries(data.by_error_type as Record<string, number>).sort((a, b) => b[1] - a[1]).slice(0, 6).map(([name, count]) => (
                <li key={name}><Link to={`/dead-letters${query({ error_type: name })}`}>{name}</Link><span>{number(count)}</span></li>
              ))}
            </ul>
          ) : <p class="good">No dead letters</p>}</When>
        </Card>
      </div>
    </Page>
  );
}
