// Cron expressions as text, for the forms that people use most.

const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const SHORT = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
const ALIASES: Record<string, string> = {
  "@hourly": "Hourly", "@daily": "Daily at 00:00", "@midnight": "Daily at 00:00", "@weekly": "Sunday at 00:00",
  "@monthly": "Day 1 of the month at 00:00", "@yearly": "January 1 at 00:00", "@annually": "January 1 at 00:00",
};
const whole = (text: string) => /^\d{1,2}$/.test(text);
const step = (text: string) => /^\*\/(\d{1,2})$/.exec(text)?.[1];
const two = (text: string) => text.padStart(2, "0");

function dayName(text: string): string | undefined {
  return DAYS[/^[0-7]$/.test(text) ? Number(text) % 7 : SHORT.indexOf(text.toUpperCase())];
}

function days(ofMonth: string, month: string, ofWeek: string): string | undefined {
  if (month !== "*") return undefined;
  if (ofMonth === "*" && ofWeek === "*") return "Daily";
  if (whole(ofMonth) && ofWeek === "*") return `Day ${Number(ofMonth)} of the month`;
  if (ofMonth !== "*") return undefined;
  const names = ofWeek.split("-").map(dayName);
  if (names.length > 2 || names.some((name) => !name)) return undefined;
  return names.length === 2 ? `${names[0]} to ${names[1]}` : names[0];
}

/** `0 9 * * MON-FRI` as `Monday to Friday at 09:00`; undefined for other forms. */
export function described(expression: string): string | undefined {
  if (expression in ALIASES) return ALIASES[expression];
  const every = /^@every (\d+)(s|m|h)$/.exec(expression);
  if (every) return `Every ${every[1]} ${{ s: "s", m: "min", h: "h" }[every[2] as "s" | "m" | "h"]}`;
  let fields = expression.trim().split(/\s+/);
  if (fields.length === 6 && fields[0] === "0") fields = fields.slice(1);
  if (fields.length !== 5) return undefined;
  const [minute, hour, ...rest] = fields as [string, string, string, string, string];
  const day = days(...rest);
  if (!day) return undefined;
  if (whole(minute) && whole(hour)) return `${day} at ${two(hour)}:${two(minute)}`;
  if (day !== "Daily") return undefined;
  if (hour === "*") return minute === "*" ? "Every minute" : step(minute) && 60 % Number(step(minute)) === 0 ? `Every ${step(minute)} min` : whole(minute) ? `Hourly at :${two(minute)}` : undefined;
  const hours = step(hour);
  return hours && 24 % Number(hours) === 0 && whole(minute) ? `Every ${hours} h at :${two(minute)}` : undefined;
}
