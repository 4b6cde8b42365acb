// Numbers, times, and durations in the reader's language and time zone.

const NUMBER = new Intl.NumberFormat();
const SHORT = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });
const MOMENT = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });

export const number = (value: number) => NUMBER.format(value);
export const short = (value: number) => (value < 10_000 ? NUMBER.format(round(value)) : SHORT.format(value));
export const moment = (value: string | number) => MOMENT.format(new Date(value));

function round(value: number): number {
  return Math.round(value * 100) / 100;
}

const UNITS: [number, string][] = [[86_400, "d"], [3_600, "h"], [60, "min"], [1, "s"]];

/** A duration in its two largest units: `2 h 5 min`, `41 ms`. */
export function duration(ms: number): string {
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1_000).toFixed(ms < 10_000 ? 1 : 0)} s`;
  let left = Math.round(ms / 1_000);
  const parts: string[] = [];
  for (const [size, unit] of UNITS) {
    const count = Math.floor(left / size);
    if (count || parts.length) {
      if (count) parts.push(`${count} ${unit}`);
      left -= count * size;
      if (parts.length === 2 || size === 1) break;
    }
  }
  return parts.join(" ");
}

const SIZES: Record<string, number> = { ms: 1, s: 1_000, m: 60_000, min: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 };
const ISO = /^P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?$/;

/** The milliseconds of `90s`, `2h 30m`, or an ISO 8601 duration; undefined for other texts. */
export function spanMs(text: string): number | undefined {
  const iso = ISO.exec(text)?.slice(1);
  if (iso?.some(Boolean)) return iso.reduce((sum, count, i) => sum + Number(count ?? 0) * SIZES["wdhms"[i]!]!, 0);
  const parts = [...text.matchAll(/\s*(\d+(?:\.\d+)?)\s*(ms|min|[smhdw])/gy)];
  if (!parts.length || parts.map(([all]) => all).join("") !== text) return undefined;
  return Math.round(parts.reduce((sum, [, count, unit]) => sum + Number(count) * SIZES[unit!]!, 0));
}

const split = (ms: number) => [[86_400_000, "d"], [3_600_000, "h"], [60_000, "m"], [1_000, "s"], [1, "ms"]].map(([size, unit]) => {
  const count = Math.floor(ms / (size as number));
  ms -= count * (size as number);
  return [count, unit] as [number, string];
});

/** `2h 30m`: a duration as people write it, without loss. */
export const span = (ms: number) => split(ms).filter(([count]) => count).map((part) => part.join("")).join(" ") || "0s";

/** An ISO 8601 duration as people write it. Other texts are unchanged. */
export const written = (iso: string) => (spanMs(iso) === undefined ? iso : span(spanMs(iso)!));

export function iso(ms: number): string {
  const [d, h, m, s, rest] = split(ms).map(([count]) => count) as [number, number, number, number, number];
  const time = `${h ? `${h}H` : ""}${m ? `${m}M` : ""}${s || rest ? `${s + rest / 1_000}S` : ""}`;
  return `P${d ? `${d}D` : ""}${time ? `T${time}` : d ? "" : "T0S"}`;
}

export function ago(at: number, now: number): string {
  const ms = now - at;
  if (Math.abs(ms) < 1_000) return "now";
  const [one, unit] = duration(Math.abs(ms)).split(" ");
  const text = `${Math.abs(ms) < 60_000 ? Math.round(Math.abs(ms) / 1_000) : one} ${Math.abs(ms) < 60_000 ? "s" : unit}`;
  return ms > 0 ? `${text} ago` : `in ${text}`;
}

export const percent = (part: number) => `${Math.round(part * 100)} %`;

/** A state or another identifier as a label: `dead-letter` becomes `Dead letter`. */
export const label = (name: string) => capital(name.replace(/[-_]+/g, " "));

export const capital = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);

export const plural = (count: number, one: string, many = `${one}s`) =>
  `${number(count)} ${count === 1 ? one : many}`;

/** A value as JSON. Characters that change the text direction are escaped so that they stay visible. */
export const json = (value: unknown, indent?: number) =>
  (JSON.stringify(value, null, indent) ?? "").replace(
    /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g,
    (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );

/** A text, quoted for a POSIX shell. */
export const quoted = (text: string) => `'${text.replaceAll("'", "'\\''")}'`;
