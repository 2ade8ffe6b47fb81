/* The screen that puts two settings, or two servers, beside each other on one text. */
import { ask, events, here, originOf } from "./api.js";
import { Strip } from "./chips.js";
import { at, plain } from "./dom.js";
import { shade } from "./heat.js";
import { knobs } from "./knobs.js";
import { bitsOf, sampled } from "./sampling.js";
import { TokenStrip, completionReader, joined, nameOf } from "./tokens.js";
import { count } from "./words.js";

const SIDES = ["a", "b"];
/* Bits of difference at which a chip has its full colour. */
const FULL_APART = 6;

/* Bits that a token takes under settings; infinite, if it can't be drawn. */
function costUnder(token, values, vocabulary) {
  if (!token.top) return null;
  const place = token.top.findIndex((each) => each.id === token.id);
  const { shares, rest } = sampled(token.top.slice(0, 20), values, vocabulary);
  if (place >= 0 && place < 20) return -Math.log2(shares[place]);
  return rest > 0 ? bitsOf(token.logprob) : Infinity;
}

/* Two ways to cut one text into tokens, as the parts at whose ends both have an end. */
export function aligned(left, right) {
  const parts = [];
  let i = 0, j = 0, ends = [0, 0], part = { text: "", a: 0, b: 0, known: true };
  const add = (token, side) => {
    if (token.logprob === null || token.logprob === undefined) part.known = false;
    else part[side] += bitsOf(token.logprob);
  };
  while (i < left.length || j < right.length) {
    const first = ends[0] <= ends[1] && i < left.length || j >= right.length;
    if (first) {
      part.text += left[i].text;
      ends[0] += left[i].text.length;
      add(left[i++], "a");
    } else {
      ends[1] += right[j].text.length;
      add(right[j++], "b");
    }
    if (ends[0] !== ends[1]) continue;
    parts.push(part);
    part = { text: "", a: 0, b: 0, known: true };
  }
  return part.text ? [...parts, part] : parts;
}

export class Compare {
  constructor(app) {
    Object.assign(this, { app, running: null });
    this.settings = { a: app.settings.copy(), b: app.settings.copy() };
    this.settings.b.set("temperature", Math.min(2, this.settings.a.values.temperature + 0.5));
    this.strips = {};
    for (const side of SIDES) {
      knobs(at(`compare-knobs-${side}`), this.settings[side], `compare-${side}`);
      this.strips[side] = new TokenStrip(at(`compare-tokens-${side}`), (place) => this.choose(side, place));
    }
    this.parts = [];
    this.apart = new Strip(at("compare-apart"), (place) => this.explain(place));
    at("compare-go").addEventListener("click", () => this.go());
    at("compare-score").addEventListener("click", () => this.score());
    at("compare-stop").addEventListener("click", () => this.stop());
    at("compare-text").addEventListener("input", () => app.remember());
  }

  key(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.go();
    else if (event.key === "Escape" && this.running) this.stop();
    else return false;
    return true;
  }

  get prompt() {
    return at("compare-text").value;
  }

  set prompt(text) {
    at("compare-text").value = text;
  }

  choose(side, place) {
    this.strips[side].press(place);
    const token = this.strips[side].tokens[place];
    at(`compare-said-${side}`).textContent = this.strips[side].title(token, place);
  }

  stop() {
    if (this.running) this.running.abort();
  }

  origins() {
    return { a: here, b: originOf(at("compare-url").value) };
  }

  /* The name under which a server has its model. */
  async nameAt(origin, signal) {
    if (origin === here) return this.app.model.name;
    const models = await ask("/v1/models", undefined, { origin, signal });
    return models.data[0].id;
  }

  /* Run something that can be stopped, and say what became of it. */
  async run(work) {
    if (this.running) return;
    this.running = new AbortController();
    const { signal } = this.running;
    at("compare-error").textContent = "";
    at("compare-status").textContent = "Asking both\u2026";
    at("compare-stop").hidden = false;
    at("compare-go").disabled = at("compare-score").disabled = true;
    try {
      at("compare-status").textContent = await work(signal);
    } catch (error) {
      at("compare-status").textContent = error.name === "AbortError" ? "Stopped." : "";
      if (error.name !== "AbortError") at("compare-error").textContent = error.message;
    } finally {
      this.running = null;
      at("compare-stop").hidden = true;
      at("compare-go").disabled = at("compare-score").disabled = false;
    }
  }

  /* Both continue the text. */
  go() {
    return this.run(async (signal) => {
      const origins = this.origins(), prompt = this.prompt, other = origins.b !== here;
      this.results(true);
      const texts = await Promise.all(SIDES.map((side) => this.stream(side, origins[side], prompt, signal)));
      if (other) {
        const [a, b] = await this.scored(prompt + texts[0], origins, signal);
        this.differ(aligned(a, b), "What A wrote, scored by both servers.");
      } else this.settled();
      return texts[0] === texts[1] ? "Both wrote the same." : this.part();
    });
  }

