/* Tokens with what the model thought of them: read from answers, and shown as a row of coloured chips that grows. */
import { Strip } from "./chips.js";
import { make, plain, shorten } from "./dom.js";
import { shade } from "./heat.js";
import { bitsOf, entropyOf } from "./sampling.js";

/* Bits at which a chip has its full colour, by what colours mean. */
const FULL_BITS = { surprise: 10, entropy: 5 };
/* Chips that one frame may draw. */
const MOST_AT_ONCE = 64;
const BYTES = /^bytes:((?:\\x[0-9a-fA-F]{2})+)$/;
const encoder = new TextEncoder();

/* The bytes of a token; of one that is no text, its name spells them. */
export function bytesOf(text) {
  const found = text.length < 400 && text.match(BYTES);
  return found ? Uint8Array.from(found[1].slice(2).split("\\x"), (each) => parseInt(each, 16)) : encoder.encode(text);
}

/* What is written on a chip. */
export const nameOf = (text) => (text.startsWith("bytes:\\x") && text.length < 400 ? text.slice(6) : text);

export function joined(tokens) {
  const parts = tokens.map((token) => bytesOf(token.text));
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let place = 0;
  for (const part of parts) {
    whole.set(part, place);
    place += part.length;
  }
  return new TextDecoder().decode(whole);
}

/* Reads the choices of one completion, as tokens {id, text, logprob, top}. Ids may come before what is known of them. */
export function completionReader(echo) {
  const ids = [];
  return (choice) => {
    if (echo) ids.push(...(choice.prompt_token_ids || []));
    ids.push(...(choice.token_ids || []));
    const { logprobs } = choice;
    if (!logprobs || !logprobs.tokens) return [];
    return logprobs.tokens.map((text, i) => ({ id: ids.shift(), text, logprob: logprobs.token_logprobs[i], top: topOf(logprobs, i) }));
  };
}

/* Pairs of ids and log-probs, whose texts stand in another table under the same log-prob. */
function topOf(logprobs, i) {
  const pairs = logprobs.top_ids && logprobs.top_ids[i], named = logprobs.top_logprobs && logprobs.top_logprobs[i];
  if (!pairs) return null;
  const texts = new Map();
  for (const [text, logprob] of Object.entries(named || {})) {
    if (texts.has(logprob)) texts.get(logprob).push(text);
    else texts.set(logprob, [text]);
  }
  return pairs.map(([id, logprob, given]) => {
    const found = texts.get(logprob) || [];
    const own = found.indexOf(`token_id:${id}`);
    const text = given !== undefined ? given : own >= 0 ? found.splice(own, 1)[0] : found.shift();
    return { id, logprob, text: text === undefined ? `token_id:${id}` : text };
  });
}

/* The same of a chat. */
export function chatTokens(choice) {
  const content = (choice.logprobs && choice.logprobs.content) || [];
  const read = ({ id, token, bytes, logprob }) => ({ id, logprob, text: textOf(token, bytes) });
  return content.map((each) => ({ ...read(each), top: each.top_logprobs ? each.top_logprobs.map(read) : null }));
}

/* A part of a character is told by its bytes. */
function textOf(token, bytes) {
  if (!bytes || !token.includes("\ufffd")) return token;
  return `bytes:${bytes.map((each) => `\\x${each.toString(16).padStart(2, "0")}`).join("")}`;
}

/* Place among the likeliest, or null where it is not one of them. */
export function rankOf(token) {
  const place = (token.top || []).findIndex((each) => each.id === token.id);
  return place < 0 || place >= 20 ? null : place + 1;
}

export function measure(token, by) {
  if (by === "entropy") return token.top ? entropyOf(token.top) : null;
  return token.logprob === null || token.logprob === undefined ? null : bitsOf(token.logprob);
}

export class TokenStrip extends Strip {
  constructor(box, choose) {
    super(box, choose);
    this.tokens = [];
    this.drawn = 0;
    this.by = "surprise";
    this.frame = 0;
    this.onDrawn = () => undefined;
  }

  set(tokens) {
    this.tokens = [...tokens];
    this.drawn = 0;
    this.fill([]);
    this.later();
  }

  add(tokens) {
    for (const token of tokens) this.tokens.push(token);
    this.later();
  }

  /* Take the tokens from a place on away. */
  cut(place) {
    this.tokens.length = Math.min(this.tokens.length, place);
    if (this.drawn <= place) return;
    const last = this.chips[place - 1];
    while (this.box.lastChild && this.box.lastChild !== last) this.box.lastChild.remove();
    this.chips.length = this.drawn = place;
    if (this.pressed >= place) this.pressed = -1;
  }

  later() {
    if (!this.frame) this.frame = requestAnimationFrame(() => this.draw());
  }

  /* Chips of what came since the last frame, and not more than fit into one. */
  draw() {
    this.frame = 0;
    const grown = document.createDocumentFragment(), until = Math.min(this.tokens.length, this.drawn + MOST_AT_ONCE);
    for (; this.drawn < until; this.drawn++) {
      const token = this.tokens[this.drawn], name = nameOf(token.text);
      const chip = this.chip({ text: name, title: this.title(token, this.drawn) });
      if (token.special) chip.classList.add("special");
      if (token.mark) chip.classList.add(token.mark);
      this.colour(chip, token);
      grown.append(chip);
      if (shorten(name).endsWith("\n")) grown.append(make("br"));
    }
    this.box.append(grown);
    if (this.drawn < this.tokens.length) this.later();
    this.onDrawn();
  }

  title(token, place) {
    const bits = measure(token, "surprise");
    return `${place}: ${JSON.stringify(plain(nameOf(token.text)))}, id ${token.id}${bits === null ? "" : `, ${bits.toFixed(2)} bits`}`;
  }

  colour(chip, token) {
    const bits = measure(token, this.by);
    if (bits === null) return;
    shade(chip, bits / FULL_BITS[this.by], this.by);
    chip.dataset.bits = bits.toFixed(1);
  }

  /* Scores that came after the chip. */
  again(place) {
    const chip = this.chips[place];
    if (!chip) return;
    chip.title = this.title(this.tokens[place], place);
    this.colour(chip, this.tokens[place]);
  }

  recolour(by = this.by) {
    this.by = by;
    this.chips.forEach((chip, place) => this.colour(chip, this.tokens[place]));
  }
}
