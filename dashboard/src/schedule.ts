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

const MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];

function dayName(text: string): string | undefined {
  return DAYS[/^[0-7]$/.test(text) ? Number(text) % 7 : SHORT.indexOf(text.toUpperCase())];
}

const monthName = (text: string) => MONTHS[whole(text) ? Number(text) - 1 : MONTHS.findIndex((name) => name.slice(0, 3).toUpperCase() === text.toUpperCase())];
const joined = (all: string[]) => (all.length < 2 ? all.join("") : `${all.slice(0, -1).join(", ")} and ${all.at(-1)}`);

/** A field that lists values and ranges, in words. */
function listed(field: string, name: (text: string) => string | undefined): string | undefined {
  const parts = field.split(",").map((part) => {
    const ends = part.split("-").map(name);
    return ends.length > 2 || ends.some((end) => !end) ? undefined : ends.join(" to ");
  });
  return parts.includes(undefined) ? undefined : joined(parts as string[]);
}

function days(ofMonth: string, month: string, ofWeek: string): string | undefined {
  const months = month === "*" ? "" : listed(month, monthName);
  if (months === undefined || (ofMonth !== "*" && ofWeek !== "*")) return undefined;
  const during = months && ` in ${months}`;
  if (ofMonth === "*" && ofWeek === "*") return `Daily${during}`;
  if (ofMonth === "L") return `Last day of ${months || "the month"}`;
  const text = ofMonth === "*" ? listed(ofWeek, dayName) : listed(ofMonth, (day) => (whole(day) ? String(Number(day)) : undefined));
  if (!text) return undefined;
  return ofMonth === "*" ? text + during : `Day ${text} of ${months || "the month"}`;
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
  const clocks = listed(hour, (text) => (whole(text) && whole(minute) ? `${two(text)}:${two(minute)}` : undefined));
  if (clocks && !hour.includes("-")) return `${day} at ${clocks}`;
  if (clocks) return `${day}, hourly from ${clocks}`;
  const within = listed(hour, (text) => (whole(text) ? `${two(text)}:00` : undefined));
  const often = minute === "*" ? "every minute" : step(minute) && 60 % Number(step(minute)) === 0 ? `every ${step(minute)} min` : undefined;
  if (often && within && !hour.includes(",")) return `${day}, ${often} ${hour.includes("-") ? `from ${within.replace(/:00$/, ":59")}` : `from ${within} to ${two(hour)}:59`}`;
  if (day !== "Daily") return often && hour === "*" ? `${day}, ${often}` : undefined;
  if (hour === "*") return minute === "*" ? "Every minute" : step(minute) && 60 % Number(step(minute)) === 0 ? `Every ${step(minute)} min` : whole(minute) ? `Hourly at :${two(minute)}` : undefined;
  const hours = step(hour);
  return hours && 24 % Number(hours) === 0 && whole(minute) ? `Every ${hours} h at :${two(minute)}` : undefined;
}
