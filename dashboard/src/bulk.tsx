// Bulk operations: the selection above a list, and the progress of operations on the server.
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { call, get, type Json } from "./api";
import { box, useBox } from "./box";
import { capital, number, plural } from "./format";
import { Act, State, tell } from "./ui";

/** How an operation is called: `cancel`, `cancelled`, `job`. */
export interface Kind { verb: string; past: string; noun: string }

interface Followed { base: string; kind: Kind; operation: Json; done: () => void }

const followed = box<Followed[]>([]);

function report(kind: Kind, operation: Json): void {
  const failed = operation.failed ? `, ${number(operation.failed)} failed` : "";
  tell(`${plural(operation.succeeded, kind.noun)} ${kind.past}${failed}`, operation.failed > 0);
}

export function follow(base: string, operation: Json, kind: Kind, done: () => void): void {
  if (!operation) return;
  if (operation.state.startsWith("completed")) {
    report(kind, operation);
    return;
  }
  followed.set([...followed.get(), { base, kind, operation, done }]);
}

/** Running operations, read every two seconds while the tab is visible. */
export function Bulk() {
  const list = useBox(followed);
  useEffect(() => {
    if (!list.length) return;
    const timer = setInterval(async () => {
      if (document.hidden) return;
      const next = await Promise.all(list.map(async (each) => {
        const { operation } = await get(`${each.base}/operations/${each.operation.id}`).catch(() => ({ operation: each.operation }));
        return { ...each, operation };
      }));
      for (const each of next.filter((one) => one.operation.finished_at)) {
        report(each.kind, each.operation);
        each.done();
      }
      followed.set(next.filter((each) => !each.operation.finished_at));
    }, 2_000);
    return () => clearInterval(timer);
  }, [list]);
  return (
    <>
      {list.map(({ base, kind, operation }) => (
        <div key={operation.id} class="notice" role="status">
          <p><strong>{capital(kind.verb)} {kind.noun}s</strong> <State of={operation.state} /> {number(operation.succeeded)} of {number(operation.matched)}{operation.failed > 0 && `, ${number(operation.failed)} failed`}{operation.waiting_for_room && ", waiting for capacity in a queue"}</p>
          <Act small on={() => call("POST", `${base}/operations/${operation.id}/stop`)}>Stop</Act>
        </div>
      ))}
    </>
  );
}

/** The selection above a list: its size, the offer to select all matching rows, and the actions. */
export function Selection(props: {
  count: number;
  all: boolean;
  /** How many rows match on the server; undefined if that is unknown. */
  total?: number;
  /** Whether all matching rows can be selected. */
  offered: boolean;
  noun: string;
  filtered: boolean;
  select: (all: boolean) => void;
  children: ComponentChildren;
}) {
  const { count, all, total, noun } = props;
  const every = `all ${total === undefined ? "" : `${number(total)} `}${props.filtered ? "matching" : `${noun}s`}`;
  const some = count > 0 || all;
  return (
    <div class="row bulk" role="group" aria-label="Actions">
      <span class="dim">{all ? `${capital(every)} selected` : some ? `${plural(count, noun)} selected` : "No selection"}</span>
      {props.offered && !all && <button type="button" class="small" onClick={() => props.select(true)}>Select {every}</button>}
      {some && <button type="button" class="small" onClick={() => props.select(false)}>Clear selection</button>}
      {props.children}
    </div>
  );
}
