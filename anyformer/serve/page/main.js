/* The page of the server: five screens, one of which is shown, and the address that says which. */
import { Refusal, ask, forgetKey, keepKey, keyFor, onLocked } from "./api.js";
import { Chat } from "./chat.js";
import { Compare } from "./compare.js";
import { at, grow, root } from "./dom.js";
import { mix } from "./heat.js";
import { Inside } from "./inside.js";
import { Server } from "./server.js";
import { KNOBS, Settings, readAddress, writeAddress } from "./settings.js";
import { count, pieceOf } from "./words.js";
import { Write } from "./write.js";

const SCREENS = { write: Write, chat: Chat, inside: Inside, compare: Compare, server: Server };
const RAMPS = ["heat", "surprise", "entropy", "more", "less"];

class App {
  constructor(model, settings, before) {
    Object.assign(this, { model, settings, ...before, screen: null, source: null, timer: 0 });
    const usable = { write: model.generates, chat: model.generates && model.chat, inside: true, compare: model.generates, server: true };
    this.names = Object.keys(SCREENS).filter((name) => usable[name]);
    this.screens = Object.fromEntries(this.names.map((name) => [name, new SCREENS[name](this)]));
    settings.onChange(() => this.remember());
  }

  /* The text that the screens share. */
  text() {
    const { write, inside } = this.screens;
    return (write || inside).prompt;
  }

  remember() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.keep(), 250);
  }

  keep() {
    // Another screen was asked for, of which the page has yet to hear.
    const { screen } = readAddress(location.hash, this.names);
    if (screen && screen !== this.screen) return;
    const shown = this.screens[this.screen], prompt = shown && shown.prompt !== undefined ? shown.prompt : this.text();
    const address = writeAddress(this.screen, this.settings, prompt);
    if (location.hash !== address) history.replaceState(null, "", address);
  }

  /* Do what the address says. */
  async follow() {
    const { screen, values, prompt } = readAddress(location.hash, this.names);
    for (const [name, value] of Object.entries(values)) this.settings.set(name, value);
    if (prompt !== null) {
      for (const each of Object.values(this.screens)) if (each.prompt !== undefined && each.prompt !== prompt) each.prompt = prompt;
    }
    await this.show(screen || this.names.find((name) => name === "chat") || this.names[0]);
  }

  async show(name) {
    const before = this.screen, screen = this.screens[name];
    this.screen = name;
    for (const each of Object.keys(SCREENS)) {
      at(`screen-${each}`).hidden = each !== name;
      at(`tab-${each}`).toggleAttribute("aria-current", each === name);
      if (each === name) at(`tab-${each}`).setAttribute("aria-current", "page");
    }
    document.title = `${at(`tab-${name}`).textContent} \u00b7 ${this.model.name}`;
    if (before !== name) {
      if (before && this.screens[before].close) this.screens[before].close();
      if (["write", "chat"].includes(before)) this.source = before;
      if (name === "inside") await this.inside();
      else if (name === "compare" && !screen.prompt) screen.prompt = this.text();
      if (name !== "inside" && screen.open) screen.open();
    }
    this.remember();
  }

  /* What was last written or said is what is looked into. */
  async inside() {
    const source = this.screens[this.source], { inside } = this.screens;
    try {
      const given = source ? await source.present() : null;
      if (given && this.source === "write" && given.ids) given.chosen = (place) => source.choose(place, true);
      await inside.open(given);
    } catch (error) {
      at("inside-error").textContent = error.message;
    }
  }

  recolour() {
    mix(RAMPS);
    Object.values(this.screens).forEach((screen) => screen.recolour());
  }
}

/* Let the user type the key of a server; it stays in this tab. */
function askForKey(origin) {
  const box = at("key-dialog"), field = at("key-field");
  at("key-about").textContent = `${new URL(origin).host} answers only with an API key. It is kept in this tab, until you close it.`
    + (keyFor(origin) ? " The one that was given is not right." : "");
  forgetKey(origin);
  field.value = "";
  return new Promise((told) => {
    const close = () => {
      box.removeEventListener("close", close);
      if (field.value) keepKey(origin, field.value);
      told(Boolean(field.value));
      field.value = "";
    };
    box.addEventListener("close", close);
    if (!box.open) box.showModal();
  });
}

function listen(app) {
  addEventListener("hashchange", () => app.follow());
  addEventListener("keydown", (event) => {
    if (!event.defaultPrevented && !at("key-dialog").open && app.screens[app.screen].key(event)) event.preventDefault();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => app.recolour());
  at("skip").addEventListener("click", (event) => {
    event.preventDefault();
    at("content").focus();
  });
}

function header(model, app) {
  at("name").textContent = model.name;
  for (const name of Object.keys(SCREENS)) at(`tab-${name}`).hidden = !app.names.includes(name);
  const kinds = { decoder: "decoder", encoder: "encoder", "encoder-decoder": "encoder-decoder" };
  at("about").textContent = [kinds[model.topology] || model.topology, `${count(model.max_model_len)} tokens of context`, `${count(model.vocab)} in the vocabulary`].join("  \u00b7  ");
}

function usual(model) {
  const known = Object.entries(model.defaults || {}).filter(([name, value]) => value !== null && KNOBS.some((knob) => knob.name === name));
  for (const [name, value] of known) {
    const knob = KNOBS.find((each) => each.name === name);
    if (typeof value === "number" && name !== "max_tokens") knob.usual = Math.min(knob.most, Math.max(knob.low, value));
  }
}

/* What the tokenizer puts before every text: ids, and perhaps a blank, which nobody typed. */
async function before() {
  const read = (content) => ask("/tokenize", { content, add_special_tokens: true, with_pieces: true }).then((answer) => answer.tokens, () => []);
  const [empty, letter] = await Promise.all([read(""), read("a")]);
  const last = letter[letter.length - 1];
  return { prefix: empty.map((each) => each.id), blank: Boolean(last) && pieceOf(last.piece) === " a" };
}

async function start() {
  onLocked(askForKey);
  at("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    at("key-dialog").close();
  });
  at("key-cancel").addEventListener("click", () => {
    at("key-field").value = "";
    at("key-dialog").close();
  });
  mix(RAMPS);
  await open();
}

async function open() {
  at("start").hidden = true;
  try {
    const model = await ask("/api/model");
    usual(model);
    const app = new App(model, new Settings(), model.generates ? await before() : {});
    header(model, app);
    listen(app);
    await app.follow();
    at("tabs").hidden = at("content").hidden = false;
    root.dataset.ready = "yes";
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    const again = grow("button", { type: "button", class: "primary" }, "Try again");
    again.addEventListener("click", () => open());
    at("start").replaceChildren(grow("p", { class: "error", role: "alert" }, error.message), again);
    at("start").hidden = false;
    root.dataset.ready = "no";
  }
}

start().catch((error) => { root.dataset.error = String(error); throw error; });
