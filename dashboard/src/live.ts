// Polling while the tab is visible.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { ApiError } from "./api";
import { box, useBox } from "./box";

/** Whether pages refresh automatically. A button in the header turns it off. */
export const live = box(true);
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
const SOON_MS = 5_000;
const NOTHING = { data: undefined, error: undefined, at: 0, busy: true };

/** The result of `read`: read immediately, after each change of `of`, and every `everyMs` while the tab is visible. */
export function usePoll<T>(
  read: (signal: AbortSignal) => Promise<T>,
  everyMs: number,
  of: readonly unknown[],
): Read<T> {
  const text = JSON.stringify(of);
  const [state, set] = useState<State<T>>({ of: text, ...NOTHING });
  const running = useBox(live);
  const latest = useRef(read);
  latest.current = read;
  const began = useRef<() => void>(() => {});
  useEffect(() => {
    let timer = 0;
    let last = 0;
    // After a connection error or a 5xx the next read follows soon, for example while the server
    // restarts. After another error it follows at the usual interval.
    let soon = false;
    let over = false;
    let stop = new AbortController();
    const once = async () => {
      clearTimeout(timer);
      stop.abort();
      const mine = (stop = new AbortController());
      last = Date.now();
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
      plan();
    };
    const plan = () => {
      clearTimeout(timer);
      const pauseMs = soon ? Math.min(everyMs || SOON_MS, SOON_MS) : everyMs;
      if (pauseMs && running && !document.hidden)
        timer = window.setTimeout(once, Math.max(0, last + pauseMs - Date.now()));
    };
    const seen = () => {
      if (document.hidden) clearTimeout(timer);
      else plan();
    };
    began.current = once;
    document.addEventListener("visibilitychange", seen);
    void once();
    return () => {
      over = true;
      stop.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, [text, everyMs, running]);
  const again = useCallback(() => began.current(), []);
  // Data of other arguments is never shown, not even until the first response.
  return { ...(state.of === text ? state : NOTHING), again };
}