  /* Mark where the two part. */
  part() {
    const [a, b] = SIDES.map((side) => this.strips[side].tokens);
    let same = 0;
    while (same < a.length && same < b.length && a[same].text === b[same].text) same++;
    for (const side of SIDES) {
      const token = this.strips[side].tokens[same], chip = this.strips[side].chips[same];
      if (token) token.mark = "parts";
      if (chip) chip.classList.add("parts");
    }
    return same ? `They part after ${count(same)} ${same === 1 ? "token" : "tokens"}, at the mark.` : "They part at once.";
  }

  /* What is there is scored by both, and nothing written. */
  score() {
    return this.run(async (signal) => {
      const origins = this.origins();
      this.results(false);
      const [a, b] = await this.scored(this.prompt, origins, signal);
      if (origins.b === here) this.differ(this.under(a), "The text under both settings.");
      else this.differ(aligned(a, b), "The text, scored by both servers.");
      return `${count(a.length)} tokens scored.`;
    });
  }

  results(written) {
    at("compare-results").hidden = !written;
    at("compare-difference").hidden = true;
    for (const side of SIDES) {
      this.strips[side].set([]);
      at(`compare-said-${side}`).textContent = "";
    }
  }

  async stream(side, origin, prompt, signal) {
    const strip = this.strips[side];
    const body = {
      model: await this.nameAt(origin, signal), prompt, stream: true, logprobs: 20, return_token_ids: true,
      ...this.settings[side].request(),
    };
    const tokensOf = completionReader(false);
    for await (const event of events("/v1/completions", body, { signal, origin })) {
      const choice = event.choices && event.choices[0];
      if (choice) strip.add(tokensOf(choice));
    }
    return joined(strip.tokens);
  }

  scored(prompt, origins, signal) {
    return Promise.all(SIDES.map(async (side) => {
      const origin = origins[side];
      const body = { model: await this.nameAt(origin, signal), prompt, max_tokens: 0, echo: true, logprobs: 20, return_token_ids: true };
      return completionReader(true)((await ask("/v1/completions", body, { signal, origin })).choices[0]);
    }));
  }

  /* Both settings on the same tokens, from what is known of each. */
  under(tokens) {
    const { vocab } = this.app.model;
    return tokens.map((token) => {
      const [a, b] = SIDES.map((side) => costUnder(token, this.settings[side].values, vocab));
      return { text: token.text, a, b, known: a !== null && b !== null };
    });
  }

  settled() {
    this.differ(this.under(this.strips.a.tokens), "What A wrote, under both settings.");
  }

  differ(parts, title) {
    this.parts = parts;
    const known = parts.filter((part) => part.known && Number.isFinite(part.a) && Number.isFinite(part.b));
    const never = SIDES.map((side) => [side.toUpperCase(), parts.filter((part) => part[side] === Infinity).length]).filter(([, some]) => some);
    const sum = (side) => known.reduce((total, part) => total + part[side], 0);
    at("compare-difference").hidden = !parts.length;
    at("compare-about").textContent = `${title} A chip has the bits that B takes more than A; the colour is that of whom it surprises more.`;
    at("compare-sums").textContent = [
      ...never.map(([side, some]) => `${side} would never write ${count(some)} of the ${count(parts.length)} tokens.`),
      known.length ? `On ${never.length ? "the others" : "all of them"}: A ${bitsText(sum("a"))}, B ${bitsText(sum("b"))} bits, ${bitsText((sum("b") - sum("a")) / known.length, true)} a token.` : "",
    ].join(" ");
    this.apart.fill(parts.map((part, place) => ({ text: nameOf(part.text), title: this.sentence(place) })));
    this.colours();
  }

  sentence(place) {
    const { text, a, b, known } = this.parts[place];
    const said = `${place}: ${JSON.stringify(plain(nameOf(text)))}`;
    return known ? `${said}, A ${bitsText(a)}, B ${bitsText(b)} bits, ${bitsText(b - a, true)}` : `${said}, not scored`;
  }

  explain(place) {
    this.apart.press(place);
    at("compare-one").textContent = this.sentence(place);
  }

  colours() {
    this.apart.chips.forEach((chip, place) => {
      const { a, b, known } = this.parts[place];
      if (!known) return;
      // Where neither can draw it, they do not differ.
      const apart = a === b ? 0 : b - a;
      shade(chip, Math.abs(apart) / FULL_APART, apart > 0 ? "more" : "less");
      chip.dataset.bits = bitsText(apart, true);
    });
  }

  recolour() {
    for (const side of SIDES) this.strips[side].recolour();
    this.colours();
  }
}

function bitsText(bits, signed = false) {
  if (Number.isNaN(bits)) return "0.0";
  if (Math.abs(bits) === Infinity) return "never";
  const size = Math.abs(bits).toFixed(1);
  return signed ? `${bits < 0 ? "\u2212" : "+"}${size}` : size;
}
