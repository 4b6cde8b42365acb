import { useEffect, useState } from "preact/hooks";
import { BASE, can, get, type Json, limited, query } from "../api";
import { Chart } from "../chart";
import { duration, number, plural } from "../format";
import { usePoll } from "../live";
import { href } from "../route";
import { Card, Empty, Link, Count, Page, QueueLink, Text, Time, Trouble, When } from "../ui";

const MINUTE = 60_000;

// What a chart shows: how far back, by what, and how often it is read again. A day is read by the
// hour, and a week too: by the minute they would be some 20 read units each time.
const SPANS = {
  hour: { label: "Last hour", back: 60 * MINUTE, period: "1m", every: MINUTE },
  day: { label: "Last day", back: 24 * 60 * MINUTE, period: "1h", every: 5 * MINUTE },
  week: { label: "Last week", back: 7 * 24 * 60 * MINUTE, period: "1h", every: 5 * MINUTE },
} as const;
type Span = keyof typeof SPANS;

export function History({ queue, title = "Throughput" }: { queue?: string; title?: string }) {
  const [span, choose] = useState<Span>("hour");
  const { back, period, every } = SPANS[span];
  const read = usePoll(
    (signal) => get(`/admin/stats/history${query({ period, queue, since: new Date(Date.now() - back).toISOString() })}`, signal),
    every, [span, queue],
  );
  const points: Json[] = read.data?.data ?? [];
  const [shown, show] = useState<{ times: number[]; lines: Parameters<typeof Chart>[0]["lines"] }>({ times: [], lines: [] });
  useEffect(() => {
    const of = (name: string) => points.map((point) => point[name] ?? 0);
    show({
      times: points.map((point) => Date.parse(point.timestamp) / 1_000),
      lines: [
        { name: "came in", color: "blue", values: of("enqueued") },
        { name: "done", color: "green", values: of("processed") },
        { name: "given up", color: "red", values: of("failed") },
      ],
    });
  }, [read.data]);
  return (
    <Card
      title={title}
      actions={(Object.keys(SPANS) as Span[]).filter((each) => !queue || each !== "week").map((each) => (
        <button key={each} type="button" class="small" aria-pressed={each === span} onClick={() => choose(each)}>{SPANS[each].label}</button>
      ))}
    >
      <Trouble read={read} />
      <When read={read}>{() => <Chart label={`${title}, ${SPANS[span].label}, jobs by ${period === "1m" ? "minute" : "hour"}`} times={shown.times} lines={shown.lines} />}</When>
    </Card>
  );
}

interface Alarm { text: string; to: string; bad: boolean }

/** What somebody should look at, of what is read anyway. */
function alarms(stats: Json, now: number): Alarm[] {
  const found: Alarm[] = [];
  const { jobs, throughput } = stats;
  const oldest = stats.oldest_available_at ? now - Date.parse(stats.oldest_available_at) : 0;
  if (oldest > 15 * MINUTE)
    found.push({ text: `A job has waited for ${duration(oldest)}`, to: "/queues?sort=oldest", bad: true });
  if (jobs.available && !stats.workers)
    found.push({ text: `${number(jobs.available)} jobs wait, and no worker was heard of lately`, to: "/workers", bad: true });
  if (throughput.failed_per_minute > 0)
    found.push({ text: `${throughput.failed_per_minute} jobs a minute are given up`, to: "/dead-letters", bad: throughput.failed_per_minute > throughput.processed_per_minute / 10 });
  if (now - Date.parse(stats.computed_at) > 5 * MINUTE)
    found.push({ text: "The sweep has not counted for five minutes: these numbers are old", to: "/settings", bad: true });
  return found;
}

export function Overview() {
  const only = limited();
  if (!can("admin:read") || only)
    return (
      <Page title="Overview">
        <Empty title={only ? "Your key is limited to some queues." : "Your key has no admin:read."}>
          {only ? (
            <>
              <p>Totals of all queues are not for it. What you may see:</p>
              <ul class="plain">{only.map((name) => <li key={name}>{name.endsWith("*") ? <Text>{name}</Text> : <QueueLink name={name} />}</li>)}</ul>
            </>
          ) : (
            <p>Ask an operator for one that has. With jobs:read you may still look at <a href={href("/jobs")}>jobs of a queue</a>.</p>
          )}
        </Empty>
      </Page>
    );
  return <Everything />;
}

