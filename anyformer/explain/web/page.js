/* The page of `explain`: the data are in the document, and the address says what is shown. */
import { at, make, root } from "./dom.js";
import { Look } from "./look.js";

/* The address can be sent to somebody. */
function remember(look) {
  const { layer, head } = look.attention;
  const address = `#layer=${layer}&head=${head}&token=${look.pinned}`;
  if (location.hash !== address) history.replaceState(null, "", address);
}

function recalled() {
  const told = new URLSearchParams(location.hash.slice(1)), wanted = {};
  for (const name of ["token", "layer", "head"]) if (/^\d{1,6}$/.test(told.get(name) || "")) wanted[name] = +told.get(name);
  return wanted;
}

function figures(data) {
  for (const [label, value] of data.figures) {
    const pair = make("div");
    pair.append(make("dt", "", label), make("dd", "", value));
    at("figures").append(pair);
  }
  at("notes").replaceChildren(...data.notes.map((note) => make("p", "", note)));
}

async function start() {
  const data = JSON.parse(at("data").textContent);
  figures(data);
  const wanted = recalled(), look = new Look(at("look"), data, { told: root, changed: remember });
  await look.start();
  addEventListener("hashchange", () => look.show(recalled()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => look.recolour());
  await look.show(wanted);
  root.dataset.ready = "yes";
}

start().catch((error) => { root.dataset.error = String(error); throw error; });
