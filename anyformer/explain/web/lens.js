/* What a model would answer after each of its layers, as a table of layers and tokens. */
import { grow, make, percent, plain, write } from "./dom.js";
import { shade } from "./heat.js";

export class Lens {
  constructor(box, data, choose) {
    this.box = box;
    const top = make("tr"), body = make("tbody");
    top.append(make("td", "corner"));
    data.ids.forEach((token, place) => {
      const cell = write(grow("th", { scope: "col" }), data.texts[token]);
      cell.dataset.place = place;
      top.append(cell);
    });
    const last = data.layers[data.layers.length - 1];
    for (const layer of data.layers) {
      const line = make("tr", layer === last ? "own" : "");
      line.append(grow("th", { scope: "row" }, layer === last ? `${layer.name}, the answer` : layer.name));
      layer.top.forEach((candidates, place) => {
        const [token, share] = candidates[0];
        const cell = write(make("td", layer !== last && token === last.top[place][0][0] ? "same" : ""), data.texts[token]);
        cell.dataset.place = place;
        cell.dataset.share = share;
        cell.title = candidates.slice(0, 3).map(([each, p]) => `${plain(data.texts[each])}  ${percent(p)}`).join("\n");
        line.append(cell);
      });
      body.append(line);
    }
    const made = grow("table", {}, grow("thead", {}, top), body);
    made.addEventListener("click", (event) => {
      const cell = event.target.closest("[data-place]");
      if (cell) choose(+cell.dataset.place, true);
    });
    box.replaceChildren(made);
    this.cells = box.querySelectorAll("tbody td");
  }

  mark(place) {
    this.box.querySelectorAll(".on").forEach((cell) => cell.classList.remove("on"));
    const column = this.box.querySelectorAll(`[data-place="${place}"]`);
    column.forEach((cell) => cell.classList.add("on"));
    this.reveal(column[0]);
  }

  /* Scroll sideways until a column is there to be seen; the names of the layers cover the left of it. */
  reveal(head) {
    const { left, right } = head.getBoundingClientRect(), box = this.box.getBoundingClientRect();
    const names = this.box.querySelector("tbody th").offsetWidth;
    if (left < box.left + names) this.box.scrollLeft -= box.left + names - left;
    else if (right > box.right) this.box.scrollLeft += right - box.right + 4;
  }

  colours() {
    this.cells.forEach((cell) => shade(cell, +cell.dataset.share));
  }
}
