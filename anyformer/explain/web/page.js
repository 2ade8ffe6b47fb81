"use strict";
const root = document.documentElement;
const at = (id) => document.getElementById(id);
const data = JSON.parse(at("data").textContent);
const lists = { tokens: data.ids, source: data.source || [] };
const state = { token: data.ids.length - 1, pinned: data.ids.length - 1, layer: data.first.attention, head: data.first.head, row: 0 };
const unpacked = new Map();
const chips = { tokens: [], source: [], from: [], to: [] };
const thumbs = [];

function make(tag, name, text) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
}

/* A source may have a vocabulary of its own, in which an id says something else. */
const textsOf = (list) => (list === "source" ? data.source_texts : data.texts);
const words = { "\n": "\u21b5", "\t": "\u21e5", "\r": "\u240d" };
function plain(token, texts = data.texts) {
  const text = texts[token];
  const shown = text.replace(/[\n\t\r]/g, (sign) => words[sign]).replace(/[\u0000-\u001f\u007f-\u009f]/g, "\ufffd");
  return shown === "" ? "\u2205" : shown;
}

/* A token's text in an element: blanks at its ends are there to be seen. */
function write(element, token, texts) {
  const [, before, middle, after] = plain(token, texts).match(/^( *)([^]*?)( *)$/);
  element.replaceChildren();
  for (const [part, blank] of [[before, true], [middle, false], [after, true]]) {
    if (part) element.append(make("span", blank ? "blank" : "", blank ? "\u00b7".repeat(part.length) : part));
  }
  return element;
}

const percent = (share) => (share >= 0.9995 ? "100" : (100 * share).toFixed(share < 0.1 ? 2 : 1)) + "%";
const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim().split(/\s+/).map(Number);
let shades = [];

/* A colour for each of the 256 levels, from paper to ink of the theme. */
function mix() {
  const [from, to] = [colour("--heat-from"), colour("--heat-to")];
  shades = Array.from({ length: 256 }, (_, n) => from.map((low, i) => Math.round(low + (to[i] - low) * (n / 255))));
}

function shade(element, strength) {
  const [r, g, b] = shades[Math.round(255 * strength)];
  element.style.background = `rgb(${r} ${g} ${b})`;
  element.style.color = 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#10151f" : "#f4f6fb";
}

/* Chips that choose one token: by pointer, and with the arrow keys. */
function strip(id, list, choose) {
  const box = at(id), ids = lists[list];
  const texts = textsOf(list);
  chips[id] = ids.map((token, place) => {
    const chip = write(make(choose ? "button" : "span", "chip"), token, texts);
    chip.title = `${place}: ${JSON.stringify(texts[token])}, id ${token}`;
    if (choose) {
      chip.type = "button";
      chip.tabIndex = -1;
      chip.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && choose(place, false));
      chip.addEventListener("click", () => choose(place, true));
      chip.addEventListener("keydown", (event) => {
        const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
        const wanted = event.key === "Home" ? 0 : event.key === "End" ? ids.length - 1 : step ? place + step : -1;
        if (wanted < 0 || wanted >= ids.length) return;
        event.preventDefault();
        choose(wanted, true);
        chips[id][wanted].focus();
      });
    }
    return chip;
  });
  box.replaceChildren(...chips[id]);
}

function press(list, place) {
  list.forEach((chip, i) => {
    chip.setAttribute("aria-pressed", String(i === place));
    chip.tabIndex = i === place ? 0 : -1;
  });
}

function bars(id, pairs, marked, texts) {
  const highest = Math.max(...pairs.map((pair) => pair[1]), 1e-9);
  at(id).replaceChildren(...pairs.map(([token, share, place]) => {
    const line = make("li", token === marked ? "given" : "");
    const bar = make("span", "bar"), fill = make("i");
    fill.style.width = `${(100 * share / Math.max(highest, 0.25)).toFixed(1)}%`;
    bar.append(fill);
    const word = write(make("span", "word"), token, texts);
    if (place !== undefined) word.title = `token ${place}`;
    line.append(word, bar, make("span", "number", percent(share)));
    return line;
  }));
}

