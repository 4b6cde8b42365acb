// What all pages are made of.
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { ApiError, can, type Json, me } from "./api";
import { box, useBox } from "./box";
import { ago, duration, json, moment, number, plural } from "./format";
import { now, type Read } from "./live";
import { href, place } from "./route";

type Children = ComponentChildren;

// --- the frame of a page ---------------------------------------------------------------------

export function Page(props: { title: string; children: Children; actions?: Children; about?: Children; read?: Read<unknown> }) {
  useEffect(() => {
    document.title = `${props.title} · Open Job Spec`;
  }, [props.title]);
  const at = useBox(place);
  return (
    <main id="main" tabIndex={-1} data-at={at}>
      <header class="page">
        <div>
          <h1><bdi>{props.title}</bdi></h1>
          {props.about && <p class="about">{props.about}</p>}
        </div>
        <div class="row">{props.actions}</div>
      </header>
      {props.read && <Trouble read={props.read} />}
      {props.children}
    </main>
  );
}

export function Card(props: { title?: Children; children: Children; actions?: Children; class?: string }) {
  return (
    <section class={`card ${props.class ?? ""}`}>
      {(props.title || props.actions) && (
        <header>
          <h2>{props.title}</h2>
          <div class="row">{props.actions}</div>
        </header>
      )}
      {props.children}
    </section>
  );
}

/** What went wrong with reading, in the server's own words. */
export function Trouble({ read }: { read: Read<unknown> }) {
  const { error, data, again, at } = read;
  if (!error) return null;
  return (
    <div class="notice bad" role="alert">
      <p>
        <ErrorText error={error} />
        {data !== undefined && <> What is shown is from <Time at={at} />.</>}
      </p>
      <button type="button" onClick={again}>Try again</button>
    </div>
  );
}

export function ErrorText({ error }: { error: ApiError }) {
  if (error.status === 403)
    return <>This key may not read this: {error.message} {error.hint}</>;
  return (
    <>
      <bdi>{error.message}</bdi> {error.hint && <span class="dim">{error.hint}</span>}{" "}
      {error.requestId && <span class="dim">({error.status}, request <code>{error.requestId}</code>)</span>}
    </>
  );
}

export function Empty(props: { title: string; children?: Children }) {
  return (
    <div class="empty">
      <p><strong>{props.title}</strong></p>
      {props.children && <div>{props.children}</div>}
    </div>
  );
}

export function Loading() {
  return <p class="dim" role="status">Reading …</p>;
}

/** Parts for what is being read, what could not be, and what is there. */
export function When<T>(props: { read: Read<T>; children: (data: T) => Children }) {
  const { data, error } = props.read;
  if (data !== undefined) return <>{props.children(data)}</>;
  return error ? null : <Loading />;
}

// --- small things ----------------------------------------------------------------------------

export function Time({ at }: { at: string | number | undefined | null }) {
  const time = useBox(now);
  if (!at) return <span class="dim">–</span>;
  const date = new Date(at);
  if (Number.isNaN(date.valueOf())) return <bdi>{String(at)}</bdi>;
  return <time dateTime={date.toISOString()} title={moment(date.valueOf())}>{ago(date.valueOf(), Math.max(time, Date.now()))}</time>;
}

export function Duration({ ms }: { ms: number | undefined | null }) {
  return ms === undefined || ms === null ? <span class="dim">–</span> : <>{duration(ms)}</>;
}

export function State({ of }: { of: string | undefined }) {
  const text = of ?? "unknown";
  return <span class="state" data-state={/^[a-z_-]+$/.test(text) ? text : "unknown"}><bdi>{text}</bdi></span>;
}

export function Text({ children }: { children: string | undefined | null }) {
  return children ? <bdi class="text">{children}</bdi> : <span class="dim">–</span>;
}

export function Link(props: { to: string; children: Children; class?: string }) {
  return <a href={href(props.to)} class={props.class}><bdi>{props.children}</bdi></a>;
}

/** A job by the end of its id, which is the part that differs. */
export const JobLink = ({ id }: { id: string }) => (
  <a href={href(`/jobs/${encodeURIComponent(id)}`)} class="mono" title={id}><bdi>{id.slice(-12)}</bdi></a>
);

