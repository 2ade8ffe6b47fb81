/* The screen about the server: what it serves, what it does just now, and how to ask it from elsewhere. */
import { askText, forgetKey, here, keyFor, metricsOf } from "./api.js";
import { at, grow, make } from "./dom.js";
import { bytes, count } from "./words.js";

const EVERY = 2000;
const KEPT = 60;
const SVG = "http://www.w3.org/2000/svg";

/* Gauges by the name of their metric; a rate is how much a counter grew in a second. */
const GAUGES = [
  { id: "running", label: "requests running", name: "vllm:num_requests_running" },
  { id: "waiting", label: "requests waiting", name: "vllm:num_requests_waiting" },
  { id: "speed", label: "tokens/s written", name: "vllm:generation_tokens_total", rate: true },
  { id: "reading", label: "tokens/s read", name: "vllm:prompt_tokens_total", rate: true },
  { id: "kv", label: "of the KV cache in use", name: "vllm:kv_cache_usage_perc", share: true },
];

export class Server {
  constructor(app) {
    Object.assign(this, { app, timer: 0, before: null, series: new Map() });
    this.figures();
    this.tiles = new Map(GAUGES.map((gauge) => [gauge.id, this.tile(gauge)]));
    at("server-gauges").replaceChildren(...[...this.tiles.values()].map((tile) => tile.element));
    at("server-spec").textContent = JSON.stringify(app.model.spec, null, 1);
    for (const kind of ["curl", "python"]) at(`server-copy-${kind}`).addEventListener("click", () => this.copy(kind));
    at("server-forget").addEventListener("click", () => {
      forgetKey(here);
      this.open();
    });
    app.settings.onChange(() => this.lines());
    document.addEventListener("visibilitychange", () => this.poll());
  }

  key() {
    return false;
  }

  figures() {
    const { model } = this.app, compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
    const facts = [["topology", model.topology]];
    for (const [label, value] of Object.entries(model.counts || {})) {
      facts.push([label === "params" ? "parameters" : label.replaceAll("_", " "), typeof value === "number" ? compact.format(value) : String(value)]);
    }
    facts.push(["vocabulary", count(model.vocab)], ["context", count(model.max_model_len)], ["KV cache per token", bytes(model.kv_bytes_per_token)]);
    at("server-figures").replaceChildren(...facts.map(([label, value]) => grow("div", {}, make("dt", "", label), make("dd", "", value))));
    const limits = Object.entries(model.limits || {}).filter(([, value]) => typeof value !== "object");
    at("server-limits").replaceChildren(...limits.map(([label, value]) => grow("div", {}, make("dt", "", label), make("dd", "", typeof value === "number" ? count(value) : String(value)))));
  }

  tile({ label }) {
    const line = document.createElementNS(SVG, "svg"), path = document.createElementNS(SVG, "polyline");
    line.setAttribute("viewBox", `0 0 ${KEPT - 1} 20`);
    line.setAttribute("preserveAspectRatio", "none");
    line.setAttribute("aria-hidden", "true");
    line.append(path);
    const value = make("b", "", "\u2013");
    return { element: grow("div", { class: "tile" }, value, make("span", "", label), line), value, path };
  }

  open() {
    this.shown = true;
    at("server-forget").hidden = !keyFor(here);
    this.lines();
    this.poll();
  }

  close() {
    this.shown = false;
    clearTimeout(this.timer);
  }

  /* Look at the gauges, again and again as long as somebody sees them. */
  async poll() {
    clearTimeout(this.timer);
    if (!this.shown || document.hidden) return;
    try {
      this.gauges(metricsOf(await askText("/metrics")));
      at("server-error").textContent = "";
    } catch (error) {
      at("server-error").textContent = error.message;
    }
    if (this.shown) this.timer = setTimeout(() => this.poll(), EVERY);
  }

  gauges(found) {
    const now = performance.now(), before = this.before;
    this.before = { now, found };
    for (const { id, name, rate, share } of GAUGES) {
      let value = found.get(name);
      if (rate) value = before && found.has(name) ? Math.max(0, 1000 * (value - before.found.get(name)) / (now - before.now)) : undefined;
      const { value: box, path } = this.tiles.get(id);
      if (value === undefined || Number.isNaN(value)) continue;
      box.textContent = share ? `${(100 * value).toFixed(1)}%` : count(Math.round(value));
      const series = [...(this.series.get(id) || []), value].slice(-KEPT), high = Math.max(...series, share ? 1 : 1e-9);
      this.series.set(id, series);
      path.setAttribute("points", series.map((each, i) => `${KEPT - series.length + i},${(19 - 18 * each / high).toFixed(1)}`).join(" "));
    }
  }

  lines() {
    at("server-curl").textContent = this.curl();
    at("server-python").textContent = this.python();
  }

  body() {
    const { model, settings } = this.app, text = this.app.text() || "Once upon a time";
    const asked = model.chat ? { messages: [{ role: "user", content: text }] } : { prompt: text };
    return { model: model.name, ...asked, ...settings.request() };
  }

  curl() {
    const { model } = this.app, path = model.generates ? (model.chat ? "/v1/chat/completions" : "/v1/completions") : "/v1/embeddings";
    const body = model.generates ? this.body() : { model: model.name, input: this.app.text() || "a text" };
    const quoted = JSON.stringify(body, null, 1).replaceAll("'", "'\\''");
    const key = keyFor(here) ? ' \\\n  -H "Authorization: Bearer $OPENAI_API_KEY"' : "";
    return `curl ${here}${path} \\\n  -H 'Content-Type: application/json'${key} \\\n  -d '${quoted}'`;
  }

  python() {
    const { model } = this.app, key = keyFor(here) ? "" : ', api_key="none"';
    const head = `from openai import OpenAI\n\nclient = OpenAI(base_url="${here}/v1"${key})\n`;
    if (!model.generates) return `${head}answer = client.embeddings.create(model=${pythonText(model.name)}, input=${pythonText(this.app.text() || "a text")})\nprint(answer.data[0].embedding[:8])`;
    const { top_k, min_p, ...known } = this.body(), ours = Object.entries({ top_k, min_p }).filter(([, value]) => value !== undefined);
    const fields = Object.entries(known).map(([name, value]) => `    ${name}=${pythonText(value)},`);
    if (ours.length) fields.push(`    extra_body={${ours.map(([name, value]) => `"${name}": ${value}`).join(", ")}},`);
    const [call, said] = model.chat ? ["chat.completions", "message.content"] : ["completions", "text"];
    return `${head}answer = client.${call}.create(\n${fields.join("\n")}\n)\nprint(answer.choices[0].${said})`;
  }

  async copy(kind) {
    const text = at(`server-${kind}`).textContent, note = at("server-copied");
    try {
      await navigator.clipboard.writeText(text);
      note.textContent = `Copied: the lines for ${kind === "curl" ? "curl" : "Python"}.`;
    } catch {
      const range = document.createRange();
      range.selectNodeContents(at(`server-${kind}`));
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      note.textContent = "Selected: copy it with the keys of your system.";
    }
  }

  recolour() {}
}

/* JSON is Python too, but for its three words; a text never holds them bare. */
function pythonText(value) {
  return typeof value === "object" ? JSON.stringify(value) : value === true ? "True" : value === false ? "False" : JSON.stringify(value);
}