/* The token whose predictions and attention are shown. */
function choose(place, pin) {
  state.token = place;
  if (pin) state.pinned = place;
  press(chips.tokens, place);
  document.querySelectorAll("#table .on").forEach((cell) => cell.classList.remove("on"));
  document.querySelectorAll(`#table [data-place="${place}"]`).forEach((cell) => cell.classList.add("on"));
  if (data.predicts) {
    const follows = data.predicts === "next" ? place + 1 : place;
    const own = data.layers[data.layers.length - 1].top[place];
    bars("bars", own, data.ids[follows]);
    const title = at("next-title");
    title.replaceChildren(data.predicts === "next" ? "What comes after " : "What stands at ", write(make("code"), data.ids[place]));
    const given = data.given[follows];
    at("next-hint").textContent = given
      ? `The text has ${JSON.stringify(plain(data.ids[follows]))} there: ${percent(given[0])}, number ${given[1]} of the candidates.`
      : "The text ends here: this is what the model would say next.";
    root.dataset.top = plain(own[0][0]);
  }
  const shown = data.attention[state.layer];
  if (shown && shown.rows === "tokens") look(place, pin);
  if (pin) remember();
}

function table() {
  const made = make("table"), head = make("thead"), top = make("tr"), body = make("tbody");
  top.append(make("th", "", ""));
  data.ids.forEach((token, place) => {
    const cell = write(make("th"), token);
    cell.dataset.place = place;
    top.append(cell);
  });
  head.append(top);
  const last = data.layers[data.layers.length - 1];
  data.layers.forEach((layer) => {
    const line = make("tr", layer === last ? "own" : "");
    line.append(make("th", "", layer === last ? `${layer.name}, the answer` : layer.name));
    layer.top.forEach((candidates, place) => {
      const [token, share] = candidates[0];
      const cell = write(make("td", layer !== last && token === last.top[place][0][0] ? "same" : ""), token);
      cell.dataset.place = place;
      cell.dataset.share = share;
      cell.title = candidates.slice(0, 3).map(([each, p]) => `${plain(each)}  ${percent(p)}`).join("\n");
      line.append(cell);
    });
    body.append(line);
  });
  made.append(head, body);
  made.addEventListener("click", (event) => event.target.closest("[data-place]") && choose(+event.target.closest("[data-place]").dataset.place, true));
  at("table").replaceChildren(made);
}

