// The current route: the path below /ojs/admin/ and the query.
import { PREFIX } from "./api";
import { box, useBox } from "./box";

const ROOT = `${PREFIX}/ojs/admin`;

function here(): string {
  return location.pathname.slice(ROOT.length) + location.search;
}

export const place = box(here());

addEventListener("popstate", () => place.set(here()));

export const href = (path: string) => ROOT + path;

export function go(path: string, replace = false): void {
  if (path === place.get()) return;
  history[replace ? "replaceState" : "pushState"](null, "", href(path));
  place.set(here());
  if (!replace) scrollTo(0, 0);
}

// Links within the dashboard change the route without a page load.
document.addEventListener("click", (event) => {
  if (event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.defaultPrevented) return;
  const link = (event.target as Element).closest("a");
  const to = link?.getAttribute("href");
  if (!to?.startsWith(`${ROOT}/`) || link?.target) return;
  event.preventDefault();
  go(to.slice(ROOT.length));
});

export interface Route {
  parts: string[];
  query: URLSearchParams;
}

export function useRoute(): Route {
  const [path = "", query = ""] = useBox(place).split("?");
  return {
    parts: path.split("/").filter(Boolean).map((part) => {
      try {
        return decodeURIComponent(part);
      } catch {
        return part;
      }
    }),
    query: new URLSearchParams(query),
  };
}

/** Changes query parameters. Empty values are removed. */
export function refine(values: Record<string, string | undefined>): void {
  const [path = "", text = ""] = place.get().split("?");
  const query = new URLSearchParams(text);
  for (const [name, value] of Object.entries(values)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  const found = query.toString();
  go(path + (found ? `?${found}` : ""), true);
}
