"use strict";
const root = document.documentElement;
const at = (id) => document.getElementById(id);
const data = JSON.parse(at("data").textContent);
const variants = data.variants;
const shown = new Set(variants.flatMap((each, v) => (each.shown ? [v] : [])));
const state = { x: Object.keys(data.axes)[0], y: "loss", logX: false, logY: false, seeds: false, spread: true, lit: null, metric: 0 };

function make(tag, kind, text) {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  if (text !== undefined) made.textContent = text;
  return made;
}

function draw(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) if (value !== "" && value !== undefined) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const LETTERS = ["", "k", "M", "G", "T", "P", "E", "Z"];
/* Numbers as the rest of the page writes them. */
function short(value) {
  let size = Math.abs(value), step = 0;
  while (step < 7 && +size.toPrecision(3) >= 1000) { size /= 1000; step += 1; }
  const text = step === 0 && Number.isInteger(size) ? String(size) : String(+size.toPrecision(3));
  return `${value < 0 ? "-" : ""}${text} ${LETTERS[step]}`.trim();
}

function plain(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5) return short(value);
  if (size < 1e-3) return value.toExponential(2);
  return size >= 100 ? value.toFixed(1) : value.toFixed(4);
}

function ticks(low, high, most) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const rough = span / most, unit = 10 ** Math.floor(Math.log10(rough));
  const each = unit * [1, 2, 2.5, 5, 10].find((factor) => unit * factor >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / each - 1e-9); i <= Math.floor(high / each + 1e-9); i += 1) found.push(+(i * each).toPrecision(12));
  return found;
}

function logTicks(low, high) {
  const found = (factors) => {
    const values = [];
    for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p += 1)
      for (const factor of factors) if (factor * 10 ** p >= low && factor * 10 ** p <= high) values.push(+(factor * 10 ** p).toPrecision(12));
    return values;
  };
  for (const factors of [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 4, 5, 6, 8]]) if (found(factors).length >= 3) return found(factors);
  return ticks(low, high, 4);
}

/* Round numbers of one axis, with as many digits as tell them apart. */
function labels(values) {
  const top = Math.max(...values.map(Math.abs));
  if (top > 0 && top < 1e-3) return values.map((value) => (value ? value.toExponential(1) : "0"));
  const gaps = values.slice(1).map((value, i) => value - values[i]);
  const gap = gaps.length ? Math.min(...gaps) : top || 1;
  if (top >= 1e4 && gap >= top * 1e-3) {
    const step = Math.min(7, Math.floor(Math.log10(top) / 3 + 1e-9));
    return values.map((value) => (value ? `${+(value / 1000 ** step).toPrecision(6)} ${LETTERS[step]}` : "0"));
  }
  let digits = 0;
  while (digits < 10 && values.some((value) => Math.abs(+value.toFixed(digits) - value) > 1e-3 * gap)) digits += 1;
  return values.map((value) => value.toFixed(digits));
}

function scale(low, high, from, to, log) {
  const on = log ? Math.log : (value) => value, first = on(low), last = on(high);
  return (value) => from + ((to - from) * (on(Math.max(value, log ? low * 1e-6 : -Infinity)) - first)) / (last - first || 1);
}

/* A span that does not let a value that is far off press the others together. */
function robust(means, values) {
  const middle = [...means].sort((a, b) => a - b)[means.length >> 1], every = [...means, ...values].filter((value) => value !== null);
  const usual = every.map((value) => Math.abs(value - middle)).sort((a, b) => a - b)[Math.ceil(0.6 * (every.length - 1))];
  const near = every.filter((value) => Math.abs(value - middle) <= 6 * usual);
  const low = Math.min(...near), high = Math.max(...near), air = 0.07 * (high - low) || 0.02 * Math.abs(middle) || 1;
  return [low - air, high + air];
}

const look = (style) => `c${style.colour + 1}`;
const lit = (v) => (state.lit !== null && state.lit !== v ? " dim" : "");

