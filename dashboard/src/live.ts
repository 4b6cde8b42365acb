// Reading again and again, as long as somebody looks.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { ApiError } from "./api";
import { box, useBox } from "./box";

/** Whether pages read again by themselves; a button turns it off. */
export const live = box(true);
/** The time, for ages that are shown; it moves every five seconds. */
export const now = box(Date.now());

setInterval(() => {
  if (!document.hidden) now.set(Date.now());
}, 5_000);

export interface Read<T> {
  data: T | undefined;
  error: ApiError | undefined;
  /** When `data` came. */
  at: number;
  busy: boolean;
  again: () => void;
}

/** What `read` gives, now, after each change of `of`, and every `everyMs` while the tab shows. */
export function usePoll<T>(
  read: (signal: AbortSignal) => Promise<T>,
  everyMs: number,
  of: readonly unknown[],
): Read<T> {
  const [state, set] = useState<Omit<Read<T>, "again">>({
    data: undefined, error: undefined, at: 0, busy: true,
  });
  const running = useBox(live);
  const latest = useRef(read);
  latest.current = read;
  const began = useRef<() => void>(() => {});
  useEffect(() => {
    set({ data: undefined, error: undefined, at: 0, busy: true });
  }, of);
  useEffect(() => {
    let timer = 0;
    let last = 0;
    let over = false;
    let stop = new AbortController();
    const once = async () => {
      clearTimeout(timer);
      stop.abort();
      const mine = (stop = new AbortController());
      last = Date.now();
      set((was) => ({ ...was, busy: true }));
      try {
        const data = await latest.current(mine.signal);
        if (over || mine.signal.aborted) return;
        set({ data, error: undefined, at: Date.now(), busy: false });
      } catch (error) {
        if (over || mine.signal.aborted) return;
        const told = error instanceof ApiError ? error : new ApiError(0, String(error));
        set((was) => ({ ...was, error: told, busy: false }));
      }
      plan();
    };
    const plan = () => {
      clearTimeout(timer);
      if (everyMs && running && !document.hidden)
        timer = window.setTimeout(once, Math.max(0, last + everyMs - Date.now()));
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
  }, [...of, everyMs, running]);
  const again = useCallback(() => began.current(), []);
  return { ...state, again };
}