async function weights(layer) {
  if (!unpacked.has(layer)) {
    const packed = Uint8Array.from(atob(data.attention[layer].data), (sign) => sign.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    unpacked.set(layer, new Uint8Array(await new Response(stream).arrayBuffer()));
  }
  return unpacked.get(layer);
}

function size(layer) {
  const { rows, columns } = data.attention[layer];
  return [lists[rows].length, lists[columns].length];
}

/* A matrix on a canvas, made smaller by keeping the highest of what falls together. */
function paint(canvas, values, offset, rows, columns, most) {
  const down = Math.max(1, Math.ceil(Math.max(rows, columns) / most));
  const high = Math.ceil(rows / down), wide = Math.ceil(columns / down);
  canvas.width = wide;
  canvas.height = high;
  const context = canvas.getContext("2d"), image = context.createImageData(wide, high);
  for (let y = 0; y < high; y++) {
    for (let x = 0; x < wide; x++) {
      let level = 0;
      for (let t = y * down; t < Math.min(rows, (y + 1) * down); t++) {
        for (let s = x * down; s < Math.min(columns, (x + 1) * down); s++) level = Math.max(level, values[offset + t * columns + s]);
      }
      image.data.set([...shades[level], 255], 4 * (y * wide + x));
    }
  }
  context.putImageData(image, 0, 0);
}

/* What one query of the chosen head takes. */
function look(row, pin) {
  const values = unpacked.get(state.layer);
  if (!values) return;
  const shown = data.attention[state.layer], [rows, columns] = size(state.layer);
  state.row = Math.min(row, rows - 1);
  press(chips.from, state.row);
  const start = (state.head * rows + state.row) * columns;
  const shares = Array.from(values.subarray(start, start + columns), (level) => (level / 255) ** 2);
  chips.to.forEach((chip, i) => shade(chip, Math.sqrt(shares[i])));
  const keys = lists[shown.columns];
  const most = shares.map((share, i) => [keys[i], share, i]).sort((a, b) => b[1] - a[1]).slice(0, 5).filter((pair) => pair[1] > 0);
  bars("most", most, undefined, textsOf(shown.columns));
  at("where").textContent = `${shown.name}, head ${state.head}: token ${state.row} ${JSON.stringify(plain(lists[shown.rows][state.row], textsOf(shown.rows)))}`;
  root.dataset.row = state.row;
  root.dataset.sum = shares.reduce((a, b) => a + b, 0).toFixed(2);
  root.dataset.most = most.length ? most[0][2] : "";
  cross();
  if (pin) remember();
}

/* The chosen head's matrix, and a frame around the row that is looked from. */
function cross() {
  const canvas = at("matrix"), [rows, columns] = size(state.layer), values = unpacked.get(state.layer);
  const small = document.createElement("canvas");
  paint(small, values, state.head * rows * columns, rows, columns, 1024);
  const side = Math.max(rows, columns), unit = Math.max(2, Math.floor(880 / side));
  canvas.width = columns * unit;
  canvas.height = rows * unit;
  canvas.style.aspectRatio = `${columns} / ${rows}`;
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, canvas.width, canvas.height);
  context.strokeStyle = getComputedStyle(root).getPropertyValue("--ink");
  context.lineWidth = Math.max(1.5, unit / 12);
  context.strokeRect(1, state.row * unit + 1, canvas.width - 2, Math.max(2, unit - 2));
}

async function pick(layer, head) {
  if (!data.attention.length) return;
  const before = state.layer;
  state.layer = Math.min(Math.max(layer, 0), data.attention.length - 1);
  const shown = data.attention[state.layer];
  state.head = Math.min(Math.max(head, 0), shown.heads - 1);
  await weights(state.layer);
  const select = at("head");
  if (before !== state.layer || select.options.length !== shown.heads) {
    select.replaceChildren(...Array.from({ length: shown.heads }, (_, n) => new Option(n, n)));
    strip("from", shown.rows, shown.rows === "tokens" ? choose : look);
    strip("to", shown.columns);
  }
  at("layer").value = state.layer;
  select.value = state.head;
  thumbs.forEach(({ button, layer: l, head: h }) => button.setAttribute("aria-pressed", String(l === state.layer && h === state.head)));
  root.dataset.selected = `${state.layer}.${state.head}`;
  look(shown.rows === "tokens" ? state.token : state.row, false);
  remember();
}

async function grid() {
  const rows = [];
  for (const [layer, shown] of data.attention.entries()) {
    const line = make("div", "row"), box = make("div");
    line.append(make("span", "", shown.name), box);
    const values = await weights(layer), [high, wide] = size(layer);
    for (let head = 0; head < shown.heads; head++) {
      const button = make("button", "thumb"), canvas = make("canvas");
      button.type = "button";
      button.title = `${shown.name}, head ${head}`;
      button.setAttribute("aria-label", button.title);
      button.addEventListener("click", () => pick(layer, head));
      paint(canvas, values, head * high * wide, high, wide, 64);
      button.append(canvas);
      box.append(button);
      thumbs.push({ button, layer, head, canvas });
    }
    rows.push(line);
  }
  at("grid").replaceChildren(...rows);
}

/* The address says what is shown, so that it can be sent to somebody. */
function remember() {
  const address = `#layer=${state.layer}&head=${state.head}&token=${state.pinned}`;
  if (location.hash !== address) history.replaceState(null, "", address);
}