/* A marker of a variant as a path around a point. */
function marker(mark, x, y, size) {
  const r = size, d = r * 1.2;
  const polygon = (points) => `M${points.map(([a, b]) => `${(x + a).toFixed(1)} ${(y + b).toFixed(1)}`).join("L")}Z`;
  if (mark < 0) return polygon(Array.from({ length: 10 }, (_, i) => [i, (i % 2 ? 0.6 : 1.5) * r]).map(([i, s]) => [s * Math.sin((i * Math.PI) / 5), -s * Math.cos((i * Math.PI) / 5)]));
  if (mark === 1) return polygon([[-r, -r], [r, -r], [r, r], [-r, r]]);
  if (mark === 2) return polygon([[0, -d], [d, 0], [0, d], [-d, 0]]);
  if (mark === 3) return polygon([[0, -d], [d, r], [-d, r]]);
  if (mark === 4) return polygon([[0, d], [d, -r], [-d, -r]]);
  if (mark === 5) return polygon([[-0.4 * r, -d], [0.4 * r, -d], [0.4 * r, -0.4 * r], [d, -0.4 * r], [d, 0.4 * r], [0.4 * r, 0.4 * r], [0.4 * r, d], [-0.4 * r, d], [-0.4 * r, 0.4 * r], [-d, 0.4 * r], [-d, -0.4 * r], [-0.4 * r, -0.4 * r]]);
  return `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`;
}

