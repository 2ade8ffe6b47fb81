/* How tokens are sampled: values within their bounds, what a request says of them, and the address that holds them. */

export const KNOBS = [
  { name: "temperature", low: 0, high: 2, step: 0.01, most: 100, usual: 0.8, hint: "0 takes the likeliest" },
  { name: "top_k", label: "top-k", low: 0, high: 100, step: 1, most: 1e6, usual: 0, hint: "0 keeps all" },
  { name: "top_p", label: "top-p", low: 0.01, high: 1, step: 0.01, most: 1, usual: 1, hint: "1 keeps all" },
  { name: "min_p", label: "min-p", low: 0, high: 0.5, step: 0.005, most: 1, usual: 0, hint: "0 keeps all" },
  { name: "max_tokens", label: "max tokens", low: 1, high: 512, step: 1, most: 1e6, usual: 96, hint: "of one continuation" },
];
const SEEDS = 2 ** 31;

export class Settings {
  constructor(values = {}) {
    this.values = Object.fromEntries(KNOBS.map((knob) => [knob.name, knob.usual]));
    this.values.seed = null;
    this.listeners = [];
    for (const [name, value] of Object.entries(values)) this.set(name, value);
  }

  onChange(listener) {
    this.listeners.push(listener);
  }

  /* A value within its bounds; what is no number changes nothing. */
  set(name, given) {
    const before = this.values[name];
    this.values[name] = name === "seed" ? seedOf(given) : bounded(name, given, before);
    if (this.values[name] !== before) this.listeners.forEach((listener) => listener(name));
  }

  /* As fields of a request. All of them: for what is left out the server has defaults of its own. */
  request() {
    const { temperature, top_k, top_p, min_p, max_tokens, seed } = this.values;
    const fields = { max_tokens, temperature, top_k, top_p, min_p };
    if (seed !== null) fields.seed = seed;
    return fields;
  }

  copy() {
    return new Settings(this.values);
  }
}

function seedOf(given) {
  if (given === null || given === undefined || String(given).trim() === "") return null;
  const number = Math.trunc(Number(given));
  return Number.isFinite(number) ? Math.min(Math.max(number, 0), Number.MAX_SAFE_INTEGER) : null;
}

function bounded(name, given, before) {
  const { low, most, step } = KNOBS.find((knob) => knob.name === name), number = Number(given);
  if (given === "" || given === null || !Number.isFinite(number)) return before;
  const within = Math.min(most, Math.max(low, number));
  return step >= 1 ? Math.round(within) : +within.toFixed(4);
}

export const anySeed = () => Math.floor(Math.random() * SEEDS);

/* Longer texts would make addresses that cannot be sent. */
const LONGEST_PROMPT = 6000;

/* Screen, prompt and settings of an address. A key is never in it. */
export function readAddress(hash, screens) {
  const [screen, ...rest] = hash.replace(/^#/, "").split("&");
  const told = new URLSearchParams(rest.join("&")), values = {};
  for (const name of [...KNOBS.map((knob) => knob.name), "seed"]) if (told.has(name)) values[name] = told.get(name);
  return { screen: screens.includes(screen) ? screen : null, values, prompt: told.get("prompt") };
}

export function writeAddress(screen, settings, prompt) {
  const told = new URLSearchParams();
  for (const { name, usual } of KNOBS) if (settings.values[name] !== usual) told.set(name, settings.values[name]);
  if (settings.values.seed !== null) told.set("seed", settings.values.seed);
  if (prompt && prompt.length <= LONGEST_PROMPT) told.set("prompt", prompt);
  const rest = told.toString();
  return `#${screen}${rest ? `&${rest}` : ""}`;
}
