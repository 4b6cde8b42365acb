import { render, type ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { ApiError, call, can, get, key, me, refused, remember, served, type Served } from "./api";
import { useBox } from "./box";
import { live, start } from "./socket";
import { go, href, useRoute } from "./route";
import { Asking, Empty, ErrorText, Full, Page, PRODUCT, Told } from "./ui";
import { flip, theme } from "./theme";
import { SignIn } from "./pages/signin";
import { Overview } from "./pages/overview";
import { QueuePage, Queues } from "./pages/queues";
import { JobPage } from "./pages/job";
import { Jobs, Running, Waiting } from "./pages/jobs";
import { DeadLetters } from "./pages/deadletters";
import { CronPage, Crons } from "./pages/cron";
import { WorkflowPage, Workflows } from "./pages/workflows";
import { Pools } from "./pages/pools";
import { Deliveries } from "./pages/deliveries";
import { Workers } from "./pages/workers";
import { Limits } from "./pages/limits";
import { Events } from "./pages/events";
import { Keys } from "./pages/keys";
import { Audit } from "./pages/audit";
import { SchemaPage, Schemas } from "./pages/schemas";
import { Tenants } from "./pages/tenants";
import { Webhooks } from "./pages/webhooks";
import { Settings } from "./pages/settings";
import "./style.css";

interface Entry {
  path: string;
  name: string;
  page: ComponentType;
  one?: ComponentType<{ name: string }>;
}

const GROUPS: [string, Entry[]][] = [
  ["", [{ path: "overview", name: "Overview", page: Overview }]],
  ["Jobs", [
    { path: "queues", name: "Queues", page: Queues, one: QueuePage },
    { path: "jobs", name: "All jobs", page: Jobs, one: JobPage },
    { path: "running", name: "Active", page: Running },
    { path: "waiting", name: "Scheduled & retries", page: Waiting },
    { path: "dead-letters", name: "Dead letters", page: DeadLetters },
    { path: "cron", name: "Cron jobs", page: Crons, one: CronPage },
    { path: "workflows", name: "Workflows", page: Workflows, one: WorkflowPage },
  ]],
  ["Processing", [
    { path: "workers", name: "Workers", page: Workers },
    { path: "pools", name: "Worker pools", page: Pools },
    { path: "deliveries", name: "Push deliveries", page: Deliveries },
    { path: "webhooks", name: "Webhooks", page: Webhooks },
    { path: "limits", name: "Rate limits", page: Limits },
  ]],
  ["System", [
    { path: "events", name: "Events", page: Events },
    { path: "audit", name: "Audit log", page: Audit },
    { path: "keys", name: "Access keys", page: Keys },
    { path: "tenants", name: "Tenants", page: Tenants },
    { path: "schemas", name: "Schemas", page: Schemas, one: SchemaPage },
    { path: "settings", name: "Settings", page: Settings },
  ]],
];
const ENTRIES = GROUPS.flatMap(([, entries]) => entries);

function Content() {
  const { parts } = useRoute();
  const [first = "overview", name] = parts;
  const entry = ENTRIES.find((each) => each.path === first);
  if (!entry || (name !== undefined && !entry.one) || parts.length > 2)
    return <Page title="Page not found"><Empty title="This page doesn't exist"><a href={href("/overview")}>Go to Overview</a></Empty></Page>;
  if (name !== undefined && entry.one) return <entry.one key={name} name={name} />;
  return <entry.page key={entry.path} />;
}

function Find() {
  const find = (event: SubmitEvent) => {
    event.preventDefault();
    const field = (event.currentTarget as HTMLFormElement).elements.namedItem("id") as HTMLInputElement;
    if (field.value.trim()) go(`/jobs/${encodeURIComponent(field.value.trim())}`);
    field.value = "";
  };
  return (
    <form role="search" onSubmit={find}>
      <input name="id" type="search" placeholder="Find job by ID" aria-label="Find job by ID" autoComplete="off" spellcheck={false} />
    </form>
  );
}

/** The logo, as in icon.svg. */
const Mark = () => (
  <svg class="mark" viewBox="0 0 32 32" aria-hidden="true">
    <rect width="32" height="32" rx="8" fill="#5b5bd6" /><path d="M8 11h10M8 16h16M8 21h7" stroke="#fff" stroke-width="3" stroke-linecap="round" />
  </svg>
);

function Frame({ authorizer }: { authorizer: string }) {
  const { parts } = useRoute();
  const current = parts[0] ?? "overview";
  const who = useBox(me)!;
  const running = useBox(live);
  const dark = useBox(theme) === "dark";
  const [open, show] = useState(false);
  useEffect(() => show(false), [parts.join("/")]);
  return (
    <div class="frame" data-open={open ? "" : undefined}>
      <a class="skip" href="#main">Skip to main content</a>
      <header class="top">
        <button type="button" class="menu" aria-expanded={open} aria-controls="nav" onClick={() => show(!open)}>Menu</button>
        <a class="brand" href={href("/overview")}><Mark />{who.service}</a>
        <Find />
        <div class="row">
          <button type="button" class="small quiet" aria-pressed={running} title="Refresh pages automatically" onClick={() => live.set(!running)}>
            <span class="dot" data-on={running ? "" : undefined} aria-hidden="true" />{running ? "Live" : "Paused"}
          </button>
          <button type="button" class="small quiet" onClick={flip} aria-label={dark ? "Light theme" : "Dark theme"}>{dark ? "☀" : "☾"}</button>
        </div>
      </header>
      <nav id="nav" aria-label="Pages">
        {GROUPS.map(([title, entries]) => (
          <div key={title}>
            {title && <p>{title}</p>}
            <ul>
              {entries.map((entry) => (
                <li key={entry.path}>
                  <a href={href(`/${entry.path}`)} aria-current={entry.path === current ? "page" : undefined}>{entry.name}</a>
                </li>
              ))}
            </ul>
          </div>
        ))}
        <div class="who">
          <p><strong><bdi>{who.name ?? (authorizer === "none" ? "No authentication" : "Key without a name")}</bdi></strong></p>
          <p class="dim">{can("admin:write") ? "Read and write" : "Read-only"}{who.queues && <> · queues <bdi>{who.queues.join(", ")}</bdi></>}</p>
          {authorizer !== "none" && (
            <button type="button" class="small" onClick={() => { refused.set(""); remember(""); me.set(null); }}>Sign out</button>
          )}
        </div>
      </nav>
      <Content />
      <Told />
      <Asking />
      <Full />
    </div>
  );
}

function App() {
  const who = useBox(me);
  const [found, set] = useState<Served | null>(null);
  const [error, fail] = useState<ApiError | null>(null);
  useEffect(() => {
    void (async () => {
      try {
        const at = await served();
        if (at.authorizer === "none" || key.get())
          me.set(await get("/me").catch((thrown: ApiError) => {
            if (thrown.status === 401) return null;
            throw thrown;
          }));
        set(at);
        if (at.realtime) start();
      } catch (thrown) {
        fail(thrown as ApiError);
      }
    })();
  }, []);
  if (error)
    return <main id="main" class="alone"><h1>{PRODUCT}</h1><p class="notice bad" role="alert"><ErrorText error={error} /></p></main>;
  if (!found) return null;
  if (!who) return <SignIn authorizer={found.authorizer} signIn={async (value) => {
    key.set(value);
    try {
      const answer = await call("GET", "/me");
      remember(value);
      me.set(answer);
    } catch (thrown) {
      key.set("");
      throw thrown;
    }
  }} />;
  return <Frame authorizer={found.authorizer} />;
}

render(<App />, document.getElementById("app")!);
