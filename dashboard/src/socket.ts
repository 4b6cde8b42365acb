// Tells pages what changed: one WebSocket connection (docs/realtime.md) while the tab is visible.
import { ApiError, BASE, call, can, type Json, me } from "./api";
import { box } from "./box";

/** Whether pages refresh automatically. A button in the header turns it off. */
export const live = box(true);

/** What a view hears: data changed, its channel is connected, or no longer connected. */
export type News = "changed" | "connected" | "lost";

interface View { about: string; hear: (news: News) => void }

// Bounds of the pause before a reconnection. API Gateway closes a connection after 10 minutes
// without a message.
const PAUSES_MS = [1_000, 300_000] as const;
const STEADY_MS = 60_000;
const PING_MS = 540_000;
// Errors of one channel, whose views poll. After others, the connection is opened again.
const LASTING = new Set(["not_found", "permission_denied", "too_many", "unsupported", "invalid_request"]);

const views = new Set<View>();
// Channels that this connection asked for, and whether the server has confirmed them.
const channels = new Map<string, boolean>();
let started = false;
let socket: WebSocket | undefined;
// The connection that is open or being opened, with its signed-in key.
let owner: { key: object } | null = null;
let refused: object | null = null;
let retry = 0;
let failures = 0;

/** The channel for a view of `queue:{name}`, `job:{id}`, or `all`; empty if the key can't read it. */
function channelOf(about: string): string {
  const job = about.startsWith("job:");
  return about && can(job ? "jobs:read" : "admin:read") ? (job ? about : "all") : "";
}

/** Whether the server reports changes. */
export const tells = (about: string) => channels.get(channelOf(about)) === true;

/** Reports changes to a view. Returns a function that ends this. */
export function follow(about: string, hear: View["hear"]): () => void {
  const view = { about, hear };
  views.add(view);
  keep();
  return () => {
    views.delete(view);
    // The next page follows all queues as well, but not this job.
    if (about.startsWith("job:") && ![...views].some((each) => each.about === about) && channels.delete(about)) say("unsubscribe", about);
  };
}

/** Starts to connect. Without it, pages only poll. */
export function start(): void {
  started = true;
  live.follow(keep);
  me.follow(keep);
  document.addEventListener("visibilitychange", keep);
  keep();
}

function say(action: string, channel?: string): void {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ action, channel, digest: channel === "all" || undefined }));
}

/** Opens, uses, or closes the connection, as the key, the page, and the tab require. */
function keep(): void {
  const key = live.get() ? me.get() : null;
  if (owner && owner.key !== key) {
    owner = null;
    // Otherwise it is closed when it is open: a browser warns of a connection that is never opened.
    if (socket?.readyState === WebSocket.OPEN) socket.close();
  }
  const wanted = new Set([...views].map((each) => channelOf(each.about)).filter((each) => each && !channels.has(each)));
  if (socket?.readyState === WebSocket.OPEN)
    for (const each of wanted) {
      channels.set(each, false);
      say("subscribe", each);
    }
  else if (started && !socket && key && !owner && key !== refused && !retry && wanted.size && !document.hidden) void open((owner = { key }));
}

async function open(mine: { key: object }): Promise<void> {
  let made: WebSocket;
  try {
    const { url, ticket } = await call("POST", "/realtime/tickets", {});
    if (owner !== mine) return keep();
    const at = new URL(url);
    // Behind the address of the page, which can have several names.
    if (at.pathname === `${BASE}/ws`) at.host = location.host;
    made = new WebSocket(`${at}?ticket=${ticket}`, "ojs.v1");
  } catch (error) {
    if (error instanceof ApiError && error.status >= 400 && error.status < 500 && ![408, 429].includes(error.status)) refused = mine.key;
    return again(mine);
  }
  socket = made;
  const began = Date.now();
  const ping = setInterval(() => {
    // A tab that is hidden for some time needs no connection.
    if (document.hidden) return made.close();
    say("ping");
    for (const [each, confirmed] of channels) if (!confirmed) channels.delete(each);
    keep();
  }, PING_MS);
  made.onopen = () => (owner === mine ? keep() : made.close());
  made.onmessage = ({ data }) => heard(made, JSON.parse(data));
  made.onclose = () => {
    clearInterval(ping);
    socket = undefined;
    channels.clear();
    if (Date.now() - began > STEADY_MS) failures = 0;
    again(mine);
    for (const each of [...views]) each.hear("lost");
  };
}

/** Plans the next connection after one was lost, or could not be opened. */
function again(mine: object): void {
  if (owner !== mine) return keep();
  owner = null;
  const [least, most] = PAUSES_MS;
  const bound = Math.min(most, least * 2 ** ++failures);
  retry = window.setTimeout(() => {
    retry = 0;
    keep();
  }, least + Math.random() * (bound - least));
}

function heard(from: WebSocket, { type, channel, queues, code }: Json): void {
  const tell = (news: News, of: (about: string) => unknown) => [...views].forEach((each) => of(each.about) && each.hear(news));
  if (type === "subscribed" && channels.has(channel)) {
    channels.set(channel, true);
    tell("connected", (about) => channelOf(about) === channel);
  } else if (type === "changed")
    tell("changed", (about) => about === "all" || queues.includes(about.slice("queue:".length)));
  else if (type === "event" && channel) tell("changed", (about) => channelOf(about) === channel);
  else if (type === "error" && !LASTING.has(code)) from.close();
}