async function recall() {
  const told = new URLSearchParams(location.hash.slice(1));
  const number = (name, usual) => (/^\d{1,6}$/.test(told.get(name) || "") ? +told.get(name) : usual);
  choose(Math.min(number("token", state.pinned), data.ids.length - 1), true);
  await pick(number("layer", state.layer), number("head", state.head));
}

/* Whatever has a colour. */
function colours() {
  mix();
  chips.tokens.forEach((chip, place) => {
    const given = data.given[place];
    if (!given) return;
    const share = Math.sqrt(given[0]), side = share < 0.5 ? "low" : "high";
    chip.style.background = `color-mix(in oklab, hsl(var(--${side})) ${(200 * Math.abs(share - 0.5)).toFixed(0)}%, var(--track))`;
  });
  document.querySelectorAll("#table td").forEach((cell) => shade(cell, +cell.dataset.share));
  thumbs.forEach(({ canvas, layer, head }) => {
    const [high, wide] = size(layer);
    paint(canvas, unpacked.get(layer), head * high * wide, high, wide, 64);
  });
}

function figures() {
  for (const [label, value] of data.figures) {
    const pair = make("div");
    pair.append(make("dt", "", label), make("dd", "", value));
    at("figures").append(pair);
  }
  at("notes").replaceChildren(...data.notes.map((note) => make("p", "", note)));
}

function listen() {
  at("layer").replaceChildren(...data.attention.map((each, n) => new Option(each.name, n)));
  at("layer").addEventListener("change", (event) => pick(+event.target.value, state.head));
  at("head").addEventListener("change", (event) => pick(state.layer, +event.target.value));
  const matrix = at("matrix");
  const show = (row, pin) => (data.attention[state.layer].rows === "tokens" ? choose : look)(row, pin);
  const row = (event) => {
    const [rows] = size(state.layer), box = matrix.getBoundingClientRect();
    return Math.min(rows - 1, Math.max(0, Math.floor(rows * (event.clientY - box.top) / box.height)));
  };
  matrix.addEventListener("pointermove", (event) => show(row(event), event.buttons > 0));
  matrix.addEventListener("pointerdown", (event) => show(row(event), true));
  matrix.addEventListener("keydown", (event) => {
    const { layer, head } = state, [rows] = size(layer);
    const down = { ArrowUp: -1, ArrowDown: 1 }[event.key], aside = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (down && state.row + down >= 0 && state.row + down < rows) show(state.row + down, true);
    if (aside && head + aside >= 0 && head + aside < data.attention[layer].heads) pick(layer, head + aside);
    if (down || aside) event.preventDefault();
  });
  for (const id of ["tokens", "matrix", "from"]) at(id).addEventListener("pointerleave", () => state.token !== state.pinned && choose(state.pinned, false));
  addEventListener("hashchange", recall);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { colours(); pick(state.layer, state.head); });
}

async function start() {
  figures();
  mix();
  if (data.source) {
    strip("source", "source");
    at("source").hidden = false;
  }
  strip("tokens", "tokens", choose);
  data.given.forEach((given, place) => {
    if (given) chips.tokens[place].title += `; expected with ${percent(given[0])}, number ${given[1]}`;
  });
  at("reading-hint").textContent = data.predicts
    ? "Colours say how much the model expected each token where it stands. Choose one to see what it expects there."
    : "Choose a token to see what it attends to.";
  if (data.predicts) table();
  for (const id of ["next", "lens", "surprise"]) at(id).hidden = !data.predicts;
  await grid();
  colours();
  listen();
  await recall();
  root.dataset.tokens = chips.tokens.length;
  root.dataset.cells = document.querySelectorAll("#table td").length;
  root.dataset.heads = thumbs.length;
  root.dataset.ready = "yes";
}

start().catch((error) => { root.dataset.error = String(error); throw error; });
