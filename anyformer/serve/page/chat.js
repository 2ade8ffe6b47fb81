/* The screen on which messages are exchanged. Every message can be said again, differently; all versions stay. */
import { ask, events } from "./api.js";
import { at, grow, make, visible } from "./dom.js";
import { knobs } from "./knobs.js";
import { Panel } from "./panel.js";
import { TokenStrip, chatTokens, joined } from "./tokens.js";
import { Tree } from "./tree.js";
import { count, pieceOf, typing } from "./words.js";

/* Characters of a message that are drawn. */
const LONGEST_SHOWN = 100_000;
const NAMES = { user: "You", assistant: "Model" };

function button(text, label, act) {
  const made = grow("button", { type: "button", class: "quiet", "aria-label": label }, text);
  made.addEventListener("click", act);
  return made;
}

export class Chat {
  constructor(app) {
    Object.assign(this, { app, tree: new Tree(), running: null, layer: false, drawn: [], chosen: null, frame: 0 });
    this.panel = new Panel(at("chat-panel"), {
      name: "chat", settings: app.settings, vocabulary: app.model.vocab, take: (...args) => this.fork(...args),
      back: () => this.chosen && this.chosen.view.strip.chips[this.chosen.place].focus(),
    });
    knobs(at("chat-knobs"), app.settings, "chat");
    this.read = new TokenStrip(at("chat-read"));
    at("chat-send").addEventListener("click", () => this.send());
    at("chat-stop").addEventListener("click", () => this.stop());
    at("chat-layer").addEventListener("click", () => this.toggle());
    at("chat-new").addEventListener("click", () => this.clear());
    at("chat-read-box").addEventListener("toggle", () => this.rendered());
    at("chat-text").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.send();
    });
    this.draw();
  }

  key(event) {
    if (event.key === "Escape" && this.running) this.stop();
    else if (event.key.toLowerCase() === "p" && !typing(event) && !event.ctrlKey && !event.metaKey && !event.altKey) this.toggle();
    else return false;
    return true;
  }

  /* Tokens over the answers, or plain text. */
  toggle() {
    this.layer = !this.layer;
    at("chat-layer").setAttribute("aria-pressed", String(this.layer));
    this.draw();
  }

  clear() {
    this.stop();
    this.tree = new Tree();
    this.draw();
    this.fail("");
    at("chat-text").focus();
  }

  messages(until = this.tree.leaf) {
    const system = at("chat-system").value.trim();
    const said = this.tree.path(until).map(({ role, content }) => ({ role, content }));
    return system ? [{ role: "system", content: system }, ...said] : said;
  }

  async send() {
    const box = at("chat-text"), content = box.value;
    if (!content.trim() || this.running) return;
    box.value = "";
    this.tree.leaf = this.tree.walk(this.tree.leaf, { role: "user", content });
    await this.answer();
  }

  /* Another answer to the message before. */
  async regenerate(node) {
    await this.stop();
    this.tree.leaf = node.parent;
    await this.answer();
  }

  /* Cut an answer at a token, put another one there, and let the model go on. */
  async fork(place, alternative, top) {
    await this.stop();
    const { node } = this.chosen;
    const kept = [...node.tokens.slice(0, place), { ...alternative, top }];
    this.tree.leaf = node.parent;
    await this.answer(kept);
  }

  async answer(kept = []) {
    await this.stop();
    const asked = this.tree.leaf, stop = new AbortController();
    const node = this.tree.walk(asked, { role: "assistant", content: joined(kept), tokens: [...kept], ids: true });
    this.tree.leaf = node;
    let done;
    this.running = { stop, done: new Promise((end) => { done = end; }) };
    this.busy(true);
    this.fail("");
    this.draw();
    const view = this.drawn[this.drawn.length - 1];
    const body = {
      model: this.app.model.name, messages: this.messages(kept.length ? node : asked), stream: true, logprobs: true, top_logprobs: 20,
      return_token_ids: true, stream_options: { include_usage: true }, ...this.app.settings.request(),
    };
    if (kept.length) Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
    let status = "";
    try {
      status = await this.stream(body, stop.signal, node, view);
    } catch (error) {
      if (error.name === "AbortError") status = "Stopped.";
      else this.fail(error.message);
    } finally {
      this.running = null;
      this.busy(false);
      at("chat-status").textContent = status;
      this.draw();
      this.rendered();
      done();
    }
  }

  async stream(body, signal, node, view) {
    let usage = null, reason = "";
    for await (const event of events("/v1/chat/completions", body, { signal })) {
      usage = event.usage || usage;
      const choice = event.choices && event.choices[0];
      if (!choice) continue;
      reason = choice.finish_reason || reason;
      const tokens = chatTokens(choice);
      node.tokens.push(...tokens);
      node.content += (choice.delta && choice.delta.content) || "";
      if (this.layer) view.strip.add(tokens);
      else this.later(view);
    }
    const made = usage ? usage.completion_tokens : node.tokens.length;
    return `${count(made)} ${made === 1 ? "token" : "tokens"}${reason === "length" ? ", as many as were asked for" : ""}.`;
  }

  later(view) {
    if (!this.frame) this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      view.draw();
    });
  }

  async stop() {
    if (!this.running) return;
    const { stop, done } = this.running;
    stop.abort();
    await done;
  }

  busy(runs) {
    at("chat-stop").hidden = !runs;
    at("chat-send").hidden = runs;
    if (runs) at("chat-status").textContent = "Answering\u2026";
  }

  fail(text) {
    at("chat-error").textContent = text;
  }

  draw() {
    const path = this.tree.path();
    this.drawn = path.map((node) => this.view(node));
    this.chosen = null;
    this.panel.show(null, 0, this.layer ? "Point at a token of an answer, or walk there with the arrow keys." : "Press P, or Tokens above, to see the tokens of the answers.");
    at("chat-messages").replaceChildren(...this.drawn.map((each) => each.element));
    at("chat-empty").hidden = path.length > 0;
  }

  view(node) {
    const element = grow("article", { class: `message ${node.role}`, "aria-label": NAMES[node.role] }), body = grow("div", { class: "text", dir: "auto" });
    element.append(make("h3", "", NAMES[node.role]), body);
    const view = { node, element, strip: null, draw: () => undefined };
    if (this.layer && node.tokens && node.tokens.length + (this.running ? 1 : 0)) {
      body.className = "chips flow";
      body.setAttribute("role", "group");
      body.setAttribute("aria-label", "tokens of the answer");
      view.strip = new TokenStrip(body, (place) => this.choose(view, place));
      view.strip.add(node.tokens);
    } else {
      const text = document.createTextNode("");
      let shown = 0;
      body.append(text);
      view.draw = () => {
        const until = Math.min(node.content.length, LONGEST_SHOWN);
        if (until > shown) text.appendData(visible(node.content.slice(shown, until), "\n\t\u200d"));
        shown = until;
        if (node.content.length > LONGEST_SHOWN) body.dataset.more = `${count(node.content.length - LONGEST_SHOWN)} more characters are not shown`;
      };
      view.draw();
    }
    if (!(this.running && node === this.tree.leaf)) element.append(this.tools(view));
    return view;
  }

  tools({ node, element }) {
    const box = make("div", "tools"), beside = node.parent.children, place = beside.indexOf(node);
    if (beside.length > 1) {
      const turn = (step, sign, label) => {
        const made = button(sign, label, () => this.turn(beside[place + step]));
        made.disabled = !beside[place + step];
        return made;
      };
      box.append(turn(-1, "\u2039", "version before"), make("span", "of", `${place + 1} of ${beside.length}`), turn(1, "\u203a", "version after"));
    }
    box.append(button("Edit", `edit what ${node.role === "user" ? "you" : "the model"} said`, () => this.edit(node, element)));
    if (node.role === "assistant") box.append(button("Again", "again, another answer", () => this.regenerate(node)));
    return box;
  }

  async turn(node) {
    await this.stop();
    this.tree.visit(node);
    this.draw();
    this.rendered();
  }

  edit(node, element) {
    const area = grow("textarea", { rows: Math.min(12, 2 + node.content.split("\n", 12).length), "aria-label": "the message, to be edited" });
    area.value = node.content;
    const save = async () => {
      if (!area.value.trim()) return;
      await this.stop();
      const edited = { role: node.role, content: area.value };
      this.tree.leaf = this.tree.walk(node.parent, node.role === "user" ? edited : { ...edited, tokens: [] });
      if (node.role === "user") await this.answer();
      else this.draw();
    };
    const kept = grow("button", { type: "button", class: "primary" }, node.role === "user" ? "Send" : "Keep");
    kept.addEventListener("click", save);
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.draw();
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save();
    });
    element.replaceChildren(make("h3", "", NAMES[node.role]), area, grow("div", { class: "tools" }, kept, button("Cancel", "cancel, leave it as it was", () => this.draw())));
    area.focus();
  }

  choose(view, place) {
    if (this.chosen && this.chosen.view !== view) this.chosen.view.strip.press(-1);
    this.chosen = { view, node: view.node, place };
    view.strip.press(place);
    this.panel.show(view.strip.tokens[place], place);
  }

  /* What the template makes of the messages, if it is looked at. */
  async rendered() {
    if (!at("chat-read-box").open) return;
    const note = at("chat-read-note"), path = this.tree.path();
    try {
      if (!path.length) {
        this.read.set([]);
        note.textContent = "Nothing yet: say something first.";
        return;
      }
      const answer = await this.template();
      this.read.set(answer.pieces.map(({ id, piece, special }) => ({ id, text: pieceOf(piece), special })));
      note.textContent = `${count(answer.pieces.length)} tokens; those with a dashed frame are special, no text makes them.`;
    } catch (error) {
      note.textContent = error.message;
    }
  }

  template() {
    const path = this.tree.path(), asked = path[path.length - 1].role === "assistant" ? path[path.length - 2] : path[path.length - 1];
    return ask("/apply-template", { messages: this.messages(asked) });
  }

  async present() {
    const path = this.tree.path(), last = path[path.length - 1];
    if (!last) return { ids: null, text: "", place: null };
    const { tokens, prompt } = await this.template();
    const answer = last.role === "assistant" ? last.tokens || [] : [];
    const known = answer.every((token) => token.id !== undefined);
    const ids = known ? [...tokens, ...answer.map((token) => token.id)] : tokens;
    return { ids, text: prompt + (known ? joined(answer) : ""), place: ids.length - 1 };
  }

  recolour() {
    for (const { strip } of this.drawn) if (strip) strip.recolour();
  }
}