export const QueueLink = ({ name }: { name: string }) => (
  <Link to={`/queues/${encodeURIComponent(name)}`}>{name}</Link>
);

export function Count(props: { of: number | undefined; to?: string; label: string; tone?: string; note?: Children }) {
  const value = props.of === undefined ? "–" : number(props.of);
  const inside = (
    <>
      <span class="label">{props.label}</span>
      <span class="value" data-tone={props.of ? props.tone : undefined}>{value}</span>
      {props.note && <span class="dim">{props.note}</span>}
    </>
  );
  return props.to ? <a class="number" href={href(props.to)}>{inside}</a> : <div class="number">{inside}</div>;
}

export function Meter(props: { value: number; of: number; label: string; named?: boolean }) {
  const part = props.of ? Math.min(1, props.value / props.of) : 0;
  const title = `${props.label}: ${number(props.value)} of ${number(props.of)}`;
  return (
    <span class="meter" title={title} data-tone={part >= 0.8 ? "bad" : undefined}>
      <svg viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label={title}>
        <rect class="back" width="100" height="6" rx="3" /><rect class="front" width={100 * part} height="6" rx="3" />
      </svg>
      <span>{props.named && `${props.label} `}{number(props.value)} / {number(props.of)}</span>
    </span>
  );
}

export function Spark({ values, label }: { values: number[]; label: string }) {
  const most = Math.max(1, ...values);
  const step = 80 / Math.max(1, values.length - 1);
  const points = values.map((v, i) => `${(i * step).toFixed(1)},${(19 - (18 * v) / most).toFixed(1)}`).join(" ");
  return (
    <svg class="spark" viewBox="0 0 80 20" role="img" aria-label={label}>
      <title>{label}</title>
      <polyline points={points} />
    </svg>
  );
}

export function Copy({ text, label = "Copy" }: { text: string; label?: string }) {
  const [done, set] = useState(false);
  useEffect(() => {
    if (!done) return;
    const timer = setTimeout(() => set(false), 1_500);
    return () => clearTimeout(timer);
  }, [done]);
  const copy = async () => {
    await navigator.clipboard.writeText(text).then(() => set(true), () => tell("The browser does not let this page copy.", true));
  };
  return <button type="button" class="small" onClick={copy}>{done ? "Copied" : label}</button>;
}

const MANY = 100;

/** A value of JSON as a tree; what has many members is shown in parts. */
export function Tree({ value, open = 2 }: { value: Json; open?: number }) {
  const [shown, show] = useState(MANY);
  if (value === null || typeof value !== "object") {
    const kind = value === null ? "null" : typeof value;
    return <span class="json" data-kind={kind}>{kind === "string" ? json(value) : String(value)}</span>;
  }
  const list = Array.isArray(value);
  const members = Object.entries(value as Record<string, Json>);
  const [before, after] = list ? ["[", "]"] : ["{", "}"];
  if (!members.length) return <span class="json">{before + after}</span>;
  return (
    <details class="json" open={open > 0}>
      <summary>{before}<span class="dim"> {plural(members.length, list ? "item" : "field")} </span>{after}</summary>
      <ul>
        {members.slice(0, shown).map(([name, member]) => (
          <li key={name}><span class="name"><bdi>{list ? name : json(name)}</bdi>: </span><Tree value={member} open={open - 1} /></li>
        ))}
      </ul>
      {members.length > shown && (
        <button type="button" class="small" onClick={() => show(shown + 10 * MANY)}>{number(members.length - shown)} more</button>
      )}
    </details>
  );
}

export function JsonCard({ title, value }: { title: Children; value: Json }) {
  const [raw, set] = useState(false);
  if (value === undefined) return null;
  const text = json(value, 2);
  return (
    <Card
      title={title}
      actions={<>
        <button type="button" class="small" aria-pressed={raw} onClick={() => set(!raw)}>{raw ? "Tree" : "Text"}</button>
        <Copy text={text} />
      </>}
    >
      {raw ? <pre tabIndex={0}>{text}</pre> : <Tree value={value} />}
    </Card>
  );
}

export function Facts({ of }: { of: [string, Children][] }) {
  return (
    <dl class="facts">
      {of.filter(([, value]) => value !== undefined && value !== null && value !== "" && value !== false).map(([name, value]) => (
        <div key={name}><dt>{name}</dt><dd>{value}</dd></div>
      ))}
    </dl>
  );
}