function Everything() {
  // Eight requests a minute: the totals four times, then one each of what moves less.
  const stats = usePoll((signal) => get("/admin/stats", signal), 15_000, []);
  const health = usePoll(async (signal) => {
    const [is, maintenance] = await Promise.all([get("/health", signal), get("/admin/system/maintenance", signal)]);
    return { is, maintenance };
  }, MINUTE, []);
  const dead = usePoll((signal) => get("/dead-letter/stats", signal), MINUTE, []);
  const jobs = stats.data?.jobs;
  const lately = stats.data?.throughput;
  const maintenance = health.data?.maintenance;
  const found = stats.data ? alarms(stats.data, Date.now()) : [];
  return (
    <Page title="Overview" read={stats} about={stats.data && <>Counted <Time at={stats.data.computed_at} />; {number(stats.data.queues)} queues.</>}>
      {maintenance?.enabled && (
        <div class="notice warn" role="status">
          <p><strong>Maintenance:</strong> no jobs are handed out{maintenance.reason && <>: <bdi>{maintenance.reason}</bdi></>}. Since <Time at={maintenance.started_at} />{maintenance.ends_at && <>, until about <Time at={maintenance.ends_at} /></>}.</p>
          <Link to="/settings">Settings</Link>
        </div>
      )}
      <Trouble read={health} />
      {stats.data && !stats.data.queues && (
        <Card><Empty title="No job has been pushed yet.">
          <p>Push one, and it shows here:</p>
          <pre tabIndex={0}>{`curl ${location.origin}${BASE}/jobs -H 'Content-Type: application/json' \\\n  -d '{"type": "hello", "args": ["world"]}'`}</pre>
        </Empty></Card>
      )}
      <div class="numbers">
        <Count label="Waiting" of={jobs?.available} to="/jobs?state=available" note={stats.data?.oldest_available_at ? <>oldest <Time at={stats.data.oldest_available_at} /></> : undefined} />
        <Count label="Running" of={jobs?.active} to="/running" tone="blue" note={stats.data && <>{plural(stats.data.workers, "worker")}</>} />
        <Count label="Done / min" of={lately?.processed_per_minute} tone="green" />
        <Count label="Given up / min" of={lately?.failed_per_minute} tone="red" />
        <Count label="To retry" of={jobs?.retryable} to="/waiting" tone="amber" />
        <Count label="Scheduled" of={jobs?.scheduled} to="/waiting" />
        <Count label="Dead letters" of={stats.data?.dead_letter} to="/dead-letters" tone="red" note={dead.data?.newest_at && <>latest <Time at={dead.data.newest_at} /></>} />
      </div>
      <div class="cards">
        <div class="wide"><History /></div>
        <Card title="What needs a look">
          {found.length ? (
            <ul class="alarms">{found.map((each) => <li key={each.text} data-bad={each.bad ? "" : undefined}><Link to={each.to}>{each.text}</Link></li>)}</ul>
          ) : (
            <p class="good">Nothing.</p>
          )}
          {health.data && (
            <p class="dim">
              Table {health.data.is.backend?.status}, {health.data.is.backend?.latency_ms} ms · version {health.data.is.server_version}
            </p>
          )}
        </Card>
        <Card title="Dead letters by error" actions={<Link to="/dead-letters">All</Link>}>
          <Trouble read={dead} />
          <When read={dead}>{(data) => data.total ? (
            <ul class="rank">
              {Object.entries(data.by_error_type as Record<string, number>).sort((a, b) => b[1] - a[1]).slice(0, 6).map(([name, count]) => (
                <li key={name}><Link to={`/dead-letters${query({ error_type: name })}`}>{name}</Link><span>{number(count)}</span></li>
              ))}
            </ul>
          ) : <p class="good">None.</p>}</When>
        </Card>
      </div>
    </Page>
  );
}
