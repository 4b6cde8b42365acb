// Reads data again while the tab is visible: when the server reports a change, or else at intervals.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { ApiError, reloads } from "./api";
import { box, useBox } from "./box";
import { follow, live, type News, tells } from "./socket";

/** The current time for relative times, updated every five seconds. */
export const now = box(Date.now());

setInterval(() => {
  if (!document.hidden) now.set(Date.now());
}, 5_000);

export interface Read<T> {
  data: T | undefined;
  error: ApiError | undefined;
  /** When `data` was received. */
  at: number;
  busy: boolean;
  again: () => void;
}

type State<T> = Omit<Read<T>, "again"> & { of: string };
const USUAL_MS = 15_000;
const SOON_MS = 5_000;
// A digest can name a change a second late, and counters follow the stream by up to 10 seconds.
const AFTER_MS = 12_000;
// Factor of the intervals with a connection. A message can be lost.
const SELDOM = 4;
// After this time without changes, the pauses between reads that cost little begin with QUICK_MS.
const QUIET_MS = 60_000;
const QUICK_MS = 1_000;
const NOTHING = { data: undefined, error: undefined, at: 0, busy: true };

/**
 * The result of `read`: read immediately and after each change of `of`.
 *
 * While the tab is visible it is read again every `everyMs`, 0: never. With a connection, it is read when
 * the server reports a change of `about`: `all`, `queue:{name}`, `job:{id}`, or empty for other data.
 * While changes continue, it is not read more often than every `everyMs`.
 */
export function usePoll<T>(
  read: (signal: AbortSignal) => Promise<T>,
  of: readonly unknown[],
  { everyMs = USUAL_MS, about = "all" } = {},
): Read<T> {
  const text = JSON.stringify(of);
  const [state, set] = useState<State<T>>({ of: text, ...NOTHING });
  const running = useBox(live);
  const reload = useBox(reloads);
  const latest = useRef(read);
  latest.current = read;
  const began = useRef<() => void>(() => {});
  useEffect(() => {
    let timer = 0;
    let last = 0;
    let told = false;
    let after = 0;
    const quickMs = everyMs > USUAL_MS ? everyMs : QUICK_MS;
    let pauseMs = quickMs;
    let lost = false;
    let reading = false;
    // After a connection error or a 5xx the next read follows soon, for example while the server
    // restarts. After another error it follows at the usual interval.
    let soon = false;
    let over = false;
    let stop = new AbortController();
    const once = async () => {
      clearTimeout(timer);
      stop.abort();
      const mine = (stop = new AbortController());
      if (told) pauseMs = Math.min(2 * pauseMs, everyMs);
      told = false;
      last = Date.now();
      reading = true;
      set((was) => (was.of === text ? { ...was, busy: true } : { of: text, ...NOTHING }));
      try {
        const data = await latest.current(mine.signal);
        if (over || mine.signal.aborted) return;
        soon = false;
        set({ of: text, data, error: undefined, at: Date.now(), busy: false });
      } catch (error) {
        if (over || mine.signal.aborted) return;
        const failure = error instanceof ApiError ? error : new ApiError(0, String(error));
        soon = failure.status === 0 || failure.status >= 500;
        set((was) => ({ ...was, error: failure, busy: false }));
      }
      reading = false;
      plan();
    };
    const plan = () => {
      clearTimeout(timer);
      let next = last + (soon ? Math.min(everyMs || SOON_MS, SOON_MS) : everyMs * (tells(about) ? SELDOM : 1));
      if (told || after > last) next = Math.min(next, Math.max(last + pauseMs, told ? 0 : after));
      if (next > last && running && !document.hidden && !reading)
        timer = window.setTimeout(once, Math.max(0, next - Date.now()));
    };
    const hear = (news: News) => {
      const at = Date.now();
      if (at > after + QUIET_MS) pauseMs = quickMs;
      told ||= news === "changed" || (news === "connected" && lost);
      if (news !== "lost") after = at + AFTER_MS;
      lost = news === "lost";
      plan();
    };
    const seen = () => {
      if (document.hidden) clearTimeout(timer);
      else plan();
    };
    began.current = once;
    document.addEventListener("visibilitychange", seen);
    void once();
    const unfollow = everyMs && about ? follow(about, hear) : () => {};
    return () => {
      unfollow();
      over = true;
      stop.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, [text, everyMs, running, about, reload]);
  const again = useCallback(() => began.current(), []);
  // Data of other arguments is never shown, not even until the first response.
  return { ...(state.of === text ? state : NOTHING), again };
}
