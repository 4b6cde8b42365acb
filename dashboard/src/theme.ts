// Dark or light theme: the system's setting until the reader selects one.
import { box } from "./box";

const STORED = "ojs-theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const chosen = () => localStorage.getItem(STORED);

export const theme = box<"dark" | "light">("light");

function apply(): void {
  const is = chosen() === "dark" || (chosen() !== "light" && system.matches) ? "dark" : "light";
  document.documentElement.dataset.theme = is;
  theme.set(is);
}

system.addEventListener("change", apply);
apply();

export function flip(): void {
  localStorage.setItem(STORED, theme.get() === "dark" ? "light" : "dark");
  apply();
}