/** Bars of the largest numbers, each of which may lead somewhere. */
export function Bars(props: { of: Record<string, number>; to?: (name: string) => string; most?: number }) {
  const rows = Object.entries(props.of).sort((a, b) => b[1] - a[1]).slice(0, props.most ?? 8);
  const largest = Math.max(1, ...rows.map((row) => row[1]));
  return (
    <ul class="bars">
      {rows.map(([name, count]) => (
        <li key={name}>
          <svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true"><rect width={(100 * count) / largest} height="1" /></svg>
          {props.to ? <Link to={props.to(name)}>{name}</Link> : <bdi>{name}</bdi>}
          <span>{number(count)}</span>
        </li>
      ))}
    </ul>
  );
}

// --- tables ----------------------------------------------------------------------------------

export interface Column<Row> {
  name: string;
  cell: (row: Row) => Children;
  /** What it is sorted by; without it, it is not. */
  by?: (row: Row) => string | number;
  /** What the server puts all of the list in order by; then the page orders nothing itself. */
  order?: string;
  right?: boolean;
  /** Left out where the screen is narrow. */
  wide?: boolean;
}

export function Table<Row>(props: {
  rows: Row[];
  columns: Column<Row>[];
  label: string;
  id: (row: Row) => string;
  empty?: Children;
  chosen?: Set<string>;
  choose?: (chosen: Set<string>) => void;
  at?: number;
  /** The order in which the server gives the list, and how another one is asked for. */
  order?: { now: string; want: (order: string) => void };
  /** Whether there is more than these rows: a sorted column says that it is about these alone. */
  part?: boolean;
}) {
  const [sort, setSort] = useState<{ name: string; down: boolean } | null>(null);
  const by = props.columns.find((column) => column.name === sort?.name)?.by;
  let rows = props.rows;
  if (by) {
    const sign = sort!.down ? -1 : 1;
    rows = [...rows].sort((a, b) => {
      const x = by(a), y = by(b);
      return sign * (typeof x === "string" ? x.localeCompare(String(y)) : x - Number(y));
    });
  }
  if (!rows.length) return <>{props.empty ?? <Empty title="Nothing here." />}</>;
  const { chosen, choose } = props;
  const all = chosen && rows.every((row) => chosen.has(props.id(row)));
  const flip = (id: string) => {
    const next = new Set(chosen);
    if (!next.delete(id)) next.add(id);
    choose?.(next);
  };
  return (
    <div class="table" tabIndex={0} role="region" aria-label={props.label}>
      {sort && props.part && <p class="dim" role="note">In order of {sort.name} are the {number(rows.length)} that are shown; there are more.</p>}
      <table>
        <caption class="hidden">{props.label}</caption>
        <thead>
          <tr>
            {choose && (
              <th scope="col" class="tick">
                <input type="checkbox" aria-label="Select all that are shown" checked={all}
                  onChange={() => choose(all ? new Set() : new Set(rows.map(props.id)))} />
              </th>
            )}
            {props.columns.map((column) => props.order && column.order ? (
              <th key={column.name} scope="col" class={classes(column)}
                aria-sort={props.order.now === column.order ? (column.order === "name" ? "ascending" : "descending") : undefined}>
                <button type="button" class="sort" onClick={() => props.order!.want(column.order!)}>
                  {column.name}<span aria-hidden="true">{props.order.now === column.order ? (column.order === "name" ? " ↑" : " ↓") : ""}</span>
                </button>
              </th>
            ) : (
              <th key={column.name} scope="col" class={classes(column)}
                aria-sort={sort?.name === column.name ? (sort.down ? "descending" : "ascending") : undefined}>
                {column.by ? (
                  <button type="button" class="sort" onClick={() => setSort({ name: column.name, down: sort?.name === column.name ? !sort.down : !!column.right })}>
                    {column.name}<span aria-hidden="true">{sort?.name === column.name ? (sort.down ? " ↓" : " ↑") : ""}</span>
                  </button>
                ) : column.name || <span class="hidden">Actions</span>}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, index) => (
            <tr key={props.id(row)} aria-selected={chosen ? chosen.has(props.id(row)) : undefined} data-at={props.at === index ? "" : undefined}>
              {choose && (
                <td class="tick">
                  <input type="checkbox" aria-label={`Select ${props.id(row)}`} checked={chosen!.has(props.id(row))} onChange={() => flip(props.id(row))} />
                </td>
              )}
              {props.columns.map((column) => <td key={column.name} class={classes(column)}>{column.cell(row)}</td>)}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

const classes = (column: { right?: boolean; wide?: boolean }) =>
  [column.right && "right", column.wide && "wide"].filter(Boolean).join(" ") || undefined;

// --- actions ---------------------------------------------------------------------------------

/** A button for what changes something. It says who may press it. */
export function Act(props: {
  needs?: string;
  on: () => unknown;
  children: Children;
  danger?: boolean;
  disabled?: boolean;
  why?: string;
  small?: boolean;
  /** What it is for, where a page has several of its kind: readers of the screen are told. */
  of?: string;
}) {
  const needs = props.needs ?? "admin:write";
  const allowed = can(needs);
  const [busy, set] = useState(false);
  const press = async () => {
    set(true);
    try {
      await props.on();
    } catch (error) {
      tell(error instanceof Error ? error.message : String(error), true);
    } finally {
      set(false);
    }
  };
  const title = allowed ? props.why ?? `Needs a key with ${needs}, as yours has` : `Needs a key with ${needs}; yours (${me.get()?.name ?? "unnamed"}) is without`;
  return (
    <button type="button" class={`${props.danger ? "danger" : ""} ${props.small ? "small" : ""}`} title={title} aria-label={props.of && `${props.children}: ${props.of}`}
      disabled={!allowed || props.disabled || busy} onClick={press}>
      {props.children}
    </button>
  );
}

interface Told { text: string; bad: boolean; id: number }
const told = box<Told[]>([]);
let count = 0;

/** Say something that goes away again; what is bad stays for longer. */
export function tell(text: string, bad = false): void {
  const mine = { text, bad, id: ++count };
  told.set([...told.get().slice(-3), mine]);
  setTimeout(() => told.set(told.get().filter((each) => each !== mine)), bad ? 12_000 : 5_000);
}

export function Told() {
  const list = useBox(told);
  return (
    <div class="told" role="status" aria-live="polite">
      {list.map((each) => (
        <p key={each.id} class={each.bad ? "bad" : ""}>
          <bdi>{each.text}</bdi>
          <button type="button" class="small" aria-label="Dismiss" onClick={() => told.set(list.filter((other) => other !== each))}>×</button>
        </p>
      ))}
    </div>
  );
}

export interface Question {
  name: string;
  label: string;
  help?: string;
  value?: string;
  kind?: "text" | "number" | "json" | "choice" | "list" | "check";
  choices?: [string, string][];
  required?: boolean;
}

interface Asked {
  title: string;
  text?: Children;
  button: string;
  danger?: boolean;
  questions?: Question[];
  /** What is done with the answers. It may throw an ApiError, which is shown beside its field. */
  act: Acting;
}

/** Does what was asked for; what it returns is asked next, if it is a question. */
type Acting = (answers: Record<string, string>) => Promise<Asked | void>;

const asked = box<Asked | null>(null);

/** Ask before something is done; it is done in the dialog, which stays if the server refuses. */
export function ask(question: Asked): void {
  asked.set(question);
}

export function Asking() {
  const question = useBox(asked);
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    if (question && !dialog.current?.open) dialog.current?.showModal();
  }, [question]);
  if (!question) return null;
  const close = () => {
    dialog.current?.close();
    asked.set(null);
  };
  return (
    <dialog ref={dialog} aria-labelledby="asked" onCancel={() => asked.set(null)}>
      <h2 id="asked"><bdi>{question.title}</bdi></h2>
      <Form key={question.title} {...question} onDone={(next) => (next ? ask(next) : close())}
        more={<button type="button" onClick={close}>{question.questions?.length ? "Cancel" : "No"}</button>} />
    </dialog>
  );
}

/** Fields, and what the server says of them, beside them. */
export function Form(props: {
  text?: Children;
  button: string;
  danger?: boolean;
  questions?: Question[];
  act: Acting;
  onDone?: (next: Asked | void) => void;
  more?: Children;
}) {
  const [error, fail] = useState<ApiError | null>(null);
  const [busy, set] = useState(false);
  const questions = props.questions ?? [];
  const send = async (event: SubmitEvent) => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    const answers: Record<string, string> = {};
    for (const each of questions) {
      const field = form.elements.namedItem(each.name) as HTMLInputElement;
      answers[each.name] = each.kind === "check" ? (field.checked ? "true" : "") : field.value.trim();
    }
    set(true);
    fail(null);
    try {
      const next = await props.act(answers);
      props.onDone?.(next);
    } catch (thrown) {
      fail(thrown instanceof ApiError ? thrown : new ApiError(0, thrown instanceof Error ? thrown.message : String(thrown)));
    } finally {
      set(false);
    }
  };
  const refused = refusals(error);
  const unplaced = error && !questions.some((each) => refusalOf(refused, each.name));
  return (
    <form onSubmit={send} noValidate>
      {props.text && <div class="asked">{props.text}</div>}
      {questions.map((each) => <Field key={each.name} of={each} refused={refusalOf(refused, each.name)} />)}
      {unplaced && <p class="notice bad" role="alert"><ErrorText error={error} /></p>}
      <div class="row end">
        {props.more}
        <button type="submit" class={props.danger ? "danger" : "main"} disabled={busy}>{props.button}</button>
      </div>
    </form>
  );
}

export function refusals(error: ApiError | null): [string, string][] {
  if (!error) return [];
  const all = (error.details.errors as Json[] | undefined) ?? [error.details];
  return all.filter((each) => each?.field).map((each) => [String(each.field), String(each.reason ?? error.message)]);
}

/** What was said of a field, or of a part of it, as `retention.completed` is of `retention`. */
export function refusalOf(refused: [string, string][], name: string): string | undefined {
  const found = refused.filter(([field]) => field.split(/[.[]/).includes(name.split(".").at(-1)!));
  return found.length ? found.map(([field, reason]) => `${field}: ${reason}`).join("; ") : undefined;
}

export function Field({ of, refused, note }: { of: Question; refused?: string; note?: Children }) {
  const id = useId();
  const help = of.help || note || refused ? `${id}-help` : undefined;
  const shared = { id, name: of.name, "aria-describedby": help, "aria-invalid": refused ? true : undefined, required: of.required };
  let field: JSX.Element;
  if (of.kind === "choice")
    field = <select {...shared}>{of.choices!.map(([value, text]) => <option key={value} value={value} selected={value === (of.value ?? "")}>{text}</option>)}</select>;
  else if (of.kind === "json" || of.kind === "list")
    field = <textarea {...shared} rows={of.kind === "list" ? 3 : 5} spellcheck={false} class={of.kind === "json" ? "mono" : ""} defaultValue={of.value} />;
  else if (of.kind === "check")
    field = <input {...shared} type="checkbox" defaultChecked={of.value === "true"} />;
  else
    field = <input {...shared} type="text" inputMode={of.kind === "number" ? "numeric" : undefined} defaultValue={of.value} autoComplete="off" spellcheck={false} />;
  return (
    <div class={`field ${of.kind === "check" ? "check" : ""}`}>
      <label for={id}>{of.label}</label>
      {field}
      {help && (
        <p id={help} class="help">
          {refused && <strong class="refused"><bdi>{refused}</bdi></strong>} {of.help} {note}
        </p>
      )}
    </div>
  );
}

/** JSON that somebody typed. Throws an ApiError that names the field. */
export function parsed(text: string, field: string): Json {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new ApiError(0, "no JSON", "", { field, reason: `is no JSON: ${(error as Error).message}` });
  }
}

/** More of a list that comes in pages. */
export function Pager(props: { more: boolean; on: () => void; shown: number; total?: number; what: string; busy?: boolean }) {
  return (
    <div class="pager" role="status">
      <span class="dim">{number(props.shown)}{props.total !== undefined && props.total > props.shown ? ` of ${number(props.total)}` : ""} {props.what}{props.more ? " so far" : ""}</span>
      {props.more && <button type="button" disabled={props.busy} onClick={props.on}>{props.shown ? "Show more" : "Look further"}</button>}
    </div>
  );
}
