// Requests to the API, with the key of this tab.
import { box } from "./box";

// Answers differ by operation; the pages read what they show, and show what is absent as absent.
// eslint-disable-next-line @typescript-eslint/no-explicit-any
export type Json = any;

// Before the paths of the API: the stage of a REST API.
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

  /** Whether the server does not have the operation at all. */
  get notOffered(): boolean {
    return this.status === 422 && this.code === "unsupported";
  }
}

/** The key that requests are sent with; empty on an open server, and before somebody signs in. */
export const key = box(sessionStorage.getItem(STORED) ?? "");

export function remember(value: string): void {
  if (value) sessionStorage.setItem(STORED, value);
  else sessionStorage.removeItem(STORED);
  key.set(value);
}

/** Raised when a key is no longer good: everything goes back to signing in. */
export const refused = box("");

export async function call(
  method: string,
  path: string,
  body?: unknown,
  signal?: AbortSignal,
): Promise<Json> {
  const headers: Record<string, string> = {};
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
    throw new ApiError(0, "The server cannot be reached.");
  }
  const text = await answer.text();
  let read: Json = null;
  try {
    read = text ? JSON.parse(text) : null;
  } catch {
    throw new ApiError(answer.status, `The answer (${answer.status}) is no JSON.`);
  }
  if (answer.ok) return read;
  const told = read?.error ?? {};
  const error = new ApiError(
    answer.status,
    told.message ?? read?.message ?? `The server answered ${answer.status}.`,
    told.code,
    told.details,
    told.hint,
    told.request_id,
  );
  // Only the first refusal of the present key counts: a request that was sent without a key, or with
  // an earlier one, neither clears the message nor ends a new session.
  if (answer.status === 401 && sent && sent === key.get()) {
    refused.set("The key is not known, was revoked, or has ended.");
    remember("");
    me.set(null);
  }
  throw error;
}

export const get = (path: string, signal?: AbortSignal) => call("GET", path, undefined, signal);

/** A query string of what has a value. */
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

/** Who has signed in; null before that. */
export const me = box<Me | null>(null);

export function can(scope: string): boolean {
  return me.get()?.scopes.includes(scope) ?? false;
}

/** Whether the key is limited to some queues. */
export function limited(): string[] | undefined {
  return me.get()?.queues;
}

/** What the page is served with: how callers say who they are. */
export interface Served {
  authorizer: "none" | "keys" | "jwt" | "iam";
}

export async function served(): Promise<Served> {
  const answer = await fetch(`${PREFIX}/ojs/admin/served.json`, { cache: "no-store" });
  if (!answer.ok) throw new ApiError(answer.status, "The dashboard is not served completely.");
  return answer.json();
}

/** `100 / PT1M` as a limit and its period. Throws an ApiError that names the field. */
export function parsedLimit(text: string): Json {
  const [limit, period] = text.split("/").map((part) => part.trim());
  if (!period || !/^\d+$/.test(limit ?? ""))
    throw new ApiError(0, "no rate", "", { field: "rate", reason: "is written as 100 / PT1M" });
  return { limit: Number(limit), period };
}