/* A drawing with axes; what leaves its frame is cut off. */
class Frame {
  constructor(box, { height, x, y, left, right = 16, top = 12, bottom = 46, words }) {
    this.width = Math.max(240, box.clientWidth);
    Object.assign(this, { box, height, right, top, bottom, x, y });
    const rows = y ? (y.log ? logTicks(y.low, y.high) : ticks(y.low, y.high, Math.round(height / 60))) : [];
    const texts = y ? (y.format ? rows.map(y.format) : labels(rows)) : [];
    this.left = left ?? 30 + 7.2 * Math.max(2, ...texts.map((text) => text.length));
    this.px = scale(x.low, x.high, this.left, this.width - right, x.log);
    this.py = y && scale(y.low, y.high, height - bottom, top, y.log);
    this.svg = draw("svg", { viewBox: `0 0 ${this.width} ${height}`, width: this.width, height, role: "img", "aria-label": words, tabindex: 0 });
    rows.forEach((value, i) => {
      const place = this.py(value).toFixed(1);
      this.add("line", { class: "grid", x1: this.left, x2: this.width - right, y1: place, y2: place });
      this.add("text", { x: this.left - 7, y: +place + 4, "text-anchor": "end" }, texts[i]);
    });
    if (y) this.add("text", { x: 12, y: (top + height - bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(top + height - bottom) / 2})` }, y.words);
    this.across();
    const wide = this.width - this.left - right, tall = height - top - bottom;
    this.inner = draw("svg", { x: this.left, y: top, width: wide, height: tall, viewBox: `${this.left} ${top} ${wide} ${tall}` });
    this.svg.append(this.inner);
  }
  across() {
    const { x, height, bottom, left, width, right } = this, room = Math.min(9, Math.max(2, Math.floor((width - left - right) / 66)));
    const values = x.at || (x.log ? logTicks(x.low, x.high) : ticks(x.low, x.high, room));
    const texts = x.format ? values.map(x.format) : labels(values);
    this.add("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom });
    let last = -Infinity;
    values.forEach((value, i) => {
      const place = this.px(value), half = 3.4 * texts[i].length;
      if (place - half < last + 8 || place + half > width) return;
      last = place + half;
      this.add("text", { x: place.toFixed(1), y: height - bottom + 17, "text-anchor": "middle" }, texts[i]);
    });
    this.add("text", { x: (left + width - right) / 2, y: height - bottom + 36, "text-anchor": "middle" }, x.log ? `${x.words}, log scale` : x.words);
  }
  add(tag, attributes, text) { this.svg.append(draw(tag, attributes, text)); }
  put(tag, attributes, text) { this.inner.append(draw(tag, attributes, text)); }
  path(xs, ys) { return xs.map((x, i) => `${i ? "L" : "M"}${this.px(x).toFixed(1)} ${this.py(ys[i]).toFixed(1)}`).join(""); }
  area(xs, low, high) { return `${this.path(xs, low)}L${this.path([...xs].reverse(), [...high].reverse()).slice(1)}Z`; }
  /* Stops are places that a pointer or the arrow keys can be at: { px, py, tell } with what the tip says there. */
  finish(stops, near) {
    const { svg, box } = this, tip = make("div", "tip"), pins = draw("g", {});
    svg.append(pins);
    tip.hidden = true;
    tip.setAttribute("role", "status");
    let now = -1;
    const leave = () => { tip.hidden = true; pins.replaceChildren(); now = -1; };
    const show = (i) => {
      if (i < 0 || i >= stops.length) return leave();
      if (i !== now) {
        now = i;
        tip.replaceChildren(...stops[i].tell());
        pins.replaceChildren(...stops[i].pins());
      }
      tip.hidden = false;
      const { px, py } = stops[i], ratio = box.clientWidth / this.width;
      const x = px * ratio + (px * ratio > box.clientWidth / 2 ? -tip.offsetWidth - 14 : 14);
      tip.style.left = `${Math.max(0, Math.min(x, box.clientWidth - tip.offsetWidth))}px`;
      tip.style.top = `${Math.max(0, Math.min(py - tip.offsetHeight / 2, this.height - tip.offsetHeight))}px`;
    };
    const find = (event) => {
      const place = svg.getBoundingClientRect(), ratio = this.width / place.width;
      const x = (event.clientX - place.left) * ratio, y = (event.clientY - place.top) * ratio;
      let best = -1, least = Infinity;
      stops.forEach((stop, i) => { const far = near(stop, x, y); if (far < least) [best, least] = [i, far]; });
      show(best);
    };
    svg.addEventListener("pointermove", find);
    svg.addEventListener("pointerdown", find);
    svg.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && leave());
    svg.addEventListener("blur", leave);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
      const wanted = event.key === "Home" ? 0 : event.key === "End" ? stops.length - 1 : step ? Math.min(stops.length - 1, Math.max(0, now + step)) : -1;
      if (event.key === "Escape") leave();
      if (wanted < 0) return;
      event.preventDefault();
      show(wanted);
    });
    const focused = box.contains(document.activeElement) && document.activeElement.tagName.toLowerCase() === "svg";
    box.replaceChildren(svg, tip);
    if (focused) svg.focus();
  }
}

/* Lines of a tip: a swatch, a name and what stands there. */
function tipTable(rows) {
  const table = make("table"), body = make("tbody");
  for (const [style, name, ...cells] of rows) {
    const line = make("tr"), head = make("th");
    if (style) {
      const swatch = draw("svg", { class: look(style), width: 26, height: 8, viewBox: "0 0 26 8" });
      swatch.append(draw("line", { class: "line", x1: 0, x2: 26, y1: 4, y2: 4, "stroke-dasharray": data.dashes[style.dash] }));
      head.append(swatch, " ");
    }
    head.append(name);
    line.append(head, ...cells.map((cell) => make("td", "", cell)));
    body.append(line);
  }
  table.append(body);
  return table;
}

const TOLD = 12;
/* Lines over shared x: at a stop, all that have a value near it, in order. */
function lineStops(frame, lines, word) {
  const xs = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const stops = [];
  for (const x of xs) if (!stops.length || frame.px(x) - stops[stops.length - 1].px >= 3) stops.push({ x, px: frame.px(x) });
  const reach = Math.max(12, (frame.width - frame.left) / 30);
  for (const stop of stops) {
    const found = [];
    for (const line of lines) {
      let best = -1, least = reach;
      line.x.forEach((x, i) => { const far = Math.abs(frame.px(x) - stop.px); if (far < least) [best, least] = [i, far]; });
      if (best >= 0) found.push([line, best]);
    }
    found.sort(([a, i], [b, j]) => a.y[i] - b.y[j]);
    stop.py = found.length ? Math.max(frame.top, Math.min(...found.map(([line, i]) => frame.py(line.y[i])))) : frame.top;
    stop.tell = () => {
      const rows = found.slice(0, TOLD).map(([line, i]) => [line.style, line.name, plain(line.y[i]), line.low && line.low[i] !== null ? `${plain(line.low[i])} to ${plain(line.high[i])}` : ""]);
      if (found.length > TOLD) rows.push([null, `and ${found.length - TOLD} more`]);
      return [make("b", "", word(stop.x)), tipTable(rows)];
    };
    stop.pins = () => [
      draw("line", { class: "cross", x1: stop.px, x2: stop.px, y1: frame.top, y2: frame.height - frame.bottom }),
      ...found.filter(([line, i]) => frame.py(line.y[i]) >= frame.top - 1 && frame.py(line.y[i]) <= frame.height - frame.bottom + 1)
        .map(([line, i]) => draw("circle", { class: `point ${look(line.style)}`, cx: frame.px(line.x[i]), cy: frame.py(line.y[i]), r: 4 })),
    ];
  }
  return stops;
}
const across = (stop, x) => Math.abs(stop.px - x);

function runX(run) {
  const along = run.x[state.x];
  if (along === undefined) return null;
  return typeof along === "number" ? data.grids[along] : data.grids[run.step].map((step) => step * along.each);
}

function drawCurves() {
  const box = at("curves-plot");
  if (!box) return;
  const apart = state.y === "apart", source = apart ? data.apart[state.x] || [] : data.bands;
  const lines = source.filter((band) => shown.has(band.v)).map((band) => ({
    ...band, x: data.grids[apart ? band.x : band.x[state.x]], style: variants[band.v], name: variants[band.v].name,
  })).filter((line) => line.x);
  const log = { x: state.logX, y: state.logY && !apart };
  if (!lines.length) {
    box.replaceChildren(make("p", "", apart ? "Nothing but the base is shown: pick a variant above." : "No variant is shown: pick one above."));
    return;
  }
  const right = Math.max(...lines.map((line) => line.x[line.x.length - 1]));
  const first = Math.min(...lines.map((line) => line.x.find((x) => x > 0) ?? right));
  const ends = lines.map((line) => Math.abs(line.y[line.y.length - 1])).sort((a, b) => a - b);
  const usual = ends[ends.length >> 1];
  /* Before the first steep fall is over, and far beyond the usual difference, there is little to see. */
  const near = apart ? lines.filter((line) => Math.abs(line.y[line.y.length - 1]) <= 6 * usual) : lines;
  const begin = log.x ? 0 : 0.1;
  const values = near.flatMap((line) => line.y.filter((_, i) => line.x[i] >= begin * right));
  if (apart) values.push(0);
  let low = Math.min(...values), high = Math.max(...values);
  const air = 0.07 * (high - low) || 0.05 * Math.abs(high) || 1;
  [low, high] = log.y ? [low / 1.02, high * 1.02] : [low - air, high + air];
  const frame = new Frame(box, {
    height: box.clientWidth < 560 ? 320 : 420,
    x: { low: log.x ? first : 0, high: right, log: log.x, words: data.axes[state.x] },
    y: { low, high, log: log.y, words: apart ? "difference from the base (nats)" : "held-out loss (nats)" },
    words: `${apart ? "Difference of held-out loss from the base" : "Held-out loss"} over ${data.axes[state.x]}`,
  });
  if (apart) frame.put("line", { class: "mark", x1: frame.left, x2: frame.width, y1: frame.py(0), y2: frame.py(0) });
  if (state.spread) for (const line of lines) if (line.low) frame.put("path", { class: `spread ${look(line.style)}${lit(line.v)}`, d: frame.area(line.x, line.low, line.high) });
  if (!apart) for (const run of data.runs) {
    const x = shown.has(run.v) && (state.seeds || run.lost) ? runX(run) : null;
    if (!x) continue;
    frame.put("path", { class: `run ${look(variants[run.v])}${run.lost ? " lost" : ""}${lit(run.v)}`, d: frame.path(x, run.y) });
    if (run.lost) frame.put("text", { class: `own ${look(variants[run.v])}${lit(run.v)}`, x: frame.px(x[x.length - 1]), y: frame.py(run.y[run.y.length - 1]) + 4, "text-anchor": "middle" }, "\u00d7");
  }
  for (const line of lines) frame.put("path", { class: `line ${look(line.style)}${lit(line.v)}`, "stroke-dasharray": data.dashes[line.style.dash], d: frame.path(line.x, line.y) });
  const unit = { tokens: "tokens", flops: "FLOPs", time: "s" }[state.x];
  frame.finish(lineStops(frame, lines, (x) => `${short(x)} ${unit}`), across);
  root.dataset.lines = lines.length;
}

function fit(text, letters) {
  if (text.length <= letters) return text;
  const half = Math.max(3, Math.floor((letters - 1) / 2));
  return `${text.slice(0, half)}\u2026${text.slice(-half)}`;
}

const kind = (outcome) => outcome.replace("'", "").replaceAll(" ", "-");
function drawFinals() {
  const box = at("finals-plot"), found = data.finals[state.metric];
  if (!box || !found) return;
  const narrow = box.clientWidth < 640, rows = found.rows, each = narrow ? 46 : 30;
  const [low, high] = robust(rows.map((row) => row.y), rows.flatMap((row) => [row.low, row.high, ...row.values.map(([, value]) => value)]));
  const said = (row) => (row.outcome === "base" ? "base" : `${row.difference ? row.difference.split(" (")[0] : ""}  ${row.lost || row.outcome}`.trim());
  const longest = Math.max(...[...rows, ...found.missing].map((row) => variants[row.v].name.length));
  const left = narrow ? 8 : Math.min(0.34 * box.clientWidth, 24 + 7 * longest);
  const right = narrow ? 8 : 24 + 6.6 * Math.max(...rows.map((row) => said(row).length), ...found.missing.map((row) => row.words.length));
  const frame = new Frame(box, {
    height: 12 + each * (rows.length + found.missing.length) + 50, left, right, bottom: 50,
    x: { low, high, words: found.words }, words: `${found.words}: ${rows.map((row) => `${variants[row.v].name} ${row.words}`).join("; ")}`,
  });
  const place = (i) => frame.top + each * (i + (narrow ? 0.68 : 0.5)), clamp = (value) => frame.px(Math.min(high, Math.max(low, value)));
  if (found.base !== null) frame.put("line", { class: "mark", x1: clamp(found.base), x2: clamp(found.base), y1: frame.top, y2: frame.height - frame.bottom });
  const title = (v, y, words, group) => {
    const name = variants[v].name;
    if (narrow) {
      frame.add("text", { class: "name over", x: frame.left, y: y - 14 }, fit(name, Math.floor((frame.width - 24) / 7) - words.length));
      frame.add("text", { class: `said over ${group}`, x: frame.width - 8, y: y - 14, "text-anchor": "end" }, words);
    } else {
      frame.add("text", { class: "name", x: left - 12, y: y + 4, "text-anchor": "end" }, fit(name, Math.floor((left - 16) / 7)));
      frame.add("text", { class: `said ${group}`, x: frame.width - right + 12, y: y + 4 }, words);
    }
  };
  found.missing.forEach((row, i) => title(row.v, place(rows.length + i), row.words, "lost"));
  const stops = rows.map((row, i) => {
    const y = place(i), group = kind(row.outcome), name = variants[row.v].name;
    if (row.low !== null) frame.put("line", { class: `bar thin ${group}`, x1: frame.px(row.low), x2: frame.px(row.high), y1: y, y2: y });
    if (row.ends) frame.put("line", { class: `bar thick ${group}`, x1: frame.px(row.ends[0]), x2: frame.px(row.ends[1]), y1: y, y2: y });
    for (const [, value] of row.values) frame.put("circle", { class: `seed ${group}`, cx: frame.px(value).toFixed(1), cy: y + 9, r: 2.2 });
    const x = clamp(row.y), beyond = row.y > high ? "\u25b6" : row.y < low ? "\u25c0" : "";
    if (beyond) frame.add("text", { class: `said ${group}`, x, y: y + 4, "text-anchor": row.y > high ? "end" : "start" }, beyond);
    else frame.add("circle", { class: `dot ${group}`, cx: x.toFixed(1), cy: y, r: 5 });
    title(row.v, y, said(row), group);
    return {
      px: x, py: y,
      pins: () => [draw("line", { class: "cross", x1: 0, x2: frame.width, y1: frame.top + each * (i + 1), y2: frame.top + each * (i + 1) })],
      tell: () => {
        const lines = [[null, "mean", row.words.replace("+-", "\u00b1")]];
        if (row.difference) lines.push([null, "difference", row.difference]);
        if (row.outcome !== "base") lines.push([null, "outcome", row.outcome]);
        for (const [seed, value] of row.values.slice(0, TOLD)) lines.push([null, `${found.metric.endsWith("per_second") ? "round" : "seed"} ${seed}`, plain(value)]);
        const parts = [make("b", "", name), tipTable(lines)];
        if (row.reason) parts.push(make("div", "", row.reason));
        return parts;
      },
    };
  });
  frame.finish(stops, (stop, x, y) => Math.abs(stop.py - y));
  root.dataset.rows = rows.length;
}

function drawCost(found, place) {
  const box = at(`cost-${place}`);
  if (!box) return;
  const points = found.points, xs = points.flatMap((point) => point.x);
  const [low, high] = robust(points.map((point) => point.y), points.flatMap((point) => [point.low, point.high]));
  const from = Math.min(...xs), to = Math.max(...xs), air = 0.1 * (to - from) || 0.1 * to;
  const frame = new Frame(box, {
    height: 340, x: { low: from - air, high: to + air, words: found.words },
    y: { low, high, words: data.metric.replace("nats per token", "nats") }, words: `${data.metric} against ${found.words}`,
  });
  const taken = points.map((point) => [frame.px(point.x[0]) - 6, frame.py(point.y) - 6, frame.px(point.x[0]) + 6, frame.py(point.y) + 6]);
  const few = points.length <= 9, first = (point) => (point.v === data.base ? 0 : point.front ? 1 : 2);
  const stops = [...points].sort((a, b) => first(a) - first(b)).map((point) => {
    const style = variants[point.v], on = shown.has(point.v), colour = on ? look(style) + lit(point.v) : "faint";
    const x = frame.px(point.x[0]), y = frame.py(point.y);
    frame.put("line", { class: `interval ${colour}`, x1: frame.px(point.x[1]), x2: frame.px(point.x[2]), y1: y, y2: y });
    if (point.low !== null) frame.put("line", { class: `interval ${colour}`, x1: x, x2: x, y1: frame.py(point.low), y2: frame.py(point.high) });
    frame.put("path", { class: `point ${colour}`, d: marker(style.mark, x, y, on ? 5 : 4) });
    if (on && (few || point.front || point.v === data.base)) {
      const text = fit(style.name, Math.floor(frame.width / 20)), wide = 6.7 * text.length;
      for (const [dx, dy, anchor] of [[8, -9, "start"], [8, 15, "start"], [-8, -9, "end"], [-8, 15, "end"], [0, -14, "middle"], [0, 22, "middle"]]) {
        const left = x + dx - { start: 0, middle: wide / 2, end: wide }[anchor], area = [left, y + dy - 10, left + wide, y + dy + 2];
        if (area[0] < frame.left || area[2] > frame.width || area[1] < frame.top || taken.some((other) => area[0] < other[2] && other[0] < area[2] && area[1] < other[3] && other[1] < area[3])) continue;
        taken.push(area);
        frame.add("text", { class: `own ${colour}`, x: x + dx, y: y + dy, "text-anchor": anchor }, text);
        break;
      }
    }
    return {
      px: x, py: y, pins: () => [draw("circle", { class: "cross", cx: x, cy: y, r: 10, fill: "none" })],
      tell: () => [make("b", "", style.name), tipTable([[null, found.words.replace(/ \(.*/, ""), short(point.x[0])], [null, data.metric.replace(/ \(.*/, ""), plain(point.y)]])],
    };
  });
  stops.sort((a, b) => a.px - b.px);
  frame.finish(stops, (stop, x, y) => { const far = Math.hypot(stop.px - x, stop.py - y); return far < 60 ? far : Infinity; });
}

function drawNumbers(box, lines, { x, base, words }) {
  if (!box) return;
  if (!lines.length) {
    box.replaceChildren(make("p", "", "No variant is shown: pick one above."));
    return;
  }
  const every = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b), means = lines.flatMap((line) => line.y);
  if (base) means.push(base.y);
  const [low, high] = robust(means, lines.flatMap((line) => [...line.low, ...line.high]));
  const edge = x.log ? (every[every.length - 1] / every[0]) ** 0.04 : 0.04 * (every[every.length - 1] - every[0]) || 1;
  const frame = new Frame(box, {
    height: box.clientWidth < 560 ? 300 : 360, words: `${words} over ${x.words}`,
    x: { ...x, low: x.log ? every[0] / edge : every[0] - edge, high: x.log ? every[every.length - 1] * edge : every[every.length - 1] + edge, at: every.length <= 14 ? every : undefined },
    y: { low, high, words: words.replace("nats per token", "nats") },
  });
  if (base) {
    frame.put("line", { class: "mark", x1: frame.left, x2: frame.width, y1: frame.py(base.y), y2: frame.py(base.y) });
    frame.put("text", { class: "name over", x: frame.width - frame.right - 6, y: frame.py(base.y) - 5, "text-anchor": "end" }, "base");
  }
  for (const line of lines) {
    const colour = look(line.style) + (line.v === null ? "" : lit(line.v));
    line.x.forEach((value, i) => {
      if (line.low[i] !== null) frame.put("line", { class: `interval ${colour}`, x1: frame.px(value), x2: frame.px(value), y1: frame.py(line.low[i]), y2: frame.py(line.high[i]) });
    });
    frame.put("path", { class: `line ${colour}`, "stroke-dasharray": data.dashes[line.style.dash], d: frame.path(line.x, line.y) });
    line.x.forEach((value, i) => frame.put("path", { class: `point ${colour}`, d: marker(line.style.mark, frame.px(value), frame.py(line.y[i]), 4) }));
  }
  frame.finish(lineStops(frame, lines, (value) => `${x.words}: ${plainX(value)}`), across);
}
const plainX = (value) => (Number.isInteger(value) ? value.toLocaleString("en") : String(value));

function drawLengths() {
  const lines = data.lengths.filter((line) => shown.has(line.v)).map((line) => ({ ...line, style: variants[line.v], name: line.label }));
  at("lengths-keys").replaceChildren(...lines.map((line) => key(make("span", "key"), line.style, line.name)));
  drawNumbers(at("lengths-plot"), lines, { x: { log: true, words: "length of evaluated rows (tokens)", format: plainX }, words: "held-out loss (nats per token)" });
}

function drawSweeps() {
  data.sweeps.forEach((sweep, place) => {
    const lines = sweep.lines.map((line) => ({ ...line, style: line, name: line.label || sweep.key }));
    const keys = at(`sweep-${place}-keys`);
    if (lines.length > 1 || sweep.lines[0].label) keys.replaceChildren(...lines.map((line) => key(make("span", "key"), line.style, line.name)));
    drawNumbers(at(`sweep-${place}-plot`), lines, { x: { log: sweep.log, words: sweep.key, format: String }, base: sweep.base, words: data.metric });
  });
}

function key(element, style, name) {
  const swatch = draw("svg", { class: look(style), viewBox: "0 0 38 10", width: 38, height: 10, "aria-hidden": "true" });
  swatch.append(draw("line", { class: "line", x1: 1, x2: 37, y1: 5, y2: 5, "stroke-dasharray": data.dashes[style.dash] }));
  element.append(swatch, fit(name, 70));
  if (name.length > 70) element.title = name;
  return element;
}

const buttons = [];
function press() {
  buttons.forEach(([v, button]) => button.setAttribute("aria-pressed", String(shown.has(v))));
  redraw();
}

function keys() {
  const box = at("keys");
  if (!box) return;
  const order = variants.map((_, v) => v).sort((a, b) => variants[a].rank - variants[b].rank);
  for (const v of order) {
    const button = key(make("button", "key"), variants[v], variants[v].name);
    button.type = "button";
    button.addEventListener("click", () => { if (!shown.delete(v)) shown.add(v); press(); });
    const light = (on) => () => { state.lit = on && shown.has(v) ? v : null; redraw(); };
    button.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && light(true)());
    button.addEventListener("pointerleave", light(false));
    buttons.push([v, button]);
  }
  box.replaceChildren(...buttons.map(([, button]) => button));
  at("all").addEventListener("click", () => { variants.forEach((_, v) => shown.add(v)); press(); });
  at("none").addEventListener("click", () => { shown.clear(); if (data.base !== null) shown.add(data.base); press(); });
}

function controls() {
  document.querySelectorAll(".controls").forEach((each) => { each.hidden = false; });
  const listen = (id, name, read) => at(id) && at(id).addEventListener("change", (event) => { state[name] = read(event.target); redraw(); });
  listen("x", "x", (target) => target.value);
  listen("y", "y", (target) => target.value);
  listen("log-x", "logX", (target) => target.checked);
  listen("log-y", "logY", (target) => target.checked);
  listen("seeds", "seeds", (target) => target.checked);
  listen("spread", "spread", (target) => target.checked);
  listen("final-metric", "metric", (target) => +target.value);
  if (at("y") && !Object.keys(data.apart).length) at("y").parentElement.hidden = true;
}

/* A click on the head of a column sorts by it; what has no value comes last either way. */
function sorting() {
  const table = at("rows");
  if (!table) return;
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0], given = [...body.rows];
  heads.forEach((head, column) => {
    const button = make("button", "", head.textContent);
    button.type = "button";
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const before = head.getAttribute("aria-sort"), down = before === "ascending";
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      if (before === "descending") return body.append(...given);
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => row.cells[column].dataset.key ?? "";
      const numbers = given.every((row) => value(row) === "" || Number.isFinite(+value(row)));
      const order = (a, b) => (numbers ? +a - +b : a.localeCompare(b)) * (down ? -1 : 1);
      body.append(...given.map((row) => [value(row), row]).sort(([a], [b]) => (a === "") - (b === "") || (a === b ? 0 : order(a, b))).map(([, row]) => row));
    });
  });
}

let pending = 0;
function redraw() {
  cancelAnimationFrame(pending);
  pending = requestAnimationFrame(drawAll);
}

function drawAll() {
  drawFinals();
  drawCurves();
  data.costs.forEach(drawCost);
  if (data.lengths.length) drawLengths();
  drawSweeps();
}

try {
  controls();
  keys();
  sorting();
  press();
  drawAll();
  let width = root.clientWidth;
  addEventListener("resize", () => { if (root.clientWidth !== width) { width = root.clientWidth; redraw(); } });
  root.dataset.ready = "yes";
} catch (error) {
  root.dataset.error = String(error);
  throw error;
}
