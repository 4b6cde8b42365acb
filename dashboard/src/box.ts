// An observable value. Components that use it render again when it changes.
import { useEffect, useState } from "preact/hooks";

export interface Box<T> {
  get(): T;
  set(value: T): void;
  follow(heard: () => void): () => void;
}

export function box<T>(value: T): Box<T> {
  const heard = new Set<() => void>();
  return {
    get: () => value,
    set(next) {
      value = next;
      for (const each of [...heard]) each();
    },
    follow(each) {
      heard.add(each);
      return () => heard.delete(each);
    },
  };
}

export function useBox<T>(of: Box<T>): T {
  const [, draw] = useState(0);
  useEffect(() => of.follow(() => draw((n) => n + 1)), [of]);
  return of.get();
}
