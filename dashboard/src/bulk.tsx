// Work on many jobs that goes on after the request: how far it is, and how to stop it.
import { useEffect } from "preact/hooks";
import { call, get, type Json } from "./api";
import { box, useBox } from "./box";
import { number } from "./format";
import { Act, State, tell } from "./ui";

interface Followed { base: string; act: string; operation: Json; done: () => void }

const followed = box<Followed[]>([]);

export function follow(base: string, operation: Json, act: string, done: () => void): void {
  if (!operation) return;
  if (operation.state.startsWith("completed")) {
    tell(`${act}: ${number(operation.succeeded)} done${operation.failed ? `, ${number(operation.failed)} refused` : ""}.`, operation.failed > 0);
    return;
  }
  followed.set([...followed.get(), { base, act, operation, done }]);
}

/** The operations that go on, read again every two seconds while the tab shows. */
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
        tell(`${each.act}: ${number(each.operation.succeeded)} done${each.operation.failed ? `, ${number(each.operation.failed)} refused` : ""}.`);
        each.done();
      }
      followed.set(next.filter((each) => !each.operation.finished_at));
    }, 2_000);
    return () => clearInterval(timer);
  }, [list]);
  return (
    <>
      {list.map(({ base, act, operation }) => (
        <div key={operation.id} class="notice" role="status">
          <p><strong>{act}</strong> <State of={operation.state} /> {number(operation.succeeded)} of {number(operation.matched)} so far{operation.failed > 0 && `, ${number(operation.failed)} refused`}{operation.waiting_for_room && ", waits for room in a queue"}</p>
          <Act small on={() => call("POST", `${base}/operations/${operation.id}/stop`)}>Stop</Act>
        </div>
      ))}
    </>
  );
}
