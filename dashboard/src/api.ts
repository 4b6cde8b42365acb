// Requests to the API, with the key of this tab.
import { box } from "./box";
import { iso, spanMs } from "./format";

// Responses differ by operation. Pages read the fields that they show and show a missing field as –.
// eslint-disable-next-line @typescript-eslint/no-explicit-any
export type Json = any;

// Prefix of all API paths: the stage of a REST API, empty otherwise.
export const PREFIX = location.pathname.split("/ojs/admin", 1)[0] ?? "";
export const BASE = `${PREFIX}/ojs/v1`;
const STORED = "ojs-key";

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly code = "",
    readonly details: Record<string, Json> = {},
    readonly hint = "",
    readonly requestId = "",
  ) {
    super(message);
  }

  /** Whether the server does not support the operation. */
  get unsupported(): boolean {
    return this.status === 422 && this.code === "unsupported";
  }
}

/** The key that requests are sent with. Empty before sign-in and on a server without authentication. */
export const key = box(sessionStorage.getItem(STORED) ?? "");

export function remember(value: string): void {
  if (value) sessionStorage.setItem(STORED, value);
  else sessionStorage.removeItem(STORED);
  key.set(value);
}

/** Why the server rejected the key. When it is set, the sign-in page opens. */
export const refused = box("");

export async function call(
  method: string,
  path: string,
  body?: unknown,
  signal?: AbortSignal,
  match?: Record<string, string>,
): Promise<Json> {
  const headers: Record<string, string> = { ...match };
  const sent = key.get();
  if (sent) headers.Authorization = `Bearer ${sent}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer: Response;
  try {
    answer = await fetch(BASE + path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
      credentials: "omit",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "Can't reach the server. Check the connection.");
  }
  const text = await answer.text();
  let read: Json = null;
  try {
    read = text ? JSON.parse(text) : null;
  } catch {
    throw new ApiError(answer.status, `The response (status ${answer.status}) is not valid JSON.`);
  }
  if (answer.ok) return read;
  const details = read?.error ?? {};
  if (answer.status === 412) {
    details.message = "Another request changed this configuration. Your change was not saved.";
    details.hint = "Reload to see the current values.";
  }
  const error = new ApiError(
    answer.status,
    details.message ?? read?.message ?? `The server returned status ${answer.status}.`,
    details.code,
    details.details,
    details.hint,
    details.request_id,
  );
  // Only the first 401 for the current key ends the session. A 401 for a request without a key, or
  // with an earlier key, changes nothing.
  if (answer.status === 401 && sent && sent === key.get()) {
    refused.set("The key is unknown, was revoked, or has expired. Sign in with another key.");
    remember("");
    me.set(null);
  }
  throw error;
}

export const get = (path: string, signal?: AbortSignal) => call("GET", path, undefined, signal);

/** Changes a configuration. Rejected with 412 if it has another version than `old`, which the form was filled from. */
export const save = (method: string, path: string, body: unknown, old?: Json) =>
  call(method, path, body, undefined, old?.etag && { "If-Match": `"${old.etag}"` });

/** When it changes, all data of the page is read again. */
export const reloads = box(0);

/** The first pages of a list. */
export async function readPages(path: string, pages: number, limit: number, signal?: AbortSignal): Promise<{ items: Json[]; more: boolean }> {
  const items: Json[] = [];
  let cursor: string | undefined;
  for (let page = 0; page < pages; page++) {
    const answer = await get(path + query({ limit, cursor }), signal);
    items.push(...answer.items);
    cursor = answer.pagination.next_cursor;
    if (!cursor) break;
  }
  return { items, more: Boolean(cursor) };
}

/** A query string of the parameters that have a value. */
export function query(values: Record<string, string | number | undefined | null>): string {
  const found = Object.entries(values).filter(([, v]) => v !== undefined && v !== null && v !== "");
  const text = new URLSearchParams(found.map(([k, v]) => [k, String(v)])).toString();
  return text ? `?${text}` : "";
}

export const seg = encodeURIComponent;

export interface Me {
  name?: string;
  key?: string;
  scopes: string[];
  queues?: string[];
  authorizer: string;
  version: string;
  service: string;
}

/** The signed-in key; null before sign-in. */
export const me = box<Me | null>(null);

export function can(scope: string): boolean {
  return me.get()?.scopes.includes(scope) ?? false;
}

/** The queues that the key is limited to; undefined for a key for all queues. */
export function limited(): string[] | undefined {
  return me.get()?.queues;
}

/** Settings of the server that the page needs: the authentication method, and whether it sends events. */
export interface Served {
  authorizer: "none" | "keys" | "jwt" | "iam";
  realtime: boolean;
}

export async function served(): Promise<Served> {
  const answer = await fetch(`${PREFIX}/ojs/admin/served.json`, { cache: "no-store" });
  if (!answer.ok) throw new ApiError(answer.status, "The server does not serve all dashboard files. Build the dashboard again.");
  return answer.json();
}

/** A field that the page rejects, as the server would. */
export const invalid = (field: string, reason: string) => new ApiError(0, `${field} ${reason}`, "", { field, reason });

/** Parses `90s` or `2h 30m` for the server. ISO 8601 durations are unchanged. */
export function parsedSpan(text: string, field: string, unit: "iso" | "s" | "ms" = "iso"): Json {
  const ms = spanMs(text);
  if (ms === undefined && unit === "iso" && text.startsWith("P")) return text;
  if (ms === undefined) throw invalid(field, "must be a duration, for example 90s, 5m, or 2h 30m");
  return unit === "iso" ? iso(ms) : unit === "s" ? ms / 1_000 : ms;
}

/** Parses a rate such as `100 per 1m` into a limit and its period. */
export function parsedLimit(text: string, field = "rate"): Json {
  const [, limit, period] = /^(\d+)\s*(?:\/|per)\s*(.+)$/.exec(text) ?? [];
  if (!period) throw invalid(field, "must be a number and a period, for example 100 per 1m");
  return { limit: Number(limit), period: parsedSpan(period, field) };
}
