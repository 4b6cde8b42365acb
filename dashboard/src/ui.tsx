// Components that all pages use.
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { ApiError, can, type Json, me, parsedSpan, reloads } from "./api";
import { box, useBox } from "./box";
import { ago, duration, json, label, moment, number, plural, spanMs } from "./format";
import { now, type Read } from "./live";
import { href, place } from "./route";

type Children = ComponentChildren;

/** The name of the product. A deployment can have another name, which is shown after sign-in. */
export const PRODUCT = "ojs-backend-aws";

// --- the frame of a page ---------------------------------------------------------------------

export function Page(props: { title: string; children: Children; actions?: Children; about?: Children; read?: Read<unknown> }) {
  useEffect(() => {
    document.title = `${props.title} · ${me.get()?.service ?? PRODUCT}`;
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

/** A read error, with the server's message. */
export function Trouble({ read }: { read: Read<unknown> }) {
  const { error, data, again, at } = read;
  if (!error) return null;
  return (
    <div class="notice bad" role="alert">
      <p>
        <ErrorText error={error} />
        {data !== undefined && <> Showing data from <Time at={at} />.</>}
      </p>
      <button type="button" onClick={again}>Retry</button>
    </div>
  );
}

export function ErrorText({ error }: { error: ApiError }) {
  if (error.status === 403)
    return <>Access denied: {error.message} {error.hint}</>;
  return (
    <>
      <bdi>{error.message}</bdi> {error.hint && <span class="dim">{error.hint}</span>}{" "}
      {error.requestId && <span class="dim">({error.status}, request <code>{error.requestId}</code>)</span>}
    </>
  );
}

/** The error of a form. After a 412, the user can reload the data of the page. */
export function Refusal({ error, onReload }: { error: ApiError; onReload?: () => void }) {
  const reload = () => {
    reloads.set(reloads.get() + 1);
    if (onReload) onReload();
    else document.getElementById("main")?.focus();
  };
  return (
    <div class="notice bad" role="alert">
      <p><ErrorText error={error} /></p>
      {error.status === 412 && <button type="button" onClick={reload}>Reload</button>}
    </div>
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
  return <p class="dim" role="status">Loading…</p>;
}

/** Renders the data, or the loading state. Errors are shown by `Trouble`. */
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
  const known = /^[a-z_-]+$/i.test(text);
  return <span class="state" data-state={known ? text.toLowerCase() : "unknown"}><bdi>{known ? label(text.toLowerCase()) : text}</bdi></span>;
}

// Longer texts of a cell get the focus, because a column can cut them.
const SHORT = 20;

export function Text({ children }: { children: string | undefined | null }) {
  return children ? <bdi class="text" tabIndex={children.length > SHORT ? 0 : undefined}>{children}</bdi> : <span class="dim">–</span>;
}

export function Link(props: { to: string; children: Children; class?: string }) {
  return <a href={href(props.to)} class={props.class}><bdi>{props.children}</bdi></a>;
}

/** A link to a job. Its text is the end of the ID, because IDs start alike. */
export const JobLink = ({ id }: { id: string }) => (
  <a href={href(`/jobs/${encodeURIComponent(id)}`)} class="mono id" data-full={id}><bdi>{id.slice(-12)}</bdi></a>
);

export const QueueLink = ({ name }: { name: string }) => (
  <Link to={`/queues/${encodeURIComponent(name)}`}>{name}</Link>
);

export function Count(props: { of: number | undefined; to?: string; label: string; tone?: string; note?: Children; current?: boolean }) {
  const value = props.of === undefined ? "–" : number(props.of);
  const inside = (
    <>
      <span class="label">{props.label}</span>
      <span class="value" data-tone={props.of ? props.tone : undefined}>{value}</span>
      {props.note && <span class="dim">{props.note}</span>}
    </>
  );
  return props.to ? <a class="number" href={href(props.to)} aria-current={props.current ? "true" : undefined}>{inside}</a> : <div class="number">{inside}</div>;
}

export function Meter(props: { value: number; of: number; label: string; named?: boolean }) {
  const part = props.of ? Math.min(1, props.value / props.of) : 0;
  const title = `${props.label}: ${number(props.value)} of ${number(props.of)}`;
  return (
    <span class="meter" title={title} data-tone={part >= 0.8 ? "bad" : undefined}>
      <svg viewBox="0,0,100,6" preserveAspectRatio="none" role="img" aria-label={title}>
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
    await navigator.clipboard.writeText(text).then(() => set(true), () => tell("Can't copy: the browser blocked access to the clipboard", true));
  };
  return <button type="button" class="small" onClick={copy}>{done ? "Copied" : label}</button>;
}

const MANY = 100;

/** A JSON value as a tree. Long lists and objects are shown in parts. */
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
        <button type="button" class="small" aria-pressed={raw} onClick={() => set(!raw)}>{raw ? "Tree" : "JSON"}</button>
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

/** Bars for the largest numbers, optionally with links. */
export function Bars(props: { of: Record<string, number>; to?: (name: string) => string; most?: number }) {
  const rows = Object.entries(props.of).sort((a, b) => b[1] - a[1]).slice(0, props.most ?? 8);
  const largest = Math.max(1, ...rows.map((row) => row[1]));
  return (
    <ul class="bars">
      {rows.map(([name, count]) => (
        <li key={name}>
          <svg viewBox="0,0,100,1" preserveAspectRatio="none" aria-hidden="true"><rect width={(100 * count) / largest} height="1" /></svg>
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
  /** The sort key; a column without one can't be sorted. */
  by?: (row: Row) => string | number;
  /** The server's name of this order. The server then sorts the whole list. */
  order?: string;
  right?: boolean;
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
  /** The current order of the server's list, and how to request another. */
  order?: { now: string; want: (order: string) => void };
  /** Whether the list has more rows than these. A sorted column then shows a note. */
  part?: boolean;
  /** Called with the rows in the order that is shown. */
  seen?: (rows: Row[]) => void;
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
  props.seen?.(rows);
  if (!rows.length) return <>{props.empty ?? <Empty title="No entries" />}</>;
  const { chosen, choose } = props;
  const all = chosen && rows.every((row) => chosen.has(props.id(row)));
  const sortBy = (name: string) => {
    if (props.order) props.order.want(name);
    else setSort(name ? { name, down: !!props.columns.find((column) => column.name === name)?.right } : null);
  };
  const flip = (id: string) => {
    const next = new Set(chosen);
    if (!next.delete(id)) next.add(id);
    choose?.(next);
  };
  return (
    <div class="table" tabIndex={0} role="region" aria-label={props.label}>
      <label class="order">Sort by{" "}
        <select value={props.order?.now ?? sort?.name ?? ""} onChange={(event) => sortBy(event.currentTarget.value)}>
          {!props.order && <option value="">Order of the list</option>}
          {props.columns.filter((column) => (props.order ? column.order : column.by)).map((column) => <option key={column.name} value={column.order ?? column.name}>{column.name}</option>)}
        </select>
      </label>
      {sort && props.part && <p class="dim" role="note">Only the {number(rows.length)} loaded rows are sorted by {sort.name}. The list has more rows.</p>}
      <table>
        <caption class="hidden">{props.label}</caption>
        <thead>
          <tr>
            {choose && (
              <th scope="col" class="tick">
                <input type="checkbox" aria-label="Select all loaded rows" checked={all}
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
              {props.columns.map((column) => <td key={column.name} class={classes(column)} data-name={column.name}><div>{column.cell(row)}</div></td>)}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

const classes = (column: { right?: boolean }) => (column.right ? "right" : undefined);

// The parts of a cell that can be cut.
const CUT = "td :is(.text, .cut, a > bdi, button > bdi, code > bdi), .facet bdi";

/** Shows the full text of a name that is cut, while it has the pointer or the focus. Escape hides it. */
export function Full() {
  const [shown, show] = useState<{ text: string; left: number; top: number } | null>(null);
  useEffect(() => {
    const cut = (target: EventTarget | null) => {
      if (!(target instanceof Element)) return null;
      const of = target.closest("[data-full]") ?? target.closest(CUT) ?? (target.matches("a, button") ? target.querySelector(CUT) : null);
      if (!(of instanceof HTMLElement) || !(of.dataset.full || of.scrollWidth > of.clientWidth)) return null;
      const { left, bottom } = of.getBoundingClientRect();
      return { text: of.dataset.full ?? of.textContent!, left: Math.max(8, Math.min(left, innerWidth - 340)), top: bottom };
    };
    // A pointer that rests on other content doesn't hide the name that has the focus.
    const find = ({ target }: { target: EventTarget | null }) => {
      if (target instanceof Element && target.closest(".full")) return;
      show(cut(target) ?? cut(document.activeElement));
    };
    const hide = (event: Event) => { if (!(event instanceof KeyboardEvent) || event.key === "Escape") show(null); };
    // A link that gets the focus can scroll.
    const scrolled = () => find({ target: document.activeElement });
    const heard = [["pointerover", find], ["focusin", find], ["focusout", hide], ["keydown", hide], ["scroll", scrolled]] as const;
    for (const [name, on] of heard) addEventListener(name, on, true);
    return () => { for (const [name, on] of heard) removeEventListener(name, on, true); };
  }, []);
  return shown && <div class="full" role="tooltip" ref={(at) => { if (at) { at.style.left = `${shown.left}px`; at.style.top = `${shown.top}px`; } }}><bdi>{shown.text}</bdi></div>;
}

// --- actions ---------------------------------------------------------------------------------

/** A button for a change. Its tooltip shows the required scope. */
export function Act(props: {
  needs?: string;
  on: () => unknown;
  children: Children;
  danger?: boolean;
  disabled?: boolean;
  why?: string;
  small?: boolean;
  /** The object of the action, for screen readers, if a page has several such buttons. */
  of?: string;
}) {
  const needs = props.needs ?? "admin:write";
  const allowed = can(needs);
  const [busy, set] = useState(false);
  const press = async (event: Event) => {
    opener = event.currentTarget as HTMLElement;
    set(true);
    try {
      await props.on();
    } catch (error) {
      tell(error instanceof Error ? error.message : String(error), true);
    } finally {
      set(false);
    }
  };
  const title = allowed ? props.why ?? `Requires scope ${needs}` : `Missing scope ${needs} (key ${me.get()?.name ?? "without a name"})`;
  return (
    <button type="button" class={`${props.danger ? "danger" : ""} ${props.small ? "small" : ""}`} title={title} aria-label={props.of && `${props.children}: ${props.of}`}
      disabled={!allowed || props.disabled || busy} onClick={press}>
      {props.children}
    </button>
  );
}

/** Buttons that are used rarely or delete something, behind one button. */
export function Menu({ children }: { children: Children }) {
  const place = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    const close = (event: Event) => {
      const menu = place.current;
      if (!menu?.open) return;
      const inside = menu.contains(event.target as Node);
      if (event instanceof KeyboardEvent ? event.key !== "Escape" : inside) return;
      menu.open = false;
      if (event instanceof KeyboardEvent && inside) menu.querySelector("summary")!.focus();
    };
    addEventListener("click", close);
    addEventListener("keydown", close);
    return () => {
      removeEventListener("click", close);
      removeEventListener("keydown", close);
    };
  }, []);
  return (
    <details class="more" ref={place} onClick={(event) => { if ((event.target as Element).closest("button")) place.current!.open = false; }}>
      <summary class="button">More actions</summary>
      <div>{children}</div>
    </details>
  );
}

/** A date filter: empty it reads "Any time", with focus it is the browser's date and time input. */
export function DateField({ name, value }: { name: string; value: string }) {
  const [open, set] = useState(Boolean(value));
  // The types of Preact have no input with a type that changes.
  const type = (open ? "datetime-local" : "text") as "text";
  return <input name={name} type={type} placeholder="Any time" defaultValue={value}
    onFocus={() => set(true)} onBlur={(event) => set(Boolean(event.currentTarget.value))} />;
}

interface Told { text: string; bad: boolean; id: number }
const told = box<Told[]>([]);
let count = 0;

/** Shows a message for 5 seconds, an error for 12 seconds. */
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
  /** `span` is a duration in the `unit` of the server. `later` is a time, or a duration from now. */
  kind?: "text" | "number" | "json" | "choice" | "list" | "check" | "span" | "later";
  unit?: "iso" | "s" | "ms";
  choices?: [string, string][];
  required?: boolean;
}

interface Asked {
  title: string;
  text?: Children;
  /** Without it, the dialog only shows something. */
  button?: string;
  danger?: boolean;
  questions?: Question[];
  /** Shown below the fields, with their current values. */
  watch?: (answers: Record<string, string>) => Children;
  /** Handles the answers. If it throws an ApiError, the error is shown at its field. */
  act: Acting;
  /** The label of the button that closes the dialog. */
  dismiss?: string;
}

/** The action of a form. If it returns another question, that question is shown next. */
type Acting = (answers: Record<string, string>) => Promise<Asked | void>;

const asked = box<Asked | null>(null);
// The button that has the focus again when the dialog closes.
let opener: HTMLElement | null = null;

/** Opens a dialog. The action runs in the dialog, which stays open if the server returns an error. */
export function ask(question: Asked): void {
  asked.set(question);
}

export function Asking() {
  const question = useBox(asked);
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    if (question && !dialog.current?.open) dialog.current?.showModal();
    else if (!question) opener?.focus();
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
        more={<button type="button" onClick={close}>{question.dismiss ?? "Cancel"}</button>} />
    </dialog>
  );
}

/** Fields with the server's errors. */
export function Form(props: {
  text?: Children;
  button?: string;
  danger?: boolean;
  questions?: Question[];
  watch?: (answers: Record<string, string>) => Children;
  act: Acting;
  onDone?: (next: Asked | void) => void;
  more?: Children;
}) {
  const [error, fail] = useState<ApiError | null>(null);
  const [busy, set] = useState(false);
  const questions = props.questions ?? [];
  const [now, see] = useState(() => Object.fromEntries(questions.map((each) => [each.name, each.value ?? ""])));
  const read = (form: HTMLFormElement) => Object.fromEntries(questions.map((each) => {
    const field = form.elements.namedItem(each.name) as HTMLInputElement;
    return [each.name, each.kind === "check" ? (field.checked ? "true" : "") : field.value.trim()];
  }));
  const send = async (event: SubmitEvent) => {
    event.preventDefault();
    const answers = read(event.currentTarget as HTMLFormElement);
    set(true);
    fail(null);
    try {
      for (const { name, kind, unit } of questions) {
        if (kind === "span" && answers[name]) answers[name] = String(parsedSpan(answers[name], name, unit));
        if (kind === "later" && spanMs(answers[name]!) !== undefined) answers[name] = `+${parsedSpan(answers[name]!, name)}`;
      }
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
    <form onSubmit={send} noValidate onInput={(event) => props.watch && see(read(event.currentTarget))}>
      {props.text && <div class="asked">{props.text}</div>}
      {questions.map((each) => <Field key={each.name} of={each} refused={refusalOf(refused, each.name)} />)}
      {props.watch?.(now)}
      {unplaced && <Refusal error={error} onReload={() => props.onDone?.()} />}
      <div class="row end">
        {props.more}
        {props.button && <button type="submit" class={props.danger ? "danger" : "main"} disabled={busy}>{props.button}</button>}
      </div>
    </form>
  );
}

export function refusals(error: ApiError | null): [string, string][] {
  if (!error) return [];
  const all = (error.details.errors as Json[] | undefined) ?? [error.details];
  return all.filter((each) => each?.field).map((each) => [String(each.field), String(each.reason ?? error.message)]);
}

/** The errors of a field or of a part of it, such as `retention.completed` of `retention`. */
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

/** Parses JSON from a field. Throws an ApiError for the field. */
export function parsed(text: string, field: string): Json {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new ApiError(0, "invalid JSON", "", { field, reason: `must be JSON: ${(error as Error).message}` });
  }
}

/** The number of loaded rows, and a button for the next page. */
export function Pager(props: { more: boolean; on: () => void; shown: number; total?: number; one: string; many?: string; order?: string; busy?: boolean }) {
  const all = Math.max(props.shown, props.total ?? 0);
  return (
    <div class="pager" role="status">
      <span class="dim">{all > props.shown && `${number(props.shown)} of `}{plural(all, props.one, props.many)}{props.order}{props.more && " loaded"}</span>
      {props.more && <button type="button" disabled={props.busy} onClick={props.on}>{props.shown ? "Show more" : "Search more"}</button>}
    </div>
  );
}
